package load

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// refusedPause keeps a closed loop from spinning on a node that refuses.
const refusedPause = 5 * time.Millisecond

// worker has one request under way at a time.
type worker struct {
	r       *run
	buf     []byte
	tally   tally
	latency *hdrhistogram.Histogram // µs; from when a request was due in an open loop
	service *hdrhistogram.Histogram // µs; from when it was sent; nil in a closed loop, where it is the same
}

// newHistogram takes 1 µs to 10 minutes in three digits.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, 600_000_000, 3) }

func newWorker(r *run) *worker {
	w := &worker{r: r, latency: newHistogram(), tally: newTally()}
	if r.every > 0 {
		w.service = newHistogram()
	}
	return w
}

func (w *worker) run(ctx context.Context) {
	for {
		n, due, ok := w.r.turn(ctx)
		if !ok {
			return
		}
		var c *conn
		select {
		case c = <-w.r.idle:
		case <-ctx.Done():
			return
		}
		refused := !w.send(ctx, c, n, due)
		w.r.idle <- c
		if refused && w.r.every == 0 {
			select {
			case <-time.After(refusedPause):
			case <-ctx.Done():
				return
			}
		}
	}
}

// send makes one request and counts what became of it. A request that was begun is waited for, also past the end of the run.
func (w *worker) send(ctx context.Context, c *conn, n int64, due time.Time) (ok bool) {
	w.buf = w.r.requests[n%int64(len(w.r.requests))].stamp(w.buf[:0], n)
	events := int64(w.r.cfg.Batch)
	w.tally.Requests++
	w.tally.Events += events
	w.tally.BytesSent += int64(len(w.buf))
	if c.conn == nil {
		if err := c.open(ctx); err != nil {
			w.tally.NotSent += events
			w.tally.fault(err)
			return false
		}
	}
	sent := time.Now()
	a, wrote, err := c.roundTrip(w.buf)
	now := time.Now()
	switch {
	case err != nil && !wrote:
		w.tally.NotSent += events
		w.tally.fault(err)
		return false
	case err != nil:
		w.tally.Unknown += events
		w.tally.fault(err)
		return false
	case a.status == http.StatusOK:
		w.record(now, sent, due)
		return w.accepted(a, events)
	}
	return w.refused(a, events)
}

func (w *worker) record(now, sent, due time.Time) {
	service := max(now.Sub(sent).Microseconds(), 1)
	if due.IsZero() {
		_ = w.latency.RecordValue(service)
		return
	}
	_ = w.service.RecordValue(service)
	_ = w.latency.RecordValue(max(now.Sub(due).Microseconds(), 1))
}

func (w *worker) accepted(a answer, events int64) bool {
	var body struct{ Accepted, Duplicates, Poisoned int64 }
	if err := json.Unmarshal(a.body, &body); err != nil || body.Accepted+body.Duplicates != events {
		w.tally.Unknown += events
		w.tally.fault(fmt.Errorf("a 200 that does not count %d events: %.200s", events, a.body))
		return false
	}
	w.tally.Answered++
	w.tally.Accepted += body.Accepted
	w.tally.Duplicates += body.Duplicates
	w.tally.Poisoned += body.Poisoned
	return true
}

func (w *worker) refused(a answer, events int64) bool {
	var problem struct{ Type, Committed string }
	_ = json.Unmarshal(a.body, &problem)
	if problem.Committed != "no" {
		w.tally.Unknown += events
	} else {
		w.tally.Refused += events
	}
	w.tally.fault(fmt.Errorf("%d %s", a.status, kindOf(problem.Type)))
	return false
}
