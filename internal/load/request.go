package load

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
)

// laidOut bounds the bytes of all requests that are laid out ahead, and thereby how many different ones there are.
const (
	laidOut      = 32 << 20
	mostRequests = 64
)

// runDigits and counterDigits make an id: the run's, a dash, the number of the request in hexadecimal.
const (
	runDigits     = 16
	counterDigits = 10
	idLength      = runDigits + 1 + counterDigits
)

// request is one request as it goes over the wire, but for its number in the ids.
type request struct {
	raw      []byte
	counters []int // where the number of the request goes, as counterDigits hexadecimal digits
}

// stamp appends the request with number n.
func (r *request) stamp(dst []byte, n int64) []byte {
	start := len(dst)
	dst = append(dst, r.raw...)
	for _, at := range r.counters {
		digits := dst[start+at:][:counterDigits]
		for i, v := counterDigits-1, n; i >= 0; i-- {
			digits[i] = "0123456789abcdef"[v&15]
			v >>= 4
		}
	}
	return dst
}

// layOut makes different requests, enough of them that a run does not compress better than what it stands for.
func layOut(cfg Config) ([]*request, error) {
	one := cfg.Size*cfg.Batch*4/3 + 1024
	count := max(1, min(mostRequests, laidOut/one))
	run := make([]byte, runDigits/2)
	if _, err := rand.Read(run); err != nil {
		return nil, err
	}
	p := &payloads{cfg: cfg, rng: newRand(cfg.Seed)}
	out := make([]*request, count)
	for i := range out {
		out[i] = layOutOne(cfg, p, hex.EncodeToString(run))
	}
	return out, nil
}

// layOutOne: one event goes in binary mode; JSON of several as lines, whose ids follow from the Idempotency-Key; random bytes of
// several as a batch of CloudEvents with data_base64.
func layOutOne(cfg Config, p *payloads, run string) *request {
	var head, body bytes.Buffer
	var inHead, inBody []int
	id := func(b *bytes.Buffer, at *[]int) {
		b.WriteString(run)
		b.WriteByte('-')
		*at = append(*at, b.Len())
		b.WriteString("0000000000")
	}
	fmt.Fprintf(&head, "POST /v1/channels/%s/events HTTP/1.1\r\nHost: %s\r\n", cfg.Channel, cfg.Addresses[0])
	switch {
	case cfg.Batch == 1:
		head.WriteString("Ce-Specversion: 1.0\r\nCe-Source: /bench\r\nCe-Type: bench\r\nCe-Id: ")
		id(&head, &inHead)
		head.WriteString("\r\nContent-Type: " + contentType(cfg.Payload) + "\r\n")
		body.Write(p.next())
	case cfg.Payload == Random:
		head.WriteString("Content-Type: application/cloudevents-batch+json\r\n")
		for i := range cfg.Batch {
			body.WriteString([]string{"[", ","}[min(i, 1)])
			body.WriteString(`{"specversion":"1.0","source":"/bench","type":"bench","id":"`)
			id(&body, &inBody)
			fmt.Fprintf(&body, `/%d","datacontenttype":"application/octet-stream","data_base64":"%s"}`, i, base64.StdEncoding.EncodeToString(p.next()))
		}
		body.WriteByte(']')
	default:
		head.WriteString("Content-Type: application/x-ndjson\r\nIdempotency-Key: ")
		id(&head, &inHead)
		head.WriteString("\r\n")
		for range cfg.Batch {
			body.Write(p.next())
			body.WriteByte('\n')
		}
	}
	fmt.Fprintf(&head, "Content-Length: %d\r\n\r\n", body.Len())
	r := &request{raw: append(head.Bytes(), body.Bytes()...), counters: inHead}
	for _, at := range inBody {
		r.counters = append(r.counters, head.Len()+at)
	}
	return r
}

func contentType(payload string) string {
	if payload == Random {
		return "application/octet-stream"
	}
	return "application/json"
}
