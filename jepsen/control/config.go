package control

import (
	"fmt"
	"strings"
)

// The ports of a node (DESIGN section 6). Every node has an address of its own, so all use the same.
const (
	PortHTTP   = 7070
	PortRaft   = 7071
	PortGossip = 7072
	PortDebug  = 7073
)

// NodeConfig is what differs between the nodes of one cluster.
type NodeConfig struct {
	ID, Addr        string
	DataDir, DLQDir string
	Seeds           []string // host addresses, self included
	Cluster         string
	WALMaxBytes     string // with its unit, as the next two
	SegmentBytes    string
	SnapshotBytes   string
	Trailing        int // entries kept behind a snapshot
}

// YAML is the node's configuration file. HTTP listens on loopback too, where the operator's routes are. The nodes talk plain text inside namespaces that nothing else can reach, which the
// product wants to be told in so many words.
func (c NodeConfig) YAML() string {
	seeds := make([]string, len(c.Seeds))
	for i, s := range c.Seeds {
		seeds[i] = fmt.Sprintf("%s:%d", s, PortGossip)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "node:\n  id: %s\n  data_dir: %s\n", c.ID, c.DataDir)
	fmt.Fprintf(&b, "  http: 0.0.0.0:%d\n  raft: %s:%d\n  gossip: %s:%d\n", PortHTTP, c.Addr, PortRaft, c.Addr, PortGossip)
	fmt.Fprintf(&b, "  advertise: %s:%d\n  debug: 127.0.0.1:%d\n", c.Addr, PortRaft, PortDebug)
	b.WriteString("  insecure_plaintext: true\n")
	fmt.Fprintf(&b, "cluster:\n  name: %s\n  seeds: [%s]\n  snapshot_bytes: %s\n  trailing_entries: %d\n", c.Cluster, strings.Join(seeds, ", "), c.SnapshotBytes, c.Trailing)
	fmt.Fprintf(&b, "wal:\n  storage: clustered\n  max_bytes: %s\n  segment_bytes: %s\n", c.WALMaxBytes, c.SegmentBytes)
	fmt.Fprintf(&b, "dead_letter:\n  directory: %s\n", c.DLQDir)
	b.WriteString("drain: 10s\n")
	return b.String()
}
