package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// silentPatience is how long a start waits for nodes that do not answer before it goes on without what only they can give.
const silentPatience = 30 * time.Second

// The log is repaired before Raft starts (DESIGN 4.6), with the ports open, so that several damaged nodes help one another:
//
//	damage ─> entries from those that answer, again and again ─┬─> all there: Raft
//	                                                           └─> every voter has answered and has not got them, or 30 s have passed:
//	                    doubt noted ─> holes up to the newest good snapshot, cut above it ─> Raft, muzzled

// assess looks at a log that was opened with damage or was cut before. With damage Raft has to wait: ailing.
func (c *Cluster) assess() error {
	if c.repairLog == nil {
		return nil
	}
	if err := c.repairLog.Repair(nil); err != nil {
		return fmt.Errorf("repair the log: %w", err)
	}
	mark, short := c.repairLog.Recovered()
	if short {
		if err := c.beInDoubt(mark, "damage was cut off the log"); err != nil {
			return err
		}
	}
	lost := c.unresolved()
	if len(lost) == 0 {
		return nil
	}
	if c.cfg.Single {
		return logDamaged("%s; a cluster of one has no other copy", describe(lost))
	}
	for _, d := range lost {
		if d.OpenEnd {
			if err := c.beInDoubt(c.reached(), "the end of the log is damaged"); err != nil {
				return err
			}
		}
	}
	c.logger.Error("the log is damaged; it is repaired from the other nodes before this one takes part", "entries", c.lostEntries(), "damage", describe(lost))
	c.ailing.Store(true)
	c.ailingSince = time.Now()
	return nil
}

// reached is how far the log once reached, as far as anything here tells.
func (c *Cluster) reached() uint64 {
	mark, _ := c.repairLog.Recovered()
	applied, _ := c.sm.Applied()
	last, _ := c.log.LastIndex()
	if m := c.snaps.newest(); m != nil {
		mark = max(mark, m.StateIndex)
	}
	return max(mark, applied, last)
}

func describe(lost []LogDamage) string {
	var parts []string
	for _, d := range lost[:min(len(lost), 3)] {
		parts = append(parts, d.Text)
	}
	if n := len(lost) - len(parts); n > 0 {
		parts = append(parts, fmt.Sprintf("%d more", n))
	}
	return strings.Join(parts, "; ")
}

// repairRound is one attempt at the start, with those that answered. It reports whether Raft may start.
func (c *Cluster) repairRound(ctx context.Context, answers []helloAnswer) (bool, error) {
	var nodes []string
	for _, a := range answers {
		if a.err == nil && a.Self.ID != c.cfg.NodeID && !a.ClusterID.IsZero() {
			nodes = append(nodes, a.Self.ID)
		}
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	failed := c.mend(ctx, nodes)
	if ctx.Err() != nil {
		return false, nil
	}
	lost := c.unresolved()
	if len(lost) > 0 {
		silent := ""
		for _, v := range c.voters() {
			if v != c.cfg.NodeID && !slices.Contains(nodes, v) {
				silent += " " + v
			}
		}
		if (silent != "" || failed != nil) && time.Since(c.ailingSince) < c.cfg.RepairPatience {
			what := fmt.Sprintf("entries to repair the log with: %s", describe(lost))
			if silent != "" {
				what += "; silent:" + silent
			}
			if failed != nil {
				what += "; " + failed.Error()
			}
			c.waitingFor(what)
			return false, nil
		}
		if err := c.giveUp(); err != nil {
			return false, err
		}
	}
	c.ailing.Store(false)
	c.logger.Warn("the log is repaired as far as it can be", "took", time.Since(c.ailingSince).Round(time.Millisecond).String(), "holes", c.lostEntries())
	return true, c.checkState()
}

// giveUp leaves lost what a snapshot covers, and cuts the log at the first entry lost above it.
func (c *Cluster) giveUp() error {
	start, startTerm := c.snaps.start()
	for range 1000 { // each cut takes at least one entry's damage away; there are never so many
		if err := c.repairLog.LeaveHoles(start); err != nil {
			return fmt.Errorf("leave holes in the log: %w", err)
		}
		lost := c.unresolved()
		if len(lost) == 0 {
			return nil
		}
		at := lost[len(lost)-1].First // of an open end, or of what could not be left as a hole
		for _, d := range lost {
			if d.Last > start {
				at = max(d.First, start+1)
				break
			}
		}
		if err := c.beInDoubt(c.reached(), "damage that no node could repair is cut off the log"); err != nil {
			return err
		}
		if err := c.cutLog(at, start, startTerm); err != nil {
			return err
		}
	}
	return damaged("%s: neither repaired nor cut off", describe(c.unresolved()))
}

// cutLog cuts at an index, or below it where the entry before is known by its term.
func (c *Cluster) cutLog(at, start, startTerm uint64) error {
	base, _ := c.log.Base()
	for at-1 > base {
		if at-1 == start {
			break
		}
		if _, err := c.log.rawTermOf(at - 1); err == nil || !isDamage(err) {
			break
		}
		at--
	}
	prev := uint64(0)
	if at-1 == start {
		if _, err := c.log.rawTermOf(at - 1); isDamage(err) {
			prev = startTerm
		}
	}
	c.logger.Error("the log is cut where damage could not be repaired; the files are kept apart", "at", at)
	if err := c.repairLog.CutAt(at, prev); err != nil {
		return fmt.Errorf("cut the log at %d: %w", at, err)
	}
	return nil
}
