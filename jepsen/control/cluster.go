package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Options describes the cluster of one run.
type Options struct {
	Run        string   // short name, part of every resource's name
	WorkDir    string   // images, mounts; nothing of it survives Close
	LogDir     string   // node logs and configurations; kept
	Binary     string   // the penstock binary
	Nodes      int      // 3 to 7
	FS         string   // ext4, xfs, or mixed (odd nodes ext4, even nodes xfs)
	DataBytes  int64    // size of a data volume
	DLQBytes   int64    // size of a dead-letter volume
	Env        []string // of every node, e.g. chaos mode
	Extra      []string // further hosts on the bridge, e.g. destinations
	ImageDir   string   // where the images lie; default WorkDir
	WALMax     string   // wal.max_bytes, default 10GiB
	Segment    string   // wal.segment_bytes, default 4MiB: small, so that rolls are frequent
	Snapshot   string   // cluster.snapshot_bytes, default 4MiB: small, so that snapshots are frequent
	Trailing   int      // cluster.trailing_entries, default 8192
	ConfigTail string   // appended to each node's configuration file
}

// Node is one member: a process, its two volumes, its address.
type Node struct {
	// ID is the node's id; it changes when a lost disk is replaced.
	ID, Host, Addr string
	Data, DLQ      *Volume
	Process        *Process
	config         NodeConfig
	generation     int
}

// URL is the base of the node's HTTP routes.
func (n *Node) URL() string { return fmt.Sprintf("http://%s:%d", n.Addr, PortHTTP) }

// DataDir and DLQDir are the product's own directories; they lie below the mount points, so that a volume that is not
// mounted can never be mistaken for an empty data directory.
func (n *Node) DataDir() string { return filepath.Join(n.Data.Mount, "penstock") }

// DLQDir is the node's dead-letter directory. It belongs to the node id: a replaced node gets one of its own beside the old.
func (n *Node) DLQDir() string { return filepath.Join(n.DLQ.Mount, "dead-letters-"+n.ID) }

// Cluster is all that one run made. Its methods are safe for concurrent use as long as no two work on the same node.
type Cluster struct {
	Options Options
	Net     *Network
	nodes   []*Node
	extra   map[string]string
	removes []func(context.Context) error
}

// Open lays network and volumes; no process runs yet. It refuses when leftovers of another run exist.
func Open(ctx context.Context, o Options) (*Cluster, error) {
	if o.Nodes < 1 || o.Nodes > 7 {
		return nil, fmt.Errorf("cluster of %d nodes: want 1 to 7", o.Nodes)
	}
	if o.ImageDir == "" {
		o.ImageDir = filepath.Join(o.WorkDir, "images")
	}
	o.WALMax, o.Segment, o.Snapshot = cmp.Or(o.WALMax, "10GiB"), cmp.Or(o.Segment, "4MiB"), cmp.Or(o.Snapshot, "4MiB")
	o.Trailing = cmp.Or(o.Trailing, 8192)
	if left, err := Leftovers(ctx); err != nil {
		return nil, err
	} else if len(left) > 0 {
		return nil, fmt.Errorf("leftovers of an earlier run: %v; remove them with `go run ./jepsen clean`", left)
	}
	c := &Cluster{Options: o, extra: map[string]string{}}
	if err := c.lay(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("lay cluster: %w", err), c.Close(context.WithoutCancel(ctx)))
	}
	return c, nil
}

func (c *Cluster) lay(ctx context.Context) error {
	network, err := NewNetwork(ctx, c.Options.Run)
	if err != nil {
		return err
	}
	c.Net = network
	c.removes = append(c.removes, network.Close)
	var seeds []string
	for i := 1; i <= c.Options.Nodes; i++ {
		addr, err := network.AddHost(ctx, fmt.Sprintf("n%d", i), 10+i)
		if err != nil {
			return err
		}
		seeds = append(seeds, addr)
	}
	for i, host := range c.Options.Extra {
		if c.extra[host], err = network.AddHost(ctx, host, 101+i); err != nil {
			return err
		}
	}
	for i := 1; i <= c.Options.Nodes; i++ {
		node, err := c.layNode(ctx, i, seeds)
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, node)
	}
	return nil
}

func (c *Cluster) layNode(ctx context.Context, i int, seeds []string) (*Node, error) {
	host := fmt.Sprintf("n%d", i)
	fs := c.Options.FS
	if fs == "mixed" {
		fs = []string{"xfs", "ext4"}[i%2]
	}
	n := &Node{ID: host, Host: host, Addr: c.Net.Addr(host)}
	var err error
	if n.Data, err = c.volume(ctx, host+"-data", fs, c.Options.DataBytes); err != nil {
		return nil, err
	}
	if n.DLQ, err = c.volume(ctx, host+"-dlq", fs, c.Options.DLQBytes); err != nil {
		return nil, err
	}
	n.config = NodeConfig{
		ID: n.ID, Addr: n.Addr, DataDir: n.DataDir(), DLQDir: n.DLQDir(), Seeds: seeds,
		Cluster: "jepsen", WALMaxBytes: c.Options.WALMax, SegmentBytes: c.Options.Segment, SnapshotBytes: c.Options.Snapshot, Trailing: c.Options.Trailing,
	}
	return n, c.prepare(n)
}

