package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// RecoverConfig says what one node is to be recovered from. Its directory is locked and its log and state are open, by the caller.
type RecoverConfig struct {
	NodeID, Name, DataDir string
	// Lost are the entries of the log that cannot be read; Last 0: nobody knows how many from First on.
	Lost   []LostEntries
	Logger *slog.Logger
}

// LostEntries is a run of entries that cannot be read, inclusive.
type LostEntries struct {
	First uint64 `json:"first"`
	Last  uint64 `json:"last,omitempty"`
}

// Recovery is what recovering a cluster from one node does, and what may be lost by it. It is the report.
type Recovery struct {
	At           time.Time `json:"at"`
	Node         string    `json:"node"`
	Cluster      string    `json:"cluster"`
	OldClusterID string    `json:"old_cluster_id"`
	NewClusterID string    `json:"new_cluster_id,omitempty"` // once it is done
	// FirstIndex to LastIndex is what the log holds, in terms up to Term; State the index of the newest state on this disk.
	FirstIndex uint64 `json:"first_index"`
	LastIndex  uint64 `json:"last_index"`
	Term       uint64 `json:"term"`
	State      uint64 `json:"state_index"`
	Floor      uint64 `json:"floor"`
	// Voters were those of the newest configuration in the log; they are replaced by this node alone.
	Voters []string `json:"voters"`
	// Unproven are entries at the end of the log that no state of this disk shows to be committed: acknowledged ones among them, and
	// perhaps some whose outcome their producers never learned. All of them become committed.
	Unproven uint64 `json:"unproven_entries"`
	// Others is what this node last knew of the others' logs.
	Others []RecoveredPeer `json:"others"`
	Holes  []LostEntries   `json:"holes,omitempty"` // unreadable, covered by the state: only their payload is lost
	CutAt  uint64          `json:"cut_at,omitempty"`
	// ConfigIndex is the entry that makes this node the only voter, once it is done.
	ConfigIndex uint64 `json:"config_index,omitempty"`

	cut uint64 // the end of the log after CutAt
}

// RecoveredPeer is one of the nodes that are given up.
type RecoveredPeer struct {
	ID string `json:"id"`
	// LastIndex is where its log ended when this node last heard of it, which may be long ago.
	LastIndex uint64 `json:"last_index"`
	// Missing entries at least were on it and are not here.
	Missing uint64 `json:"missing"`
}

// MayLose tells in words what may be lost.
func (r *Recovery) MayLose() []string {
	out := []string{
		"Whatever was acknowledged by the others and had not reached this disk is lost for good. Nobody can tell from here how much that is.",
	}
	for _, p := range r.Others {
		if p.Missing > 0 {
			out = append(out, fmt.Sprintf("Node %s held at least %d entries that are not here (its log ended at %d). If its disk can be read, recover that node instead.", p.ID, p.Missing, p.LastIndex))
		}
	}
	if r.CutAt > 0 {
		out = append(out, fmt.Sprintf("The log of this node is damaged at %d, above its state: it is cut there. What stood behind is kept apart as files, and is lost for the cluster.", r.CutAt))
	}
	for _, h := range r.Holes {
		out = append(out, fmt.Sprintf("Entries %d to %d of this node's log are damaged. Their effects are in its state; their payload is lost, for reading and for delivery.", h.First, h.Last))
	}
	if r.Unproven > 0 {
		out = append(out, fmt.Sprintf("The last %d entries of the log become committed, also those whose producers never got an answer.", r.Unproven))
	}
	return append(out, "The other nodes must never start again from their present disks. Those that reach this one refuse to; two that reach only each other would go on as the old cluster.")
}

// recovering is a node's directory opened for it.
type recovering struct {
	*Cluster
	cfg  RecoverConfig
	plan *Recovery
}

// PlanRecover looks at what a node holds and changes nothing.
func PlanRecover(cfg RecoverConfig, log Log, sm StateMachine) (*Recovery, error) {
	r, err := openRecovering(cfg, log, sm)
	if err != nil {
		return nil, fmt.Errorf("recover from %s: %w", cfg.DataDir, err)
	}
	defer r.stable.Close()
	return r.plan, nil
}

// Recover makes the node the only voter of a cluster with a new id, which keeps everything that its log and its state hold. Repeated
// after a crash it does what is left. Raft must not have been started over the log since it was opened.
func Recover(cfg RecoverConfig, log Log, sm StateMachine) (*Recovery, error) {
	r, err := openRecovering(cfg, log, sm)
	if err != nil {
		return nil, fmt.Errorf("recover from %s: %w", cfg.DataDir, err)
	}
	defer r.stable.Close()
	if err := r.do(); err != nil {
		return r.plan, fmt.Errorf("recover from %s: %w", cfg.DataDir, err)
	}
	return r.plan, nil
}

