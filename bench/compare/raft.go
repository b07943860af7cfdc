package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	raftwal "github.com/hashicorp/raft-wal"
)

// raftSystem is hashicorp/raft with nothing above it: a message is one entry, a state machine that keeps nothing, a socket that takes
// frames and answers a byte for each. Its settings are the best of many tried: a cache of 4096 entries, 1024 entries a request.
type raftSystem struct {
	store   string // raft-wal or raft-boltdb
	clients []string
	nodes   []*process
}

func (r *raftSystem) name() string { return "hashicorp/raft with " + r.store }

func (r *raftSystem) rows() []row { return inFlightRows() }

func (r *raftSystem) start(dir string) error {
	addresses, err := freePorts(6)
	if err != nil {
		return err
	}
	r.clients = addresses[:3]
	for i := range 3 {
		p, err := self(dir, fmt.Sprintf("raft%d", i), append([]string{"raft", fmt.Sprint(i), filepath.Join(dir, fmt.Sprintf("raft%d", i)),
			r.store}, addresses...)...)
		if err != nil {
			return err
		}
		r.nodes = append(r.nodes, p)
	}
	return eventually(time.Minute, "a leader", func() error {
		c, err := r.leader()
		if err == nil {
			c.Close()
		}
		return err
	})
}

func (r *raftSystem) processes() []*process { return r.nodes }

func (r *raftSystem) stop() {
	for _, p := range r.nodes {
		p.kill()
	}
	r.nodes = nil
}

// leader connects to whoever says that it leads.
func (r *raftSystem) leader() (net.Conn, error) {
	for _, a := range r.clients {
		c, err := net.DialTimeout("tcp", a, time.Second)
		if err != nil {
			continue
		}
		var leads [1]byte
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := io.ReadFull(c, leads[:]); err == nil && leads[0] == 1 {
			_ = c.SetReadDeadline(time.Time{})
			return c, nil
		}
		c.Close()
	}
	return nil, errors.New("no node leads")
}

func (r *raftSystem) load(ctx context.Context, w row, d time.Duration) (sent, error) {
	c, err := r.leader()
	if err != nil {
		return sent{}, err
	}
	defer c.Close()
	in := bufio.NewReader(c)
	frame := make([]byte, 4+eventBytes)
	return window(ctx, w.inFlight, d, func(data []byte) (func() error, error) {
		binary.LittleEndian.PutUint32(frame, uint32(len(data)))
		copy(frame[4:], data)
		if _, err := c.Write(frame); err != nil {
			return nil, err
		}
		return func() error {
			b, err := in.ReadByte()
			if err == nil && b != 1 {
				err = errors.New("not committed")
			}
			return err
		}, nil
	})
}

// runRaft is one node; addresses are three for clients, then three for Raft.
func runRaft(i int, dir, store string, addresses []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	stable, err := raftboltdb.New(raftboltdb.Options{Path: filepath.Join(dir, "stable.db")})
	if err != nil {
		return err
	}
	var logs raft.LogStore = stable
	if store == "raft-wal" {
		wal := filepath.Join(dir, "wal")
		if err := os.MkdirAll(wal, 0o755); err != nil {
			return err
		}
		if logs, err = raftwal.Open(wal); err != nil {
			return err
		}
	}
	cache, err := raft.NewLogCache(4096, logs)
	if err != nil {
		return err
	}
	trans, err := raft.NewTCPTransport(addresses[3+i], nil, 3, 10*time.Second, io.Discard)
	if err != nil {
		return err
	}
	cfg := raft.DefaultConfig()
	cfg.LocalID, cfg.Logger = raft.ServerID(fmt.Sprint(i)), hclog.NewNullLogger()
	cfg.MaxAppendEntries, cfg.BatchApplyCh, cfg.SnapshotThreshold, cfg.NoLegacyTelemetry = 1024, true, 1<<20, true
	r, err := raft.NewRaft(cfg, nothing{}, cache, stable, raft.NewDiscardSnapshotStore(), trans)
	if err != nil {
		return err
	}
	if i == 0 {
		var all raft.Configuration
		for n, a := range addresses[3:] {
			all.Servers = append(all.Servers, raft.Server{ID: raft.ServerID(fmt.Sprint(n)), Address: raft.ServerAddress(a)})
		}
		if err := r.BootstrapCluster(all).Error(); err != nil {
			return err
		}
	}
	l, err := net.Listen("tcp", addresses[i])
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go serveRaft(c, r)
	}
}

// serveRaft says whether this node leads, then takes frames and answers each, in order, once it is committed.
func serveRaft(c net.Conn, r *raft.Raft) {
	defer c.Close()
	leads := byte(0)
	if r.State() == raft.Leader {
		leads = 1
	}
	if _, err := c.Write([]byte{leads}); err != nil || leads == 0 {
		return
	}
	futures := make(chan raft.ApplyFuture, 4096)
	defer close(futures)
	go func() {
		out := bufio.NewWriter(c)
		for f := range futures {
			ok := byte(1)
			if f.Error() != nil {
				ok = 0
			}
			_ = out.WriteByte(ok)
			if len(futures) == 0 {
				_ = out.Flush()
			}
		}
	}()
	in := bufio.NewReaderSize(c, 64<<10)
	var head [4]byte
	for {
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return
		}
		data := make([]byte, binary.LittleEndian.Uint32(head[:]))
		if _, err := io.ReadFull(in, data); err != nil {
			return
		}
		futures <- r.Apply(data, 10*time.Second)
	}
}

// nothing is a state machine without state.
type nothing struct{}

func (nothing) Apply(*raft.Log) any                  { return nil }
func (nothing) Restore(r io.ReadCloser) error        { return r.Close() }
func (nothing) Snapshot() (raft.FSMSnapshot, error)  { return nothing{}, nil }
func (nothing) Persist(sink raft.SnapshotSink) error { return sink.Close() }
func (nothing) Release()                             {}
