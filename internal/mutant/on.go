//go:build mutants

package mutant

import (
	"fmt"
	"os"
	"slices"
)

// Built tells whether this binary can have planted bugs.
const Built = true

var chosen = choose(os.Getenv("PENSTOCK_MUTANT"))

// choose refuses an unknown name: a mutant that never was planted would look like one that nothing catches.
func choose(name string) Name {
	n := Name(name)
	if name != "" && !slices.Contains(All(), n) {
		fmt.Fprintf(os.Stderr, "penstock: PENSTOCK_MUTANT=%s: no planted bug has that name\n", name)
		os.Exit(2)
	}
	if name != "" {
		fmt.Fprintf(os.Stderr, "penstock: THIS PROCESS HAS A PLANTED BUG: %s. It loses data on purpose.\n", name)
	}
	return n
}

// On tells whether the bug was chosen with PENSTOCK_MUTANT.
func On(n Name) bool { return n == chosen }
