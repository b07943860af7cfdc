// Package event is the vocabulary at the bottom of Penstock: the CloudEvents 1.0 event as it is accepted, stored and
// delivered, its position in the log, the source offset, and the codecs between them and the outside (HTTP content modes,
// NDJSON) and the inside (the batch, see docs/format/batch.md).
//
// It promises that the bytes of an event's data are never changed: what a producer sent is what is stored and what a
// destination gets, to the byte, except where an output format needs one line, when white space between JSON tokens may go.
//
// It does no I/O of its own, keeps no state, reads no clock, and imports nothing else of this module.
package event

// Event is one CloudEvents 1.0 event. The zero value of an optional attribute means "absent".
//
// An Event is a value: after it was returned by this package its byte slices are shared and must not be written to.
type Event struct {
	// ID, Source and Type are required by CloudEvents and never empty in an accepted event.
	ID, Source, Type string
	// Subject, Time (RFC 3339, kept as the producer wrote it), DataContentType and DataSchema are optional.
	Subject, Time, DataContentType, DataSchema string
	// Extensions are the extension attributes, sorted by name, names unique.
	Extensions []Extension
	// Data is the payload, byte for byte as the producer sent it. What it is, DataKind says.
	Data []byte
	// DataKind says how Data travels in a structured event.
	DataKind DataKind
	// ServerID is true when the producer gave no id and the receiving node made one. Such an event is not deduplicated.
	ServerID bool
}

// DataKind says what the bytes of Event.Data are.
type DataKind uint8

// The kinds of data. They are part of the batch format (docs/format/batch.md) and never change.
const (
	// DataNone: the event has no data member at all (different from JSON null).
	DataNone DataKind = 0
	// DataJSON: Data is one JSON text; in a structured event it stands as the member "data".
	DataJSON DataKind = 1
	// DataText: Data is UTF-8 text that is not JSON; in a structured event it is the JSON string "data".
	DataText DataKind = 2
	// DataBinary: any bytes; in a structured event they are "data_base64".
	DataBinary DataKind = 3
)

// Extension is one extension attribute.
type Extension struct {
	// Name is 1 to 64 lower-case letters and digits.
	Name string
	// Value is the canonical string form.
	Value string
	// Kind is the JSON type the value had in a structured event; in binary mode everything is a string.
	Kind ExtensionKind
}

// ExtensionKind is the JSON type of an extension attribute's value.
type ExtensionKind uint8

// The kinds of extension values. They are part of the batch format and never change.
const (
	ExtensionString  ExtensionKind = 0
	ExtensionInteger ExtensionKind = 1
	ExtensionBoolean ExtensionKind = 2
)

// Extension returns the value of the named extension attribute.
func (e *Event) Extension(name string) (value string, ok bool) {
	for _, x := range e.Extensions {
		if x.Name == name {
			return x.Value, true
		}
	}
	return "", false
}

// OrderKey is what order "key" keeps together: the extension partitionkey, else the subject, else "" (no key).
func (e *Event) OrderKey() string {
	if k, ok := e.Extension("partitionkey"); ok && k != "" {
		return k
	}
	return e.Subject
}
