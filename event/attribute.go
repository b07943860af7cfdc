package event

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// The rules for attributes are those of CloudEvents 1.0.2, section 3.1, with bounds, and with three decisions of ours: an
// empty optional attribute counts as absent, an integer extension may have 64 bits (CloudEvents says 32), and a name may
// have 64 characters (CloudEvents says it should not have more than 20).

// The extension attributes that Penstock itself puts on events it shows (GET /v1/channels/{channel}/events). In a request
// they are dropped, so that what was read from one channel can be sent to another: the position is always the server's.
const (
	ExtensionIndex   = "penstockindex"
	ExtensionOrdinal = "penstockordinal"
)

// setAttribute gives e the attribute name. It checks the name and the value, and refuses what is already there.
func (e *Event) setAttribute(name, value string, kind ExtensionKind, seen *attributeSet) *Error {
	if len(value) > MaxAttributeBytes {
		err := tooLarge(MaxAttributeBytes, "%d bytes, more than the limit of %d for an attribute", len(value), MaxAttributeBytes)
		err.Field = name
		return err
	}
	if reason := checkText(value); reason != "" {
		return refuse(BadEvent, name, "%s", reason)
	}
	field, bit := e.core(name)
	if field == nil {
		return e.addExtension(name, value, kind)
	}
	if kind != ExtensionString {
		return refuse(BadEvent, name, "must be a string")
	}
	if !seen.add(bit) {
		return refuse(BadEvent, name, "given more than once")
	}
	*field = value
	return nil
}

// attributeSet remembers what one event has been given already, the extensions apart.
type attributeSet uint16

const (
	attrID attributeSet = 1 << iota
	attrSource
	attrType
	attrSubject
	attrTime
	attrDataContentType
	attrDataSchema
	attrSpecVersion
	attrData
	attrBase64
)

// add tells whether bit is new, and remembers it.
func (s *attributeSet) add(bit attributeSet) bool {
	if *s&bit != 0 {
		return false
	}
	*s |= bit
	return true
}

// core returns where the core attribute of that name is kept, or nil when the name is an extension's.
func (e *Event) core(name string) (*string, attributeSet) {
	switch name {
	case "id":
		return &e.ID, attrID
	case "source":
		return &e.Source, attrSource
	case "type":
		return &e.Type, attrType
	case "subject":
		return &e.Subject, attrSubject
	case "time":
		return &e.Time, attrTime
	case "datacontenttype":
		return &e.DataContentType, attrDataContentType
	case "dataschema":
		return &e.DataSchema, attrDataSchema
	}
	return nil, 0
}

// addExtension keeps the extensions sorted by name.
func (e *Event) addExtension(name, value string, kind ExtensionKind) *Error {
	if reason := checkName(name); reason != "" {
		return refuse(BadEvent, shown(name), "%s", reason)
	}
	at, found := slices.BinarySearchFunc(e.Extensions, name, func(x Extension, n string) int { return strings.Compare(x.Name, n) })
	if found {
		return refuse(BadEvent, name, "given more than once")
	}
	if len(e.Extensions) >= MaxExtensions {
		return tooLarge(MaxExtensions, "more than %d extension attributes", MaxExtensions)
	}
	e.Extensions = slices.Insert(e.Extensions, at, Extension{Name: name, Value: value, Kind: kind})
	return nil
}

// checkName says what is wrong with the name of an extension attribute, or "".
func checkName(name string) string {
	if name == "" {
		return "an attribute name is empty"
	}
	if len(name) > MaxNameBytes {
		return "an attribute name has at most 64 characters"
	}
	if name == "data" {
		return "an attribute must not be called data"
	}
	for i := 0; i < len(name); i++ {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return "an attribute name has only the letters a to z and digits"
		}
	}
	return ""
}

// shown shortens a name from a request for use in a message.
func shown(name string) string {
	const most = 80
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most], "") + "..."
	}
	return name
}

// checkText says what is wrong with the value of an attribute, or "". CloudEvents excludes control characters,
// surrogates and noncharacters; without them a value can stand in a header, a log line or a terminal.
func checkText(value string) string {
	for i := 0; i < len(value); {
		c := value[i]
		if c >= 0x20 && c < 0x7F {
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(value[i:])
		switch {
		case r == utf8.RuneError && size <= 1:
			return "not valid UTF-8"
		case r < 0x20 || 0x7F <= r && r <= 0x9F:
			return "holds a control character"
		case 0xFDD0 <= r && r <= 0xFDEF || r&0xFFFE == 0xFFFE:
			return "holds a Unicode noncharacter"
		}
		i += size
	}
	return ""
}

// checkAttributes is the last check of an event that came as a CloudEvent.
func (e *Event) checkAttributes() *Error {
	switch {
	case e.ID == "":
		return refuse(BadEvent, "id", "is required and must not be empty")
	case e.Source == "":
		return refuse(BadEvent, "source", "is required and must not be empty")
	case e.Type == "":
		return refuse(BadEvent, "type", "is required and must not be empty")
	case e.Time != "" && !validTime(e.Time):
		return refuse(BadEvent, "time", "%q is no RFC 3339 time such as 2018-04-05T17:31:00Z", shown(e.Time))
	}
	return nil
}

// validTime tells whether s is an RFC 3339 time. The standard library accepts more (one digit of hours, a comma, any
// zone) and less (no leap second, no lower-case t and z).
func validTime(s string) bool {
	s = strings.ToUpper(s)
	if len(s) < len("2006-01-02T15:04:05Z") || s[13] != ':' || strings.Contains(s, ",") {
		return false
	}
	if s[16:19] == ":60" {
		s = s[:16] + ":59" + s[19:]
	}
	if zone := s[len(s)-6:]; zone[0] == '+' || zone[0] == '-' {
		if zone[1:3] > "23" || zone[4:6] > "59" {
			return false
		}
	}
	_, err := time.Parse(time.RFC3339, s)
	return err == nil
}

// dropOwn takes away the extensions that only the server may give.
func (e *Event) dropOwn() {
	for _, name := range []string{ExtensionIndex, ExtensionOrdinal} {
		if _, ok := e.Extension(name); ok {
			e.Extensions = slices.DeleteFunc(e.Extensions, func(x Extension) bool { return x.Name == name })
		}
	}
}
