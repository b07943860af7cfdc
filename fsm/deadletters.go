package fsm

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"penstock/event"
	"penstock/fsm/command"
)

// DeadLetter is one open dead letter or poison delivery.
type DeadLetter struct {
	ID                         string // stable: DeadLetterID
	Channel, Emitter           string
	ChannelIndex, EmitterIndex uint64
	Seq                        uint64
	Position                   event.Position
	State                      string // "dead" or "poison"
	Class                      command.Class
	Status                     uint16
	Attempts                   uint32
	Redeliveries               uint32 // replays that failed
	MaxRetries                 int    // of the emitter's spec: at or above it no replay is scheduled
	Claimed                    bool   // a replay of it is under way
	ClaimedAt                  int64  // stamp
	ClaimID                    [16]byte
	Reason                     string
	At                         int64  // of the last attempt, unix nanoseconds, as the owner said
	Stamp                      int64  // of the entry that made it a dead letter
	Node                       string // the owner then, and its epoch
	Epoch                      uint64
	CompactionID               string // of the compaction it was sent with, as the owner said
}

// The states of a dead letter.
const (
	StateDead   = "dead"
	StatePoison = "poison"
)

// DeadLetters are the open dead letters by channel name, emitter and sequence number; "" takes every channel, emitter or
// state.
func (m *Machine) DeadLetters(channel, emitter, state string) []DeadLetter {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var all []DeadLetter
	for _, c := range m.mu.byName() {
		if channel != "" && c.spec.Name != channel {
			continue
		}
		for _, e := range c.emitters {
			if emitter != "" && e.name != emitter {
				continue
			}
			all = e.appendDeadLetters(all, state)
		}
	}
	return all
}

// DeadLetterOf is the open dead letter of one delivery.
func (m *Machine) DeadLetterOf(channelIndex, emitterIndex, seq uint64) (DeadLetter, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.deadLetterOf(m.mu.emitter(channelIndex, emitterIndex), seq)
}

func (s *state) deadLetterOf(e *emitter, seq uint64) (DeadLetter, bool) {
	if e == nil {
		return DeadLetter{}, false
	}
	d, l := e.letterAt(seq)
	if l == nil || l.closed {
		return DeadLetter{}, false
	}
	return e.deadLetter(d, int(seq-d.first)), true
}

func (e *emitter) appendDeadLetters(all []DeadLetter, state string) []DeadLetter {
	for _, d := range e.letters {
		if state != "" && state != d.state() {
			continue
		}
		for i := range d.letters {
			if !d.letters[i].closed {
				all = append(all, e.deadLetter(d, i))
			}
		}
	}
	return all
}

func (d *deadRun) state() string {
	if d.poison {
		return StatePoison
	}
	return StateDead
}

func (e *emitter) deadLetter(d *deadRun, i int) DeadLetter {
	l := DeadLetter{
		ID:      DeadLetterID(e.ch.index, e.index, d.letters[i].position),
		Channel: e.ch.spec.Name, Emitter: e.name, ChannelIndex: e.ch.index, EmitterIndex: e.index,
		Seq: d.first + uint64(i), Position: d.letters[i].position, State: d.state(), Class: d.class, Status: d.status,
		Attempts: d.attempts, Redeliveries: d.letters[i].replays, Reason: d.reason, At: d.at, Stamp: d.stamp, Node: d.node,
		Epoch: d.epoch,
	}
	l.MaxRetries = e.spec.DeadLetter.MaxRetries
	if k := e.claims[l.Seq]; k != nil {
		l.Claimed, l.ClaimedAt, l.ClaimID = true, k.stamp, k.id
	}
	if d.compaction != [16]byte{} {
		l.CompactionID = hex.EncodeToString(d.compaction[:])
	}
	return l
}

// DeadLetterID is the id of a dead letter, for ever: 32 hex digits of a hash of (channel, emitter, position).
//
//	SHA-256("penstock dead letter 1" | channel u64le | emitter u64le | index u64le | ordinal u64le), first 16 bytes
func DeadLetterID(channelIndex, emitterIndex uint64, p event.Position) string {
	id := letterID(channelIndex, emitterIndex, p)
	return hex.EncodeToString(id[:])
}

func letterID(channelIndex, emitterIndex uint64, p event.Position) [16]byte {
	return hashID("penstock dead letter 1", nil, channelIndex, emitterIndex, p.Index, uint64(p.Ordinal))
}

// CompactionID is the id of a compaction, the same on every attempt, failover, restart and replay (P6, I6).
//
//	SHA-256("penstock compaction 1" | cluster id [16] | channel u64le | emitter u64le | first: index, ordinal u64le |
//	        last: index, ordinal u64le), first 16 bytes as hex
func (m *Machine) CompactionID(channelIndex, emitterIndex uint64, first, last event.Position) string {
	id, _ := m.ClusterID()
	return compactionID(id, channelIndex, emitterIndex, first, last)
}

func compactionID(cluster [16]byte, channelIndex, emitterIndex uint64, first, last event.Position) string {
	id := hashID("penstock compaction 1", cluster[:], channelIndex, emitterIndex,
		first.Index, uint64(first.Ordinal), last.Index, uint64(last.Ordinal))
	return hex.EncodeToString(id[:])
}

func hashID(tag string, more []byte, nums ...uint64) [16]byte {
	b := append([]byte(tag), more...)
	for _, n := range nums {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	h := sha256.Sum256(b)
	return [16]byte(h[:16])
}
