// Package config is the configuration of one node: the file, the PENSTOCK_SECTION_KEY variables over it, the flags over
// both, and the checks that make a wrong setting a one-line error before anything is created on disk (case B49).
//
// It promises that each error names where the value stands (file:line:column, variable or flag), the key, the value and
// what is allowed. It opens no listener and writes no file; the only thing it asks the machine is whether the node's own
// advertised name resolves.
package config

import (
	"path/filepath"
	"time"

	"penstock/internal/spec"
)

// Config is everything one node is told at start. Default gives it with defaults, Load with what the user said.
type Config struct {
	Node       Node          `yaml:"node"`
	Cluster    Cluster       `yaml:"cluster"`
	WAL        WAL           `yaml:"wal"`
	DeadLetter DeadLetter    `yaml:"dead_letter"`
	Limits     Limits        `yaml:"limits"`
	Drain      spec.Duration `yaml:"drain"`
	TLS        TLS           `yaml:"tls"`
	Auth       Auth          `yaml:"auth"`

	origins map[string]origin // where each value that is no default was said; nil in a Config built by hand
}

// Node is who this node is and where it listens. Addresses are host:port.
type Node struct {
	ID      string `yaml:"id"`
	DataDir string `yaml:"data_dir"`
	HTTP    string `yaml:"http"`
	Raft    string `yaml:"raft"`
	Gossip  string `yaml:"gossip"`
	Debug   string `yaml:"debug"` // pprof, loopback only; empty is off
	// Advertise is the Raft address as the other nodes dial it; default: Raft, when that names one host. AdvertiseGossip
	// and AdvertiseHTTP default to the host of it with the port of Gossip and HTTP.
	Advertise       string `yaml:"advertise"`
	AdvertiseGossip string `yaml:"advertise_gossip"`
	AdvertiseHTTP   string `yaml:"advertise_http"`
	// InsecurePlaintext says in so many words that this node may listen on more than loopback without TLS and tokens.
	InsecurePlaintext bool `yaml:"insecure_plaintext"`
}

// Cluster is whom this node belongs to, and the timers all of them must share.
type Cluster struct {
	Name  string   `yaml:"name"`
	Seeds []string `yaml:"seeds"` // gossip addresses; this node's own may be among them
	// Heartbeat: a follower without contact for so long starts a pre-vote. Election: how long a candidate waits.
	// Lease: a leader without a quorum's contact for so long steps down.
	Heartbeat     spec.Duration `yaml:"heartbeat"`
	Election      spec.Duration `yaml:"election"`
	Lease         spec.Duration `yaml:"lease"`
	SnapshotBytes spec.Size     `yaml:"snapshot_bytes"` // a snapshot is due each so many bytes of log
	// TrailingEntries are kept behind a snapshot for followers that lag, before log may go.
	TrailingEntries int `yaml:"trailing_entries"`
}

// The kinds of WAL storage. The third of the contract, s3, is refused as not built yet.
const (
	StorageClustered = "clustered" // Raft between the voters of the cluster
	StorageDisk      = "disk"      // a cluster of one: this disk is the only copy
)

// WAL is the log on this node's disk.
type WAL struct {
	Storage      string    `yaml:"storage"`
	MaxBytes     spec.Size `yaml:"max_bytes"`
	SegmentBytes spec.Size `yaml:"segment_bytes"`
}

// DeadLetter is this node's dead-letter volume.
type DeadLetter struct {
	Directory string        `yaml:"directory"` // default: dlq under the data directory
	MaxFiles  int           `yaml:"max_files"`
	MaxBytes  spec.Size     `yaml:"max_bytes"`
	MaxAge    spec.Duration `yaml:"max_age"` // 0s: no bound by age
	Overflow  string        `yaml:"overflow"`
	Scan      spec.Duration `yaml:"scan"`
}

