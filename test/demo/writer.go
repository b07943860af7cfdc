package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"penstock/internal/client"
)

// payload is one file of testdata/payloads, on one line.
type payload struct {
	kind string
	data []byte
}

func loadPayloads(dir string) ([]payload, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no payloads in %s (run it from the root of the repository)", dir)
	}
	var out []payload
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		var line bytes.Buffer
		if err := json.Compact(&line, b); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		out = append(out, payload{kind: strings.TrimSuffix(filepath.Base(f), ".json"), data: line.Bytes()})
	}
	return out, nil
}

// writer sends numbered CloudEvents in batches of changing size, one request after another, each until it is acknowledged.
type writer struct {
	client   *client.Client
	payloads []payload
	total    int
	ids      []string // acknowledged, in order
	retries  int
	lastAck  time.Time
}

func newWriter(c *client.Client, payloads []payload, total int) *writer {
	return &writer{client: c, payloads: payloads, total: total}
}

func (w *writer) acked() int { return len(w.ids) }

// pace spreads the requests, so that deliveries are under way when the leader dies.
const pace = 40 * time.Millisecond

// until sends until n events are acknowledged.
func (w *writer) until(ctx context.Context, n int) error {
	for len(w.ids) < n {
		first := len(w.ids)
		size := min(1+first%37, w.total-first)
		if err := w.request(ctx, w.batch(first, size)); err != nil {
			return fmt.Errorf("after %d acknowledged events: %w", first, err)
		}
		for i := range size {
			w.ids = append(w.ids, id(first+i))
		}
		if len(w.ids) < n {
			if err := pause(ctx, pace); err != nil {
				return err
			}
		}
	}
	return nil
}

func id(n int) string { return fmt.Sprintf("demo-%05d", n) }

func (w *writer) batch(first, size int) []byte {
	var b bytes.Buffer
	b.WriteByte('[')
	for i := range size {
		p := w.payloads[(first+i)%len(w.payloads)]
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"specversion":"1.0","id":%q,"source":"/demo","type":"org.example.%s","datacontenttype":"application/json","data":%s}`,
			id(first+i), p.kind, p.data)
	}
	b.WriteByte(']')
	return b.Bytes()
}

// request repeats one batch under the same ids until it is acknowledged. The pause is short, for the failover is measured.
func (w *writer) request(ctx context.Context, body []byte) error {
	for deadline := time.Now().Add(30 * time.Second); ; w.retries++ {
		_, err := w.client.Send(ctx, channel, body, "application/cloudevents-batch+json", client.SendOptions{})
		if err == nil {
			w.lastAck = time.Now()
			return nil
		}
		if !client.Retryable(err) || time.Now().After(deadline) {
			return err
		}
		if err := pause(ctx, 25*time.Millisecond); err != nil {
			return err
		}
	}
}
