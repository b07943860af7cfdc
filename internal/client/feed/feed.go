// Package feed sends the events of files and streams to a channel: it splits them into requests under the limits, gives
// events without an id one that is the same whenever the same bytes are sent from the same place, repeats what was refused
// for the moment or whose outcome is unknown under those ids, and, with a source and partition, goes on where the committed
// source offset says the last run got to.
//
// It promises that every event of an input is accepted once or reported, however often requests were repeated, and that no
// line is cut or skipped in silence whatever its length (case B01). It keeps nothing on disk; the cluster holds the offset.
package feed

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"penstock/event"
	"penstock/internal/client"
)

// Sender is what the feed needs of the client.
type Sender interface {
	Send(ctx context.Context, channel string, body []byte, contentType string, o client.SendOptions) (client.SendResult, error)
	Offset(ctx context.Context, channel, source, partition string) (event.SourceOffset, bool, error)
}

// Config says how to send.
type Config struct {
	Channel string
	// MaxBytes and MaxEvents bound one request; one event larger than MaxBytes is sent alone. Defaults 1 MiB and 1000.
	MaxBytes, MaxEvents int
	// Source and Partition make the input resumable; each request then commits the offset behind its last event in the same
	// entry. Close says with the last request that the source has ended.
	Source, Partition string
	Close             bool
	// Fresh makes new ids on each run, so that the same file sent again makes new events.
	Fresh bool
	// EventSource and EventType wrap plain JSON; empty: the channel's.
	EventSource, EventType string
	// RetryFor bounds how long one request is repeated. Default 2m.
	RetryFor time.Duration
	// Progress, when set, is told after each request.
	Progress func(Summary)
	// Waiting, when set, is told why a request is about to be repeated.
	Waiting func(error)
}

// Summary counts what happened so far.
type Summary struct {
	Sent       uint64 `json:"sent"` // acknowledged events: accepted, duplicates and poisoned
	Accepted   uint64 `json:"accepted"`
	Duplicates uint64 `json:"duplicates"`
	Poisoned   uint64 `json:"poisoned"`
	Retries    uint64 `json:"retries"` // requests repeated
	Unknown    uint64 `json:"unknown"` // events of the request that was given up with its outcome unknown
	Bytes      uint64 `json:"bytes"`
	LastIndex  uint64 `json:"last_index"`
	Resumed    string `json:"resumed,omitempty"` // the source offset this run went on from
}

// Feed sends inputs one after another. Not for use by several goroutines.
type Feed struct {
	cfg     Config
	sender  Sender
	run     string // names this run where ids must not repeat those of another
	host    string
	summary Summary
}

// New makes a feed.
func New(cfg Config, s Sender) *Feed {
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = 1 << 20
	}
	if cfg.MaxEvents <= 0 {
		cfg.MaxEvents = 1000
	}
	if cfg.RetryFor <= 0 {
		cfg.RetryFor = 2 * time.Minute
	}
	if cfg.Partition == "" {
		cfg.Partition = "0"
	}
	host, _ := os.Hostname()
	return &Feed{cfg: cfg, sender: s, run: rand.Text(), host: host}
}

// Summary gives the counts.
func (f *Feed) Summary() Summary { return f.summary }

// Lines tells whether a file of that name holds one event per line; any other is one event as a whole.
func Lines(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".ndjson", ".jsonl":
		return true
	}
	return false
}

// File sends one file.
func (f *Feed) File(ctx context.Context, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	scope := f.run
	if abs, err := filepath.Abs(path); err == nil && !f.cfg.Fresh {
		scope = f.host + "\x00" + abs
	}
	return f.input(ctx, path, scope, file, Lines(path))
}

// Stream sends NDJSON from r. Its events get ids of this run unless a source names them.
func (f *Feed) Stream(ctx context.Context, name string, r io.Reader) error {
	return f.input(ctx, name, f.run, r, true)
}

