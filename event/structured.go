package event

import (
	"bytes"
	"encoding/base64"
	"strconv"
	"unicode/utf8"
)

// ParseStructured reads one structured CloudEvent, as AppendStructured writes it: a line of tail, of a delivered file, of
// a dead letter. The extensions penstockindex and penstockordinal are kept. Errors are of type *Error. Data aliases b.
func ParseStructured(b []byte) (Event, error) {
	s := scanner{b: b, depth: MaxDepth}
	var e Event
	i, err := s.structured(s.space(0), &e)
	if err != nil {
		return Event{}, err
	}
	if i = s.space(i); i < len(b) {
		s.unexpected(i, "the end of the text")
		return Event{}, s.refusal()
	}
	return e, nil
}

// refusal makes an Error of the scanner's fault.
func (s *scanner) refusal() *Error {
	return refuse(BadEvent, "", "%s", s.err.reason).at(s.b, s.err.at)
}

// member is one member of a structured event: where its value starts and ends in the text.
type member struct {
	set        bool
	start, end int
}

// envelope is what is gathered of a structured event before its data can be understood: datacontenttype may come last.
type envelope struct {
	seen         attributeSet
	specVersion  string
	data, base64 member
}

// structured reads one CloudEvent in the JSON event format that starts at i, and returns the index behind it.
func (s *scanner) structured(i int, e *Event) (int, *Error) {
	if i >= len(s.b) || s.b[i] != '{' {
		s.unexpected(i, "a CloudEvent, a JSON object")
		return i, s.refusal()
	}
	var env envelope
	var refused *Error
	end := s.object(i, 1, func(key, keyEnd, value int) int {
		behind := s.value(value, s.depth) // the envelope itself is no level of the data
		if s.err != nil {
			return behind
		}
		if refused = s.member(e, &env, key, keyEnd, value, behind); refused != nil {
			return s.fail(value, "refused")
		}
		return behind
	})
	if refused != nil {
		return i, refused
	}
	if s.err != nil {
		return i, s.refusal()
	}
	if err := env.check(); err != nil {
		return i, err.at(s.b, i)
	}
	if err := e.checkAttributes(); err != nil {
		return i, err.at(s.b, i)
	}
	if err := s.takeData(e, &env); err != nil {
		return i, err
	}
	return end, nil
}

// member takes in one member whose value is valid JSON.
func (s *scanner) member(e *Event, env *envelope, key, keyEnd, start, end int) *Error {
	name, ok := attributeText(s.b[key:keyEnd])
	if !ok {
		return refuse(BadEvent, "", "a lone surrogate in an attribute name").at(s.b, key)
	}
	if len(name) > MaxNameBytes {
		return refuse(BadEvent, shown(name), "an attribute name has at most 64 characters").at(s.b, key)
	}
	again := func() *Error { return refuse(BadEvent, name, "given more than once").at(s.b, key) }
	switch name {
	case "data":
		if !env.seen.add(attrData) {
			return again()
		}
		env.data = member{true, start, end}
		return nil
	case "data_base64":
		if !env.seen.add(attrBase64) {
			return again()
		}
		env.base64 = member{s.b[start] != 'n', start, end} // null is absent
		return nil
	}
	value, kind, null, err := s.attribute(start, end)
	if err != nil {
		err.Field = shown(name)
		return err.at(s.b, start)
	}
	switch {
	case name == "specversion":
		if !env.seen.add(attrSpecVersion) {
			return again()
		}
		if kind != ExtensionString {
			return refuse(BadEvent, name, "must be a string").at(s.b, start)
		}
		env.specVersion = value
	case null:
		// Absent, but it counts as given: {"id": null, "id": "x"} repeats a key.
		if _, bit := e.core(name); bit != 0 && !env.seen.add(bit) {
			return again()
		}
		if reason := checkName(name); reason != "" {
			return refuse(BadEvent, shown(name), "%s", reason).at(s.b, key)
		}
	default:
		if err := e.setAttribute(name, value, kind, &env.seen); err != nil {
			return err.at(s.b, start)
		}
	}
	return nil
}

// attribute decodes the value of an attribute: a string, an integer, a boolean, or null for absent.
func (s *scanner) attribute(start, end int) (value string, kind ExtensionKind, null bool, err *Error) {
	raw := s.b[start:end]
	switch raw[0] {
	case '"':
		value, ok := attributeText(raw)
		if !ok {
			return "", 0, false, refuse(BadEvent, "", "holds a lone surrogate")
		}
		return value, ExtensionString, false, nil
	case 't', 'f':
		return string(raw), ExtensionBoolean, false, nil
	case 'n':
		return "", 0, true, nil
	case '{', '[':
		return "", 0, false, refuse(BadEvent, "", "an attribute is a string, an integer or a boolean, not an object or array")
	}
	n, parseErr := strconv.ParseInt(string(raw), 10, 64)
	if parseErr != nil {
		return "", 0, false, refuse(BadEvent, "", "%s is no integer of 64 bits; send it as a string", shown(string(raw)))
	}
	return strconv.FormatInt(n, 10), ExtensionInteger, false, nil
}

