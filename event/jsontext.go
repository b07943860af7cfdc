package event

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// unquote decodes a JSON string that the scanner has accepted, quotes included. ok is false when it holds a lone
// surrogate escape, which no UTF-8 text can express.
func unquote(quoted []byte) (text string, ok bool) {
	in := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(in, '\\') < 0 {
		return string(in), true
	}
	out := make([]byte, 0, len(in))
	for len(in) > 0 {
		k := bytes.IndexByte(in, '\\')
		if k < 0 {
			out = append(out, in...)
			break
		}
		out = append(out, in[:k]...)
		in = in[k:]
		if in[1] != 'u' {
			out = append(out, unescaped(in[1]))
			in = in[2:]
			continue
		}
		r := hex4(in[2:])
		in = in[6:]
		if utf16.IsSurrogate(r) {
			if len(in) < 6 || in[0] != '\\' || in[1] != 'u' {
				return "", false
			}
			if r = utf16.DecodeRune(r, hex4(in[2:])); r == utf8.RuneError {
				return "", false
			}
			in = in[6:]
		}
		out = utf8.AppendRune(out, r)
	}
	return string(out), true
}

func unescaped(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c // " \ /
}

func hex4(b []byte) rune {
	n, _ := strconv.ParseUint(string(b[:4]), 16, 32)
	return rune(n)
}

// appendQuoted appends text, which is valid UTF-8, as a JSON string. Only what must be escaped is.
func appendQuoted[T string | []byte](dst []byte, text T) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, text[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	dst = append(dst, text[from:]...)
	return append(dst, '"')
}

// appendOneLine appends the JSON text b: as it is when it holds no line break, else without the white space between its
// tokens. Inside strings nothing changes (a raw line break cannot stand there). b has been accepted by the scanner.
func appendOneLine(dst, b []byte) []byte {
	if bytes.IndexByte(b, '\n') < 0 && bytes.IndexByte(b, '\r') < 0 {
		return append(dst, b...)
	}
	for i := 0; i < len(b); {
		switch b[i] {
		case ' ', '\t', '\n', '\r':
			i++
		case '"':
			end := stringEnd(b, i)
			dst = append(dst, b[i:end]...)
			i = end
		default:
			dst = append(dst, b[i])
			i++
		}
	}
	return dst
}

// stringEnd returns the index behind the string whose opening quote stands at i.
func stringEnd(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}
