package cluster

import (
	"fmt"

	"github.com/hashicorp/raft"
)

// openCheck makes state, snapshots and log agree before Raft sees them; the library checks none of this.
//
//  1. An installation that a crash cut short is completed, or forgotten when its snapshot never became visible.
//  2. A state machine behind the newest snapshot is restored from it: Raft starts from the snapshot's index and would never apply what
//     lies before (rqlite#2747).
//  3. A log that ends below the newest snapshot, or below what was applied, has lost entries that were acknowledged, unless an
//     installation is still catching up.
//  4. Snapshots that all end below the log's base leave a gap: the state machine makes one if it is past the base, else one is fetched
//     from a peer before Raft starts (fetch.go).
//
// Damage of the log itself is repaired before 2 to 4 (repair.go). A log that was short already when this node came to be in doubt,
// or that is short of what was applied, in a cluster of several, is filled by the leader: the node is in doubt meanwhile.
func (c *Cluster) openCheck() error {
	if err := c.resumeInstall(); err != nil {
		return err
	}
	if err := c.assess(); err != nil || c.ailing.Load() {
		return err
	}
	return c.checkState()
}

func (c *Cluster) checkState() error {
	newest := c.snaps.newest()
	if newest != nil {
		if err := c.restoreFrom(newest); err != nil {
			return err
		}
		if err := c.book.configure(raft.DecodeConfiguration(newest.Configuration), newest.ConfigurationIndex); err != nil {
			return err
		}
	}
	if err := c.coverBase(newest); err != nil {
		return err
	}
	return c.coverEnd()
}

// checkTerm holds the stable store against the log: a term is durable before any entry of it, so a log with a later one says that an older
// stable store was put back, and with it an older vote. The others, who know more, are asked before (join).
func (c *Cluster) checkTerm() error {
	if c.stable == nil {
		return nil // a test of the rest
	}
	_, lastTerm, err := c.lastEntry()
	if err != nil {
		return err
	}
	if term, err := c.stable.GetUint64([]byte("CurrentTerm")); err != nil || term < lastTerm {
		return damaged("the stable store says term %d, the log ends with term %d: an older vote came back; the node comes back under a new id (%v)", term, lastTerm, err)
	}
	return nil
}

// raiseTerm makes room in the stable store for entries of a term, before they come from another node by another way than Raft's. To know of a
// later term is no vote.
func (c *Cluster) raiseTerm(term uint64) error {
	key := []byte("CurrentTerm")
	now, err := c.stable.GetUint64(key)
	if err != nil || now >= term {
		return err
	}
	return c.stable.SetUint64(key, term)
}

// coverEnd looks at a log that ends below what was applied or is in the newest snapshot: entries that were acknowledged are lost. The state
// has their effect, so the leader sends them again from the end of the log on, as behind an installation, and the state machine skips them.
func (c *Cluster) coverEnd() error {
	last, lastTerm, err := c.lastEntry()
	if err != nil {
		return fmt.Errorf("read the end of the log: %w", err)
	}
	_, catching, err := c.snaps.catchingUp()
	if err != nil {
		return err
	}
	if start, _ := c.snaps.start(); catching && start <= last {
		return nil
	}
	until, _ := c.sm.Applied()
	newest := c.snaps.newest()
	if newest != nil {
		until = max(until, newest.StateIndex)
	}
	if until <= last {
		return nil
	}
	if err := c.beInDoubt(until, fmt.Sprintf("the log ends at %d, and %d was applied: acknowledged entries are lost", last, until)); err != nil {
		return err
	}
	if newest == nil || newest.StateIndex <= last {
		return nil
	}
	return c.snaps.catchUpFrom(newest, last, lastTerm, until)
}

func (c *Cluster) resumeInstall() error {
	marker := c.snaps.pending()
	if marker == nil {
		return nil
	}
	m, _ := c.snaps.find(marker.ID)
	if m == nil {
		if marker.Phase == phaseCatchingUp {
			c.logger.Error("the snapshot that was being caught up with is gone; the state it gave is here", "snapshot", marker.ID, "until", marker.Until)
			return c.snaps.forgetMarker()
		}
		c.logger.Info("an installation that never became visible is forgotten", "label", marker.LabelIndex)
		return c.snaps.forgetMarker()
	}
	if marker.Phase != phaseInstalling {
		return nil
	}
	c.logger.Info("an interrupted installation is completed", "label", marker.LabelIndex)
	f, data, err := openSnapData(c.snaps.path(m.ID), m)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := c.snaps.completeInstall(c.sm, marker, data); err != nil {
		return fmt.Errorf("complete an installation at %d: %w", marker.LabelIndex, err)
	}
	return nil
}

func (c *Cluster) restoreFrom(m *snapMeta) error {
	applied, _ := c.sm.Applied()
	if applied >= m.StateIndex {
		return nil
	}
	c.logger.Info("the state is restored from a snapshot", "applied", applied, "snapshot", m.StateIndex)
	f, data, err := openSnapData(c.snaps.path(m.ID), m)
	if err != nil {
		return err
	}
	defer f.Close()
	return restoreState(c.sm, data)
}

func (c *Cluster) coverBase(newest *snapMeta) error {
	c.needsState.Store(false)
	base, _ := c.log.Base()
	if base == 0 || newest != nil && newest.StateIndex >= base {
		return nil
	}
	conf, index := c.book.configuration()
	applied, _ := c.sm.Applied()
	if applied < base || len(conf.Servers) == 0 {
		if c.cfg.Single {
			return damaged("the log begins after %d, and no snapshot and no state reach it", base)
		}
		c.logger.Error("no snapshot and no state reach the log's base: one is fetched from a peer", "base", base, "applied", applied)
		c.needsState.Store(true)
		return nil
	}
	c.logger.Warn("no good snapshot reaches the log's base: the state machine makes one", "base", base, "applied", applied)
	return c.snapshotOf(conf, index)
}

// snapshotOf writes a snapshot of the state machine without Raft.
func (c *Cluster) snapshotOf(conf raft.Configuration, index uint64) error {
	s, err := c.sm.Snapshot()
	if err != nil {
		return fmt.Errorf("snapshot the state machine: %w", err)
	}
	f := &fsmSnapshot{s: s, gen: c.snaps.generation()}
	defer f.Release()
	sink, err := c.snaps.Create(1, s.Index(), s.Term(), conf, index, nil)
	if err != nil {
		return err
	}
	if err := f.Persist(sink); err != nil {
		sink.Cancel()
		return fmt.Errorf("write a snapshot: %w", err)
	}
	return nil
}