// volume makes one volume; XFS has a minimal size of 300 MiB.
func (c *Cluster) volume(ctx context.Context, name, fs string, bytes int64) (*Volume, error) {
	if fs == "xfs" {
		bytes = max(bytes, 320<<20)
	}
	v, err := NewVolume(ctx, filepath.Join(c.Options.ImageDir, name+".img"), filepath.Join(c.Options.WorkDir, "mnt", name), fs, bytes)
	if err != nil {
		return nil, err
	}
	c.removes = append(c.removes, v.Close)
	return v, nil
}

// prepare makes the node's directories, its configuration file and its process handle.
func (c *Cluster) prepare(n *Node) error {
	for _, dir := range []string{n.DataDir(), n.DLQDir(), c.Options.LogDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	path := filepath.Join(c.Options.LogDir, n.ID+".yaml")
	if err := os.WriteFile(path, []byte(n.config.YAML()+c.Options.ConfigTail), 0o644); err != nil {
		return err
	}
	n.Process = NewProcess(n.ID, c.Net.Namespace(n.Host), filepath.Join(c.Options.LogDir, n.ID+".log"),
		c.Options.Env, []string{c.Options.Binary, "server", "--config", path})
	return nil
}

// Nodes are the members in order n1..nN.
func (c *Cluster) Nodes() []*Node { return slices.Clone(c.nodes) }

// Addr is the address of a node's or an extra host.
func (c *Cluster) Addr(host string) string { return c.Net.Addr(host) }

// StartAll starts every node that does not run.
func (c *Cluster) StartAll() error {
	var errs []error
	for _, n := range c.nodes {
		if !n.Process.Running() {
			errs = append(errs, n.Process.Start())
		}
	}
	return errors.Join(errs...)
}

// PowerCut drops what the node did not fsync on both volumes, then kills the process. The volumes stay unmounted.
func (c *Cluster) PowerCut(ctx context.Context, n *Node, flag uint32) (Exit, error) {
	cutErr := errors.Join(n.Data.Shutdown(flag), n.DLQ.Shutdown(flag))
	var exit Exit
	if n.Process.Running() {
		if _, err := n.Process.Kill(ctx); err != nil && !errors.Is(err, ErrNotRunning) {
			return exit, errors.Join(cutErr, err)
		}
	}
	if last, ended := n.Process.LastExit(); ended {
		exit = last // it may have seen the error and ended by itself before the kill
	}
	return exit, errors.Join(cutErr, n.Data.Unmount(ctx), n.DLQ.Unmount(ctx))
}

// PowerOn mounts the node's volumes again and starts it.
func (c *Cluster) PowerOn(ctx context.Context, n *Node) error {
	if err := errors.Join(n.Data.Remount(ctx), n.DLQ.Remount(ctx)); err != nil {
		return fmt.Errorf("power on %s: %w", n.ID, err)
	}
	if n.Process.Running() {
		return nil
	}
	return n.Process.Start()
}

// LoseDisk kills the node and replaces its data volume by an empty one. The dead-letter volume stays.
func (c *Cluster) LoseDisk(ctx context.Context, n *Node) error {
	if n.Process.Running() {
		if _, err := n.Process.Kill(ctx); err != nil && !errors.Is(err, ErrNotRunning) {
			return err
		}
	}
	if err := n.Data.Unmount(ctx); err != nil {
		return err
	}
	if err := n.Data.Wipe(ctx); err != nil {
		return err
	}
	return os.MkdirAll(n.DataDir(), 0o755)
}

// Rename gives a node whose disk was lost a new id; its next start is that of a new member. It returns the old id.
func (c *Cluster) Rename(n *Node) (old string, err error) {
	old = n.ID
	n.generation++
	n.ID = fmt.Sprintf("%sr%d", n.Host, n.generation)
	n.config.ID, n.config.DLQDir = n.ID, n.DLQDir()
	return old, c.prepare(n)
}

// StopAll stops every process, gently first.
func (c *Cluster) StopAll(ctx context.Context, grace time.Duration) {
	done := make(chan struct{})
	for _, n := range c.nodes {
		go func() {
			defer func() { done <- struct{}{} }()
			if n.Process != nil && n.Process.Running() {
				_, _ = n.Process.Stop(ctx, grace)
			}
		}()
	}
	for range c.nodes {
		<-done
	}
}

// CutAll cuts the power of every node at once and mounts the volumes again: what the disks hold is there to be read, and no
// process has mended anything of it.
func (c *Cluster) CutAll(ctx context.Context) error {
	errs := make([]error, len(c.nodes))
	var wg sync.WaitGroup
	for i, n := range c.nodes {
		wg.Go(func() {
			if n.Data.mounted && n.DLQ.mounted {
				_, errs[i] = c.PowerCut(ctx, n, ShutdownDrop)
			}
			errs[i] = errors.Join(errs[i], n.Data.Remount(ctx), n.DLQ.Remount(ctx))
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Close kills every node and removes everything in reverse order of its making.
func (c *Cluster) Close(ctx context.Context) error {
	c.StopAll(ctx, 0)
	var errs []error
	for i := len(c.removes) - 1; i >= 0; i-- {
		errs = append(errs, c.removes[i](ctx))
	}
	c.removes = nil
	return errors.Join(errs...)
}
