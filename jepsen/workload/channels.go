package workload

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"penstock/jepsen/client"
)

// The channels of a run.
const (
	// Orders keeps order per key and never gives up: what is written must arrive, each key in order.
	Orders = "orders"
	// Letters gives up soon: what its destination refuses becomes dead letters.
	Letters = "letters"
	// Offsets carries source offsets.
	Offsets = "offsets"
)

// Emitter is one destination as the harness knows it.
type Emitter struct {
	Channel, Name string
	Kind          string // webhook or file
	Ordered       bool   // per key
}

// Emitters lists every emitter of the channels.
func Emitters() []Emitter {
	return []Emitter{
		{Orders, "hook", "webhook", true},
		{Orders, "batch", "webhook", true},
		{Orders, "files", "file", false}, // one file per compaction: order is in the compaction ids, not in arrival
		{Letters, "strict", "webhook", false},
		{Offsets, "offsets-hook", "webhook", false},
	}
}

// Specs gives each channel's spec as JSON; base gives the URL of an emitter's webhook receiver, keep how long resolved
// events stay readable.
func Specs(base func(emitter string) string, keep string) map[string]string {
	hook := func(name, compaction, retry string) string {
		return fmt.Sprintf(`{"name":%q,"kind":"webhook","start":"earliest","idempotent_by":"event-id","compaction":%s,"retry":%s,
			"webhook":{"url":"%s/d/%s","timeout":"3s"}}`, name, compaction, retry, base(name), name)
	}
	const (
		patient = `{"ttl":"2h","max_attempts":0,"backoff":{"min":"50ms","max":"1s","jitter":0.2}}`
		strict  = `{"ttl":"1h","max_attempts":4,"backoff":{"min":"50ms","max":"500ms","jitter":0.2}}`
		one     = `{"events":1,"linger":"0s"}`
		many    = `{"events":50,"bytes":"256KiB","linger":"200ms"}`
	)
	channel := func(name, order, emitters string) string {
		return fmt.Sprintf(`{"name":%q,"semantics":"at-least-once","order":%q,"on_key_failure":"park",
			"dedup":{"window":"30m","max_keys":10000000,"on_full":"refuse"},"retention":{"keep":%q},"emitters":[%s]}`, name, order, keep, emitters)
	}
	files := `{"name":"files","kind":"file","start":"earliest","compaction":{"events":200,"bytes":"1MiB","linger":"500ms"},
		"retry":` + patient + `,"file":{"directory":"out"}}`
	return map[string]string{
		Orders:  channel(Orders, "key", hook("hook", one, patient)+","+hook("batch", many, patient)+","+files),
		Letters: channel(Letters, "none", hook("strict", one, strict)),
		Offsets: channel(Offsets, "none", hook("offsets-hook", many, patient)),
	}
}

// Apply puts the channels, in any order, to any node that takes them, until all stand or ctx ends.
func Apply(ctx context.Context, clients []*client.Client, specs map[string]string) error {
	for name, spec := range specs {
		for try := 0; ; try++ {
			c := clients[try%len(clients)]
			a := c.Do(ctx, http.MethodPut, "/v1/channels/"+name, nil, "application/json", []byte(spec))
			if a.Outcome == client.Done {
				break
			}
			if a.Status == http.StatusBadRequest || a.Status == http.StatusForbidden || ctx.Err() != nil {
				return fmt.Errorf("put channel %s at %s: %s", name, c.Node, a.Error())
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
	return nil
}
