package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	mendPause = 10 * time.Second // between attempts while something stays damaged
	mendWait  = 5 * time.Second  // how long a read of Raft's waits for its entry to be mended
	mendCall  = 10 * time.Second
)

// mending repairs the log from the other nodes, before Raft starts and while it runs.
type mending struct {
	turn   sync.Mutex // one repair at a time
	wanted chan uint64
	done   broadcast // a repair has ended
}

// wanted is one thing to fetch: the entries [first, last], known by what is left of their headers, by an entry of ours behind them, or,
// behind the last entry that can be read, only as far as another node knows them to be committed.
type wanted struct {
	first, last        uint64
	anchor, anchorTerm uint64
	openEnd            bool
	known              map[uint64]LogDamage
}

// wantedEntries turns damage into what to ask for. limit is where to stop in an open end: Raft brings the rest.
func (c *Cluster) wantedEntries() ([]wanted, error) {
	damage := c.repairLog.Damage()
	last, err := c.log.LastIndex()
	if err != nil {
		return nil, err
	}
	mark, _ := c.repairLog.Recovered()
	var out []wanted
	for i, d := range damage {
		switch {
		case d.First == 0:
			continue
		case d.OpenEnd:
			if mark >= d.First {
				out = append(out, wanted{first: d.First, last: mark, openEnd: true})
			}
			continue
		}
		w := wanted{first: d.First, last: d.Last}
		if d.Known {
			w.known = map[uint64]LogDamage{d.First: d}
		}
		w.anchor, w.anchorTerm = c.anchorBehind(damage[i+1:], d.Last+1, last)
		out = append(out, w)
	}
	return out, nil
}

// anchorBehind finds the first entry from index on whose term is known here.
func (c *Cluster) anchorBehind(damage []LogDamage, index, last uint64) (anchor, term uint64) {
	for _, d := range damage {
		if d.OpenEnd || d.First == 0 || d.First > index {
			break
		}
		if d.Known {
			return d.First, d.Term
		}
		index = d.Last + 1
	}
	if index > last {
		return 0, 0
	}
	term, err := c.log.rawTermOf(index)
	if err != nil {
		return 0, 0
	}
	return index, term
}

// mend asks the nodes in turn for what is lost and repairs what they have. What is still damaged then, Damage tells.
func (c *Cluster) mend(ctx context.Context, nodes []string) error {
	c.mending.turn.Lock()
	defer c.mending.turn.Unlock()
	defer c.mending.done.fire()
	if err := c.repairLog.Repair(nil); err != nil {
		return fmt.Errorf("repair the log: %w", err)
	}
	var errs []error
	for _, node := range nodes {
		list, err := c.wantedEntries()
		if err != nil {
			return err
		}
		for _, w := range list {
			if err := c.mendFrom(ctx, node, w); err != nil {
				errs = append(errs, fmt.Errorf("from %s: %w", node, err))
				break // the next node
			}
		}
	}
	return errors.Join(errs...)
}

// mendFrom fetches one thing from one node, piece by piece.
func (c *Cluster) mendFrom(ctx context.Context, node string, w wanted) error {
	for from := w.first; from <= w.last; {
		q := logRequest{from: from, to: w.last, anchor: w.anchor, anchorTerm: w.anchorTerm}
		callCtx, cancel := context.WithTimeout(ctx, mendCall)
		b, err := c.client.call(callCtx, laneBulk, node, methodLogRead, q.encode())
		cancel()
		if err != nil {
			return err
		}
		lent, err := decodeLentEntries(b)
		if err != nil {
			return err
		}
		good := w.accept(lent, from)
		if len(good) > 0 {
			if err := c.putBack(good, w.openEnd && from > w.first); err != nil {
				return fmt.Errorf("entries %d to %d: %w", good[0].Index, good[len(good)-1].Index, err)
			}
			c.metrics.mended.Add(float64(len(good)))
			c.logger.Warn("damaged entries repaired", "peer", node, "first", good[0].Index, "last", good[len(good)-1].Index, "entries", len(good))
		}
		if lent.next <= from || w.openEnd && from+uint64(len(good)) != lent.next {
			return nil // nothing more there, or a gap
		}
		from = lent.next
	}
	return nil
}

