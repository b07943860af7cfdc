package config

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	"penstock/internal/spec"
	"penstock/node/access"
)

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// reference is a value that stands elsewhere.
var reference = regexp.MustCompile(`^\$\{(file|env):[^}]+\}$`)

const nameAllowed = "want 1 to 63 of a-z 0-9 . _ - that start with a letter or digit"

// checker collects every wrong setting of one Config; it changes nothing.
type checker struct {
	*Config
	errs []error
}

func (k *checker) bad(key, value, allowed string) {
	k.errs = append(k.errs, k.fault(key, value, allowed))
}

// Validate says everything that is wrong, one line each. It resolves no name (CheckNames does) and touches no disk.
func (c *Config) Validate() error {
	k := &checker{Config: c}
	k.identity()
	k.addresses()
	k.exposure()
	k.membership()
	k.timers()
	k.storage()
	k.limits()
	k.logging()
	return errors.Join(k.errs...)
}

func (k *checker) identity() {
	if !namePattern.MatchString(k.Node.ID) {
		k.bad("node.id", k.Node.ID, nameAllowed)
	}
	if !namePattern.MatchString(k.Cluster.Name) {
		k.bad("cluster.name", k.Cluster.Name, nameAllowed)
	}
	if k.Node.DataDir == "" {
		k.bad("node.data_dir", "", "must be set: the directory that holds all of this node's state")
	}
	if k.TLS != (TLS{}) {
		k.bad("tls", "set", "not built yet, leave it out")
	}
	if k.Auth.Issuer+k.Auth.Audience != "" {
		k.bad("auth", "issuer", "not built yet, leave it out")
	}
	if err := access.CheckSource(k.Auth.Tokens); err != nil {
		k.errs = append(k.errs, &Fault{Where: k.origins["auth.tokens"].where, Key: "auth.tokens", Value: "...", Allowed: err.Error()}) // it may be a token
	}
	if k.Auth.OpenMetrics && k.Auth.Tokens == "" {
		k.bad("auth.open_metrics", "true", "means nothing without auth.tokens: everything is open then")
	}
}

func (k *checker) logging() {
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, k.Log.Level) {
		k.bad("log.level", k.Log.Level, "want debug, info, warn or error")
	}
	if k.Log.Format != "json" && k.Log.Format != "text" {
		k.bad("log.format", k.Log.Format, "want json or text")
	}
}

func (k *checker) addresses() {
	seen := map[string]string{}
	for _, a := range k.listeners() {
		if err := checkListen(a.value); err != nil {
			k.bad(a.key, a.value, err.Error())
			continue
		}
		if _, port, _ := splitAddress(a.value); port == 0 {
			continue
		}
		if other, taken := seen[a.value]; taken {
			k.bad(a.key, a.value, "want an address of its own, "+other+" has this one")
		}
		seen[a.value] = a.key
	}
	if k.Node.Debug != "" {
		if host, _, err := splitAddress(k.Node.Debug); err == nil && !loopback(host) {
			k.bad("node.debug", k.Node.Debug, "want a loopback address: profiles are for this machine only")
		}
	}
	k.advertised()
}

// advertised checks what the other nodes are told to dial. A cluster of one tells nobody.
func (k *checker) advertised() {
	for _, a := range []struct{ key, said, bound string }{
		{"node.advertise", k.Node.Advertise, k.Node.Raft},
		{"node.advertise_gossip", k.Node.AdvertiseGossip, k.GossipAdvertise()},
		{"node.advertise_http", k.Node.AdvertiseHTTP, k.HTTPAdvertise()},
	} {
		if _, set := k.origins[a.key]; a.said != "" || set {
			if err := checkDial(a.said); err != nil {
				k.bad(a.key, a.said, err.Error())
			}
			continue
		}
		host, _, err := splitAddress(a.bound)
		if err == nil && unspecified(host) && !k.Single() && a.key == "node.advertise" {
			k.bad(a.key, "", "must be set, since node.raft listens on all interfaces ("+a.bound+"): the address the other nodes dial")
		}
	}
}

type listener struct{ key, value string }

