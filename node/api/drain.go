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
	// begun is closed when the drain begins, idle once it has begun and no accepted request is left.
	begun, idle chan struct{}

	mu struct {
		sync.Mutex
		closing bool
		cut     bool // bodies that begin to be read now are cut off at once, too
		bodies  map[*http.ResponseController]struct{}
		active  int // accepted requests: those that may change something
		running int // handlers of any kind
		quiet   chan struct{}
	}
}

func (d *drainState) init() {
	d.begun, d.idle = make(chan struct{}), make(chan struct{})
	d.mu.bodies = make(map[*http.ResponseController]struct{})
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
		close(d.idle)
	}
}

// reading gives the body until the deadline, and registers it for cutBodies; the returned func ends that.
func (d *drainState) reading(rc *http.ResponseController, deadline time.Time) (done func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.cut {
		deadline = time.Now()
	}
	_ = rc.SetReadDeadline(deadline) // a writer that has no connection has no deadline either
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
	close(d.begun)
	if d.mu.active == 0 {
		close(d.idle)
	}
}

// cutBodies makes every body read fail, those under way and those to come.
func (d *drainState) cutBodies() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.cut = true
	for rc := range d.mu.bodies {
		_ = rc.SetReadDeadline(time.Now())
	}
}

// run counts a handler in.
func (d *drainState) run() (done func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.running++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.mu.running--
		if d.mu.running == 0 && d.mu.quiet != nil {
			close(d.mu.quiet)
			d.mu.quiet = nil
		}
	}
}

// quiet is closed when no handler runs.
func (d *drainState) quiet() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.running == 0 {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	if d.mu.quiet == nil {
		d.mu.quiet = make(chan struct{})
	}
	return d.mu.quiet
}

// accepted guards a request that may change something: once accepted it is answered before the node stops, and none is
// accepted once the drain has begun. Its body must have arrived within the request's timeout.
func (a *API) accepted(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !a.drain.enter() {
			w.Header().Set("Connection", "close") // the body is not read, and this node has nothing more to say
			newProblem(http.StatusServiceUnavailable, kindShuttingDown, "shutting down", "this node takes no new requests; try another").notCommitted().write(w)
			return
		}
		defer a.drain.leave()
		timeout, err := a.timeout(r)
		if err != nil {
			badRequest(err.Error()).notCommitted().write(w)
			return
		}
		defer a.drain.reading(http.NewResponseController(w), time.Now().Add(timeout))()
		h(w, r)
	}
}

// BeginDrain makes readiness false, refuses new requests that may change something with 503, and answers those that wait
// for events.
func (a *API) BeginDrain() { a.drain.begin() }

// CutBodies ends the uploads that are still under way: each is answered 503, certainly not committed.
func (a *API) CutBodies() { a.drain.cutBodies() }

// WaitDrained returns once every accepted request has been answered, or with ctx's error.
func (a *API) WaitDrained(ctx context.Context) error {
	select {
	case <-a.drain.idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// WaitQuiet returns once no handler runs any more, or with ctx's error. After it the parts may be closed.
func (a *API) WaitQuiet(ctx context.Context) error {
	select {
	case <-a.drain.quiet():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
