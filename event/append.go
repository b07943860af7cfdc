package event

import (
	"encoding/base64"
	"strings"
)

// AppendStructured appends the event in the JSON event format, on one line without a line break at its end. extra are
// extensions to add; they take the place of the event's own of the same name. Data of JSON stands as the producer sent
// it, except that a value with line breaks loses the white space between its tokens.
func (e *Event) AppendStructured(dst []byte, extra ...Extension) []byte {
	member := func(name, value string) {
		if value != "" {
			dst = append(dst, `,"`...)
			dst = append(dst, name...)
			dst = append(dst, `":`...)
			dst = appendQuoted(dst, value)
		}
	}
	dst = append(dst, `{"specversion":"1.0"`...)
	member("id", e.ID)
	member("source", e.Source)
	member("type", e.Type)
	member("subject", e.Subject)
	member("time", e.Time)
	member("datacontenttype", e.DataContentType)
	member("dataschema", e.DataSchema)
	for _, x := range e.Extensions {
		if !hasExtension(extra, x.Name) {
			dst = appendExtension(dst, x)
		}
	}
	for _, x := range extra {
		dst = appendExtension(dst, x)
	}
	switch e.DataKind {
	case DataJSON:
		dst = append(dst, `,"data":`...)
		dst = appendOneLine(dst, e.Data)
	case DataText:
		dst = append(dst, `,"data":`...)
		dst = appendQuoted(dst, e.Data)
	case DataBinary:
		dst = append(dst, `,"data_base64":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, e.Data)
		dst = append(dst, '"')
	}
	return append(dst, '}')
}

func hasExtension(list []Extension, name string) bool {
	for _, x := range list {
		if strings.EqualFold(x.Name, name) {
			return true
		}
	}
	return false
}

func appendExtension(dst []byte, x Extension) []byte {
	dst = append(dst, `,"`...)
	dst = append(dst, x.Name...)
	dst = append(dst, `":`...)
	if x.Kind == ExtensionString {
		return appendQuoted(dst, x.Value)
	}
	return append(dst, x.Value...) // an integer or a boolean, in canonical form
}

// AppendBatchJSON appends the events in the JSON batch format (application/cloudevents-batch+json).
func AppendBatchJSON(dst []byte, events []Event) []byte {
	dst = append(dst, '[')
	for i := range events {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = events[i].AppendStructured(dst)
	}
	return append(dst, ']')
}
