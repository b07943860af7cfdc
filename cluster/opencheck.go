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
func (c *Cluster) openCheck() error {
	if err := c.resumeInstall(); err != nil {
		return err
	}
	newest := c.snaps.newest()
	if newest != nil {
		if err := c.restoreFrom(newest); err != nil {
			return err
		}
		if err := c.book.configure(raft.DecodeConfiguration(newest.Configuration), newest.ConfigurationIndex); err != nil {
			return err
		}
	}
	last, err := c.log.LastIndex()
	if err != nil {
		return fmt.Errorf("read the end of the log: %w", err)
	}
	_, catching, err := c.snaps.catchingUp()
	if err != nil {
		return err
	}
	applied, _ := c.sm.Applied()
	if !catching && newest != nil && newest.StateIndex > last {
		return damaged("the log ends at %d, the newest snapshot is of %d: acknowledged entries are lost", last, newest.StateIndex)
	}
	if !catching && applied > last {
		return damaged("the log ends at %d, %d was applied: acknowledged entries are lost", last, applied)
	}
	return c.coverBase(newest)
}

func (c *Cluster) resumeInstall() error {
	marker := c.snaps.pending()
	if marker == nil {
		return nil
	}
	m, _ := c.snaps.find(marker.ID)
	if m == nil {
		if marker.Phase == phaseCatchingUp {
			return damaged("snapshot %s was being caught up with and is gone", marker.ID)
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
