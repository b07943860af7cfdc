package api

import "sync"

// admission bounds what is under way: requests and the bytes of their bodies. It never waits: what does not fit is refused
// at once, so that overload costs the client a retry and the node nothing (P8).
type admission struct {
	maxRequests int
	maxBytes    int64
	mu          struct {
		sync.Mutex
		requests int
		bytes    int64
	}
}

func newAdmission(requests int, bytes int64) *admission {
	return &admission{maxRequests: requests, maxBytes: bytes}
}

// enter admits a request of up to bytes, or refuses it. The caller must leave with the same bytes.
func (a *admission) enter(bytes int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.requests >= a.maxRequests || a.mu.bytes+bytes > a.maxBytes {
		return false
	}
	a.mu.requests++
	a.mu.bytes += bytes
	return true
}

func (a *admission) leave(bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.requests--
	a.mu.bytes -= bytes
}