func openRecovering(cfg RecoverConfig, log Log, sm StateMachine) (*recovering, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Cluster{cfg: Config{NodeID: cfg.NodeID, Name: cfg.Name, DataDir: cfg.DataDir}, logger: cfg.Logger, log: newLogStore(log), sm: sm}
	var err error
	if c.id, err = readIdentity(cfg.DataDir, cfg.NodeID, cfg.Name); err != nil {
		return nil, err
	}
	if c.id.ClusterID.IsZero() {
		return nil, errors.New("this node never belonged to a cluster: there is nothing to recover")
	}
	fatal := func(_ int, err error) { cfg.Logger.Error("recover", "error", err) }
	if c.book, err = openBook(cfg.DataDir, cfg.NodeID, false, nil, fatal); err != nil {
		return nil, err
	}
	if c.snaps, err = openSnapshotStore(cfg.DataDir, c.log, c.logger, func() {}); err != nil {
		return nil, err
	}
	c.floor = newFloorKeeper(c.log, c.sm, c.snaps, c.logger)
	c.snaps.floor = c.floor
	if c.stable, err = openStable(cfg.DataDir, false, fatal); err != nil {
		return nil, err
	}
	r := &recovering{Cluster: c, cfg: cfg}
	if err := r.look(); err != nil {
		c.stable.Close()
		return nil, err
	}
	return r, nil
}

// readIdentity is openIdentity without a start: the incarnation stays.
func readIdentity(dir, nodeID, name string) (*identityFile, error) {
	f := &identityFile{path: filepath.Join(dir, "identity")}
	body, err := readSealed(f.path, identityMagic, identityVersion)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, &f.identity); err != nil {
		return nil, damaged("%s: %v", f.path, err)
	}
	if f.NodeID != nodeID || f.ClusterName != name {
		return nil, foreign("%s belongs to node %q of cluster %q", dir, f.NodeID, f.ClusterName)
	}
	return f, nil
}

func (r *recovering) look() error {
	if m := r.snaps.pending(); m != nil {
		return fmt.Errorf("this node was still receiving what it lacks when it stopped (an installation at %d): it does not hold every needed payload; recover another node", m.LabelIndex)
	}
	last, err := r.log.LastIndex()
	if err != nil {
		return fmt.Errorf("read the end of the log: %w", err)
	}
	if last == 0 {
		return errors.New("the log is empty: there is nothing to recover")
	}
	first, err := r.log.FirstIndex()
	if err != nil {
		return fmt.Errorf("read the start of the log: %w", err)
	}
	term, err := r.stable.GetUint64([]byte("CurrentTerm"))
	if err != nil {
		return fmt.Errorf("read the term: %w", err)
	}
	state, _ := r.sm.Applied()
	if m := r.snaps.newest(); m != nil {
		state = max(state, m.StateIndex)
	}
	r.plan = &Recovery{
		At: time.Now().UTC(), Node: r.cfg.NodeID, Cluster: r.cfg.Name, OldClusterID: r.id.ClusterID.String(),
		FirstIndex: first, LastIndex: last, Term: term, State: state, Floor: r.sm.Floor(),
	}
	r.damage(state)
	if r.plan.cut < state {
		return damaged("the log ends at %d, the state is of %d: what lies between is lost on this disk; recover another node", r.plan.cut, state)
	}
	conf, err := r.newestConfiguration(r.plan.cut)
	if err != nil {
		return err
	}
	for _, s := range conf.Servers {
		if s.Suffrage == raft.Voter {
			r.plan.Voters = append(r.plan.Voters, string(s.ID))
		}
	}
	if r.plan.cut > state {
		r.plan.Unproven = r.plan.cut - state
	}
	for _, p := range r.book.all() {
		if !p.Member {
			continue
		}
		other := RecoveredPeer{ID: p.ID, LastIndex: p.LastIndex}
		if p.LastIndex > r.plan.cut {
			other.Missing = p.LastIndex - r.plan.cut
		}
		r.plan.Others = append(r.plan.Others, other)
	}
	return nil
}

