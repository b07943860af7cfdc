// Package spec is the declaration of a channel: its semantics, order, dedup, retention and emitters, as users write it in
// YAML or JSON, with defaults and validation. node, fsm, emit and the command line share it.
//
// It promises that a spec that Validate accepts asks for nothing an emitter cannot give (P4), and that Canonical gives the
// same bytes for the same spec on every node. It keeps no state and resolves no secrets.
package spec

// Semantics is the delivery semantic of a channel. There is no default: an unstated one is refused (L4).
type Semantics string

// The three semantics (DESIGN of the contract: docs/delivery-contract.md).
const (
	AtMostOnce  Semantics = "at-most-once"
	AtLeastOnce Semantics = "at-least-once"
	ExactlyOnce Semantics = "exactly-once"
)

// Order is what stays in log order at a destination.
type Order string

// The orders.
const (
	OrderNone  Order = "none"
	OrderKey   Order = "key"
	OrderTotal Order = "total"
)

// Channel is one channel's spec. Every field has its value after ApplyDefaults; Validate says what is wrong, all of it.
type Channel struct {
	Name         string    `json:"name" yaml:"name"`
	Semantics    Semantics `json:"semantics" yaml:"semantics"`
	Order        Order     `json:"order" yaml:"order"`
	OnKeyFailure string    `json:"on_key_failure" yaml:"on_key_failure"` // park | skip
	Source       string    `json:"source,omitempty" yaml:"source"`       // of wrapped plain JSON; default /channels/NAME
	Type         string    `json:"type,omitempty" yaml:"type"`           // of wrapped plain JSON; default penstock.event
	Dedup        Dedup     `json:"dedup" yaml:"dedup"`
	Types        []string  `json:"types,omitempty" yaml:"types"`
	Schema       RawJSON   `json:"schema,omitempty" yaml:"schema"`
	IDFrom       []string  `json:"id_from,omitempty" yaml:"id_from"`
	OnInvalid    string    `json:"on_invalid" yaml:"on_invalid"` // reject | poison
	Retention    Retention `json:"retention" yaml:"retention"`
	Emitters     []Emitter `json:"emitters" yaml:"emitters"`

	// complete is set when each field has its value: by ParseYAML, ParseJSON and ApplyDefaults. From then on a zero is
	// what the user wrote, and not something to fill.
	complete bool
}

// Dedup bounds the memory of producer ids.
type Dedup struct {
	Window  Duration `json:"window" yaml:"window"`
	MaxKeys int      `json:"max_keys" yaml:"max_keys"` // also "10M", "500k"
	OnFull  string   `json:"on_full" yaml:"on_full"`   // refuse | shorten
}

// Retention bounds what the log keeps for a channel.
type Retention struct {
	Keep          Duration `json:"keep" yaml:"keep"`
	MaxUnresolved Size     `json:"max_unresolved" yaml:"max_unresolved"`
	OnUnresolved  string   `json:"on_unresolved" yaml:"on_unresolved"` // refuse | dead_letter
}

// Emitter is one destination of a channel. Exactly one of Webhook, File and Stdout is set, as Kind says.
type Emitter struct {
	Name         string            `json:"name" yaml:"name"`
	Kind         string            `json:"kind" yaml:"kind"`   // webhook | file | stdout
	Start        string            `json:"start" yaml:"start"` // latest | earliest | an index
	IdempotentBy string            `json:"idempotent_by" yaml:"idempotent_by"`
	Compaction   Compaction        `json:"compaction" yaml:"compaction"`
	Retry        Retry             `json:"retry" yaml:"retry"`
	DeadLetter   DeadLetter        `json:"dead_letter" yaml:"dead_letter"`
	Classes      map[string]string `json:"classes,omitempty" yaml:"classes"` // status or range ("404", "5xx") -> transient|permanent|auth|poison
	Concurrency  int               `json:"concurrency" yaml:"concurrency"`   // attempts in flight, 1..1024, default 16
	Webhook      *Webhook          `json:"webhook,omitempty" yaml:"webhook"`
	File         *File             `json:"file,omitempty" yaml:"file"`
	Stdout       *Stdout           `json:"stdout,omitempty" yaml:"stdout"`

	complete bool // as in Channel
}

// Compaction says when an open run of events is closed: at any of the three bounds; bytes 0 means no bound by bytes.
type Compaction struct {
	Events int      `json:"events" yaml:"events"`
	Bytes  Size     `json:"bytes" yaml:"bytes"`
	Linger Duration `json:"linger" yaml:"linger"`
}

// Retry is the budget of a delivery. 0 means no limit of that kind; both limits 0, or backoff.min 0, is refused.
type Retry struct {
	TTL         Duration `json:"ttl" yaml:"ttl"`
	MaxAttempts int      `json:"max_attempts" yaml:"max_attempts"`
	Backoff     Backoff  `json:"backoff" yaml:"backoff"`
}

// Backoff is exponential from Min to Max, spread by the fraction Jitter (0 to 1).
type Backoff struct {
	Min    Duration `json:"min" yaml:"min"`
	Max    Duration `json:"max" yaml:"max"`
	Jitter float64  `json:"jitter" yaml:"jitter"`
}

// DeadLetter bounds scheduled replays of a dead letter.
type DeadLetter struct {
	MaxRetries int `json:"max_retries" yaml:"max_retries"`
}

// Webhook posts to URL. Secrets are references (${env:NAME}, ${file:/path}) to Standard
// Webhooks secrets (whsec_...), one or two, resolved by the owner; a literal one is refused.
type Webhook struct {
	URL     string            `json:"url" yaml:"url"`
	Secrets []string          `json:"secrets,omitempty" yaml:"secrets"`
	Timeout Duration          `json:"timeout" yaml:"timeout"`
	Headers map[string]string `json:"headers,omitempty" yaml:"headers"`
	// DenyPrivate refuses connections to addresses that are not of the public internet, whatever the URL says. Off by
	// default: inside a private network the destinations have private addresses.
	DenyPrivate bool `json:"deny_private,omitempty" yaml:"deny_private"`
}

// File writes one NDJSON file per compaction under Directory (relative to the owner's data directory unless absolute).
type File struct {
	Directory string `json:"directory" yaml:"directory"`
}

// Stdout prints one structured event per line on the owner's standard output.
type Stdout struct{}
