package api

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// drainState lets a shutdown answer every accepted request: new ones are refused, those under way finish, and one whose
// body is still being read is cut off and told that it was not committed.
type drainState struct {
	mu struct {
		sync.Mutex
		closing bool
		bodies  map[*http.ResponseController]struct{}
		active  int
		idle    chan struct{} // closed when closing and nothing is active
	}
}

func (d *drainState) init() {
	d.mu.bodies = make(map[*http.ResponseController]struct{})
	d.mu.idle = make(chan struct{})
}

func (d *drainState) draining() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.closing
}

// enter counts a request in; false once draining has begun.
func (d *drainState) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.closing {
		return false
	}
	d.mu.active++
	return true
}

func (d *drainState) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.active--
	if d.mu.closing && d.mu.active == 0 {
		close(d.mu.idle)
	}
}

// reading registers a request whose body is being read; the returned func ends that.
func (d *drainState) reading(rc *http.ResponseController) (done func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.bodies[rc] = struct{}{}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.mu.bodies, rc)
	}
}

// begin refuses new requests from now on.
func (d *drainState) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.closing {
		return
	}
	d.mu.closing = true
	if d.mu.active == 0 {
		close(d.mu.idle)
	}
}

// cutBodies makes every body read under way fail now.
func (d *drainState) cutBodies() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for rc := range d.mu.bodies {
		_ = rc.SetReadDeadline(time.Now())
	}
}

// BeginDrain makes readiness false and refuses new ingest requests with 503.
func (a *API) BeginDrain() { a.drain.begin() }

// CutBodies ends the uploads that are still under way: each is answered 503, certainly not committed.
func (a *API) CutBodies() { a.drain.cutBodies() }

// WaitDrained returns once every accepted ingest request has been answered, or with ctx's error.
func (a *API) WaitDrained(ctx context.Context) error {
	select {
	case <-a.drain.mu.idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
