package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	methodReport = "cluster.report"
	methodLease  = "cluster.lease"
	methodWall   = "cluster.wall"

	reportPause = time.Second
	reportFresh = 3500 * time.Millisecond // a report older than this says nothing about now
	bookPause   = 5 * time.Second
)

// report is what each node tells the leader every second, and what the leader passes on to all in its answers.
type report struct {
	Self            peerInfo        `json:"self"` // LastIndex and LastTerm are the durable end of its log
	Term            uint64          `json:"term"`
	Applied         uint64          `json:"applied"`
	Base            uint64          `json:"base"`
	PayloadComplete bool            `json:"payload_complete"`
	Wall            int64           `json:"wall"` // its wall clock, unix nanoseconds
	Extra           json.RawMessage `json:"extra,omitempty"`
	Age             time.Duration   `json:"age"` // in the leader's answer: how long ago it was heard

	heard time.Time
}

type reportAnswer struct {
	Term    uint64   `json:"term"`
	Now     int64    `json:"now"` // the leader's clock
	Reports []report `json:"reports"`
}

// reportTable holds the newest report of each node.
type reportTable struct {
	mu   sync.Mutex
	byID map[string]report
}

func (t *reportTable) put(r report) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = map[string]report{}
	}
	if old, ok := t.byID[r.Self.ID]; !ok || !r.heard.Before(old.heard) {
		t.byID[r.Self.ID] = r
	}
}

func (t *reportTable) get(id string) (report, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, ok := t.byID[id]
	return r, ok
}

func (t *reportTable) all(now time.Time) []report {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]report, 0, len(t.byID))
	for _, r := range t.byID {
		r.Age = now.Sub(r.heard)
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b report) int { return cmp.Compare(a.Self.ID, b.Self.ID) })
	return out
}

// ownReport describes this node as of now.
func (c *Cluster) ownReport() (report, error) {
	last, lastTerm, err := c.lastEntry()
	if err != nil {
		return report{}, fmt.Errorf("read the end of the log: %w", err)
	}
	base, _ := c.log.Base()
	applied, _ := c.sm.Applied()
	complete, err := c.payloadComplete()
	if err != nil {
		return report{}, err
	}
	r := report{Term: c.term(), Applied: applied, Base: base, PayloadComplete: complete, Wall: time.Now().UnixNano(), heard: time.Now()}
	c.idMu.Lock()
	r.Self = c.selfLocked()
	c.idMu.Unlock()
	r.Self.LastIndex, r.Self.LastTerm = last, lastTerm
	if c.cfg.ReportExtra != nil {
		r.Extra = c.cfg.ReportExtra()
	}
	return r, nil
}

// payloadComplete tells whether this node holds every entry that may still be needed: no installation is catching up, the log reaches
// what is applied, and no entry of it is lost.
func (c *Cluster) payloadComplete() (bool, error) {
	_, catching, err := c.snaps.catchingUp()
	if err != nil || catching {
		return false, err
	}
	last, err := c.log.LastIndex()
	if err != nil {
		return false, fmt.Errorf("read the end of the log: %w", err)
	}
	applied, _ := c.sm.Applied()
	return last >= applied && c.instance() != nil && c.lostEntries() == 0, nil
}

// reports sends this node's report each second, moves the floor, and saves what is known of the others.
func (c *Cluster) reports(ctx context.Context) {
	saved := time.Now()
	for {
		if err := c.reportOnce(ctx); err != nil {
			c.logger.Debug("report to the leader", "error", err)
		}
		c.floor.advance()
		c.metrics.progress(c)
		if time.Since(saved) > bookPause {
			saved = time.Now()
			if err := c.book.save(); err != nil {
				c.fatal(ExitDisk, fmt.Errorf("save what is known of the others: %w", err))
			}
		}
		select {
		case <-time.After(reportPause):
		case <-ctx.Done():
			return
		}
	}
}

func (c *Cluster) reportOnce(ctx context.Context) error {
	own, err := c.ownReport()
	if err != nil {
		return err
	}
	c.table.put(own)
	leader := c.Leader()
	if leader == "" {
		return nil
	}
	if leader == c.cfg.NodeID {
		c.steerClock()
		return nil
	}
	body, err := json.Marshal(own)
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	sent := time.Now()
	b, err := c.client.call(ctx, laneControl, leader, methodReport, body)
	if err != nil {
		return err
	}
	var a reportAnswer
	if err := json.Unmarshal(b, &a); err != nil {
		return fmt.Errorf("decode the answer to a report: %w", err)
	}
	c.clock.follow(a.Now + int64(time.Since(sent)/2))
	for _, r := range a.Reports {
		if r.Self.ID == c.cfg.NodeID {
			continue
		}
		r.heard = time.Now().Add(-r.Age)
		c.table.put(r)
		c.book.progress(r.Self.ID, r.Self.LastIndex, r.Self.LastTerm)
	}
	return nil
}

// serveReport takes a node's report on the leader.
func (c *Cluster) serveReport(_ context.Context, from string, body []byte) ([]byte, error) {
	var r report
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, fmt.Errorf("decode report: %w", err)
	}
	if r.Self.ID != from {
		return nil, fmt.Errorf("report of %q from %q", r.Self.ID, from)
	}
	if c.tenure() == nil {
		return nil, ErrNoLeader
	}
	if err := c.book.learn(r.Self); err != nil {
		return nil, err
	}
	r.heard = time.Now()
	c.table.put(r)
	c.book.progress(from, r.Self.LastIndex, r.Self.LastTerm)
	c.floor.reached(from, r.Base, r.Self.LastIndex)
	return json.Marshal(reportAnswer{Term: c.term(), Now: c.clock.read(), Reports: c.table.all(time.Now())})
}
