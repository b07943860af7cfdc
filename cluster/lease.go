package cluster

import (
	"sync"
	"time"
)

// Lease is this node's right to run the emitters it owns (DESIGN 4.17). It runs on the monotonic clock from before the node asked
// for it. A node whose lease lapsed stops, keeps its epochs, and goes on when the lease is renewed.
type Lease interface {
	// Valid tells whether the lease holds now.
	Valid() bool
	// Lost is closed when the lease lapses; a closed channel when it does not hold. Ask again after a renewal.
	Lost() <-chan struct{}
}

type ownerLease struct {
	now func() time.Time

	mu    sync.Mutex
	until time.Time
	lost  chan struct{} // open while the lease holds
	timer *time.Timer
}

func newOwnerLease(now func() time.Time) *ownerLease {
	l := &ownerLease{now: now, lost: make(chan struct{})}
	close(l.lost)
	return l
}

func (l *ownerLease) Valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now().Before(l.until)
}

func (l *ownerLease) Lost() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lapseLocked()
	return l.lost
}

// extend makes the lease hold until the given time. It reports whether it had lapsed before.
func (l *ownerLease) extend(until time.Time) (gained bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lapseLocked()
	now := l.now()
	if !until.After(now) || until.Before(l.until) {
		return false
	}
	gained = !now.Before(l.until)
	l.until = until
	if gained {
		l.lost = make(chan struct{})
	}
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timer = time.AfterFunc(until.Sub(now), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lapseLocked()
	})
	return gained
}

// lapseLocked closes the channel of a lease whose time is over.
func (l *ownerLease) lapseLocked() {
	if l.now().Before(l.until) {
		return
	}
	select {
	case <-l.lost:
	default:
		close(l.lost)
	}
}

// drop ends the lease now.
func (l *ownerLease) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
	l.until = time.Time{}
	l.lapseLocked()
}

// grants is the leader's side: until when each node may think that it holds its lease. It belongs to one term of one leader.
type grants struct {
	mu    sync.Mutex
	until map[string]time.Time
	asked map[string]time.Time
	// looked: somebody decides by Owners who gets which emitter. From then on a node whose lease lapsed waits in returning
	// until a look has begun after its question, and that look counts it as heard of.
	looked    bool
	returning map[string]time.Time // when it was cleared; zero: not yet
	// votes are the nodes whose last grant they got as voters. One that has its vote no more, or is no member, keeps that lease to
	// its end, and its emitters with it: nobody else may send for them before.
	votes map[string]bool
	looks uint64            // how many have begun
	after map[string]uint64 // the look from which on a node without a vote may have a lease again
}

func newGrants() *grants {
	return &grants{until: map[string]time.Time{}, asked: map[string]time.Time{}, returning: map[string]time.Time{}, votes: map[string]bool{}, after: map[string]uint64{}}
}

// clearedFor is how long a cleared node may take to ask again.
const clearedFor = time.Second

// comesBack tells whether a node whose lease lapsed may have it again. A look that began before its question may have found
// it silent for too long, and the command that moves its emitters may be on its way; the next look begins when that one has
// ended.
func (g *grants) comesBack(id string, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	cleared, waits := g.returning[id]
	switch {
	case !g.looked:
		return true
	case waits && !cleared.IsZero() && now.Sub(cleared) < clearedFor:
		delete(g.returning, id)
		return true
	case !waits || !cleared.IsZero():
		g.returning[id] = time.Time{}
	}
	return false
}

// look begins a look at the owners.
func (g *grants) look(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.looked = true
	g.looks++
	for id, cleared := range g.returning {
		if cleared.IsZero() {
			g.returning[id], g.asked[id] = now, now
		}
	}
}

// withoutVote tells whether a node that has no vote may have a lease (it owns nothing, and is only ready by it): what it got as a voter
// is out, and after that two looks have begun, of which the first gave its emitters to others.
func (g *grants) withoutVote(id string, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.votes[id] && now.Before(g.until[id]):
		return false
	case g.votes[id]:
		g.votes[id], g.after[id] = false, g.looks+2
	}
	return g.looks >= g.after[id]
}

// outlasts gives the nodes that are no voters any more and may still think that they hold the lease they got as such.
func (g *grants) outlasts(voters map[string]bool, now time.Time) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []string
	for id, until := range g.until {
		if g.votes[id] && !voters[id] && now.Before(until) {
			out = append(out, id)
		}
	}
	return out
}

func (g *grants) grant(id string, votes bool, now time.Time, ttl time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.votes[id] = votes
	g.until[id], g.asked[id] = now.Add(ttl), now
}

// state gives whether id may hold its lease at now, and when it last got one (since, if never in this term).
func (g *grants) state(id string, now, since time.Time) (live bool, silent time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	last := since
	if t, ok := g.asked[id]; ok {
		last = t
	}
	return now.Before(g.until[id]), now.Sub(last)
}
