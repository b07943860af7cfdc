package event

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf8"
)

// The scanner below accepts exactly the JSON texts of RFC 8259 that are valid UTF-8 and not nested deeper than asked, and
// says at which byte anything else goes wrong. It never copies and never decodes: what it accepts is kept as it is, so
// big integers, key order, repeated keys and escapes survive. Where the RFC leaves a choice, the rule is:
//
//   - invalid UTF-8 is refused, at the first bad byte (overlong forms and encoded surrogates are invalid UTF-8);
//   - a lone surrogate escape such as \ud800 is accepted and kept as written;
//   - numbers have no limit of size or precision;
//   - a repeated key is accepted and kept;
//   - a byte order mark before the text is refused, and so is UTF-16.
//
// FuzzJSON holds it against encoding/json.

// syntaxError is what is wrong with a JSON text, and at which byte of it.
type syntaxError struct {
	at     int
	reason string
}

// checkJSON validates b as one JSON text with nothing but white space around it.
func checkJSON(b []byte, depth int) *syntaxError {
	s := scanner{b: b, depth: depth}
	i := s.space(0)
	i = s.value(i, depth)
	if s.err == nil {
		if i = s.space(i); i < len(b) {
			s.unexpected(i, "the end of the text")
		}
	}
	return s.err
}

// scanner walks over a JSON text. Its methods take the index to start at and return the index behind what they read;
// after a fault they return len(b) and err is set.
type scanner struct {
	b     []byte
	depth int // the limit, for the message
	err   *syntaxError
}

func (s *scanner) fail(at int, format string, args ...any) int {
	if s.err == nil {
		s.err = &syntaxError{at: at, reason: fmt.Sprintf(format, args...)}
	}
	return len(s.b)
}

// unexpected reports what stands at index at instead of want.
func (s *scanner) unexpected(at int, want string) int {
	rest := s.b[min(at, len(s.b)):]
	switch {
	case len(rest) == 0:
		return s.fail(at, "the text ends where %s is expected", want)
	case len(rest) >= 3 && rest[0] == 0xEF && rest[1] == 0xBB && rest[2] == 0xBF:
		return s.fail(at, "a byte order mark (EF BB BF) where %s is expected; send JSON without one", want)
	case len(rest) >= 2 && (rest[0] == 0xFF && rest[1] == 0xFE || rest[0] == 0xFE && rest[1] == 0xFF):
		return s.fail(at, "a UTF-16 byte order mark where %s is expected; JSON is UTF-8", want)
	}
	r, size := utf8.DecodeRune(rest)
	if r == utf8.RuneError && size <= 1 {
		return s.fail(at, "byte 0x%02X is not valid UTF-8, and %s is expected", rest[0], want)
	}
	return s.fail(at, "%q where %s is expected", r, want)
}

func (s *scanner) space(i int) int {
	for i < len(s.b) {
		switch s.b[i] {
		case ' ', '\t', '\n', '\r':
			i++
		default:
			return i
		}
	}
	return i
}

// value reads one value that starts at i; depth is how many levels of arrays and objects may still be opened.
func (s *scanner) value(i, depth int) int {
	if i >= len(s.b) {
		return s.unexpected(i, "a JSON value")
	}
	switch c := s.b[i]; {
	case c == '"':
		return s.str(i)
	case c == '{':
		return s.object(i, depth, nil)
	case c == '[':
		return s.array(i, depth, nil)
	case c == '-' || '0' <= c && c <= '9':
		return s.number(i)
	case c == 't':
		return s.literal(i, "true")
	case c == 'f':
		return s.literal(i, "false")
	case c == 'n':
		return s.literal(i, "null")
	}
	return s.unexpected(i, "a JSON value")
}

func (s *scanner) literal(i int, word string) int {
	for k := 0; k < len(word); k++ {
		if i+k >= len(s.b) || s.b[i+k] != word[k] {
			return s.unexpected(i+k, "the rest of "+word)
		}
	}
	return i + len(word)
}

// object reads an object. When member is not nil it is called in place of reading each value, with where the key starts
// and ends (quotes included) and where the value starts, and returns the index behind the value.
func (s *scanner) object(i, depth int, member func(key, keyEnd, value int) int) int {
	if depth <= 0 {
		return s.fail(i, "nested deeper than the limit of %d levels", s.depth)
	}
	i = s.space(i + 1)
	if i < len(s.b) && s.b[i] == '}' {
		return i + 1
	}
	for {
		if i >= len(s.b) || s.b[i] != '"' {
			return s.unexpected(i, "a key in double quotes")
		}
		key := i
		keyEnd := s.str(i)
		if s.err != nil {
			return keyEnd
		}
		i = s.space(keyEnd)
		if i >= len(s.b) || s.b[i] != ':' {
			return s.unexpected(i, "':'")
		}
		i = s.space(i + 1)
		if member != nil {
			i = member(key, keyEnd, i)
		} else {
			i = s.value(i, depth-1)
		}
		if s.err != nil {
			return i
		}
		i = s.space(i)
		if i >= len(s.b) {
			return s.unexpected(i, "',' or '}'")
		}
		switch s.b[i] {
		case '}':
			return i + 1
		case ',':
			i = s.space(i + 1)
		default:
			return s.unexpected(i, "',' or '}'")
		}
	}
}

