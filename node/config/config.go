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

// Config is everything one node is told at start. Default gives it with defaults, Load with what the user said. The tags are the
// schema: doc is the comment of the example, sample the value it shows where there is no default worth showing (with a # before it
// the line is commented out), and reload marks what SIGHUP changes in a running node.
type Config struct {
	Node       Node          `yaml:"node" doc:"who this node is, and where it listens"`
	Cluster    Cluster       `yaml:"cluster" doc:"whom it belongs to; the same on every node"`
	WAL        WAL           `yaml:"wal" doc:"the log on this node's disk"`
	DeadLetter DeadLetter    `yaml:"dead_letter" doc:"this node's dead-letter volume"`
	Limits     Limits        `yaml:"limits" doc:"what one request, and all of them together, may take"`
	Drain      spec.Duration `yaml:"drain" doc:"how long a SIGTERM may take to finish what was accepted"`
	Log        Log           `yaml:"log" doc:"what the process writes to stderr"`
	Auth       Auth          `yaml:"auth" doc:"who may do what (docs/access.md)"`
	TLS        TLS           `yaml:"tls" doc:"not built yet, refused"`

	origins map[string]origin // where each value that is no default was said; nil in a Config built by hand
	unknown []string          // PENSTOCK_ variables that mean nothing
}

// Node is who this node is and where it listens. Addresses are host:port.
type Node struct {
	ID      string `yaml:"id" sample:"n1" doc:"unique in the cluster, for ever: a node whose disk was lost comes back under a new id"`
	DataDir string `yaml:"data_dir" sample:"/var/lib/penstock" doc:"all of this node's state"`
	HTTP    string `yaml:"http" doc:"ingest and administration"`
	Raft    string `yaml:"raft" doc:"the log between the nodes"`
	Gossip  string `yaml:"gossip" doc:"how nodes find one another"`
	Debug   string `yaml:"debug" doc:"profiles, loopback only; \"\" is off"`
	// Advertise is the Raft address as the other nodes dial it; default: Raft, when that names one host. AdvertiseGossip
	// and AdvertiseHTTP default to the host of it with the port of Gossip and HTTP.
	Advertise       string `yaml:"advertise" sample:"# n1.example:7071" doc:"what the others dial; must be set when raft listens on all interfaces"`
	AdvertiseGossip string `yaml:"advertise_gossip" sample:"# n1.example:7072" doc:"default: the host of advertise, the port of gossip"`
	AdvertiseHTTP   string `yaml:"advertise_http" sample:"# n1.example:7070" doc:"default: the host of advertise, the port of http"`
	// InsecurePlaintext says in so many words that this node may listen on more than loopback without TLS.
	InsecurePlaintext bool `yaml:"insecure_plaintext" sample:"# true" doc:"TLS is not built yet: without this line only loopback is served"`
	// Zone is where this node stands, shown in the cluster's status: a rack, a room, an availability zone. Nothing is decided by it.
	Zone string `yaml:"zone" sample:"# rack-1" doc:"shown in the cluster's status; nothing is decided by it"`
}

// Cluster is whom this node belongs to, and the timers all of them must share.
type Cluster struct {
	Name  string   `yaml:"name" sample:"prod" doc:"nodes of another name are refused"`
	Seeds []string `yaml:"seeds" sample:"127.0.0.1:7072, 127.0.0.1:7082, 127.0.0.1:7092" doc:"gossip addresses of the first nodes, this one's own may be among them"`
	// GossipKeys seal the gossip port: the first seals, all open. Each is a reference, ${file:PATH} or ${env:NAME}, to 16, 24
	// or 32 bytes in base64.
	GossipKeys []string `yaml:"gossip_keys" reload:"true" sample:"# ${file:/etc/penstock/gossip.key}" doc:"seal the gossip port: the first seals, all open; 16, 24 or 32 bytes in base64"`
	// Heartbeat: a follower without contact for so long starts a pre-vote. Election: how long a candidate waits.
	// Lease: a leader without a quorum's contact for so long steps down.
	Heartbeat     spec.Duration `yaml:"heartbeat" doc:"a follower without contact for so long asks for an election"`
	Election      spec.Duration `yaml:"election" doc:"at least heartbeat"`
	Lease         spec.Duration `yaml:"lease" doc:"half of heartbeat to all of it"`
	SnapshotBytes spec.Size     `yaml:"snapshot_bytes" doc:"a snapshot is due each so many bytes of log"`
	// TrailingEntries: log goes behind the older of two snapshots only, so that more is kept as a rule; this is for snapshots in quick
	// succession.
	TrailingEntries int `yaml:"trailing_entries" doc:"log entries kept behind a snapshot for followers that lag"`
}

// The kinds of WAL storage. The third of the contract, s3, is refused as not built yet.
const (
	StorageClustered = "clustered" // Raft between the voters of the cluster
	StorageDisk      = "disk"      // a cluster of one: this disk is the only copy
)