// Limits bound what one request and all requests together may take.
type Limits struct {
	EventBytes    spec.Size     `yaml:"event_bytes"`
	BodyBytes     spec.Size     `yaml:"body_bytes"` // decompressed
	Events        int           `yaml:"events"`     // in one request
	Depth         int           `yaml:"depth"`      // of nested JSON
	InFlightBytes spec.Size     `yaml:"in_flight_bytes"`
	Request       spec.Duration `yaml:"request"` // the deadline of an ingest request
}

// TLS is reserved: the section is refused as not built yet when anything in it is set.
type TLS struct {
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
	CA   string `yaml:"ca"`
}

// Auth is reserved: the section is refused as not built yet when anything in it is set.
type Auth struct {
	Tokens   string `yaml:"tokens"`
	Issuer   string `yaml:"issuer"`
	Audience string `yaml:"audience"`
}

const (
	kib = spec.Size(1) << 10
	mib = spec.Size(1) << 20
	gib = spec.Size(1) << 30
)

// Default gives the defaults. What has none (node.id, node.data_dir, and cluster.seeds of a clustered node) is empty.
func Default() Config {
	return Config{
		Node:    Node{HTTP: "127.0.0.1:7070", Raft: "127.0.0.1:7071", Gossip: "127.0.0.1:7072", Debug: "127.0.0.1:7073"},
		Cluster: Cluster{Name: "penstock", Heartbeat: ms(400), Election: ms(400), Lease: ms(300), SnapshotBytes: 128 * mib, TrailingEntries: 8192},
		WAL:     WAL{Storage: StorageClustered, MaxBytes: 50 * gib, SegmentBytes: 64 * mib},
		DeadLetter: DeadLetter{
			MaxFiles: 100, MaxBytes: 5 * gib, Overflow: "block", Scan: ms(60_000),
		},
		Limits: Limits{
			EventBytes: mib, BodyBytes: 4 * mib, Events: 10_000, Depth: 512, InFlightBytes: 64 * mib, Request: ms(10_000),
		},
		Drain: ms(30_000),
	}
}

func ms(n int) spec.Duration { return spec.Duration(n) * spec.Duration(time.Millisecond) }

// Single tells whether this is a cluster of one (wal.storage: disk).
func (c *Config) Single() bool { return c.WAL.Storage == StorageDisk }

// RaftAdvertise is the Raft address the other nodes dial.
func (c *Config) RaftAdvertise() string {
	if c.Node.Advertise != "" {
		return c.Node.Advertise
	}
	return c.Node.Raft
}

// GossipAdvertise is the gossip address the other nodes dial, as it stands in their seeds.
func (c *Config) GossipAdvertise() string { return c.advertise(c.Node.AdvertiseGossip, c.Node.Gossip) }

// HTTPAdvertise is the HTTP address the other nodes forward to and the cluster's status shows.
func (c *Config) HTTPAdvertise() string { return c.advertise(c.Node.AdvertiseHTTP, c.Node.HTTP) }

// advertise: what was said, else the bound address when it names one host, else the advertised host with the bound port.
func (c *Config) advertise(said, bound string) string {
	if said != "" {
		return said
	}
	host, port, err := splitAddress(bound)
	if err != nil || !unspecified(host) {
		return bound
	}
	advertised, _, err := splitAddress(c.RaftAdvertise())
	if err != nil {
		return bound
	}
	return joinAddress(advertised, port)
}

// DeadLetterDirectory is dead_letter.directory, or dlq under the data directory.
func (c *Config) DeadLetterDirectory() string {
	if c.DeadLetter.Directory != "" {
		return c.DeadLetter.Directory
	}
	return filepath.Join(c.Node.DataDir, "dlq")
}

// DrainTimeout and RequestTimeout give the durations as the standard library wants them.
func (c *Config) DrainTimeout() time.Duration { return time.Duration(c.Drain) }

// RequestTimeout is the deadline of an ingest request.
func (c *Config) RequestTimeout() time.Duration { return time.Duration(c.Limits.Request) }
