package cluster

import (
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// promoteMaxLag is how many entries a node may be behind the leader when it becomes a voter, or is to lead.
const promoteMaxLag = 1024

// allowed refuses what Raft would do and should not.
func (c *Cluster) allowed(t *tenure, m memberChange) error {
	servers := t.raft.GetConfiguration().Configuration().Servers
	var found *raft.Server
	for _, s := range servers {
		if string(s.ID) == m.ID {
			found = &s
		}
	}
	switch {
	case m.Op == opNonvoter:
		return c.joinable(m.ID, found)
	case m.Op == opTransfer && m.ID == "":
		return fmt.Errorf("%w: there is no other live voter to lead", ErrRefused)
	case found == nil:
		return fmt.Errorf("%w: %s is not a member", ErrRefused, m.ID)
	case m.Op == opTransfer:
		return c.mayLead(t, *found)
	case m.Op == opPromote && found.Suffrage == raft.Voter:
		return fmt.Errorf("%w: %s is a voter already", ErrRefused, m.ID)
	case m.Op == opDemote && found.Suffrage != raft.Voter:
		return fmt.Errorf("%w: %s has no vote", ErrRefused, m.ID)
	case m.Op == opPromote:
		if err := c.upToDate(t, m.ID); err != nil {
			return err
		}
	}
	return c.keepsQuorum(t, servers, m)
}

func (c *Cluster) joinable(id string, found *raft.Server) error {
	if err := checkNodeID(id); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if found != nil {
		return fmt.Errorf("%w: %s is a member already", ErrRefused, id)
	}
	if p, ok := c.book.get(id); !ok || p.Raft == "" {
		return fmt.Errorf("%w: node %s has not said hello yet; start it with this cluster's seeds", ErrRefused, id)
	}
	return nil
}

// upToDate tells whether a node may have a vote: it holds every entry that may be needed, and is not far behind.
func (c *Cluster) upToDate(t *tenure, id string) error {
	r, ok := c.table.get(id)
	switch {
	case !ok || time.Since(r.heard) > reportFresh:
		return fmt.Errorf("%w: no report from node %s in the last seconds", ErrRefused, id)
	case !r.PayloadComplete:
		return fmt.Errorf("%w: node %s does not hold every needed entry yet (log ends at %d, applied %d)", ErrRefused, id, r.Self.LastIndex, r.Applied)
	case r.Self.LastIndex+promoteMaxLag < t.raft.LastIndex():
		return fmt.Errorf("%w: node %s is at %d of %d", ErrRefused, id, r.Self.LastIndex, t.raft.LastIndex())
	}
	return nil
}

func (c *Cluster) mayLead(t *tenure, s raft.Server) error {
	if s.Suffrage != raft.Voter {
		return fmt.Errorf("%w: %s has no vote", ErrRefused, s.ID)
	}
	if !c.inContact(t, string(s.ID)) {
		return fmt.Errorf("%w: this leader has no contact with %s", ErrRefused, s.ID)
	}
	if _, reported := c.table.get(string(s.ID)); !reported {
		return nil // this leader is new; the library hands over to none that is behind
	}
	return c.upToDate(t, string(s.ID))
}

// successor is the live voter that has most of the log; "" when there is none. The library would pick one that is dead.
func (c *Cluster) successor(t *tenure) string {
	best, most := "", uint64(0)
	for _, s := range t.raft.GetConfiguration().Configuration().Servers {
		id := string(s.ID)
		if id == c.cfg.NodeID || c.mayLead(t, s) != nil {
			continue
		}
		if r, _ := c.table.get(id); best == "" || r.Self.LastIndex > most {
			best, most = id, r.Self.LastIndex
		}
	}
	return best
}

// tally is a configuration by its votes: live are the voters that the leader is in contact with.
type tally struct{ voters, live int }

func (t tally) quorum() int { return t.voters/2 + 1 }

// spare is how many of the live voters may die before nothing can be committed.
func (t tally) spare() int { return t.live - t.quorum() }

// keepsQuorum refuses a change after which nothing could be committed, that change first of all; and, unless it is forced, one that
// takes away the last voter that could be spared, or leaves one disk with the only copy.
func (c *Cluster) keepsQuorum(t *tenure, servers []raft.Server, m memberChange) error {
	var before, after tally
	for _, s := range servers {
		votes, changed := s.Suffrage == raft.Voter, string(s.ID) == m.ID
		before.count(votes, c.inContact(t, string(s.ID)))
		after.count(votes && !changed || changed && m.Op == opPromote, c.inContact(t, string(s.ID)))
	}
	switch {
	case after.voters == before.voters: // of a nonvoter
		return nil
	case after.voters == 0:
		return fmt.Errorf("%w: %s is the only voter", ErrRefused, m.ID)
	case after.spare() < 0:
		return fmt.Errorf("%w: afterwards %d of %d voters would be live, and a majority is %d: it could never be committed",
			ErrRefused, after.live, after.voters, after.quorum())
	case m.Force:
		return nil
	case after.voters == 1:
		return fmt.Errorf("%w: one disk would hold the only copy; force it if that is meant", ErrRefused)
	case after.spare() == 0 && before.spare() > 0:
		return fmt.Errorf("%w: afterwards %d of %d voters would be live, so that none could be spared, and now one can; force it if that is meant",
			ErrRefused, after.live, after.voters)
	}
	return nil
}

func (t *tally) count(votes, live bool) {
	if votes {
		t.voters++
		if live {
			t.live++
		}
	}
}

// inContact tells whether a node has lately accepted something from this leader.
func (c *Cluster) inContact(t *tenure, id string) bool {
	return id == c.cfg.NodeID || time.Since(t.trans.contacts.at(id, t.term)) < reachableAfter
}