// WAL is the log on this node's disk.
type WAL struct {
	Storage      string        `yaml:"storage" doc:"clustered | disk (a cluster of one, no seeds); s3 is not built yet"`
	MaxBytes     spec.Size     `yaml:"max_bytes" doc:"once the log holds so much, new events are refused"`
	SegmentBytes spec.Size     `yaml:"segment_bytes" doc:"of one file of the log"`
	Scrub        spec.Duration `yaml:"scrub" doc:"how often log and snapshots are read again to find what has rotted; 0s: never"`
}

// DeadLetter is this node's dead-letter volume.
type DeadLetter struct {
	Directory string        `yaml:"directory" sample:"# /var/lib/penstock-dlq" doc:"default: dlq under node.data_dir"`
	MaxFiles  int           `yaml:"max_files" doc:"at a bound the emitter is held; nothing is lost"`
	MaxBytes  spec.Size     `yaml:"max_bytes" doc:"likewise"`
	MaxAge    spec.Duration `yaml:"max_age" doc:"0s: no bound by age"`
	Overflow  string        `yaml:"overflow" doc:"block | drop_oldest"`
	Scan      spec.Duration `yaml:"scan" doc:"between two scheduled replays"`
}

// Limits bound what one request and all requests together may take.
type Limits struct {
	EventBytes            spec.Size     `yaml:"event_bytes" reload:"true" doc:"one event"`
	BodyBytes             spec.Size     `yaml:"body_bytes" reload:"true" doc:"one request, decompressed"`
	Events                int           `yaml:"events" reload:"true" doc:"in one request"`
	Depth                 int           `yaml:"depth" reload:"true" doc:"of nested JSON"`
	InFlight              int           `yaml:"in_flight" reload:"true" doc:"ingest requests under way at once"`
	InFlightBytes         spec.Size     `yaml:"in_flight_bytes" reload:"true" doc:"of all requests that wait for the log"`
	Request               spec.Duration `yaml:"request" reload:"true" doc:"every ingest request is answered within, its body included"`
	HeaderBytes           spec.Size     `yaml:"header_bytes" doc:"of one request"`
	Header                spec.Duration `yaml:"header" doc:"a request's header must have arrived within"`
	Idle                  spec.Duration `yaml:"idle" doc:"a connection without a request is closed after"`
	Connections           int           `yaml:"connections" reload:"true" doc:"served at once"`
	ConnectionsPerAddress int           `yaml:"connections_per_address" reload:"true" doc:"of them, from one address; raise it behind a proxy"`
}

// Log is what the process writes to stderr.
type Log struct {
	Level  string `yaml:"level" reload:"true" doc:"debug | info | warn | error"`
	Format string `yaml:"format" doc:"json | text"`
}

// Auth is who may do what. Issuer and Audience are reserved, refused as not built yet when set.
type Auth struct {
	// Tokens is a reference, ${file:/path} or ${env:NAME}, to a file of hashed tokens; empty: there are none, and operators' routes
	// answer on loopback only.
	Tokens      string `yaml:"tokens" reload:"true" sample:"# ${file:/etc/penstock/tokens.yaml}" doc:"hashed tokens (penstock token new); without, operators' routes answer on loopback only"`
	OpenMetrics bool   `yaml:"open_metrics" doc:"/metrics asks for no token"`
	Issuer      string `yaml:"issuer" sample:"# https://id.example" doc:"not built yet, refused"`
	Audience    string `yaml:"audience" sample:"# penstock" doc:"not built yet, refused"`
}

// TLS is reserved: the section is refused as not built yet when anything in it is set.
type TLS struct {
	Cert string `yaml:"cert" sample:"# n1.pem" doc:"not built yet, refused"`
	Key  string `yaml:"key" sample:"# n1.key" doc:"not built yet, refused"`
	CA   string `yaml:"ca" sample:"# ca.pem" doc:"not built yet, refused"`
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
		Cluster: Cluster{Name: "penstock", Heartbeat: ms(400), Election: ms(400), Lease: ms(300), SnapshotBytes: 128 * mib, TrailingEntries: 16},
		WAL:     WAL{Storage: StorageClustered, MaxBytes: 50 * gib, SegmentBytes: 64 * mib, Scrub: spec.Duration(24 * time.Hour)},
		DeadLetter: DeadLetter{
			MaxFiles: 100, MaxBytes: 5 * gib, Overflow: "block", Scan: ms(60_000),
		},
		Limits: Limits{
			EventBytes: mib, BodyBytes: 4 * mib, Events: 10_000, Depth: 512, InFlight: 4096, InFlightBytes: 64 * mib, Request: ms(10_000),
			HeaderBytes: 64 * kib, Header: ms(5_000), Idle: ms(120_000), Connections: 4096, ConnectionsPerAddress: 1024,
		},
		Drain: ms(30_000),
		Log:   Log{Level: "info", Format: "json"},
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
