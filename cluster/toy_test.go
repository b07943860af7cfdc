package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// memLog is a Log in memory that outlives a Cluster, as a disk does. It keeps the contract of package wal that matters here.
type memLog struct {
	mu       sync.Mutex
	base     uint64
	baseTerm uint64
	entries  []raft.Log // entries[i] has index base+1+i
	floor    uint64
	allowed  uint64
	stall    chan struct{} // StoreLogs waits for it
	resets   int
	deleted  uint64 // highest index ever dropped from the front
}

func (l *memLog) FirstIndex() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.base == 0 && len(l.entries) == 0 {
		return 0, nil
	}
	return l.base + 1, nil
}

func (l *memLog) LastIndex() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.base + uint64(len(l.entries)), nil
}

func (l *memLog) GetLog(index uint64, e *raft.Log) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case index == l.base && index > 0:
		*e = raft.Log{Index: index, Term: l.baseTerm, Type: raft.LogNoop}
		return nil
	case index <= l.base || index > l.base+uint64(len(l.entries)):
		return raft.ErrLogNotFound
	}
	*e = l.entries[index-l.base-1]
	return nil
}

func (l *memLog) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

func (l *memLog) StoreLogs(entries []*raft.Log) error {
	l.mu.Lock()
	stall := l.stall
	l.mu.Unlock()
	if stall != nil {
		<-stall
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range entries {
		if e.Index != l.base+uint64(len(l.entries))+1 {
			return fmt.Errorf("gap: %d after %d", e.Index, l.base+uint64(len(l.entries)))
		}
		l.entries = append(l.entries, *e)
	}
	return nil
}

func (l *memLog) DeleteRange(from, to uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.base + uint64(len(l.entries))
	switch {
	case from <= l.base+1 && to >= last: // whole
		l.entries = nil
	case to >= last:
		l.entries = l.entries[:from-l.base-1]
	default:
		l.allowed = max(l.allowed, to)
		l.dropLocked()
	}
	return nil
}

func (l *memLog) dropLocked() {
	end := min(l.allowed+1, max(l.floor, 1)-1) // first index that stays
	if end <= l.base+1 {
		return
	}
	n := end - 1 - l.base
	l.baseTerm = l.entries[n-1].Term
	l.entries = append([]raft.Log(nil), l.entries[n:]...)
	l.base = end - 1
	l.deleted = l.base
}

func (l *memLog) Base() (uint64, uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.base, l.baseTerm
}

func (l *memLog) Reset(index, term uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.base, l.baseTerm, l.entries = index, term, nil
	l.resets++
	return nil
}

func (l *memLog) SetFloor(index uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.floor = max(l.floor, index)
	l.dropLocked()
}

// toySM keeps the list of applied commands as a running hash, and a floor that a test sets. A command "floor:N" raises the floor.
type toySM struct {
	mu      sync.Mutex
	state   toyState
	applies int
	owners  uint64
}

// OwnersIndex implements StateMachine: a command "owners" moves an emitter.
func (t *toySM) OwnersIndex() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.owners
}

type toyState struct {
	Index, Term uint64
	Stamp       int64
	Commands    []string
	Floor       uint64
}

type toyEntry struct {
	Stamp    int64
	Commands [][]byte
}

func toyAppendEntry(dst []byte, stamp int64, commands [][]byte) []byte {
	b, _ := json.Marshal(toyEntry{stamp, commands})
	return append(dst, b...)
}

func (s *toySM) Apply(index, term uint64, data []byte) ([][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if index <= s.state.Index {
		return nil, nil
	}
	var e toyEntry
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, err
	}
	if e.Stamp < s.state.Stamp {
		return nil, fmt.Errorf("stamp went back from %d to %d", s.state.Stamp, e.Stamp)
	}
	s.applies++
	s.state.Index, s.state.Term, s.state.Stamp = index, term, e.Stamp
	results := make([][]byte, len(e.Commands))
	for i, c := range e.Commands {
		if string(c) == "poison" {
			return nil, errors.New("unknown command")
		}
		var f uint64
		if n, _ := fmt.Sscanf(string(c), "floor:%d", &f); n == 1 {
			s.state.Floor = max(s.state.Floor, f)
		}
		if string(c) == "owners" {
			s.owners = index
		}
		s.state.Commands = append(s.state.Commands, string(c))
		results[i] = binary.BigEndian.AppendUint64(nil, uint64(len(s.state.Commands)))
	}
	return results, nil
}

func (s *toySM) Applied() (uint64, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Index, s.state.Term
}

func (s *toySM) Stamp() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Stamp
}

func (s *toySM) Checkpoint() error { return nil }

func (s *toySM) Floor() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.state.Floor, 1)
}

func (s *toySM) Horizon() uint64 { return s.Floor() }

func (s *toySM) commands() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.state.Commands...)
}

func (s *toySM) Restore(r io.Reader) error {
	var st toyState
	if err := json.NewDecoder(r).Decode(&st); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = st
	return nil
}

