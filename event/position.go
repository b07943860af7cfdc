package event

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Position is where an event was first committed: the index of its log entry and its ordinal in it. It never changes (I6).
//
// The ordinal counts every event of every batch of the entry in the order they stand there, those rejected at apply
// included, so that positions follow from the log alone. The zero Position is no position: indexes start at 1.
type Position struct {
	Index   uint64
	Ordinal uint32
}

// String gives INDEX.ORD, the form used in URLs, answers and on the command line.
func (p Position) String() string {
	return strconv.FormatUint(p.Index, 10) + "." + strconv.FormatUint(uint64(p.Ordinal), 10)
}

// IsZero tells whether p is no position.
func (p Position) IsZero() bool { return p.Index == 0 }

// Compare orders positions as the log does.
func (p Position) Compare(q Position) int {
	if c := cmp.Compare(p.Index, q.Index); c != 0 {
		return c
	}
	return cmp.Compare(p.Ordinal, q.Ordinal)
}

// MarshalText and UnmarshalText make a Position a string in JSON.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText accepts what ParsePosition does.
func (p *Position) UnmarshalText(b []byte) error {
	q, err := ParsePosition(string(b))
	if err != nil {
		return err
	}
	*p = q
	return nil
}

// ParsePosition reads INDEX or INDEX.ORD; a missing ordinal is 0.
func ParsePosition(s string) (Position, error) {
	is, os, dotted := strings.Cut(s, ".")
	index, err := strconv.ParseUint(is, 10, 64)
	if err != nil {
		return Position{}, fmt.Errorf("position %q: want INDEX or INDEX.ORD, both unsigned decimal numbers", s)
	}
	if !dotted {
		return Position{Index: index}, nil
	}
	ordinal, err := strconv.ParseUint(os, 10, 32)
	if err != nil {
		return Position{}, fmt.Errorf("position %q: want INDEX or INDEX.ORD, both unsigned decimal numbers", s)
	}
	return Position{Index: index, Ordinal: uint32(ordinal)}, nil
}