// input sends one input from where its source offset stands.
func (f *Feed) input(ctx context.Context, name, scope string, r io.Reader, lines bool) error {
	in := newReader(r, lines)
	b := &batch{name: name, scope: scope}
	if f.cfg.Source != "" {
		if !f.cfg.Fresh {
			b.scope = "source\x00" + f.cfg.Source + "\x00" + f.cfg.Partition
		}
		at, ok, err := f.offset(ctx)
		if err != nil {
			return fmt.Errorf("read offset of source %q: %w", f.cfg.Source, err)
		}
		if ok {
			f.summary.Resumed = at.String()
			if err := in.skip(r, at); err != nil {
				return fmt.Errorf("%s: resume at %s: %w", name, at, err)
			}
			b.end, b.closed = at, at.Closed
		}
	}
	for {
		rec, err := in.next()
		if err == io.EOF {
			return f.last(ctx, b, in.offset())
		}
		if err != nil {
			return fmt.Errorf("%s:%d: %w", name, in.line+1, err)
		}
		if len(b.records) > 0 && !b.fits(rec, f.cfg.MaxBytes, f.cfg.MaxEvents) {
			if err := f.flush(ctx, b); err != nil {
				return err
			}
		}
		b.add(rec)
	}
}

// last sends what is left. The offset stands behind trailing empty lines too.
func (f *Feed) last(ctx context.Context, b *batch, end event.SourceOffset) error {
	moved := end.Position > b.end.Position
	end.Closed = f.cfg.Close || b.closed
	b.end = end
	if len(b.records) > 0 {
		return f.flush(ctx, b)
	}
	if f.cfg.Source != "" && f.cfg.Close && (moved || !b.closed) {
		return f.send(ctx, b, nil) // nothing but the offset
	}
	return nil
}

func (f *Feed) flush(ctx context.Context, b *batch) error {
	err := f.send(ctx, b, b.records)
	b.records, b.size = nil, 0
	return err
}

// send makes one request of records, or, when a node finds it too large, two of the halves: a 413 is certainly not committed.
func (f *Feed) send(ctx context.Context, b *batch, records []record) error {
	res, err := f.request(ctx, b, records)
	if p, ok := client.AsProblem(err); ok && p.Status == http.StatusRequestEntityTooLarge && len(records) > 1 && !client.Unknown(err) {
		half := len(records) / 2
		front := *b
		front.end = records[half-1].end
		if err := f.send(ctx, &front, records[:half]); err != nil {
			return err
		}
		return f.send(ctx, b, records[half:])
	}
	if err != nil {
		return b.locate(records, err)
	}
	f.count(res, records)
	return nil
}

func (f *Feed) count(res client.SendResult, records []record) {
	s := &f.summary
	s.Accepted += uint64(res.Accepted)
	s.Duplicates += uint64(res.Duplicates)
	s.Poisoned += uint64(res.Poisoned)
	s.Sent += uint64(len(records))
	s.LastIndex = max(s.LastIndex, res.Index)
	for _, r := range records {
		s.Bytes += uint64(len(r.data))
	}
	if f.cfg.Progress != nil {
		f.cfg.Progress(*s)
	}
}

// request sends until there is a definite answer, for at most RetryFor.
func (f *Feed) request(ctx context.Context, b *batch, records []record) (client.SendResult, error) {
	body, contentType := encode(records)
	o := client.SendOptions{IdempotencyKey: b.key(records, body), Header: http.Header{}}
	if f.cfg.EventSource != "" {
		o.Header.Set("Penstock-Source", f.cfg.EventSource)
	}
	if f.cfg.EventType != "" {
		o.Header.Set("Penstock-Type", f.cfg.EventType)
	}
	if f.cfg.Source != "" {
		end := b.end
		o.Source, o.Partition, o.Offset = f.cfg.Source, f.cfg.Partition, &end
	}
	unknown := false
	var res client.SendResult
	err := f.repeat(ctx, func() (err error) {
		res, err = f.sender.Send(ctx, f.cfg.Channel, body, contentType, o)
		unknown = unknown || client.Unknown(err)
		return err
	})
	if err != nil && unknown {
		f.summary.Unknown += uint64(len(records))
		var u *client.UnknownError
		if !errors.As(err, &u) {
			err = &client.UnknownError{Err: err}
		}
	}
	return res, err
}