// array reads an array. When element is not nil it is called in place of reading each value, with where it starts, and
// returns the index behind it.
func (s *scanner) array(i, depth int, element func(value int) int) int {
	if depth <= 0 {
		return s.fail(i, "nested deeper than the limit of %d levels", s.depth)
	}
	i = s.space(i + 1)
	if i < len(s.b) && s.b[i] == ']' {
		return i + 1
	}
	for {
		if element != nil {
			i = element(i)
		} else {
			i = s.value(i, depth-1)
		}
		if s.err != nil {
			return i
		}
		i = s.space(i)
		if i >= len(s.b) {
			return s.unexpected(i, "',' or ']'")
		}
		switch s.b[i] {
		case ']':
			return i + 1
		case ',':
			i = s.space(i + 1)
		default:
			return s.unexpected(i, "',' or ']'")
		}
	}
}

func (s *scanner) number(i int) int {
	if s.b[i] == '-' {
		i++
	}
	if i < len(s.b) && s.b[i] == '0' {
		i++
		if i < len(s.b) && '0' <= s.b[i] && s.b[i] <= '9' {
			return s.fail(i, "a digit after a leading zero")
		}
	} else if i = s.digits(i); s.err != nil {
		return i
	}
	if i < len(s.b) && s.b[i] == '.' {
		if i = s.digits(i + 1); s.err != nil {
			return i
		}
	}
	if i < len(s.b) && (s.b[i] == 'e' || s.b[i] == 'E') {
		i++
		if i < len(s.b) && (s.b[i] == '+' || s.b[i] == '-') {
			i++
		}
		i = s.digits(i)
	}
	return i
}

// digits reads one or more.
func (s *scanner) digits(i int) int {
	if i >= len(s.b) || s.b[i] < '0' || s.b[i] > '9' {
		return s.unexpected(i, "a digit")
	}
	for i < len(s.b) && '0' <= s.b[i] && s.b[i] <= '9' {
		i++
	}
	return i
}

// str reads a string whose opening quote stands at i.
func (s *scanner) str(i int) int {
	start := i
	i++
	for {
		i = plainRun(s.b, i)
		if i >= len(s.b) {
			return s.fail(i, "the text ends inside the string that starts at byte %d", start)
		}
		switch c := s.b[i]; {
		case c == '"':
			return i + 1
		case c == '\\':
			if i = s.escape(i); s.err != nil {
				return i
			}
		case c < 0x20:
			return s.fail(i, "the control character 0x%02X inside a string; it must be escaped", c)
		default:
			r, size := utf8.DecodeRune(s.b[i:])
			if r == utf8.RuneError && size <= 1 {
				return s.fail(i, "byte 0x%02X is not valid UTF-8", c)
			}
			i += size
		}
	}
}

// plainRun returns the index of the first byte at or after i that is not ASCII, or is a quote, a backslash or a control
// character. Eight bytes at a time: this loop is where most of the time of ingest goes.
func plainRun(b []byte, i int) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for i+8 <= len(b) {
		w := binary.LittleEndian.Uint64(b[i:])
		quote, slash := w^(ones*'"'), w^(ones*'\\')
		// The high bit of a byte is set where the byte is ≥ 0x80, < 0x20, '"' or '\\'. A borrow may set it in a higher
		// byte too, never in a lower one, so the lowest set bit is right.
		stop := (w | (w - ones*0x20) | (quote - ones) | (slash - ones)) & highs
		// For bytes ≥ 0x80 in quote or slash the subtraction may leave the high bit set; those stop anyway through w.
		if stop != 0 {
			return i + bits.TrailingZeros64(stop)/8
		}
		i += 8
	}
	for i < len(b) && b[i] >= 0x20 && b[i] < utf8.RuneSelf && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

// escape reads the escape whose backslash stands at i.
func (s *scanner) escape(i int) int {
	if i+1 >= len(s.b) {
		return s.unexpected(i+1, "the rest of an escape")
	}
	switch s.b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
		for k := i + 2; k < i+6; k++ {
			if k >= len(s.b) || !isHex(s.b[k]) {
				return s.unexpected(k, "a hexadecimal digit of \\u")
			}
		}
		return i + 6
	}
	return s.unexpected(i+1, "one of \"\\/bfnrtu after a backslash")
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}
