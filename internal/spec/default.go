package spec

import (
	"maps"
	"slices"
	"time"
)

// The kinds of emitters.
const (
	KindWebhook = "webhook"
	KindFile    = "file"
	KindStdout  = "stdout"
)

// What an emitter's destination deduplicates on.
const (
	ByEventID      = "event-id"
	ByCompactionID = "compaction-id"
	ByNone         = "none"
)

// The defaults, the same for every kind of emitter where not said otherwise. docs/limits.md lists them.
const (
	defaultType          = "penstock.event"
	defaultKeep          = Duration(time.Hour)
	defaultMaxUnresolved = Size(10 << 30)
	defaultWindow        = Duration(10 * time.Minute)
	defaultMaxKeys       = 10_000_000
	defaultConcurrency   = 16
	defaultDirectory     = "out"
	defaultTimeout       = Duration(15 * time.Second)
	defaultMaxRetries    = 5
)

func defaultRetry() Retry {
	return Retry{TTL: Duration(30 * time.Minute), Backoff: defaultBackoff()}
}

func defaultBackoff() Backoff {
	return Backoff{Min: Duration(time.Second), Max: Duration(5 * time.Minute), Jitter: 0.2}
}

func defaultCompaction(kind string) Compaction {
	if kind == KindFile {
		return Compaction{Events: 10_000, Bytes: 8 << 20, Linger: Duration(time.Second)}
	}
	return Compaction{Events: 1}
}

func defaultIdempotentBy(kind string) string {
	switch kind {
	case KindFile:
		return ByCompactionID
	case KindStdout:
		return ByNone
	}
	return ByEventID
}

// presetChannel is what a document is decoded over, so that a zero in it stays a zero.
func presetChannel() Channel {
	return Channel{
		OnKeyFailure: "park",
		Dedup:        Dedup{Window: defaultWindow, MaxKeys: defaultMaxKeys, OnFull: "refuse"},
		OnInvalid:    "reject",
		Retention:    Retention{Keep: defaultKeep, MaxUnresolved: defaultMaxUnresolved, OnUnresolved: "refuse"},
		complete:     true,
	}
}

// presetEmitter is the same for an emitter of that kind.
func presetEmitter(kind string) Emitter {
	e := Emitter{
		Start: "latest", IdempotentBy: defaultIdempotentBy(kind), Compaction: defaultCompaction(kind), Retry: defaultRetry(),
		DeadLetter: DeadLetter{MaxRetries: defaultMaxRetries}, complete: true,
	}
	e.presetKind(kind)
	return e
}

func (e *Emitter) presetKind(kind string) {
	switch {
	case kind == KindWebhook && e.Webhook == nil:
		e.Webhook = &Webhook{Timeout: defaultTimeout}
	case kind == KindFile && e.File == nil:
		e.File = &File{Directory: defaultDirectory}
	case kind == KindStdout && e.Stdout == nil:
		e.Stdout = &Stdout{}
	}
}

// ApplyDefaults gives each field that was left out its value. On a channel from ParseYAML or ParseJSON it changes
// nothing. On one that was put together in Go a zero counts as left out.
func (c *Channel) ApplyDefaults() {
	if !c.complete {
		c.fill()
	}
	c.complete = true
	for i := range c.Emitters {
		e := &c.Emitters[i]
		if !e.complete {
			e.fill()
		}
		e.complete = true
	}
	c.settle()
}

// settle gives the values that follow from other fields, and one form to what may be written in two.
func (c *Channel) settle() {
	orElse(&c.Source, "/channels/"+c.Name)
	orElse(&c.Type, defaultType)
	c.Types, c.IDFrom = orNil(c.Types), orNil(c.IDFrom)
	if c.Emitters == nil {
		c.Emitters = []Emitter{}
	}
	for i := range c.Emitters {
		e := &c.Emitters[i]
		e.presetKind(e.Kind)
		if c.Order == OrderTotal {
			orElse(&e.Concurrency, 1)
		}
		orElse(&e.Concurrency, defaultConcurrency)
		if len(e.Classes) == 0 {
			e.Classes = nil
		}
		if w := e.Webhook; w != nil {
			w.Secrets = orNil(w.Secrets)
			if len(w.Headers) == 0 {
				w.Headers = nil
			}
		}
	}
}

func (c *Channel) fill() {
	d := presetChannel()
	orElse(&c.OnKeyFailure, d.OnKeyFailure)
	orElse(&c.OnInvalid, d.OnInvalid)
	orElse(&c.Dedup.Window, d.Dedup.Window)
	orElse(&c.Dedup.MaxKeys, d.Dedup.MaxKeys)
	orElse(&c.Dedup.OnFull, d.Dedup.OnFull)
	orElse(&c.Retention.Keep, d.Retention.Keep)
	orElse(&c.Retention.MaxUnresolved, d.Retention.MaxUnresolved)
	orElse(&c.Retention.OnUnresolved, d.Retention.OnUnresolved)
}

func (e *Emitter) fill() {
	d := presetEmitter(e.Kind)
	orElse(&e.Start, d.Start)
	orElse(&e.IdempotentBy, d.IdempotentBy)
	orElse(&e.Compaction, d.Compaction)
	orElse(&e.Compaction.Events, d.Compaction.Events)
	if e.Retry.TTL == 0 && e.Retry.MaxAttempts == 0 {
		e.Retry.TTL = d.Retry.TTL
	}
	orElse(&e.Retry.Backoff, d.Retry.Backoff)
	orElse(&e.Retry.Backoff.Min, d.Retry.Backoff.Min)
	orElse(&e.Retry.Backoff.Max, max(d.Retry.Backoff.Max, e.Retry.Backoff.Min))
	orElse(&e.DeadLetter.MaxRetries, d.DeadLetter.MaxRetries)
	if e.Webhook != nil {
		orElse(&e.Webhook.Timeout, defaultTimeout)
	}
	if e.File != nil {
		orElse(&e.File.Directory, defaultDirectory)
	}
}

func orElse[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func orNil[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return s
}

// clone copies c so deep that ApplyDefaults on the copy leaves c alone.
func (c *Channel) clone() Channel {
	out := *c
	out.Emitters = slices.Clone(c.Emitters)
	for i := range out.Emitters {
		e := &out.Emitters[i]
		e.Classes = maps.Clone(e.Classes)
		if e.Webhook != nil {
			w := *e.Webhook
			e.Webhook = &w
		}
		if e.File != nil {
			f := *e.File
			e.File = &f
		}
	}
	return out
}
