// Package history is the record of one run: what each client invoked and what it was told, what each nemesis did, what the
// nodes said about themselves. One JSON object a line, one file per writer of records, outside every faulted mount.
//
// It promises that a record's time is the harness's monotonic clock since the start of the run, that an outcome that is not
// known is "info" and never "ok" nor "fail", and that Load gives back what was written, so that a run can be judged again.
// It judges nothing.
package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"
)

// Type says what a record reports.
type Type string

// The record types, as in Jepsen.
const (
	Invoke Type = "invoke"
	OK     Type = "ok"   // certainly done, and the whole answer was parsed
	Fail   Type = "fail" // certainly not done
	Info   Type = "info" // nobody knows
)

// The functions of client operations.
const (
	Write       = "write"        // ingest of one or more events
	WriteOffset = "write-offset" // ingest together with a source offset
	ReadOffset  = "read-offset"  // linearizable read of a source offset
	Tail        = "tail"         // one page of committed events
	FinalTail   = "final-tail"   // the same, after the heal
)

// Seen is one event as tail shows it.
type Seen struct {
	Source   string `json:"s"`
	ID       string `json:"id"`
	Position string `json:"pos"`
	Key      string `json:"key,omitempty"`
	Sum      string `json:"sum,omitempty"` // short hash of the data
}

// Ack is what an ingest answer says of one event.
type Ack struct {
	ID          string `json:"id"`
	Source      string `json:"source,omitempty"`
	Position    string `json:"position,omitempty"`
	DuplicateOf string `json:"duplicate_of,omitempty"`
	Conflict    bool   `json:"conflict,omitempty"`
}

// Offset is a source offset; in a read a nil *Offset is "none".
type Offset struct {
	Position uint64 `json:"position"`
	Record   uint64 `json:"record"`
	Closed   bool   `json:"closed,omitempty"`
}

// Op is one line of a client's history. Client and Seq tie an invocation to its completion.
type Op struct {
	T       int64  `json:"t"` // ns since the start of the run
	Type    Type   `json:"type"`
	Client  string `json:"client"`
	Seq     uint64 `json:"op"`
	F       string `json:"f"`
	Node    string `json:"node,omitempty"`
	Channel string `json:"channel,omitempty"`

	Source    string   `json:"source,omitempty"`
	Partition string   `json:"partition,omitempty"`
	IDs       []string `json:"ids,omitempty"`
	Sums      []string `json:"sums,omitempty"`
	Offset    *Offset  `json:"offset,omitempty"`
	From      string   `json:"from,omitempty"`

	Status  int    `json:"status,omitempty"`
	Problem string `json:"problem,omitempty"`
	Error   string `json:"error,omitempty"`
	Index   uint64 `json:"index,omitempty"`
	Acks    []Ack  `json:"acks,omitempty"`
	Seen    []Seen `json:"seen,omitempty"`
	Next    string `json:"next,omitempty"`
}

// Fault is one line of the nemesis's history.
type Fault struct {
	T       int64    `json:"t"`
	Phase   string   `json:"phase"` // begin, confirmed, end, error, note
	ID      int      `json:"id"`    // ties the phases of one activation
	Kind    string   `json:"kind"`
	Targets []string `json:"targets,omitempty"`
	Detail  string   `json:"detail,omitempty"`
	Wall    int64    `json:"wall,omitempty"` // of a start: unix ns, to compare with the destinations' times
	Window  int      `json:"window,omitempty"`
}

// The phases of a fault.
const (
	Begin     = "begin"
	Confirmed = "confirmed"
	End       = "end"
	Error     = "error"
	Note      = "note"
	Started   = "started"   // a node's process was started
	Violation = "violation" // the product reacted in a way it must not, e.g. ran on after a failed fsync
)

// Observation is what a node said of itself at one moment.
type Observation struct {
	T           int64             `json:"t"`
	Node        string            `json:"node"`
	Up          bool              `json:"up"`
	State       string            `json:"state,omitempty"`
	Leader      string            `json:"leader,omitempty"`
	Term        uint64            `json:"term,omitempty"`
	Commit      uint64            `json:"commit,omitempty"`
	Applied     uint64            `json:"applied,omitempty"`
	First       uint64            `json:"first,omitempty"`
	Last        uint64            `json:"last,omitempty"`
	Hashes      map[string]string `json:"hashes,omitempty"` // "k@index" -> state hash, comparable between nodes
	Incarnation uint64            `json:"incarnation,omitempty"`
}

// Clock gives times since the start of a run, from the monotonic clock.
type Clock struct{ start time.Time }

// NewClock starts a run's clock.
func NewClock() Clock { return Clock{start: time.Now()} }

// Now is the time since the start in nanoseconds.
func (c Clock) Now() int64 { return int64(time.Since(c.start)) }

// Writer appends records of one kind to one file. Safe for concurrent use.
type Writer[T any] struct {
	mu  sync.Mutex
	f   *os.File
	buf *bufio.Writer
	err error
}

// Create opens a new history file.
func Create[T any](path string) (*Writer[T], error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	return &Writer[T]{f: f, buf: bufio.NewWriterSize(f, 1<<16)}, nil
}

// Append writes one record. An error is kept and returned by Close: a history with a hole is no evidence.
func (w *Writer[T]) Append(record T) {
	line, err := json.Marshal(record)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		_, err = w.buf.Write(append(line, '\n'))
	}
	if w.err == nil {
		w.err = err
	}
}

// Close flushes and syncs.
func (w *Writer[T]) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.err, w.buf.Flush(), w.f.Sync(), w.f.Close())
}

// Read loads one file of records.
func Read[T any](path string) ([]T, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	defer f.Close()
	var records []T
	dec := json.NewDecoder(bufio.NewReaderSize(f, 1<<20))
	for {
		var r T
		if err := dec.Decode(&r); errors.Is(err, io.EOF) {
			return records, nil
		} else if err != nil {
			return records, fmt.Errorf("history %s, record %d: %w", path, len(records)+1, err)
		}
		records = append(records, r)
	}
}

// ReadOps loads every client's history of a directory, in the order of time.
func ReadOps(dir string) ([]Op, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	var ops []Op
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".jsonl") {
			continue
		}
		more, err := Read[Op](filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		ops = append(ops, more...)
	}
	sort.SliceStable(ops, func(i, j int) bool { return ops[i].T < ops[j].T })
	return ops, nil
}
