package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

const (
	doubtName    = "doubt"
	doubtMagic   = "PSdo"
	doubtVersion = 1

	doubtPause   = 250 * time.Millisecond
	councilFresh = 2 * time.Second
	// maxFill bounds the entries that a leader writes so that a node in doubt reaches its own mark: what a node had that no
	// leader has is what was in flight.
	maxFill = 1024
)

var errMuzzled = errors.New("this node may have lost entries that it acknowledged: it neither votes nor stands until it has caught up")

// doubtNote is the durable note that this node's log may lack entries that it acknowledged.
type doubtNote struct {
	Until uint64 `json:"until"` // how far the log is known to have reached; more may be gone
	Why   string `json:"why"`
	Since int64  `json:"since"` // unix seconds
}

// doubt is whether this node is muzzled (DESIGN 4.6). A node whose log may be shorter than what it acknowledged must help nobody
// to a majority: it neither votes nor stands, in pre-votes likewise, and takes no leadership that is handed to it. It takes entries
// and acknowledges them: what it stores now it holds.
//
// The doubt ends when the log has reached the last index that a leader had at first contact, which is at or above all that was ever
// committed with this node's help, and what its own mark said.
//
// Invariant: the note is durable before anything that lost entries is cut off, and goes only with the doubt.
type doubt struct {
	path string
	on   atomic.Bool

	mu struct {
		sync.Mutex
		note   doubtNote
		leader uint64 // last index of the leader at first contact; 0: none yet
		// council is what the voters last said of themselves while nobody led.
		council map[string]councilSeat
		// open: at some time all voters were there and those not in doubt were no majority. The own mark is no promise then.
		open bool
	}
}

type councilSeat struct {
	logState
	at time.Time
}

// NoteDoubt notes durably that the node of a data directory is in doubt, before its cluster is opened: its log's mark is lost.
func NoteDoubt(dataDir, why string) error {
	d, err := openDoubt(dataDir)
	if err != nil {
		return err
	}
	return d.raise(0, why)
}

func openDoubt(dataDir string) (*doubt, error) {
	d := &doubt{path: filepath.Join(dataDir, doubtName)}
	body, err := readSealed(d.path, doubtMagic, doubtVersion)
	if errors.Is(err, os.ErrNotExist) {
		return d, nil
	}
	if err != nil && !errors.Is(err, ErrDamaged) {
		return nil, err
	}
	if err != nil || json.Unmarshal(body, &d.mu.note) != nil {
		d.mu.note = doubtNote{Why: "the note about an earlier doubt is damaged"}
	}
	d.on.Store(true)
	return d, nil
}

// raise notes the doubt durably; a lower mark than is noted changes nothing.
func (d *doubt) raise(until uint64, why string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.on.Load() && d.mu.note.Until >= until {
		return nil
	}
	note := doubtNote{Until: max(until, d.mu.note.Until), Why: why, Since: time.Now().Unix()}
	body, err := json.Marshal(note)
	if err != nil {
		return fmt.Errorf("encode doubt: %w", err)
	}
	if err := writeSealed(d.path, doubtMagic, doubtVersion, body); err != nil {
		return err
	}
	d.mu.note = note
	d.on.Store(true)
	return nil
}

func (d *doubt) end() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := removeFile(d.path); err != nil {
		return err
	}
	d.on.Store(false)
	d.mu.note, d.mu.leader, d.mu.council, d.mu.open = doubtNote{}, 0, nil, false
	return nil
}

// muzzled tells whether this node may neither vote nor stand.
func (c *Cluster) muzzled() bool { return c.doubt.on.Load() }

// beInDoubt raises the doubt; a cluster of one has nobody to settle it with and does not start.
func (c *Cluster) beInDoubt(until uint64, why string) error {
	if c.cfg.Single {
		return logDamaged("%s: a cluster of one has no other copy", why)
	}
	was := c.muzzled()
	if err := c.doubt.raise(until, why); err != nil {
		return err
	}
	if !was {
		c.logger.Error("this node is in doubt: it neither votes nor leads until it has caught up", "why", why, "until", until)
	}
	return nil
}

// settleDoubt looks each 250 ms whether the doubt is over; while nobody leads it asks the other voters how they are.
func (c *Cluster) settleDoubt(ctx context.Context) {
	tick := time.NewTicker(doubtPause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		in := c.instance()
		if !c.muzzled() || in == nil {
			continue
		}
		var err error
		if leader := c.Leader(); leader == "" {
			c.convene(ctx)
		} else {
			err = c.askLeader(ctx, in, leader)
		}
		if err != nil && ctx.Err() == nil {
			c.logger.Debug("doubt is not settled", "error", err)
		}
	}
}

