package client

import (
	"encoding/json"
	"time"

	"penstock/event"
	"penstock/internal/spec"
)

// SendResult is the answer to an ingest request.
type SendResult struct {
	Index      uint64      `json:"index"`
	Accepted   int         `json:"accepted"`
	Duplicates int         `json:"duplicates"`
	Poisoned   int         `json:"poisoned"`
	Events     []SentEvent `json:"events,omitempty"` // only when asked for
}

// SentEvent says where one event of a request is.
type SentEvent struct {
	ID          string          `json:"id"`
	Source      string          `json:"source"`
	Position    event.Position  `json:"position"`
	DuplicateOf *event.Position `json:"duplicate_of,omitempty"`
	Conflict    bool            `json:"conflict,omitempty"` // the first one has other content
	// Deduplicated is false for an id that the server made: sending it again makes another event.
	Deduplicated bool `json:"deduplicated"`
}

// Channel is one channel as the cluster has it.
type Channel struct {
	Name     string          `json:"name"`
	Index    uint64          `json:"index"` // where it was created
	Version  uint64          `json:"version"`
	Accepted uint64          `json:"accepted"`
	Spec     json.RawMessage `json:"spec"`
}

// Applied is the answer to a PUT of a channel.
type Applied struct {
	Name      string `json:"name"`
	Index     uint64 `json:"index"`
	Version   uint64 `json:"version"`
	Changed   bool   `json:"changed"`
	Semantics string `json:"semantics"`
	// Of a dry run only: what would change, and why it would be refused ("" when it would not).
	DryRun  bool          `json:"dry_run,omitempty"`
	Changes []spec.Change `json:"changes,omitempty"`
	Refused string        `json:"refused,omitempty"`
}

// Ledger is the balance of P3 of one channel.
type Ledger struct {
	Channel      string      `json:"channel"`
	AppliedIndex uint64      `json:"applied_index"`
	Accepted     uint64      `json:"accepted"`
	Duplicates   uint64      `json:"duplicates"`
	Balanced     bool        `json:"balanced"`
	Emitters     []LedgerRow `json:"emitters"`
}

// LedgerRow is one emitter's: accepted = delivered + dead + poison + discarded + lost + pending.
type LedgerRow struct {
	Emitter   string `json:"emitter"`
	Owner     string `json:"owner"`
	Epoch     uint64 `json:"epoch"`
	Accepted  uint64 `json:"accepted"`
	Delivered uint64 `json:"delivered"`
	Dead      uint64 `json:"dead"`
	Poison    uint64 `json:"poison"`
	Discarded uint64 `json:"discarded"`
	Lost      uint64 `json:"lost"`
	Pending   uint64 `json:"pending"`
	Balanced  bool   `json:"balanced"`
}

// Sum is the right side of the balance.
func (r LedgerRow) Sum() uint64 {
	return r.Delivered + r.Dead + r.Poison + r.Discarded + r.Lost + r.Pending
}

// Offset is a source offset.
type Offset struct {
	Source    string `json:"source"`
	Partition string `json:"partition"`
	Position  uint64 `json:"position"`
	Record    uint64 `json:"record"`
	Closed    bool   `json:"closed"`
	Hex       string `json:"hex"` // the 24 bytes
}

// Explained is what is known of the events with one id.
type Explained struct {
	Events []ExplainedEvent `json:"events"`
}

// ExplainedEvent is one of them.
type ExplainedEvent struct {
	ID         string         `json:"id"`
	Source     string         `json:"source"`
	Channel    string         `json:"channel"`
	Position   event.Position `json:"position"`
	AcceptedAt string         `json:"accepted_at"`
	Readable   bool           `json:"readable"` // false once the log no longer holds it: its deliveries are resolved
	Deliveries []Delivery     `json:"deliveries"`
}