func (k *checker) listeners() []listener {
	l := []listener{{"node.http", k.Node.HTTP}, {"node.raft", k.Node.Raft}, {"node.gossip", k.Node.Gossip}}
	if k.Node.Debug != "" {
		l = append(l, listener{"node.debug", k.Node.Debug})
	}
	return l
}

// exposure: anyone who reaches a plaintext port can write, read and take part, so that must be said in so many words.
func (k *checker) exposure() {
	if k.Node.InsecurePlaintext {
		return
	}
	for _, a := range k.listeners() {
		host, _, err := splitAddress(a.value)
		if err == nil && !loopback(host) && a.key != "node.debug" {
			k.bad(a.key, a.value, "is not loopback, and there is no TLS: bind it to loopback, or set node.insecure_plaintext: true to say "+
				"that whoever reaches this port may "+k.exposed())
		}
	}
}

// exposed says what whoever reaches the ports may do.
func (c *Config) exposed() string {
	if c.Auth.Tokens != "" {
		return "listen in on tokens and events, and take part as a node"
	}
	return "read and write, and take part as a node"
}

func (k *checker) membership() {
	seen := map[string]bool{}
	for _, seed := range k.Cluster.Seeds {
		if err := checkDial(seed); err != nil {
			k.bad("cluster.seeds", seed, err.Error()+" in each: "+strconv.Quote(seed))
		} else if seen[seed] {
			k.bad("cluster.seeds", seed, "want each seed once: "+strconv.Quote(seed))
		}
		seen[seed] = true
	}
	for _, ref := range k.Cluster.GossipKeys {
		if !reference.MatchString(ref) {
			k.errs = append(k.errs, &Fault{Where: k.origins["cluster.gossip_keys"].where, Key: "cluster.gossip_keys", Value: "(hidden)",
				Allowed: "want references, ${file:PATH} or ${env:NAME}: a key is never in the configuration itself"})
		}
	}
	if len(k.Node.Zone) > 64 {
		k.bad("node.zone", k.Node.Zone, "want at most 64 bytes")
	}
	switch {
	case k.Single() && len(k.Cluster.Seeds) > 1:
		k.bad("cluster.seeds", fmt.Sprint(len(k.Cluster.Seeds), " seeds"), "want none with wal.storage: disk, which is a cluster of one")
	case !k.Single() && len(k.Cluster.Seeds) == 0:
		k.bad("cluster.seeds", "", "must be set with wal.storage: clustered: the gossip addresses of the first nodes (this one's own may be among them); "+
			"for one node alone set wal.storage: disk")
	}
}

// timers holds the relations that Raft needs. A leader beats every heartbeat/10 to heartbeat/5, so a lease under half a
// heartbeat would end between two beats of a healthy leader.
func (k *checker) timers() {
	hb, el, le := k.Cluster.Heartbeat, k.Cluster.Election, k.Cluster.Lease
	ok := k.span("cluster.heartbeat", hb, 50*time.Millisecond, time.Minute)
	ok = k.span("cluster.election", el, 50*time.Millisecond, time.Minute) && ok
	ok = k.span("cluster.lease", le, 25*time.Millisecond, time.Minute) && ok
	if !ok {
		return
	}
	if el < hb {
		k.bad("cluster.election", el.String(), "want at least cluster.heartbeat ("+hb.String()+")")
	}
	if le > hb || le < hb/2 {
		k.bad("cluster.lease", le.String(), "want half of cluster.heartbeat to all of it ("+(hb/2).String()+" to "+hb.String()+")")
	}
}

