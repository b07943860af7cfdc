// Package sink is what an emitter's kind has to do: deliver one compaction in one attempt and say how it went.
//
// It owns the words that emit and its kinds share (Delivery, Compaction, Class, Result) and the table from HTTP status to
// class. It promises nothing about retries, order, budgets or outcomes: those are package emit's. It does no I/O.
package sink

import (
	"context"
	"time"

	"penstock/event"
)

// Sink delivers compactions to one destination.
type Sink interface {
	// Deliver makes one attempt at the whole compaction and reports it. It is called by many goroutines at once.
	//
	// It returns soon after ctx ends; what it returns then is not counted, unless it is OK. Two calls with the same
	// compaction send the same bytes under the same ids (P6). It keeps no reference to c.
	Deliver(ctx context.Context, c *Compaction) Result
	// Close frees connections and files. No Deliver runs or follows.
	Close() error
}

// Delivery is one event at one emitter.
type Delivery struct {
	// Seq is the channel sequence number, Position where the event was first committed.
	Seq      uint64
	Position event.Position
	Event    event.Event
	// OrderKey is the hash of the event's order key; 0 means that it has none.
	OrderKey uint64
	// Poison says that the event can never be delivered; it gets no attempt.
	Poison bool
}

// Compaction is a closed run of a channel's events, cut for one emitter. Its id and members never change (I6).
type Compaction struct {
	ID string
	// First and Last are the channel sequence numbers of the run, inclusive.
	First, Last uint64
	// Deliveries are the unresolved ones of the run, in log order.
	Deliveries []Delivery
	// Prior is what the replicated state knows of earlier attempts.
	Prior Prior
}

// Prior is the replicated memory of a compaction's failed attempts, whoever made them.
type Prior struct {
	Attempts                uint32
	FirstFailed, LastFailed time.Time
	Class                   Class
	Status                  int
	Reason                  string
	// Attempted is true when the only attempt of an at-most-once delivery was announced.
	Attempted bool
}

// Result is how an attempt went.
type Result struct {
	// OK means delivered; the other fields are then for information.
	OK bool
	// Status is the HTTP status, 0 where there is none.
	Status int
	// Class says what to do about a failure.
	Class Class
	// RetryAfter is how long the destination asked to be left alone; 0 when it did not ask.
	RetryAfter time.Duration
	// Reason is one line for people; it holds no secret.
	Reason string
	// Body is the beginning of the answer, at most BodyKept bytes. It stays on the owner.
	Body []byte
}

// BodyKept is how much of a destination's answer is kept with a dead letter.
const BodyKept = 1 << 10
