package workload

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"sync/atomic"
	"time"

	"penstock/jepsen/client"
	"penstock/jepsen/history"
)

// opsPerPartition keeps partitions small enough for the linearizability checker.
const opsPerPartition = 120

// OffsetWriter is a source that commits how far it has been read together with its records. After an unknown outcome it
// does what a real source does after a crash: it asks where it was and goes on from there.
type OffsetWriter struct {
	rec  *recorder
	node *client.Client
	// partition counts the partitions done; readers look at the current one.
	partition atomic.Int64
}

// NewOffsetWriter opens its history.
func NewOffsetWriter(env *Env, name string) (*OffsetWriter, error) {
	rec, err := env.recorder(name)
	if err != nil {
		return nil, err
	}
	return &OffsetWriter{rec: rec}, nil
}

// Source is its source name.
func (w *OffsetWriter) Source() string { return w.rec.name }

// Partition is the one it is at.
func (w *OffsetWriter) Partition() string { return fmt.Sprintf("p%d", w.partition.Load()) }

// Run writes partition after partition until stop is done. Its error is of the history.
func (w *OffsetWriter) Run(stop, last context.Context) error {
	for stop.Err() == nil {
		w.onePartition(stop, last)
		w.partition.Add(1)
	}
	return w.rec.out.Close()
}

func (w *OffsetWriter) onePartition(stop, last context.Context) {
	var at uint64 // records committed, as far as is known
	for range opsPerPartition {
		if stop.Err() != nil {
			return
		}
		n := uint64(1 + w.rec.random.IntN(5))
		for !w.commit(last, at, n) {
			o, ok := w.recover(last)
			if !ok {
				return
			}
			if o != nil && o.Position > at {
				break // it was committed after all
			}
		}
		at += n
		pause(stop, time.Duration(10+w.rec.random.IntN(60))*time.Millisecond)
	}
}

// commit sends records at+1 … at+n with the offset that covers them.
func (w *OffsetWriter) commit(ctx context.Context, at, n uint64) bool {
	w.node = w.rec.node(w.node, false)
	partition := w.Partition()
	var b bytes.Buffer
	var ids, sums []string
	b.WriteByte('[')
	for i := at + 1; i <= at+n; i++ {
		if i > at+1 {
			b.WriteByte(',')
		}
		id := fmt.Sprintf("%s/%s/%d", w.rec.name, partition, i)
		data := fmt.Appendf(nil, `{"source":%q,"partition":%q,"n":%d}`, w.rec.name, partition, i)
		fmt.Fprintf(&b, `{"specversion":"1.0","id":%q,"source":"/jepsen/%s","type":"jepsen.record","datacontenttype":"application/json","data":%s}`,
			id, w.rec.name, data)
		ids, sums = append(ids, id), append(sums, client.Sum(data))
	}
	b.WriteByte(']')
	offset := &history.Offset{Position: at + n, Record: n}
	op := w.rec.invoke(history.Op{
		F: history.WriteOffset, Node: w.node.Node, Channel: Offsets, Source: w.rec.name, Partition: partition,
		IDs: ids, Sums: sums, Offset: offset,
	})
	query := url.Values{"source": {w.rec.name}, "partition": {partition}, "offset": {fmt.Sprintf("%d:%d", offset.Position, offset.Record)}}
	return send(ctx, w.rec, w.node, op, query, b.Bytes(), int(n)).Outcome == client.Done
}

// recover asks until some node answers where the source was.
func (w *OffsetWriter) recover(ctx context.Context) (*history.Offset, bool) {
	for ctx.Err() == nil {
		w.node = w.rec.node(w.node, true)
		if o, a := readOffset(ctx, w.rec, w.node, w.rec.name, w.Partition()); a.Outcome == client.Done {
			return o, true
		}
		pause(ctx, time.Duration(20+w.rec.random.IntN(200))*time.Millisecond)
	}
	return nil, false
}

func readOffset(ctx context.Context, rec *recorder, c *client.Client, source, partition string) (*history.Offset, client.Answer) {
	op := rec.invoke(history.Op{F: history.ReadOffset, Node: c.Node, Channel: Offsets, Source: source, Partition: partition})
	o, a := c.ReadOffset(ctx, Offsets, source, partition)
	op.Offset = o
	rec.complete(op, a)
	return o, a
}

// OffsetReader reads the offsets of the given writers at one node, so that the reads can be checked for linearizability.
type OffsetReader struct {
	rec     *recorder
	node    *client.Client
	writers []*OffsetWriter
}

// NewOffsetReader opens its history.
func NewOffsetReader(env *Env, name string, node *client.Client, writers []*OffsetWriter) (*OffsetReader, error) {
	rec, err := env.recorder(name)
	if err != nil {
		return nil, err
	}
	return &OffsetReader{rec: rec, node: node, writers: writers}, nil
}

// Run reads until stop is done.
func (r *OffsetReader) Run(stop context.Context) error {
	for stop.Err() == nil {
		w := r.writers[r.rec.random.IntN(len(r.writers))]
		readOffset(stop, r.rec, r.node, w.Source(), w.Partition())
		pause(stop, time.Duration(50+r.rec.random.IntN(200))*time.Millisecond)
	}
	return r.rec.out.Close()
}
