package dlq

import (
	"time"

	"penstock/event"
)

// State tells the two queues apart.
type State string

// The states of a record.
const (
	Dead   State = "dead"
	Poison State = "poison"
)

// Record is one dead-lettered or poison delivery.
type Record struct {
	// ID is the stable id: the same for the same delivery on every node and at every repeat. The caller makes it.
	ID    string
	State State
	// At is deadLetteredAt of a dead letter and poisonedAt of a poison record.
	At time.Time

	Channel, Emitter           string
	ChannelIndex, EmitterIndex uint64
	Seq                        uint64
	Position                   event.Position
	CompactionID               string
	// Owner and Epoch say who wrote it; a record of an old epoch is history.
	Owner string
	Epoch uint64

	// Class and Status are those of the last attempt; Cause is the rule that ended the delivery, Reason what the last attempt met.
	Class         string
	Status        int
	Cause, Reason string

	// RedeliveryCount counts replays.
	RedeliveryCount int
	Limits          Limits

	// AttemptCount counts all attempts; Attempts are those that the owner remembers, oldest first.
	AttemptCount                uint32
	FirstFailedAt, LastFailedAt time.Time
	Attempts                    []Attempt

	// Event is what was to be delivered, its data byte for byte.
	Event event.Event
}

// Limits are the budget that was used up and the bound of replays. 0 is no limit.
type Limits struct {
	TTL         time.Duration
	MaxAttempts int
	MaxRetries  int
}

// Attempt is one failed attempt.
type Attempt struct {
	At     time.Time
	Class  string
	Status int
	Error  string
	// Response is the beginning of the destination's answer, at most 1 KiB.
	Response []byte
}