func (s *toySM) Snapshot() (Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := json.Marshal(s.state)
	return &toySnapshot{s.state.Index, s.state.Term, b}, err
}

type toySnapshot struct {
	index, term uint64
	b           []byte
}

func (s *toySnapshot) Index() uint64 { return s.index }
func (s *toySnapshot) Term() uint64  { return s.term }
func (s *toySnapshot) Close() error  { return nil }
func (s *toySnapshot) WriteTo(w io.Writer) (int64, error) {
	n, err := io.Copy(w, bytes.NewReader(s.b))
	return n, err
}

// testNode is one node whose disk (directory, log, state) outlives its process (Cluster).
type testNode struct {
	t      *testing.T
	id     string
	dir    string
	cfg    Config
	log    *memLog
	sm     *toySM
	c      *Cluster
	fatals chan int
}

var nextPort atomic.Int64

func init() { nextPort.Store(int64(15000 + rand.IntN(15000))) }

// freeAddr gives a loopback address that nothing listens on. It is below the ports that the kernel gives to outgoing connections, so
// it stays free while a node is down.
func freeAddr(t *testing.T) string {
	for range 1000 {
		addr := fmt.Sprintf("127.0.0.1:%d", 15000+nextPort.Add(1)%17000)
		if ln, err := net.Listen("tcp", addr); err == nil {
			ln.Close()
			return addr
		}
	}
	require.FailNow(t, "no free port")
	return ""
}

// newTestNodes makes n nodes n1..n that name each other as seeds, and starts none.
func newTestNodes(t *testing.T, n int) []*testNode {
	var nodes []*testNode
	var seeds []string
	for i := range n {
		node := newTestNode(t, fmt.Sprintf("n%d", i+1))
		nodes = append(nodes, node)
		seeds = append(seeds, node.cfg.GossipAddr)
	}
	for _, node := range nodes {
		node.cfg.Seeds = seeds
	}
	return nodes
}

func newTestNode(t *testing.T, id string) *testNode {
	n := &testNode{t: t, id: id, dir: filepath.Join(t.TempDir(), id), log: &memLog{}, sm: &toySM{}, fatals: make(chan int, 16)}
	n.cfg = Config{
		NodeID: id, Name: "test", DataDir: n.dir, RaftAddr: freeAddr(t), GossipAddr: freeAddr(t), HTTPAdvertise: "http-" + id,
		AppendEntry:  toyAppendEntry,
		InitCommand:  func(id [16]byte, name string) []byte { return []byte("init " + name) },
		TrailingLogs: 1, Logger: testLogger(id),
		Fatal: func(code int, err error) { n.fatals <- code },
	}
	t.Cleanup(n.stop)
	return n
}

func testLogger(id string) *slog.Logger {
	if os.Getenv("CLUSTER_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	level := slog.LevelInfo
	if os.Getenv("CLUSTER_TEST_LOG") == "debug" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

func (n *testNode) open() error {
	c, err := Open(n.cfg, n.log, n.sm)
	if err == nil {
		n.c = c
	}
	return err
}

func (n *testNode) start() {
	require.NoError(n.t, n.open(), "start %s", n.id)
}

// stop ends the node's process without Drain.
func (n *testNode) stop() {
	if n.c != nil {
		n.c.Close()
		n.c = nil
	}
}

// wipe loses the disk.
func (n *testNode) wipe() {
	require.NoError(n.t, os.RemoveAll(n.dir))
	n.log, n.sm = &memLog{}, &toySM{}
}

func eventually(t *testing.T, within time.Duration, cond func() bool, msg string, args ...any) {
	t.Helper()
	deadline := time.Now().Add(within)
	for !cond() {
		if time.Now().After(deadline) {
			require.FailNow(t, fmt.Sprintf(msg, args...))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func leaderOf(nodes ...*testNode) *testNode {
	for _, n := range nodes {
		if n.c != nil && n.c.IsLeader() {
			return n
		}
	}
	return nil
}

func awaitLeader(t *testing.T, nodes ...*testNode) *testNode {
	t.Helper()
	var l *testNode
	eventually(t, 15*time.Second, func() bool { l = leaderOf(nodes...); return l != nil }, "no leader within 15 s")
	return l
}

func (n *testNode) propose(t *testing.T, command string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err := n.c.Propose(ctx, []byte(command))
	require.NoError(t, err)
}

func startAll(nodes []*testNode) {
	for _, n := range nodes {
		n.start()
	}
}

func awaitSame(t *testing.T, nodes ...*testNode) {
	t.Helper()
	eventually(t, 10*time.Second, func() bool {
		want := nodes[0].sm.commands()
		for _, n := range nodes[1:] {
			if fmt.Sprint(n.sm.commands()) != fmt.Sprint(want) {
				return false
			}
		}
		return true
	}, "the nodes do not come to the same state")
}
