package emit

import (
	"fmt"
	"time"

	"penstock/internal/spec"
)

// Tried is what is known of the attempts at a compaction, whoever made them.
type Tried struct {
	Attempts                uint32
	FirstFailed, LastFailed time.Time
	Class                   Class // of the last one
}

// NextAttempt is when a delivery is tried next and why: the answer of the emitter and of explain, which is why it depends on
// nothing but its arguments.
type NextAttempt struct {
	// At is when the next attempt is due; zero means at once. It may come later: while the breaker is open, the destination
	// asked to be left alone, all slots are taken, or an earlier event of its lane is not through.
	At time.Time
	// Spent names the bound of the budget that is used up; "" while none is. A spent delivery is given up when another attempt
	// of the present epoch has failed, or parks.
	Spent string
	// Parked: it stays at the head of its lane and is tried at the slowest pace for as long as it takes.
	Parked bool
	// Last: the ttl ends with this attempt.
	Last bool
}

// Next gives the next attempt at a compaction. parks tells whether it would park instead of becoming a dead letter, asked is
// what Retry-After said, 0 without it.
func Next(retry spec.Retry, seed uint64, t Tried, parks bool, asked time.Duration) NextAttempt {
	if t.Attempts == 0 {
		return NextAttempt{}
	}
	n := NextAttempt{Spent: Spent(retry, t)}
	n.Parked = n.Spent != "" && parks
	wait := retryDelay(retry, seed, int(min(t.Attempts, 1<<30)), asked)
	if n.Parked {
		wait = max(wait, Backoff(retry, seed, 1<<30))
	} else if ttl := time.Duration(retry.TTL); ttl > 0 && asked <= 0 {
		// The last attempt is made when the ttl ends rather than a whole backoff after it.
		left := ttl - t.LastFailed.Sub(t.FirstFailed)
		lo, _ := backoffBounds(retry)
		if left = max(left, lo); left <= wait {
			wait, n.Last = left, true
		}
	}
	n.At = t.LastFailed.Add(wait)
	return n
}

// Spent says why a delivery whose last attempt failed is to be given up, "" while it is not.
func Spent(retry spec.Retry, t Tried) string {
	ttl := time.Duration(retry.TTL)
	switch {
	case t.Attempts == 0:
		return ""
	case t.Class == ClassPermanent:
		return "the destination refused it for good"
	case retry.MaxAttempts > 0 && int64(t.Attempts) >= int64(retry.MaxAttempts):
		return fmt.Sprintf("retry.max_attempts %d used up", retry.MaxAttempts)
	case ttl > 0 && t.LastFailed.Sub(t.FirstFailed) >= ttl:
		return fmt.Sprintf("retry.ttl %s used up after %d attempts", ttl, t.Attempts)
	}
	return ""
}
