package api

import (
	"context"
	"sync"
)

// admission bounds what is under way: requests and the bytes of their bodies. It never waits: what does not fit is refused
// at once, so that overload costs the client a retry and the node nothing (P8).
type admission struct {
	mu struct {
		sync.Mutex
		maxRequests, requests int
		maxBytes, bytes       int64
	}
}

func newAdmission(requests int, bytes int64) *admission {
	a := &admission{}
	a.resize(requests, bytes)
	return a
}

// resize changes the bounds for what comes; what is under way stays.
func (a *admission) resize(requests int, bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.maxRequests, a.mu.maxBytes = requests, bytes
}

// enter admits a request of up to bytes, or refuses it. The caller must leave with the same bytes.
func (a *admission) enter(bytes int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.requests >= a.mu.maxRequests || a.mu.bytes+bytes > a.mu.maxBytes {
		return false
	}
	a.mu.requests++
	a.mu.bytes += bytes
	return true
}

// shrink gives back what a request of held bytes turned out not to need; what it still holds is returned.
func (a *admission) shrink(held, needed int64) int64 {
	if needed >= held {
		return held
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.bytes -= held - needed
	return needed
}

// load is what is under way.
func (a *admission) load() (requests int, bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.requests, a.mu.bytes
}

func (a *admission) leave(bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.requests--
	a.mu.bytes -= bytes
}

// How many answers that cost much are made at once. A page of tail holds up to maxTailBytes until it is written, a scan of
// explain reads the log.
const (
	maxPages = 32
	maxScans = 4
)

// slots bounds how many do something at once. Unlike admission it waits, within the deadline of the request.
type slots chan struct{}

// slot is one request's place among slots, held or not. One goroutine uses it.
type slot struct {
	of   slots
	held bool
}

func (s slots) holder() *slot { return &slot{of: s} }

// enter waits for a place; false when ctx ends first.
func (s *slot) enter(ctx context.Context) bool {
	if s.held {
		return true
	}
	select {
	case s.of <- struct{}{}:
		s.held = true
	case <-ctx.Done():
	}
	return s.held
}

// leave gives the place back, if it is held.
func (s *slot) leave() {
	if s.held {
		s.held = false
		<-s.of
	}
}
