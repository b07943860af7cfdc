package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
)

// Log is the write-ahead log: Raft's log store with a base below its first entry.
type Log interface {
	raft.LogStore
	// Base is the (index, term) just below the first entry; index 0 when nothing was ever dropped. GetLog(index) answers an empty no-op of that term.
	Base() (index, term uint64)
	// Reset drops every entry, durably, and makes (index, term) the base.
	Reset(index, term uint64) error
	// SetFloor tells that nothing at or above index-1 may be deleted, and that what lies below, and Raft allowed, may. It never goes down.
	SetFloor(index uint64)
}

// StateMachine is the replicated state. Apply is called from one goroutine, in index order; the rest from any.
type StateMachine interface {
	// Apply returns one result per command, or nil results when index was applied before. An error ends the process.
	Apply(index, term uint64, data []byte) ([][]byte, error)
	Applied() (index, term uint64)
	// OwnersIndex is an index such that a node that has applied it knows every move of an emitter applied here.
	OwnersIndex() uint64
	// Stamp is the stamp of the last applied entry, unix nanoseconds.
	Stamp() int64
	Checkpoint() error
	Restore(r io.Reader) error
	Snapshot() (Snapshot, error)
	// Floor is the lowest index whose entry is still needed, Horizon the lowest that is still readable; Horizon <= Floor.
	Floor() uint64
	Horizon() uint64
}

// Snapshot is a frozen view of the state machine.
type Snapshot interface {
	Index() uint64
	Term() uint64
	io.WriterTo
	Close() error
}

// Timers are Raft's. The zero value means the defaults of DESIGN 4.3.
type Timers struct {
	Heartbeat time.Duration // silence after which a follower looks for a leader; 400 ms
	Election  time.Duration // length of one election round; 400 ms, not below Heartbeat
	Lease     time.Duration // silence of a majority after which a leader steps down; 300 ms, not above Heartbeat
	Commit    time.Duration // idle time after which followers are told the commit index; 10 ms
}

// Config is what a node needs to know to be a member.
type Config struct {
	NodeID  string // 1 to 63 of [A-Za-z0-9._-]; for ever the same for one data directory
	Name    string // the cluster's name; nodes of other clusters are refused
	DataDir string

	RaftAddr        string // listens here for Raft and peer requests; port 0 picks one
	RaftAdvertise   string // what the others dial; default: the listener's address
	GossipAddr      string // listens here for hellos
	GossipAdvertise string
	HTTPAdvertise   string   // shown to the others, not used here
	Seeds           []string // gossip addresses, the same list on each node that may bootstrap, self among them
	// GossipKeys (16, 24 or 32 bytes each) seal what goes over the gossip port: the first seals, all open. None: plain.
	GossipKeys [][]byte
	NodeTold        // what this node tells of itself by gossip; texts of at most 64 bytes
	Single     bool // a cluster of one: bootstraps itself and asks nobody

	Timers        Timers
	SnapshotBytes int64 // log bytes after which a snapshot is due; 128 MiB
	EntryBytes    int   // commands are gathered into entries of about this size; 256 KiB
	InFlightBytes int64 // proposals waiting at once on this node, in bytes; 64 MiB; more is refused
	AppendBytes   int   // most bytes of entries in one AppendEntries; 4 MiB
	TrailingLogs  uint64
	LeaderWait    time.Duration // how long a proposal waits for a leader to appear; 3 s, never past its own deadline
	LeaseTTL      time.Duration // owner lease; 2 s
	// RepairPatience is how long a start with a damaged log waits for nodes that do not answer; 30 s.
	RepairPatience time.Duration
	// ScrubEvery is how often sealed segments and snapshots are read again to find what has rotted; 24 h, negative for never.
	ScrubEvery time.Duration

	AppendEntry func(dst []byte, stamp int64, commands [][]byte) []byte
	InitCommand func(clusterID [16]byte, name string) []byte // the first command of a new cluster; nil for none
	ReportExtra func() json.RawMessage                       // shown in Members of every node; nil for none

	// Audit is told of an act of this node's own that an operator must learn of; nil for nobody. It must not block.
	Audit func(action, detail string)

	// Admit refuses the grant (WithGrant) of a request that this node is to carry out; nil admits all. It must not block.
	Admit func(grant []byte) error

	Lock       *DirLock // of DataDir, when the caller took it already; it stays the caller's to release
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// Removed is told, once, that this node is no member any more; it should drain and end the process with the error's exit code
	// (ExitRemoved). Until then the node disturbs nobody. nil: Fatal.
	Removed func(err error)
	// Fatal ends the process with the exit code. It should not return; if it does, the cluster stays inert until Close.
	Fatal func(exitCode int, err error)
}

func (c Config) withDefaults() Config {
	setDuration(&c.Timers.Heartbeat, 400*time.Millisecond)
	setDuration(&c.Timers.Election, max(400*time.Millisecond, c.Timers.Heartbeat))
	setDuration(&c.Timers.Lease, min(300*time.Millisecond, c.Timers.Heartbeat))
	setDuration(&c.Timers.Commit, 10*time.Millisecond)
	setDuration(&c.LeaderWait, 3*time.Second)
	setDuration(&c.LeaseTTL, 2*time.Second)
	setDuration(&c.RepairPatience, silentPatience)
	setDuration(&c.ScrubEvery, 24*time.Hour)
	if c.SnapshotBytes == 0 {
		c.SnapshotBytes = 128 << 20
	}
	if c.EntryBytes == 0 {
		c.EntryBytes = 256 << 10
	}
	if c.InFlightBytes == 0 {
		c.InFlightBytes = 64 << 20
	}
	if c.AppendBytes == 0 {
		c.AppendBytes = 4 << 20
	}
	if c.TrailingLogs == 0 {
		c.TrailingLogs = 8192
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Fatal == nil {
		logger := c.Logger
		c.Fatal = func(code int, err error) {
			logger.Error("the process ends", "exit_code", code, "error", err)
			os.Exit(code)
		}
	}
	return c
}

func setDuration(d *time.Duration, def time.Duration) {
	if *d == 0 {
		*d = def
	}
}

// Validate names everything that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	if err := checkNodeID(c.NodeID); err != nil {
		errs = append(errs, err)
	}
	if c.DataDir == "" {
		errs = append(errs, errors.New("data directory: empty"))
	}
	if c.AppendEntry == nil {
		errs = append(errs, errors.New("entry codec: missing"))
	}
	if c.RaftAddr == "" {
		errs = append(errs, errors.New("raft address: empty"))
	}
	if !c.Single && c.GossipAddr == "" {
		errs = append(errs, errors.New("gossip address: empty, and the node is not a cluster of one"))
	}
	if !c.Single && len(c.Seeds) == 0 {
		errs = append(errs, errors.New("seeds: empty, and the node is not a cluster of one"))
	}
	return errors.Join(errs...)
}

// maxNodeID keeps an id within the one length byte of the connection header.
const maxNodeID = 63

func checkNodeID(id string) error {
	if id == "" || len(id) > maxNodeID {
		return fmt.Errorf("node id %q: must be 1 to %d characters", id, maxNodeID)
	}
	for _, r := range id {
		ok := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
		if !ok {
			return fmt.Errorf("node id %q: only letters, digits, '.', '_' and '-'", id)
		}
	}
	return nil
}
