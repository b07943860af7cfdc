package spec

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// Duration is a span of time that is written with its unit: "1s", "10m", "1h30m", "0s". Nanoseconds inside. It is never
// negative, and a bare number other than 0 is refused: nobody knows what was meant.
type Duration int64

// Size is a number of bytes that is written with its unit: "512B", "8MiB", "10GiB"; also kB, MB, GB as powers of 1000. 0 may stand bare.
type Size int64

// Duration gives d as the standard library's.
func (d Duration) Duration() time.Duration { return time.Duration(d) }

// String gives the shortest form that ParseDuration reads back: "10m", not "10m0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// ParseDuration reads a duration with its unit.
func ParseDuration(s string) (Duration, error) {
	if s == "0" {
		return 0, nil
	}
	if isNumber(s) {
		return 0, fmt.Errorf("duration %q has no unit; write for example %ss or %sms", s, s, s)
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("duration %q: want numbers with the units h, m, s, ms, us or ns, such as 1h30m or 500ms", s)
	}
	if d < 0 {
		return 0, fmt.Errorf("duration %q is negative", s)
	}
	return Duration(d), nil
}

// isNumber tells whether s is a plain decimal number.
func isNumber(s string) bool {
	_, err := strconv.ParseFloat(s, 64)
	return err == nil && strings.Trim(s, "+-0123456789.") == ""
}

// The units of sizes; formatting takes the first that divides.
var units = []struct {
	name  string
	bytes int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1},
}

// String gives the shortest exact form: "8MiB", "1500B".
func (s Size) String() string {
	for _, u := range units {
		if s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}
	return "0B"
}

// ParseSize reads a size with its unit.
func ParseSize(s string) (Size, error) {
	if s == "0" {
		return 0, nil
	}
	if isNumber(s) {
		return 0, fmt.Errorf("size %q has no unit; write for example %sB, %sKiB or %sMiB", s, s, s, s)
	}
	digits := strings.TrimLeft(s, "0123456789")
	n, err := strconv.ParseInt(s[:len(s)-len(digits)], 10, 64)
	unit := strings.TrimLeft(digits, " ")
	if unit == "KB" {
		unit = "kB"
	}
	for _, u := range units {
		if err == nil && unit == u.name {
			if n > math.MaxInt64/u.bytes {
				return 0, fmt.Errorf("size %q is too large", s)
			}
			return Size(n * u.bytes), nil
		}
	}
	return 0, fmt.Errorf("size %q: want a whole number with one of the units B, KiB, MiB, GiB, TiB, kB, MB, GB, TB", s)
}

// count is a number of things: 10000000, or "10M", "500k".
type count int

func parseCount(s string) (count, error) {
	factor := 1
	digits := s
	switch {
	case strings.HasSuffix(s, "k"):
		factor, digits = 1_000, s[:len(s)-1]
	case strings.HasSuffix(s, "M"):
		factor, digits = 1_000_000, s[:len(s)-1]
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt32 {
		return 0, fmt.Errorf("count %q: want a whole number, which may end in k (thousands) or M (millions)", s)
	}
	return count(int(n) * factor), nil
}

// MarshalText gives String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// MarshalText gives String.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText accepts what ParseDuration does.
func (d *Duration) UnmarshalText(b []byte) error { return assign(d, string(b), ParseDuration) }

// UnmarshalText accepts what ParseSize does.
func (s *Size) UnmarshalText(b []byte) error { return assign(s, string(b), ParseSize) }

// UnmarshalJSON accepts a string; a number gets the answer that it has no unit.
func (d *Duration) UnmarshalJSON(b []byte) error { return assignJSON(d, b, ParseDuration) }

// UnmarshalJSON accepts a string; a number gets the answer that it has no unit.
func (s *Size) UnmarshalJSON(b []byte) error { return assignJSON(s, b, ParseSize) }

func (c *count) UnmarshalJSON(b []byte) error { return assignJSON(c, b, parseCount) }

// UnmarshalYAML accepts what ParseDuration does; errors carry line and column.
func (d *Duration) UnmarshalYAML(n ast.Node) error { return assignYAML(d, n, ParseDuration) }

// UnmarshalYAML accepts what ParseSize does; errors carry line and column.
func (s *Size) UnmarshalYAML(n ast.Node) error { return assignYAML(s, n, ParseSize) }

func (c *count) UnmarshalYAML(n ast.Node) error { return assignYAML(c, n, parseCount) }

// MarshalYAML gives String.
func (d Duration) MarshalYAML() (any, error) { return d.String(), nil }

// MarshalYAML gives String.
func (s Size) MarshalYAML() (any, error) { return s.String(), nil }

func assign[T any](dst *T, s string, parse func(string) (T, error)) error {
	v, err := parse(s)
	if err == nil {
		*dst = v
	}
	return err
}

func assignJSON[T any](dst *T, b []byte, parse func(string) (T, error)) error {
	s := string(b)
	switch {
	case s == "null":
		return nil
	case len(s) >= 2 && s[0] == '"':
		s = s[1 : len(s)-1] // no value that is right holds an escape
	case s[0] == '{' || s[0] == '[' || s[0] == 't' || s[0] == 'f':
		return errors.New("want a string, such as \"10m\" or \"8MiB\"")
	}
	return assign(dst, s, parse)
}

func assignYAML[T any](dst *T, n ast.Node, parse func(string) (T, error)) error {
	if n.Type() == ast.NullType {
		return nil
	}
	if err := assign(dst, n.GetToken().Value, parse); err != nil {
		return &yaml.SyntaxError{Message: err.Error(), Token: n.GetToken()}
	}
	return nil
}
