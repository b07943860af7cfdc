package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"penstock/emit/sink"
	"penstock/event"
)

// Header names of a request.
const (
	HeaderID           = "webhook-id"
	HeaderTimestamp    = "webhook-timestamp"
	HeaderSignature    = "webhook-signature"
	HeaderCompactionID = "Penstock-Compaction-Id"
	HeaderPosition     = "Penstock-Position"
)

const batchType = "application/cloudevents-batch+json; charset=utf-8"

// request builds the request of one attempt. A non-nil result says why it cannot be built: what cannot be encoded is poison,
// a secret that cannot be had is auth.
func (s *Sink) request(ctx context.Context, c *sink.Compaction) (*http.Request, *sink.Result) {
	header, body := encode(c)
	keys, headers, err := s.secretsAndHeaders()
	if err != nil {
		return nil, &sink.Result{Class: sink.Auth, Reason: err.Error()}
	}
	for name, value := range headers {
		header.Set(name, value)
	}
	now := time.Now()
	id := messageID(c)
	header.Set(HeaderID, id)
	header.Set(HeaderTimestamp, strconv.FormatInt(now.Unix(), 10))
	if len(keys) > 0 {
		header.Set(HeaderSignature, sign(keys, id, now, body))
	}
	header.Set(HeaderCompactionID, c.ID)
	header.Set(HeaderPosition, c.Deliveries[0].Position.String())
	if header.Get("User-Agent") == "" {
		header.Set("User-Agent", "Penstock")
	}
	for name, values := range header {
		for _, v := range values {
			if !validHeaderValue(v) {
				return nil, &sink.Result{Class: sink.Poison, Reason: fmt.Sprintf("header %s cannot be encoded", name)}
			}
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return nil, &sink.Result{Class: sink.Permanent, Reason: "the URL is not usable"}
	}
	req.Header = header
	if host := header.Get("Host"); host != "" { // net/http sends Request.Host only
		req.Host = host
	}
	return req, nil
}

// encode gives binary mode for one event and batch mode for several. The bytes depend on the events alone.
func encode(c *sink.Compaction) (http.Header, []byte) {
	if len(c.Deliveries) == 1 {
		e := &c.Deliveries[0].Event
		return e.BinaryHeaders(), e.Data
	}
	events := make([]event.Event, len(c.Deliveries))
	for i := range c.Deliveries {
		events[i] = c.Deliveries[i].Event
	}
	return http.Header{"Content-Type": {batchType}}, event.AppendBatchJSON(nil, events)
}

// messageID is the webhook-id. For one event it is a hash of the pair (source, id), which is what names an event: receivers
// drop a webhook-id that they have seen, so two sources that both count from 1 must not share ids, and an event accepted
// again after the dedup window keeps its own. For several events it is the compaction's id. Neither holds a dot, which
// separates the parts of the signed text.
func messageID(c *sink.Compaction) string {
	if len(c.Deliveries) != 1 {
		return c.ID
	}
	e := &c.Deliveries[0].Event
	h := sha256.New()
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(e.Source)))
	h.Write(length[:])
	h.Write([]byte(e.Source))
	h.Write([]byte(e.ID))
	return "evt_" + hex.EncodeToString(h.Sum(nil)[:16])
}

// sign gives the header for the keys: HMAC-SHA256 over ID.TIMESTAMP.BODY.
func sign(keys [][]byte, id string, at time.Time, body []byte) string {
	signatures := make([]string, len(keys))
	for i, key := range keys {
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%d.", id, at.Unix())
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return strings.Join(signatures, " ")
}

// validHeaderValue refuses what net/http would refuse to send.
func validHeaderValue(v string) bool {
	for i := range len(v) {
		if c := v[i]; (c < 0x20 && c != '\t') || c == 0x7f {
			return false
		}
	}
	return true
}