func (k *checker) storage() {
	switch k.WAL.Storage {
	case StorageClustered, StorageDisk:
	case "s3":
		k.bad("wal.storage", "s3", "not built yet, want clustered or disk")
	default:
		k.bad("wal.storage", k.WAL.Storage, "want clustered or disk (s3 is not built yet)")
	}
	k.size("wal.segment_bytes", k.WAL.SegmentBytes, mib, gib)
	k.size("wal.max_bytes", k.WAL.MaxBytes, 4*k.WAL.SegmentBytes, 1<<20*gib)
	if k.WAL.Scrub != 0 {
		k.span("wal.scrub", k.WAL.Scrub, time.Second, 365*24*time.Hour)
	}
	k.size("cluster.snapshot_bytes", k.Cluster.SnapshotBytes, mib, 1024*gib)
	k.number("cluster.trailing_entries", k.Cluster.TrailingEntries, 16, 10_000_000)

	d := k.DeadLetter
	if d.Directory != "" && k.Node.DataDir != "" && filepath.Clean(d.Directory) == filepath.Clean(k.Node.DataDir) {
		k.bad("dead_letter.directory", d.Directory, "want a directory of its own, not node.data_dir itself")
	}
	k.number("dead_letter.max_files", d.MaxFiles, 2, 1_000_000)
	k.size("dead_letter.max_bytes", d.MaxBytes, mib, 1<<20*gib)
	k.span("dead_letter.scan", d.Scan, time.Second, 24*time.Hour)
	if d.MaxAge != 0 {
		k.span("dead_letter.max_age", d.MaxAge, time.Minute, 100*365*24*time.Hour)
	}
	if d.Overflow != "block" && d.Overflow != "drop_oldest" {
		k.bad("dead_letter.overflow", d.Overflow, "want block or drop_oldest")
	}
}

func (k *checker) limits() {
	l := k.Limits
	k.size("limits.body_bytes", l.BodyBytes, kib, 64*mib)
	k.size("limits.event_bytes", l.EventBytes, kib, max(kib, l.BodyBytes))
	k.number("limits.events", l.Events, 1, 100_000)
	k.number("limits.depth", l.Depth, 1, 10_000)
	k.size("limits.in_flight_bytes", l.InFlightBytes, max(kib, l.BodyBytes), 64*gib)
	k.number("limits.in_flight", l.InFlight, 1, 1_000_000)
	k.size("limits.header_bytes", l.HeaderBytes, 4*kib, mib)
	k.span("limits.header", l.Header, 100*time.Millisecond, time.Minute)
	k.span("limits.idle", l.Idle, time.Second, time.Hour)
	k.number("limits.connections", l.Connections, 16, 1_000_000)
	k.number("limits.connections_per_address", l.ConnectionsPerAddress, 1, max(1, l.Connections))
	k.span("limits.request", l.Request, 100*time.Millisecond, 10*time.Minute)
	k.span("drain", k.Drain, time.Second, time.Hour)
}

func (k *checker) span(key string, d spec.Duration, lo, hi time.Duration) bool {
	if time.Duration(d) >= lo && time.Duration(d) <= hi {
		return true
	}
	k.bad(key, d.String(), fmt.Sprintf("want %s to %s", spec.Duration(lo), spec.Duration(hi)))
	return false
}

func (k *checker) size(key string, n, lo, hi spec.Size) {
	if n < lo || n > hi {
		k.bad(key, n.String(), fmt.Sprintf("want %s to %s", lo, hi))
	}
}

func (k *checker) number(key string, n, lo, hi int) {
	if n < lo || n > hi {
		k.bad(key, strconv.Itoa(n), fmt.Sprintf("want %d to %d", lo, hi))
	}
}

// Warnings are what is legal but seldom meant.
func (c *Config) Warnings() []string {
	var out []string
	seeds := len(c.Cluster.Seeds)
	if !c.Single() && seeds > 0 && seeds%2 == 0 {
		out = append(out, fmt.Sprintf("cluster.seeds: %d members survive no more failures than %d, and need one more for a majority; an odd number is better", seeds, seeds-1))
	}
	if !c.Single() && seeds == 1 && slices.Contains(c.Cluster.Seeds, c.GossipAdvertise()) {
		out = append(out, "cluster.seeds: names this node alone: until others join, its disk holds the only copy")
	}
	for _, name := range c.unknown {
		out = append(out, "$"+name+": is no setting and means nothing")
	}
	if c.Node.InsecurePlaintext {
		out = append(out, "node.insecure_plaintext: whoever reaches the ports of this node may "+c.exposed())
	}
	if host, _, err := net.SplitHostPort(c.RaftAdvertise()); err == nil && loopback(host) && len(c.Cluster.Seeds) > 0 {
		for _, seed := range c.Cluster.Seeds {
			if h, _, err := net.SplitHostPort(seed); err == nil && !loopback(h) {
				out = append(out, "node.advertise: "+c.RaftAdvertise()+" is loopback, but the seed "+seed+" is not: other machines cannot dial this node")
				break
			}
		}
	}
	return out
}
