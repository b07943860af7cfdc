package spec

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxIDFrom and maxPointer bound id_from.
const (
	maxIDFrom  = 8
	maxPointer = 256
)

func (c *Channel) validateIDFrom(p *problems) {
	if len(c.IDFrom) > maxIDFrom {
		p.add("id_from", "%d fields, more than %d", len(c.IDFrom), maxIDFrom)
	}
	for i, pointer := range c.IDFrom {
		path := "id_from[" + strconv.Itoa(i) + "]"
		switch {
		case len(pointer) > maxPointer:
			p.add(path, "%d bytes, more than %d", len(pointer), maxPointer)
		case !validPointer(pointer):
			p.add(path, "%q is no JSON Pointer such as /order/id (RFC 6901)", pointer)
		case slices.Index(c.IDFrom, pointer) < i:
			p.add(path, "%q is listed twice", pointer)
		}
	}
}

// validPointer: RFC 6901, but not the empty one, which is the whole value.
func validPointer(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] == '~' && (i+1 == len(s) || s[i+1] != '0' && s[i+1] != '1') || s[i] < 0x20 {
			return false
		}
	}
	return strings.HasPrefix(s, "/")
}

// DeriveID makes an event's id of fields of its data, so that the same entity, operation and version have the same id whoever
// sends them (L5): 32 hex digits of a hash of the values that the JSON Pointers name, in their order.
//
//	SHA-256("penstock id 1" | { kind | length u64le | value } ...), first 16 bytes
//	kind: s string, without its escapes; n number, as it is written; b true or false
//
// A value that is missing, null, an array or an object is an error. doc is what DecodeJSON gave.
func DeriveID(doc any, pointers []string) (string, error) {
	h := sha256.New()
	h.Write([]byte("penstock id 1"))
	for _, pointer := range pointers {
		value, ok := lookUp(doc, pointer)
		var kind byte
		var text string
		switch v := value.(type) {
		case string:
			kind, text = 's', v
		case json.Number:
			kind, text = 'n', string(v)
		case bool:
			kind, text = 'b', strconv.FormatBool(v)
		default:
			if !ok {
				return "", fmt.Errorf("%s is missing", pointer)
			}
			return "", fmt.Errorf("%s is no string, number, true or false", pointer)
		}
		h.Write(binary.LittleEndian.AppendUint64([]byte{kind}, uint64(len(text))))
		h.Write([]byte(text))
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

func lookUp(doc any, pointer string) (any, bool) {
	for token := range strings.SplitSeq(pointer[1:], "/") {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		var ok bool
		switch v := doc.(type) {
		case map[string]any:
			doc, ok = v[token]
		case []any:
			if i, err := strconv.Atoi(token); err == nil && 0 <= i && i < len(v) && strconv.Itoa(i) == token {
				doc, ok = v[i], true
			}
		}
		if !ok {
			return nil, false
		}
	}
	return doc, true
}
