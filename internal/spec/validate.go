package spec

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// The limits of a spec; docs/limits.md lists them.
const (
	MaxNameBytes   = 63
	MaxEmitters    = 64
	MaxTypes       = 1000
	MaxConcurrency = 1024

	// MaxCompactionEvents is the window within which the state machine keeps the state of single deliveries: a
	// compaction must fit into it.
	MaxCompactionEvents = 65_536

	maxText            = 4096 // bytes of a source, type, URL or directory, as of an event's attribute
	maxCompactionBytes = Size(64 << 20)
	maxLinger          = Duration(time.Hour)
	minWindow          = Duration(time.Second)
	maxWindow          = Duration(7 * 24 * time.Hour)
	maxKeys            = 100_000_000
	maxKeep            = Duration(10 * 365 * 24 * time.Hour)
	minUnresolved      = Size(1 << 20)
	maxRetryTime       = Duration(365 * 24 * time.Hour)
	maxAttempts        = 1_000_000
	maxRetries         = 1000
	maxTimeout         = Duration(10 * time.Minute)
)

// notYet are kinds that Penstock will have, so that the refusal can say so.
var notYet = []string{"s3", "kafka", "nats", "sqs", "amqp", "redis", "postgres"}

// problems gathers what is wrong. Each entry names the path of the field, the value, and what is allowed.
type problems struct{ list []error }

func (p *problems) add(path, format string, args ...any) {
	p.list = append(p.list, fmt.Errorf("%s: %s", path, fmt.Sprintf(format, args...)))
}

func (p *problems) oneOf(path, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		p.add(path, "%q is not one of %s", value, strings.Join(allowed, ", "))
	}
}

func inRange[T int | int64 | Duration | Size](p *problems, path string, value, least, most T) {
	if value < least || value > most {
		p.add(path, "%v is not between %v and %v", value, least, most)
	}
}

// text checks a free text that ends up in an event's attribute, a log line or a file name.
func (p *problems) text(path, value string) {
	switch {
	case value == "":
		p.add(path, "must not be empty")
	case len(value) > maxText:
		p.add(path, "%d bytes, more than %d", len(value), maxText)
	case !utf8.ValidString(value) || strings.ContainsFunc(value, func(r rune) bool { return r < 0x20 || 0x7F <= r && r <= 0x9F }):
		p.add(path, "%q holds a control character or is not UTF-8", value)
	}
}

// ValidName tells whether s can name a channel or an emitter: [a-z0-9][a-z0-9._-]{0,62}. Such a name is safe in a path, a
// URL and a metric label.
func ValidName(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if ('a' > c || c > 'z') && ('0' > c || c > '9') && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return s != "" && len(s) <= MaxNameBytes
}

func (p *problems) name(path, value string) {
	if !ValidName(value) {
		if len(value) > MaxNameBytes {
			value = strings.ToValidUTF8(value[:MaxNameBytes], "") + "..."
		}
		p.add(path, "%q is no name; want 1 to %d of a-z, 0-9, '.', '_', '-', the first a letter or digit", value, MaxNameBytes)
	}
}

