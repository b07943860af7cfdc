package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"penstock/jepsen/client"
	"penstock/jepsen/workload"
)

// errVacuous says that a case did too little to count.
var errVacuous = errors.New("INVALID")

// Vacuous tells whether the error of a case means that it showed nothing.
func Vacuous(err error) bool { return errors.Is(err, errVacuous) }

// Case is one report from the users of similar systems as a scenario of its own.
type Case struct {
	Name, What string
	Run        func(ctx context.Context, o Options, rounds int, hold time.Duration) error
}

// Cases lists them.
func Cases() []Case {
	return []Case{
		{"B45", "under load, power-off of all nodes at staggered times; then two come back, in every pairing and order, or all at once: a leader with the newest log in 15s, nothing acked lost, the third joins, terms rise by 5 at most", caseB45},
		{"S15", "a follower is isolated, then healed: no change of leader or term, no gap between acks above 500ms", caseS15},
		{"B10", "an id is refused as a duplicate, with the position of the first, before a restart, after a rolling restart, after its log is gone, and from a leader that joined with an empty disk and got a snapshot", caseB10},
	}
}

// write sends events by id to any node until they are acknowledged; it returns where each stands.
func (r *run) write(ctx context.Context, prefix string, from, n int) (map[string]string, error) {
	ids := map[string]string{}
	body := []byte{'['}
	for i := from; i < from+n; i++ {
		if i > from {
			body = append(body, ',')
		}
		body = fmt.Appendf(body, `{"specversion":"1.0","id":"%s-%d","source":"/jepsen/case","type":"jepsen.event","data":{"n":%d}}`, prefix, i, i)
	}
	body = append(body, ']')
	try := 0
	err := poll(ctx, func(ctx context.Context) error {
		c := r.clients[try%len(r.clients)]
		try++
		a := c.Do(ctx, http.MethodPost, "/v1/channels/"+workload.Offsets+"/events", url.Values{"detail": {"1"}}, "application/cloudevents-batch+json", body)
		if a.Outcome != client.Done {
			return errors.New(c.Node + ": " + a.Error())
		}
		var answer client.IngestAnswer
		if err := json.Unmarshal(a.Body, &answer); err != nil {
			return err
		}
		for _, e := range answer.Events {
			ids[e.ID] = e.Position
			if e.DuplicateOf != "" {
				ids[e.ID] = e.DuplicateOf
			}
		}
		return nil
	})
	return ids, err
}

// holds checks that node shows every id at its position.
func (r *run) holds(ctx context.Context, c *client.Client, want map[string]string) error {
	seen := map[string]string{}
	for from := "1"; ; {
		page, a := c.Tail(ctx, workload.Offsets, from, 5000, 0)
		if page.First > 0 && from == "1" { // what came before holds no event of ours
			from = strconv.FormatUint(page.First, 10)
			continue
		}
		if a.Outcome != client.Done {
			return errors.New(c.Node + ": " + a.Error())
		}
		for _, e := range page.Events {
			seen[e.ID] = e.Position
		}
		if len(page.Events) == 0 || page.Next == "" || page.Next == from {
			break
		}
		from = page.Next
	}
	for id, position := range want {
		if seen[id] != position {
			return fmt.Errorf("%s: %s was acked at %s and is at %q", c.Node, id, position, seen[id])
		}
	}
	return nil
}
