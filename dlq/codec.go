package dlq

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"time"
	"unicode/utf8"

	"penstock/event"
)

// Version is the version of the line format.
const Version = 1

// ErrTooNew: a record was written by a newer version of Penstock. Nothing is touched.
var ErrTooNew = errors.New("dead-letter format is newer than this version reads")

// A line is one JSON object:
//
//	+-----------------------------+--------------------------------+----------------------+----+
//	| {"v":1,"id":"…","state":"…" | ,"data":JSON as it came        | ,"crc":"8 hex digits"| }\n|
//	|  …  ,"event":{…}            |  or ,"dataBase64":"…", or none |                      |    |
//	+-----------------------------+--------------------------------+----------------------+----+
//	|<------------ CRC-32C covers these bytes --------------------->|
//
// data stands verbatim when it is JSON that fits a line and reads back to the same bytes, and as base64 otherwise, so the
// event's bytes are kept exactly, whatever they are. Times are RFC 3339 with nanoseconds, UTC.
type line struct {
	V               int         `json:"v"`
	ID              string      `json:"id"`
	State           State       `json:"state"`
	DeadLetteredAt  *time.Time  `json:"deadLetteredAt,omitempty"`
	PoisonedAt      *time.Time  `json:"poisonedAt,omitempty"`
	Channel         string      `json:"channel"`
	Emitter         string      `json:"emitter"`
	ChannelIndex    uint64      `json:"channelIndex"`
	EmitterIndex    uint64      `json:"emitterIndex"`
	Seq             uint64      `json:"seq"`
	Position        string      `json:"position"`
	CompactionID    string      `json:"compactionId"`
	Owner           string      `json:"owner"`
	Epoch           uint64      `json:"epoch"`
	Class           string      `json:"class"`
	Status          int         `json:"status,omitempty"`
	Cause           string      `json:"cause,omitempty"`
	Reason          string      `json:"reason"`
	RedeliveryCount int         `json:"redeliveryCount"`
	Limits          lineLimits  `json:"limits"`
	AttemptCount    uint32      `json:"attemptCount"`
	FirstFailedAt   *time.Time  `json:"firstFailedAt,omitempty"`
	LastFailedAt    *time.Time  `json:"lastFailedAt,omitempty"`
	Attempts        []lineTry   `json:"attempts,omitempty"`
	Event           lineEvent   `json:"event"`
	Data            rawData     `json:"data,omitempty"`
	DataBase64      *base64Data `json:"dataBase64,omitempty"`
	CRC             string      `json:"crc,omitempty"`
}

type lineLimits struct {
	TTL         string `json:"ttl"`
	MaxAttempts int    `json:"maxAttempts"`
	MaxRetries  int    `json:"maxRetries"`
}

type lineTry struct {
	At             time.Time `json:"at"`
	Class          string    `json:"class"`
	Status         int       `json:"status,omitempty"`
	Error          string    `json:"error"`
	Response       string    `json:"response,omitempty"`
	ResponseBase64 []byte    `json:"responseBase64,omitempty"`
}

type lineEvent struct {
	ID              string          `json:"id"`
	Source          string          `json:"source"`
	Type            string          `json:"type"`
	Subject         string          `json:"subject,omitempty"`
	Time            string          `json:"time,omitempty"`
	DataContentType string          `json:"datacontenttype,omitempty"`
	DataSchema      string          `json:"dataschema,omitempty"`
	Extensions      []lineExtension `json:"extensions,omitempty"`
	ServerID        bool            `json:"serverId,omitempty"`
	DataKind        string          `json:"dataKind"`
}

type lineExtension struct {
	Name  string              `json:"name"`
	Value string              `json:"value"`
	Kind  event.ExtensionKind `json:"kind"`
}

type (
	rawData    = json.RawMessage
	base64Data = []byte
)

var dataKinds = [...]string{event.DataNone: "none", event.DataJSON: "json", event.DataText: "text", event.DataBinary: "binary"}

const (
	crcPrefix = `,"crc":"`
	crcSuffix = `"}`
	crcSize   = len(crcPrefix) + 8 + len(crcSuffix)
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendLine appends the record as one line, its newline included.
func (r *Record) AppendLine(dst []byte) ([]byte, error) {
	head := r.line()
	verbatim := fitsVerbatim(&r.Event)
	if !verbatim && len(r.Event.Data) > 0 {
		head.DataBase64 = &r.Event.Data
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(head); err != nil {
		return dst, fmt.Errorf("encode dead letter %s: %w", r.ID, err)
	}
	start := len(dst)
	dst = append(dst, bytes.TrimSuffix(buf.Bytes(), []byte("}\n"))...)
	if verbatim {
		dst = append(dst, `,"data":`...)
		dst = append(dst, r.Event.Data...)
	}
	return append(appendCRC(dst, start), '\n'), nil
}

// appendCRC ends the object that begins at start with its checksum.
func appendCRC(dst []byte, start int) []byte {
	sum := crc32.Checksum(dst[start:], castagnoli)
	dst = append(dst, crcPrefix...)
	dst = hex.AppendEncode(dst, binary.BigEndian.AppendUint32(nil, sum))
	return append(dst, crcSuffix...)
}

// fitsVerbatim tells whether the data reads back to the same bytes from the middle of a JSON line.
func fitsVerbatim(e *event.Event) bool {
	d := e.Data
	if e.DataKind != event.DataJSON || len(d) == 0 || bytes.ContainsAny(d, "\r\n") || !utf8.Valid(d) || !json.Valid(d) {
		return false
	}
	space := func(c byte) bool { return c == ' ' || c == '\t' }
	return !space(d[0]) && !space(d[len(d)-1]) && !bytes.Equal(d, []byte("null"))
}

// ParseLine reads a line, with or without its newline. It fails on anything that AppendLine would not have written: a line
// that was cut, changed by one bit or edited by hand is no record. ErrTooNew is told apart from damage.
func ParseLine(b []byte) (Record, error) {
	b = bytes.TrimSuffix(b, []byte("\n"))
	if err := checkLine(b); err != nil {
		return Record{}, err
	}
	var version struct {
		V int `json:"v"`
	}
	if err := json.Unmarshal(b, &version); err != nil {
		return Record{}, fmt.Errorf("dead letter: %w", err)
	}
	if version.V > Version {
		return Record{}, fmt.Errorf("%w: version %d", ErrTooNew, version.V)
	}
	var l line
	if err := json.Unmarshal(b, &l); err != nil {
		return Record{}, fmt.Errorf("dead letter: %w", err)
	}
	return l.record()
}

// checkLine checks the checksum of a line, with or without its newline.
func checkLine(b []byte) error {
	b = bytes.TrimSuffix(b, []byte("\n"))
	if len(b) < crcSize {
		return errors.New("dead letter: too short")
	}
	body, tail := b[:len(b)-crcSize], b[len(b)-crcSize:]
	var sum [4]byte
	if !bytes.HasPrefix(tail, []byte(crcPrefix)) || !bytes.HasSuffix(tail, []byte(crcSuffix)) {
		return errors.New("dead letter: no checksum at its end")
	}
	if _, err := hex.Decode(sum[:], tail[len(crcPrefix):len(crcPrefix)+8]); err != nil {
		return errors.New("dead letter: checksum is no hexadecimal number")
	}
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(sum[:]) {
		return errors.New("dead letter: checksum does not match")
	}
	return nil
}