// damage decides what becomes of entries that cannot be read: below the state they stay holes, above it the log is cut.
func (r *recovering) damage(state uint64) {
	r.plan.cut = r.plan.LastIndex
	for _, l := range r.cfg.Lost {
		switch {
		case l.First == 0:
		case l.First > state:
			if r.plan.CutAt == 0 || l.First < r.plan.CutAt {
				r.plan.CutAt, r.plan.cut = l.First, l.First-1
			}
		default:
			hole := LostEntries{l.First, min(l.Last, state)}
			if l.Last == 0 || l.Last > state {
				hole.Last = state
				r.plan.CutAt, r.plan.cut = state+1, state
			}
			r.plan.Holes = append(r.plan.Holes, hole)
		}
	}
}

// newestConfiguration is that of the book, or one that stands behind it in the log.
func (r *recovering) newestConfiguration(last uint64) (raft.Configuration, error) {
	conf, index := r.book.configuration()
	if m := r.snaps.newest(); m != nil && m.ConfigurationIndex > index {
		conf, index = raft.DecodeConfiguration(m.Configuration), m.ConfigurationIndex
	}
	first, err := r.log.FirstIndex()
	if err != nil {
		return conf, err
	}
	for i := max(first, index+1); i <= last; i++ {
		var e raft.Log
		if err := r.log.GetLog(i, &e); err != nil {
			continue // what cannot be read is damage, and decided on
		}
		if e.Type == raft.LogConfiguration {
			conf = raft.DecodeConfiguration(e.Data)
		}
	}
	return conf, nil
}

// cuttableLog is a log that opens with damage.
type cuttableLog interface {
	LeaveHoles(index uint64) error
	CutAt(index, prevTerm uint64) error
}

// do changes the directory. The identity comes first: once this node leads alone, nodes of the old cluster must not be taken for its own.
//
//	new cluster id → damage settled → doubt forgotten → term raised → entry that makes this node the only voter → book
func (r *recovering) do() error {
	id := newID16()
	r.id.Supersedes = slices.Compact(append(r.id.Supersedes, r.id.ClusterID))
	r.id.ClusterID, r.id.Bootstrap = id, nil
	r.plan.NewClusterID = id.String()
	if err := r.id.save(); err != nil {
		return err
	}
	if err := r.settleDamage(); err != nil {
		return err
	}
	if err := removeFile(filepath.Join(r.cfg.DataDir, doubtName)); err != nil { // whether entries are missing is what the operator decided on
		return err
	}
	last, err := r.log.LastIndex()
	if err != nil {
		return fmt.Errorf("read the end of the log: %w", err)
	}
	term := r.plan.Term + 1
	if err := r.stable.SetUint64([]byte("CurrentTerm"), term); err != nil {
		return err
	}
	conf := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: raft.ServerID(r.cfg.NodeID), Address: raft.ServerAddress(r.cfg.NodeID)}}}
	entry := &raft.Log{Index: last + 1, Term: term, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(conf)}
	if err := r.log.StoreLog(entry); err != nil {
		return fmt.Errorf("write the entry that makes this node the only voter: %w", err)
	}
	r.plan.ConfigIndex = entry.Index
	return r.book.configure(conf, entry.Index)
}

func (r *recovering) settleDamage() error {
	if r.plan.CutAt == 0 && len(r.plan.Holes) == 0 {
		return nil
	}
	log, ok := r.log.Log.(cuttableLog)
	if !ok {
		return damaged("the log is damaged and cannot be cut")
	}
	if len(r.plan.Holes) > 0 {
		if err := r.coverHoles(); err != nil {
			return err
		}
		if err := log.LeaveHoles(r.plan.State); err != nil {
			return fmt.Errorf("leave holes in the log: %w", err)
		}
	}
	if r.plan.CutAt == 0 {
		return nil
	}
	var prevTerm uint64
	if _, err := r.log.termOf(r.plan.CutAt - 1); err != nil {
		_, prevTerm = r.sm.Applied() // the entry below is a hole: it is the state's last
	}
	if err := log.CutAt(r.plan.CutAt, prevTerm); err != nil {
		return fmt.Errorf("cut the log at %d: %w", r.plan.CutAt, err)
	}
	return nil
}

// coverHoles makes sure that a snapshot reaches the state: Raft reads every entry behind the newest one at its start.
func (r *recovering) coverHoles() error {
	newest := r.snaps.newest()
	if newest != nil {
		if err := r.restoreFrom(newest); err != nil {
			return err
		}
	}
	applied, _ := r.sm.Applied()
	if newest != nil && newest.StateIndex >= applied {
		return nil
	}
	conf, index := r.book.configuration()
	return r.snapshotOf(conf, index)
}
