package event

// Limits bound one ingest request. A zero field means its default. They are documented in docs/events.md.
type Limits struct {
	// EventBytes bounds one event as the producer sent it: the line (NDJSON), the body (JSON, binary mode), the JSON
	// object (structured and batch mode). Default 1 MiB.
	EventBytes int
	// BodyBytes bounds the body of a request after decompression. Default 4 MiB.
	BodyBytes int
	// Events bounds the events of one request. Default 10,000.
	Events int
	// Depth bounds how deep arrays and objects are nested. Default 512.
	Depth int
}

// The defaults of Limits, and the fixed bounds of an event's attributes. The bounds of attributes are not configurable:
// they keep names and values fit for headers, labels in logs and the batch format.
const (
	DefaultEventBytes = 1 << 20
	DefaultBodyBytes  = 4 << 20
	DefaultEvents     = 10_000
	DefaultDepth      = 512

	// MaxBodyBytes, MaxEvents and MaxDepth are the most that can be configured; more is lowered to them.
	MaxBodyBytes = 64 << 20
	MaxEvents    = 100_000
	MaxDepth     = 10_000

	// MaxAttributeBytes bounds the value of one attribute.
	MaxAttributeBytes = 4096
	// MaxNameBytes bounds the name of an extension attribute.
	MaxNameBytes = 64
	// MaxExtensions bounds the extension attributes of one event.
	MaxExtensions = 64
	// MaxIdempotencyKeyBytes bounds the value of the header Idempotency-Key.
	MaxIdempotencyKeyBytes = 255
)

// WithDefaults fills the zero fields and lowers what is above the maximum.
func (l Limits) WithDefaults() Limits {
	pick := func(value, ifZero, most int) int {
		if value <= 0 {
			return ifZero
		}
		return min(value, most)
	}
	l.EventBytes = pick(l.EventBytes, DefaultEventBytes, MaxBodyBytes)
	l.BodyBytes = pick(l.BodyBytes, DefaultBodyBytes, MaxBodyBytes)
	l.Events = pick(l.Events, DefaultEvents, MaxEvents)
	l.Depth = pick(l.Depth, DefaultDepth, MaxDepth)
	return l
}

// Defaults are the attributes that plain JSON is wrapped with when the request names none.
type Defaults struct {
	Source, Type string
}