// putBack repairs the log with entries. An open end is none any more after its first ones: the rest is appended behind them.
func (c *Cluster) putBack(entries []*raft.Log, appended bool) error {
	if c.ailing.Load() { // Raft does not run, and keeps the term itself when it does
		if err := c.raiseTerm(entries[len(entries)-1].Term); err != nil {
			return err
		}
	}
	if appended {
		return c.log.Log.StoreLogs(entries)
	}
	return c.repairLog.Repair(entries)
}

// accept leaves of what was lent what is certainly what was lost; of an open end only what follows on from without a gap.
func (w *wanted) accept(lent *lentEntries, from uint64) (good []*raft.Log) {
	for _, e := range lent.entries {
		d, known := w.known[e.Index]
		switch {
		case e.Index < w.first || e.Index > w.last:
		case w.openEnd && e.Index != from+uint64(len(good)):
			return good
		case known && (d.Term != e.Term || d.PayloadCRC != payloadCRC(e)):
		case !known && !lent.anchored && e.Index > lent.committed:
		default:
			good = append(good, e)
		}
	}
	return good
}

// others is every other node known, for a repair while Raft runs.
func (c *Cluster) others() (ids []string) {
	for _, p := range c.book.all() {
		ids = append(ids, p.ID)
	}
	return ids
}

// Mend has an entry that could not be read looked at and repaired, in the background. Reads of it go on to fail until then.
func (c *Cluster) Mend(index uint64) {
	if c.repairLog == nil {
		return
	}
	select {
	case c.mending.wanted <- index:
	default: // one is on its way
	}
}

// mends repairs what turns out damaged while Raft runs, and holes that were left before it.
func (c *Cluster) mends(ctx context.Context) {
	tick := time.NewTicker(mendPause)
	defer tick.Stop()
	for {
		index := uint64(0)
		select {
		case index = <-c.mending.wanted:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if c.ailing.Load() {
			continue // the start repairs (repair.go)
		}
		if index > 0 {
			if err := c.repairLog.Recheck(ctx, index); err != nil && ctx.Err() == nil {
				c.logger.Error("look again at a damaged entry", "index", index, "error", err)
			}
		}
		if len(c.repairLog.Damage()) == 0 {
			c.mending.done.fire()
			continue
		}
		if err := c.mend(ctx, c.others()); err != nil && ctx.Err() == nil {
			c.logger.Error("repair of the log", "error", err)
		}
		if n := c.lostEntries(); n > 0 {
			c.logger.Error("the log stays damaged", "entries", n)
		}
	}
}

// heal is called when Raft met damage: it waits for the repair, since Raft itself would panic, or take the entry for missing. Damage in
// what Raft must apply or start from, that cannot be repaired now, ends the process; the next start repairs or cuts it before Raft.
func (c *Cluster) heal(index uint64, e *raft.Log, err error) error {
	deadline := time.NewTimer(mendWait)
	defer deadline.Stop()
	for {
		done := c.mending.done.wait()
		c.Mend(index)
		select {
		case <-done:
		case <-deadline.C:
			if start, _ := c.snaps.start(); index > start {
				c.fatal(ExitDamage, fmt.Errorf("entry %d is damaged and could not be repaired within %s: %w", index, mendWait, err))
			}
			return err
		case <-c.ctx.Done():
			return err
		}
		if err = c.log.Log.GetLog(index, e); !isDamage(err) {
			return err
		}
		select { // nobody could help yet
		case <-time.After(100 * time.Millisecond):
		case <-c.ctx.Done():
			return err
		}
	}
}
