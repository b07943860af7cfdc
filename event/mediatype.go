package event

import (
	"mime"
	"net/http"
	"strings"
)

// mediaType is a parsed Content-Type: the type in lower case and its charset, "" when none is given.
type mediaType struct {
	name, charset string
}

func parseMediaType(s string) (mediaType, error) {
	switch s { // the two that nearly all requests have, without work
	case "application/json", "application/x-ndjson":
		return mediaType{name: s}, nil
	}
	name, params, err := mime.ParseMediaType(s)
	if err != nil {
		return mediaType{}, err
	}
	return mediaType{name: name, charset: strings.ToLower(params["charset"])}, nil
}

// isJSON follows CloudEvents: the subtype is json or ends in +json, whatever the type before the slash.
func (m mediaType) isJSON() bool {
	_, sub, _ := strings.Cut(m.name, "/")
	return sub == "json" || strings.HasSuffix(sub, "+json")
}

// isText tells whether bytes of this type are text for readers, so that a structured event shows them as a string.
func (m mediaType) isText() bool {
	if !m.isUTF8() {
		return false
	}
	_, sub, _ := strings.Cut(m.name, "/")
	switch sub {
	case "xml", "yaml", "x-yaml", "toml", "javascript", "x-www-form-urlencoded", "x-ndjson", "ndjson", "jsonl":
		return true
	}
	return strings.HasPrefix(m.name, "text/") || strings.HasSuffix(sub, "+xml") || strings.HasSuffix(sub, "+yaml")
}

func (m mediaType) isUTF8() bool {
	return m.charset == "" || m.charset == "utf-8" || m.charset == "utf8" || m.charset == "us-ascii"
}

func (m mediaType) isNDJSON() bool {
	switch m.name {
	case "application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines", "application/json-lines":
		return true
	}
	return false
}

// mode is how the events of a request are laid out.
type mode uint8

const (
	modeBinary mode = iota + 1
	modeStructured
	modeBatch
	modeJSON
	modeNDJSON
)

const accepted = "application/json, application/x-ndjson, application/cloudevents+json, application/cloudevents-batch+json, " +
	"or any type with the ce-* headers of CloudEvents binary mode"

// contentMode decides by Content-Type first (the batch type before the structured one, whose prefix it shares), then by
// the presence of ce-* headers. ce-source and ce-type alone do not make a binary event: they name what plain JSON is
// wrapped with.
func contentMode(h http.Header) (mode, string, *Error) {
	if len(h["Content-Type"]) > 1 {
		return 0, "", refuse(BadEvent, "Content-Type", "given more than once")
	}
	raw := strings.TrimSpace(h.Get("Content-Type"))
	binary := hasBinaryHeaders(h)
	if raw == "" {
		if binary {
			return modeBinary, "", nil
		}
		return 0, "", refuse(UnsupportedType, "Content-Type", "is missing; send %s", accepted)
	}
	if len(raw) > MaxAttributeBytes || checkText(raw) != "" {
		return 0, "", refuse(UnsupportedType, "Content-Type", "is no media type")
	}
	media, err := parseMediaType(raw)
	if err != nil {
		return 0, "", refuse(UnsupportedType, "Content-Type", "%q is no media type: %v", shown(raw), err)
	}
	m := modeBinary
	switch {
	case strings.HasPrefix(media.name, "application/cloudevents-batch"):
		m = modeBatch
		if media.name != "application/cloudevents-batch+json" {
			return 0, "", refuse(UnsupportedType, "Content-Type", "%q is not supported; the event format is +json", shown(media.name))
		}
	case strings.HasPrefix(media.name, "application/cloudevents"):
		m = modeStructured
		if media.name != "application/cloudevents+json" {
			return 0, "", refuse(UnsupportedType, "Content-Type", "%q is not supported; the event format is +json", shown(media.name))
		}
	case binary:
		return modeBinary, raw, nil
	case media.isJSON():
		m = modeJSON
	case media.isNDJSON():
		m = modeNDJSON
	default:
		return 0, "", refuse(UnsupportedType, "Content-Type", "%q is not supported; send %s", shown(media.name), accepted)
	}
	if !media.isUTF8() {
		return 0, "", refuse(UnsupportedType, "Content-Type", "charset %q is not supported; JSON is UTF-8", shown(media.charset))
	}
	return m, raw, nil
}

func hasBinaryHeaders(h http.Header) bool {
	for name := range h {
		if isAttributeHeader(name) && !strings.EqualFold(name, "ce-source") && !strings.EqualFold(name, "ce-type") {
			return true
		}
	}
	return false
}

func isAttributeHeader(name string) bool {
	return len(name) >= 3 && strings.EqualFold(name[:3], "ce-")
}
