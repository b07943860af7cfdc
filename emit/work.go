package emit

import (
	"strings"
	"time"
	"unicode/utf8"

	"penstock/event"
)

// work is one compaction (or the poison part of one) between being read and its committed end. The loop goroutine owns it.
type work struct {
	id          string
	first, last uint64 // of the whole compaction
	seed        uint64

	// deliveries are nil while they are shed to save memory; bytes is their weight, counted in runner.loaded while they are held.
	deliveries []Delivery
	bytes      int

	keys    []uint64 // lanes it stands in; nil when it is bound to none
	blocked int      // lanes in which another stands before it

	attempts   uint32 // all of them, by whomever
	unreported uint32 // of these, not yet in a report
	failedHere bool   // one failed in this Run: only then may it be given up
	announced  bool   // at-most-once: the only attempt is announced
	retry      bool   // holds a slot as a retry
	parked     bool
	backlog    bool      // given up since too much is undelivered
	due        time.Time // local clock; zero is now

	firstFailed, lastFailed time.Time // cluster clock
	history                 []Attempt

	done bool
}

func (w *work) tried(class Class) Tried {
	return Tried{Attempts: w.attempts, FirstFailed: w.firstFailed, LastFailed: w.lastFailed, Class: class}
}

// historyKept bounds the attempts that are remembered for a dead letter.
const historyKept = 8

// stretch is an unbroken run of sequence numbers and where their events are.
type stretch struct {
	first, last uint64
	positions   []event.Position
}

// stretches splits deliveries where a sequence number is missing.
func stretches(deliveries []Delivery) []stretch {
	var out []stretch
	for _, d := range deliveries {
		if n := len(out); n > 0 && out[n-1].last+1 == d.Seq {
			out[n-1].last = d.Seq
			out[n-1].positions = append(out[n-1].positions, d.Position)
			continue
		}
		out = append(out, stretch{first: d.Seq, last: d.Seq, positions: []event.Position{d.Position}})
	}
	return out
}

// split parts the poison deliveries from the others; both keep their order, and the others their memory if none is poison.
func split(deliveries []Delivery) (good, poison []Delivery) {
	for i := range deliveries {
		if deliveries[i].Poison {
			poison = append(poison, deliveries[i])
		}
	}
	if len(poison) == 0 {
		return deliveries, nil
	}
	for i := range deliveries {
		if !deliveries[i].Poison {
			good = append(good, deliveries[i])
		}
	}
	return good, poison
}

// weight is about what the deliveries take in memory.
func weight(deliveries []Delivery) int {
	n := 0
	for i := range deliveries {
		e := &deliveries[i].Event
		n += 384 + len(e.Data) + len(e.ID) + len(e.Source) + len(e.Type) + len(e.Subject)
		for _, x := range e.Extensions {
			n += 40 + len(x.Name) + len(x.Value)
		}
	}
	return n
}

// oneLine makes a reason fit for the log and for people: valid UTF-8, no control characters, at most MaxReason bytes.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "�"))
	if len(s) <= MaxReason {
		return s
	}
	cut := MaxReason - len("…")
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
