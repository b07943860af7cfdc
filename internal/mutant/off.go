//go:build !mutants

package mutant

// Built tells whether this binary can have planted bugs.
const Built = false

// On is always false in a binary without the build tag.
func On(Name) bool { return false }