// askLeader measures this node against the leader that its Raft follows, whose term is therefore not behind what it voted in.
func (c *Cluster) askLeader(ctx context.Context, in *raftInstance, leader string) error {
	if leader == c.cfg.NodeID {
		if !c.IsLeader() {
			return nil
		}
		return c.endDoubt("this node was elected as the best of all voters")
	}
	last, err := c.log.LastIndex()
	if err != nil {
		return err
	}
	d := c.doubt
	d.mu.Lock()
	until, first := d.mu.note.Until, d.mu.leader
	if d.mu.open {
		until = 0
	}
	d.mu.Unlock()
	s, err := c.logStateOf(ctx, leader, logStateQuestion{Reach: until})
	if err != nil {
		return err
	}
	if !s.Leading || s.Term < in.raft.CurrentTerm() {
		return errors.New("the leader leads no more")
	}
	if first == 0 {
		first = s.Last
		d.mu.Lock()
		d.mu.leader = first
		d.mu.Unlock()
		c.logger.Info("in doubt: catching up with the leader", "leader", leader, "last", last, "until", max(until, first))
		return nil
	}
	if last < max(until, first) {
		return nil
	}
	return c.endDoubt("the log has caught up")
}

func (c *Cluster) endDoubt(why string) error {
	forced := c.doubt.wasOpen()
	if err := c.doubt.end(); err != nil {
		c.fatal(ExitDisk, err)
		return err
	}
	c.logger.Warn("this node is in doubt no more", "because", why)
	if forced && c.cfg.Audit != nil {
		c.cfg.Audit("cluster.elect-in-doubt", "the voters not in doubt were no majority, and all were there: the longest log leads; entries that only damaged copies held are lost")
	}
	c.changed.fire()
	return nil
}

func (d *doubt) wasOpen() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.open
}

// convene asks every other voter how its log ends.
func (c *Cluster) convene(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, id := range c.voters() {
		if id == c.cfg.NodeID {
			continue
		}
		wg.Go(func() {
			s, err := c.logStateOf(ctx, id, logStateQuestion{})
			if err != nil {
				return
			}
			c.doubt.mu.Lock()
			defer c.doubt.mu.Unlock()
			if c.doubt.mu.council == nil {
				c.doubt.mu.council = map[string]councilSeat{}
			}
			c.doubt.mu.council[id] = councilSeat{s, time.Now()}
		})
	}
	wg.Wait()
}

func (c *Cluster) voters() (ids []string) {
	conf, _ := c.book.configuration()
	for _, s := range conf.Servers {
		if s.Suffrage == raft.Voter {
			ids = append(ids, string(s.ID))
		}
	}
	return ids
}

// mayElect tells whether this node, though in doubt, may help a log that ends at (term, index) to a majority: when the voters not in
// doubt are none, all voters are there, and no log of theirs is better. Whatever of the log survives anywhere is in that one then, and to wait longer
// would bring nothing back.
func (c *Cluster) mayElect(term, index uint64) bool {
	ownIndex, ownTerm, err := c.lastEntry()
	if err != nil || better(ownTerm, ownIndex, term, index) {
		return false
	}
	voters := c.voters()
	d := c.doubt
	d.mu.Lock()
	defer d.mu.Unlock()
	whole := 0
	for _, id := range voters {
		if id == c.cfg.NodeID {
			continue
		}
		s, ok := d.mu.council[id]
		if !ok || time.Since(s.at) > councilFresh || !s.Started || s.Leading || better(s.LastTerm, s.Last, term, index) {
			return false
		}
		if !s.InDoubt {
			whole++
		}
	}
	if whole >= len(voters)/2+1 {
		return false
	}
	if !d.mu.open {
		d.mu.open = true
		c.metrics.doubtElections.Inc()
		c.logger.Error("ALARM: the voters not in doubt are no majority; all are there, and the longest log may lead", "last", index, "term", term)
	}
	return true
}

// better tells whether a log that ends at (term, index) is ahead of another.
func better(term, index, thanTerm, thanIndex uint64) bool {
	return term > thanTerm || term == thanTerm && index > thanIndex
}

// mayStand tells whether this node may ask for votes.
func (c *Cluster) mayStand() bool {
	if !c.muzzled() {
		return true
	}
	index, term, err := c.lastEntry()
	return err == nil && c.mayElect(term, index)
}