// Delivery is one event at one emitter.
type Delivery struct {
	Emitter      string `json:"emitter"`
	State        string `json:"state"`
	CompactionID string `json:"compaction_id"`
	Attempts     uint32 `json:"attempts"`
	LastAttempt  string `json:"last_attempt"`
	LastClass    string `json:"last_class"`
	LastStatus   int    `json:"last_status"`
	LastReason   string `json:"last_reason"`
	Next         string `json:"next"`
	NextAttempt  string `json:"next_attempt"`
	Owner        string `json:"owner"`
	Epoch        uint64 `json:"epoch"`
	DeadLetterID string `json:"dead_letter_id"`
}

// DeadLetter is a delivery that is dead or poison.
type DeadLetter struct {
	ID             string         `json:"id"`
	Channel        string         `json:"channel"`
	Emitter        string         `json:"emitter"`
	Position       event.Position `json:"position"`
	State          string         `json:"state"`
	Class          string         `json:"class"`
	Status         int            `json:"status"`
	Attempts       uint32         `json:"attempts"`
	Reason         string         `json:"reason"`
	DeadLetteredAt string         `json:"dead_lettered_at"`
	Owner          string         `json:"owner"`
	CompactionID   string         `json:"compaction_id,omitempty"`
	Redeliveries   uint32         `json:"redeliveries,omitempty"` // replays that failed
}

// Cluster is one node's view of the cluster.
type Cluster struct {
	ClusterID    string     `json:"cluster_id"`
	Cluster      string     `json:"cluster"`
	NodeID       string     `json:"node_id"`
	State        string     `json:"state"`
	Leader       string     `json:"leader"`
	Term         uint64     `json:"term"`
	CommitIndex  uint64     `json:"commit_index"`
	AppliedIndex uint64     `json:"applied_index"`
	FirstIndex   uint64     `json:"first_index"`
	LastIndex    uint64     `json:"last_index"`
	BaseIndex    uint64     `json:"base_index"`
	Floor        uint64     `json:"floor"`
	Horizon      uint64     `json:"horizon"`
	Installs     uint64     `json:"installs"` // snapshots this node installed since it started
	Lease        bool       `json:"lease"`
	WaitingFor   string     `json:"waiting_for,omitempty"`
	StateHash    StateHash  `json:"state_hash"`
	Hashes       []RingHash `json:"hashes"`
	Members      []Member   `json:"members"`
	// Known are nodes that gossip shows and that are no members.
	Known []Outsider `json:"known"`
}

// Outsider is a node that can be joined, or that was removed.
type Outsider struct {
	ID        string `json:"id"`
	Raft      string `json:"raft"`
	HTTP      string `json:"http"`
	Health    string `json:"health"`
	WasMember bool   `json:"was_member"`
	Version   string `json:"version,omitempty"`
	Zone      string `json:"zone,omitempty"`
}

// StateHash is the hash of the whole state at one index.
type StateHash struct {
	Index  uint64            `json:"index"`
	Hash   string            `json:"hash"`
	Tables map[string]string `json:"tables"`
}

// RingHash is a hash taken before the first command at or past k·4096: equal k on two nodes must have an equal hash.
type RingHash struct {
	K     uint64 `json:"k"`
	Index uint64 `json:"index"`
	Hash  string `json:"hash"`
}

// Member is one node of the cluster.
type Member struct {
	ID              string `json:"id"`
	Suffrage        string `json:"suffrage"`
	Raft            string `json:"raft"`
	HTTP            string `json:"http"`
	Leader          bool   `json:"leader"`
	Reachable       bool   `json:"reachable"`
	LastIndex       uint64 `json:"last_index"`
	AppliedIndex    uint64 `json:"applied_index"`
	Lag             uint64 `json:"lag"`
	Incarnation     uint64 `json:"incarnation"`
	PayloadComplete bool   `json:"payload_complete"`
	Health          string `json:"health"`
	Version         string `json:"version,omitempty"`
	Zone            string `json:"zone,omitempty"`
}

// defaultWait is how long a following read asks a node to wait for news.
const defaultWait = 20 * time.Second
