package event

import (
	"net/http"
	"strings"
	"unicode/utf8"
)

// BinaryHeaders gives the headers of the event in binary mode: its attributes as ce-*, percent-encoded, and Content-Type.
// The body is Data as it is.
func (e *Event) BinaryHeaders() http.Header {
	h := make(http.Header, 8+len(e.Extensions))
	set := func(key, value string) {
		if value != "" {
			h[key] = []string{encodeHeader(value)}
		}
	}
	h["Ce-Specversion"] = []string{"1.0"}
	set("Ce-Id", e.ID)
	set("Ce-Source", e.Source)
	set("Ce-Type", e.Type)
	set("Ce-Subject", e.Subject)
	set("Ce-Time", e.Time)
	set("Ce-Dataschema", e.DataSchema)
	for _, x := range e.Extensions {
		h[http.CanonicalHeaderKey("ce-"+x.Name)] = []string{encodeHeader(x.Value)}
	}
	switch {
	case e.DataContentType != "":
		h["Content-Type"] = []string{e.DataContentType}
	case e.DataKind == DataJSON: // what its absence means in a JSON event, said where it means nothing
		h["Content-Type"] = []string{"application/json"}
	}
	return h
}

// encodeHeader percent-encodes an attribute value for a header (CloudEvents HTTP binding, section 3.1.3.2): space, double
// quote, percent, and all that is not printable ASCII.
func encodeHeader(value string) string {
	const hex = "0123456789ABCDEF"
	plain := func(c byte) bool { return c > 0x20 && c < 0x7F && c != '"' && c != '%' }
	i := 0
	for i < len(value) && plain(value[i]) {
		i++
	}
	if i == len(value) {
		return value
	}
	out := make([]byte, i, len(value)+16)
	copy(out, value)
	for ; i < len(value); i++ {
		if c := value[i]; plain(c) {
			out = append(out, c)
		} else {
			out = append(out, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(out)
}

// decodeHeader is the reverse, with what the binding asks of receivers: a value in double quotes is unquoted first, then
// one round of percent-decoding follows. A percent sign that two hexadecimal digits do not follow stands for itself.
func decodeHeader(value string) string {
	value = strings.TrimSpace(value)
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		value = unescapeQuoted(value[1 : len(value)-1])
	}
	if strings.IndexByte(value, '%') < 0 {
		return value
	}
	out := make([]byte, 0, len(value))
	for i := 0; i < len(value); i++ {
		if value[i] == '%' && i+2 < len(value) && isHex(value[i+1]) && isHex(value[i+2]) {
			out = append(out, unhex(value[i+1])<<4|unhex(value[i+2]))
			i += 2
			continue
		}
		out = append(out, value[i])
	}
	return string(out)
}

// unescapeQuoted takes the backslashes out of the inside of a quoted string.
func unescapeQuoted(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		out = append(out, s[i])
	}
	return string(out)
}

func unhex(c byte) byte {
	switch {
	case c >= 'a':
		return c - 'a' + 10
	case c >= 'A':
		return c - 'A' + 10
	}
	return c - '0'
}

// oneHeader decodes the value of a header that may stand only once.
func oneHeader(name string, values []string) (string, *Error) {
	if len(values) != 1 {
		return "", refuse(BadEvent, name, "given more than once")
	}
	if len(values[0]) > 3*MaxAttributeBytes+2 { // percent-encoding triples at most
		err := tooLarge(MaxAttributeBytes, "more than the limit of %d bytes for an attribute", MaxAttributeBytes)
		err.Field = name
		return "", err
	}
	value := decodeHeader(values[0])
	if !utf8.ValidString(value) {
		return "", refuse(BadEvent, name, "is not valid UTF-8 after percent-decoding")
	}
	return value, nil
}

// firstHeader returns the decoded value of the first of the named headers that is there, and its name.
func firstHeader(h http.Header, names ...string) (value, name string, err *Error) {
	for _, name = range names {
		name = http.CanonicalHeaderKey(name)
		if values := h[name]; len(values) > 0 {
			value, err = oneHeader(name, values)
			return value, name, err
		}
	}
	return "", http.CanonicalHeaderKey(names[0]), nil
}

// idempotencyKey reads the header Idempotency-Key: a structured-field string, which stands in double quotes, or, as most
// clients send it, the bare text. "" when there is none.
func idempotencyKey(h http.Header) (string, *Error) {
	const name = "Idempotency-Key"
	values := h[name]
	if len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 {
		return "", refuse(BadEvent, name, "given more than once")
	}
	key := strings.TrimSpace(values[0])
	if len(key) >= 2 && key[0] == '"' && key[len(key)-1] == '"' {
		key = unescapeQuoted(key[1 : len(key)-1])
	}
	switch {
	case key == "":
		return "", refuse(BadEvent, name, "is empty")
	case len(key) > MaxIdempotencyKeyBytes:
		err := tooLarge(MaxIdempotencyKeyBytes, "longer than the limit of %d bytes", MaxIdempotencyKeyBytes)
		err.Field = name
		return "", err
	}
	if reason := checkText(key); reason != "" {
		return "", refuse(BadEvent, name, "%s", reason)
	}
	return key, nil
}
