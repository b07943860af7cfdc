package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"penstock/event"
)

// TailOptions narrow one page of committed events.
type TailOptions struct {
	From  event.Position // first wanted; the zero position is the first there is
	Limit int            // 0: the server's
	Wait  time.Duration  // how long a page may wait for its first event; 0 is not at all
}

// TailEvent is one line of a page. Raw is the structured CloudEvent and is valid until the callback returns.
type TailEvent struct {
	Position event.Position
	ID       string
	Source   string
	Raw      []byte
}

// TailEnd says where a page ended.
type TailEnd struct {
	Next    event.Position // where to go on
	First   uint64         // first readable index
	Applied uint64         // applied index of the node
	Events  int
}

// maxLine bounds one event on the wire: the largest event an operator may allow, base64-encoded, with its attributes.
const maxLine = 128 << 20

// Tail reads one page of a channel's committed events, in order, and gives each to fn. When the connection breaks in
// mid-page, Next is behind the last event given, so going on from there shows none twice and skips none.
func (c *Client) Tail(ctx context.Context, channel string, o TailOptions, fn func(TailEvent) error) (TailEnd, error) {
	end := TailEnd{Next: o.From}
	q := url.Values{}
	if !o.From.IsZero() {
		q.Set("from", o.From.String())
	}
	if o.Limit > 0 {
		q.Set("limit", strconv.Itoa(o.Limit))
	}
	if o.Wait > 0 {
		q.Set("wait", o.Wait.String())
	}
	resp, err := c.do(ctx, request{method: http.MethodGet, path: path("channels", channel, "events"), query: q, wait: o.Wait})
	if err != nil {
		return end, err
	}
	defer resp.Body.Close()
	end.First, _ = strconv.ParseUint(resp.Header.Get("Penstock-First"), 10, 64)
	end.Applied, _ = strconv.ParseUint(resp.Header.Get("Penstock-Applied"), 10, 64)
	if err := readLines(resp.Body, &end, fn); err != nil {
		return end, err
	}
	// A whole page: the server may point behind entries that hold nothing of this channel.
	if next, err := event.ParsePosition(resp.Header.Get("Penstock-Next")); err == nil && next.Compare(end.Next) > 0 {
		end.Next = next
	}
	return end, nil
}

func readLines(body io.Reader, end *TailEnd, fn func(TailEvent) error) error {
	r := bufio.NewReaderSize(body, 64<<10)
	for {
		line, err := readLine(r, maxLine)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read page: %w", err)
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		e, err := parseTailLine(line)
		if err != nil {
			return err
		}
		if err := fn(e); err != nil {
			return err
		}
		end.Events++
		end.Next = event.Position{Index: e.Position.Index, Ordinal: e.Position.Ordinal + 1}
	}
}

// errLineTooLong: a line over the bound, which is never cut in silence.
var errLineTooLong = errors.New("line is longer than the limit")

// readLine reads one line of any length up to limit, without the newline. A last line without newline is a broken page.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var long []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(long)+len(part) > limit {
			return nil, errLineTooLong
		}
		switch {
		case err == nil && long == nil:
			return part[:len(part)-1], nil
		case err == nil:
			return append(long, part[:len(part)-1]...), nil
		case errors.Is(err, bufio.ErrBufferFull):
			long = append(long, part...)
		case err == io.EOF && len(long)+len(part) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}

func parseTailLine(line []byte) (TailEvent, error) {
	var head struct {
		ID      string `json:"id"`
		Source  string `json:"source"`
		Index   uint64 `json:"penstockindex"`
		Ordinal uint32 `json:"penstockordinal"`
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return TailEvent{}, fmt.Errorf("read event of page: %w", err)
	}
	return TailEvent{Position: event.Position{Index: head.Index, Ordinal: head.Ordinal}, ID: head.ID, Source: head.Source, Raw: line}, nil
}

// Follow gives every event from o.From on to fn, waiting for new ones, until ctx ends, fn fails, or an error that waiting
// does not cure; a node that goes away is no such error.
func (c *Client) Follow(ctx context.Context, channel string, o TailOptions, fn func(TailEvent) error) error {
	if o.Wait <= 0 {
		o.Wait = defaultWait
	}
	var stop error
	for pause := 100 * time.Millisecond; ; {
		end, err := c.Tail(ctx, channel, o, func(e TailEvent) error { stop = fn(e); return stop })
		o.From = end.Next
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if stop != nil {
			return stop
		}
		if err == nil || end.Events > 0 {
			pause = 100 * time.Millisecond
		}
		if err == nil {
			continue
		}
		if p, ok := AsProblem(err); ok && !Retryable(err) && p.Status < 500 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, 2*time.Second)
	}
}