// Validate says all that is wrong with the channel, as one error with a line for each field. It changes nothing; call
// ApplyDefaults first.
func (c *Channel) Validate() error {
	p := &problems{}
	p.name("name", c.Name)
	if c.Semantics == "" {
		p.add("semantics", "is required and has no default; say at-most-once, at-least-once or exactly-once")
	} else {
		p.oneOf("semantics", string(c.Semantics), string(AtMostOnce), string(AtLeastOnce), string(ExactlyOnce))
	}
	if c.Order == "" {
		p.add("order", "is required and has no default; say none, key or total")
	} else {
		p.oneOf("order", string(c.Order), string(OrderNone), string(OrderKey), string(OrderTotal))
	}
	p.oneOf("on_key_failure", c.OnKeyFailure, "park", "skip")
	p.oneOf("on_invalid", c.OnInvalid, "reject", "poison")
	p.text("source", c.Source)
	p.text("type", c.Type)
	c.validateTypes(p)
	if len(c.Schema) > 0 {
		if _, err := CompileSchema(c.Schema); err != nil {
			p.add("schema", "%v", err)
		}
	}
	c.validateIDFrom(p)
	inRange(p, "dedup.window", c.Dedup.Window, minWindow, maxWindow)
	inRange(p, "dedup.max_keys", c.Dedup.MaxKeys, 1, maxKeys)
	p.oneOf("dedup.on_full", c.Dedup.OnFull, "refuse", "shorten")
	inRange(p, "retention.keep", c.Retention.Keep, 0, maxKeep)
	if c.Retention.MaxUnresolved < minUnresolved {
		p.add("retention.max_unresolved", "%v is not at least %v", c.Retention.MaxUnresolved, minUnresolved)
	}
	c.validateOnUnresolved(p)
	if len(c.Emitters) > MaxEmitters {
		p.add("emitters", "%d, more than %d", len(c.Emitters), MaxEmitters)
	}
	seen := map[string]bool{}
	for i := range c.Emitters {
		e := &c.Emitters[i]
		path := "emitters[" + strconv.Itoa(i) + "]"
		if ValidName(e.Name) {
			path = "emitters[" + e.Name + "]"
			if seen[e.Name] {
				p.add(path+".name", "another emitter of the channel has it")
			}
			seen[e.Name] = true
		}
		e.validate(p, path)
		if c.Order == OrderTotal && e.Concurrency > 1 {
			p.add(path+".concurrency", "%d, but total order is delivered one at a time; leave it out or say 1", e.Concurrency)
		}
	}
	c.validateExactlyOnce(p)
	return errors.Join(p.list...)
}

// validateOnUnresolved refuses dead_letter where nothing may become a dead letter.
func (c *Channel) validateOnUnresolved(p *problems) {
	const path = "retention.on_unresolved"
	p.oneOf(path, c.Retention.OnUnresolved, "refuse", "dead_letter")
	switch {
	case c.Retention.OnUnresolved != "dead_letter":
	case c.Semantics == AtMostOnce:
		p.add(path, "dead_letter, but an at-most-once channel has no dead letters; say refuse")
	case c.Order != OrderNone && c.OnKeyFailure == "park":
		p.add(path, "dead_letter, but on_key_failure: park keeps a failing event at the head for as long as it takes; say skip, or refuse here")
	}
}

func (c *Channel) validateTypes(p *problems) {
	if len(c.Types) > MaxTypes {
		p.add("types", "%d, more than %d", len(c.Types), MaxTypes)
	}
	seen := map[string]bool{}
	for i, t := range c.Types {
		path := "types[" + strconv.Itoa(i) + "]"
		p.text(path, t)
		if seen[t] {
			p.add(path, "%q is listed twice", t)
		}
		seen[t] = true
	}
}

// validateExactlyOnce refuses what cannot be kept: exactly-once is at-least-once with every repeat recognised, by us as
// long as a delivery may be retried, and by each destination.
func (c *Channel) validateExactlyOnce(p *problems) {
	if c.Semantics != ExactlyOnce {
		return
	}
	if c.Dedup.OnFull == "shorten" {
		p.add("dedup.on_full", "shorten would break exactly-once without a word when the window is full; say refuse")
	}
	for i := range c.Emitters {
		e := &c.Emitters[i]
		path := "emitters[" + e.Name + "]"
		if e.IdempotentBy == ByNone {
			p.add(path+".idempotent_by", "none, but exactly-once needs a destination that recognises a repeat by event-id or compaction-id")
		}
		switch {
		case e.Retry.TTL == 0:
			p.add(path+".retry.ttl", "0s means no limit, but exactly-once needs one that the dedup window covers")
		case e.Retry.TTL > c.Dedup.Window:
			p.add("dedup.window", "%v is shorter than %s.retry.ttl of %v; exactly-once needs a window at least as long", c.Dedup.Window, path, e.Retry.TTL)
		}
	}
}