// attributeText is unquote, without a copy for the names and values that nearly every event has.
func attributeText(quoted []byte) (string, bool) {
	switch string(quoted) { // compared in place
	case `"specversion"`:
		return "specversion", true
	case `"1.0"`:
		return "1.0", true
	case `"id"`:
		return "id", true
	case `"source"`:
		return "source", true
	case `"type"`:
		return "type", true
	case `"time"`:
		return "time", true
	case `"subject"`:
		return "subject", true
	case `"datacontenttype"`:
		return "datacontenttype", true
	case `"application/json"`:
		return "application/json", true
	case `"data"`:
		return "data", true
	case `"partitionkey"`:
		return "partitionkey", true
	}
	return unquote(quoted)
}

func (env *envelope) check() *Error {
	switch {
	case env.specVersion == "":
		return refuse(BadEvent, "specversion", "is required; it is \"1.0\"")
	case env.specVersion != "1.0":
		return refuse(BadEvent, "specversion", "%q is not supported; it is \"1.0\"", shown(env.specVersion))
	case env.data.set && env.base64.set:
		return refuse(BadEvent, "data", "data and data_base64 exclude each other")
	}
	return nil
}

// takeData gives e its data. A data member of a JSON event is sliced out of the text as it stands.
func (s *scanner) takeData(e *Event, env *envelope) *Error {
	switch {
	case env.base64.set:
		return s.takeBase64(e, env.base64)
	case !env.data.set:
		return nil
	}
	raw := s.b[env.data.start:env.data.end]
	media := mediaType{name: "application/json"}
	if e.DataContentType != "" {
		var err error
		if media, err = parseMediaType(e.DataContentType); err != nil {
			return refuse(BadEvent, "datacontenttype", "%q is no media type", shown(e.DataContentType)).at(s.b, env.data.start)
		}
	}
	if media.isJSON() {
		e.Data, e.DataKind = raw, DataJSON
		return nil
	}
	if raw[0] == 'n' { // null is absent
		return nil
	}
	if raw[0] != '"' {
		return refuse(BadEvent, "data", "datacontenttype %q is not JSON, so data must be a string (or use data_base64)",
			shown(e.DataContentType)).at(s.b, env.data.start)
	}
	if !media.isUTF8() {
		return refuse(BadEvent, "data", "text in a JSON event is UTF-8, but datacontenttype says %q; use data_base64",
			shown(e.DataContentType)).at(s.b, env.data.start)
	}
	text, ok := unquote(raw)
	if !ok {
		return refuse(BadEvent, "data", "a lone surrogate cannot be UTF-8 text").at(s.b, env.data.start)
	}
	e.Data, e.DataKind = []byte(text), DataText
	return nil
}

func (s *scanner) takeBase64(e *Event, m member) *Error {
	raw := s.b[m.start:m.end]
	if raw[0] != '"' {
		return refuse(BadEvent, "data_base64", "must be a string").at(s.b, m.start)
	}
	in := raw[1 : len(raw)-1]
	if bytes.IndexByte(in, '\\') >= 0 { // nobody has to escape any of base64's characters
		text, ok := unquote(raw)
		if !ok {
			return refuse(BadEvent, "data_base64", "is no base64").at(s.b, m.start)
		}
		in = []byte(text)
	}
	data := make([]byte, base64.StdEncoding.DecodedLen(len(in)))
	n, err := base64.StdEncoding.Decode(data, in)
	if err != nil {
		return refuse(BadEvent, "data_base64", "is no base64: %v", err).at(s.b, m.start)
	}
	data = data[:n]
	e.Data, e.DataKind = data, DataBinary
	return nil
}

// takeBody gives e the body of a binary-mode request as its data.
func (e *Event) takeBody(body []byte, depth int) *Error {
	if len(body) == 0 {
		return nil
	}
	e.Data, e.DataKind = body, DataBinary
	if e.DataContentType == "" {
		return nil
	}
	media, err := parseMediaType(e.DataContentType)
	switch {
	case err != nil:
		return nil // contentMode has refused it already; kept as bytes
	case media.isJSON():
		if bad := checkJSON(body, depth); bad != nil {
			return refuse(BadEvent, "", "%s", bad.reason).at(body, bad.at)
		}
		e.DataKind = DataJSON
	case media.isText() && utf8.Valid(body):
		e.DataKind = DataText
	}
	return nil
}