func (f *Feed) offset(ctx context.Context) (o event.SourceOffset, ok bool, err error) {
	err = f.repeat(ctx, func() (err error) {
		o, ok, err = f.sender.Offset(ctx, f.cfg.Channel, f.cfg.Source, f.cfg.Partition)
		return err
	})
	return o, ok, err
}

const (
	firstPause = 100 * time.Millisecond
	maxPause   = 3 * time.Second
	maxAsked   = 30 * time.Second // a node's Retry-After is honoured up to here
)

// repeat calls until it works, fails for good, or RetryFor is over.
func (f *Feed) repeat(ctx context.Context, call func() error) error {
	deadline := time.Now().Add(f.cfg.RetryFor)
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := call()
		if err == nil || ctx.Err() != nil || !client.Retryable(err) {
			return err
		}
		wait := max(pause/2+jitter(pause/2), min(client.RetryAfter(err), maxAsked))
		if time.Now().Add(wait).After(deadline) {
			return fmt.Errorf("given up after %s: %w", f.cfg.RetryFor, err)
		}
		if f.cfg.Waiting != nil {
			f.cfg.Waiting(err)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
		f.summary.Retries++
	}
}

// jitter is a random part of d, so that many senders do not come back at once.
func jitter(d time.Duration) time.Duration {
	var b [2]byte
	_, _ = rand.Read(b[:])
	return time.Duration(float64(d) * float64(uint16(b[0])<<8|uint16(b[1])) / 65536)
}

// batch is the request that is being filled.
type batch struct {
	name    string
	scope   string
	records []record
	size    int
	end     event.SourceOffset // behind the last record
	closed  bool               // the source was closed before this run
}

func (b *batch) fits(r record, maxBytes, maxEvents int) bool {
	return b.size+len(r.data)+1 <= maxBytes && len(b.records) < maxEvents && r.kind == b.records[0].kind && r.kind != whole
}

func (b *batch) add(r record) {
	b.records = append(b.records, r)
	b.size += len(r.data) + 1
	r.end.Closed = b.closed
	b.end = r.end
}

// key names a request by where its bytes come from and what they are: the same bytes from the same place get the same ids.
func (b *batch) key(records []record, body []byte) string {
	if len(records) == 0 {
		return ""
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%d\x00", b.scope, records[0].start)
	h.Write(body)
	return "send-" + hex.EncodeToString(h.Sum(nil)[:16])
}

// locate names the file and line of the event a node refused.
func (b *batch) locate(records []record, err error) error {
	p, ok := client.AsProblem(err)
	if !ok || p.Ordinal == nil || *p.Ordinal < 0 || *p.Ordinal >= len(records) || records[*p.Ordinal].kind == whole {
		return fmt.Errorf("%s: %w", b.name, err)
	}
	return fmt.Errorf("%s:%d: %w", b.name, records[*p.Ordinal].line, err)
}

// encode makes the body of a request. Lines stay as they are, byte for byte.
func encode(records []record) (body []byte, contentType string) {
	if len(records) == 0 {
		return []byte{}, "application/x-ndjson"
	}
	switch records[0].kind {
	case whole:
		if cloudEvent(records[0].data) {
			return records[0].data, "application/cloudevents+json"
		}
		return records[0].data, "application/json"
	case lineCloudEvent:
		body = []byte{'['}
		for i, r := range records {
			if i > 0 {
				body = append(body, ',')
			}
			body = append(body, r.data...)
		}
		return append(body, ']'), "application/cloudevents-batch+json"
	}
	var buf bytes.Buffer
	for _, r := range records {
		buf.Write(r.data)
		buf.WriteByte('\n')
	}
	return buf.Bytes(), "application/x-ndjson"
}
