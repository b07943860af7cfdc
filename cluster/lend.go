package cluster

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/hashicorp/raft"
)

const (
	methodLogState = "cluster.log-state"
	methodLogRead  = "cluster.log-read"
	lendBytes      = 4 << 20 // of entries in one answer; one entry always fits
	lendVersion    = 1
	lendHeader     = 24
	lentHeader     = 33
)

// logState is how one node's log stands, for a node in doubt.
type logState struct {
	Started   bool   `json:"started"` // its Raft runs: repair is over
	Leading   bool   `json:"leading"`
	Term      uint64 `json:"term"`
	Last      uint64 `json:"last"`
	LastTerm  uint64 `json:"last_term"`
	Committed uint64 `json:"committed"`
	InDoubt   bool   `json:"in_doubt"`
}

type logStateQuestion struct {
	// Reach asks a leader to see to it that its log reaches this index, if little is missing.
	Reach uint64 `json:"reach,omitempty"`
}

func (c *Cluster) logStateOf(ctx context.Context, node string, q logStateQuestion) (s logState, err error) {
	body, err := json.Marshal(q)
	if err != nil {
		return s, fmt.Errorf("encode question: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	b, err := c.client.call(ctx, laneControl, node, methodLogState, body)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("decode log state: %w", err)
	}
	return s, nil
}

func (c *Cluster) serveLogState(ctx context.Context, _ string, body []byte) ([]byte, error) {
	var q logStateQuestion
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, fmt.Errorf("decode question: %w", err)
	}
	index, term, err := c.lastEntry()
	if err != nil {
		return nil, err
	}
	s := logState{Last: index, LastTerm: term, Committed: c.committed(), InDoubt: c.muzzled()}
	if in := c.instance(); in != nil {
		s.Started, s.Term = true, in.raft.CurrentTerm()
	}
	if t := c.tenure(); t != nil && t.isReady() {
		s.Leading, s.Term = true, t.term
		for i := s.Last; i < q.Reach && q.Reach-s.Last <= maxFill && ctx.Err() == nil; i++ {
			if await(ctx, t.raft.Barrier(applyEnqueue)) != nil {
				break
			}
		}
	}
	return json.Marshal(s)
}

// committed is the highest index that this node knows to be committed.
func (c *Cluster) committed() uint64 {
	applied, _ := c.sm.Applied()
	if in := c.instance(); in != nil {
		return max(applied, in.raft.CommitIndex())
	}
	return applied
}

// logRequest asks for entries [from, to]. (anchor, anchorTerm) is an entry behind them that the asking node still has: when this node
// has the same, all before it are the same on both (Raft's log matching), whether or not they are known to be committed.
//
//	+---------+------+-------+------------+
//	| version | from | to    | anchor     |    anchor 0: none
//	| u32     | u64  | u64   | u64 + term |
//	+---------+------+-------+------------+
type logRequest struct {
	from, to, anchor, anchorTerm uint64
}

func (q logRequest) encode() []byte {
	b := binary.LittleEndian.AppendUint32(nil, lendVersion)
	for _, v := range []uint64{q.from, q.to, q.anchor, q.anchorTerm} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func decodeLogRequest(b []byte) (q logRequest, err error) {
	if len(b) != 36 || binary.LittleEndian.Uint32(b) != lendVersion {
		return q, fmt.Errorf("%w: log request of %d bytes", errFrame, len(b))
	}
	for i, v := range []*uint64{&q.from, &q.to, &q.anchor, &q.anchorTerm} {
		*v = binary.LittleEndian.Uint64(b[4+8*i:])
	}
	return q, nil
}

// lentEntries is the answer: those of the entries that can be read here, in order, as many as fit; next is where to ask on.
//
//	+---------+--------+-----------+------+-----------------------------------------------------------------------------+--------+
//	| version | flags  | committed | next | entries                                                                     | crc32c |
//	| u32     | u32    | u64       | u64  | index u64, term u64, type u8, at i64, data len u32, ext len u32, data, ext  | u32    |
//	+---------+--------+-----------+------+-----------------------------------------------------------------------------+--------+
//
// flags: 1 = the anchor is here. at is unix nanoseconds, 0 for not set. The CRC covers all before it.
type lentEntries struct {
	anchored  bool
	committed uint64
	next      uint64
	entries   []*raft.Log
}

func (l *lentEntries) encode() []byte {
	b := binary.LittleEndian.AppendUint32(nil, lendVersion)
	flags := uint32(0)
	if l.anchored {
		flags = 1
	}
	b = binary.LittleEndian.AppendUint32(b, flags)
	b = binary.LittleEndian.AppendUint64(b, l.committed)
	b = binary.LittleEndian.AppendUint64(b, l.next)
	for _, e := range l.entries {
		b = binary.LittleEndian.AppendUint64(b, e.Index)
		b = binary.LittleEndian.AppendUint64(b, e.Term)
		b = append(b, byte(e.Type))
		at := int64(0)
		if !e.AppendedAt.IsZero() {
			at = e.AppendedAt.UnixNano()
		}
		b = binary.LittleEndian.AppendUint64(b, uint64(at))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(e.Data)))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(e.Extensions)))
		b = append(append(b, e.Data...), e.Extensions...)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeLentEntries(b []byte) (*lentEntries, error) {
	if len(b) < lendHeader+4 {
		return nil, fmt.Errorf("%w: %d bytes of entries", errFrame, len(b))
	}
	end := len(b) - 4
	if crc32.Checksum(b[:end], castagnoli) != binary.LittleEndian.Uint32(b[end:]) {
		return nil, fmt.Errorf("%w: entries: checksum", errFrame)
	}
	if v := binary.LittleEndian.Uint32(b); v != lendVersion {
		return nil, fmt.Errorf("%w: entries of version %d", errFrame, v)
	}
	l := &lentEntries{
		anchored:  binary.LittleEndian.Uint32(b[4:])&1 != 0,
		committed: binary.LittleEndian.Uint64(b[8:]), next: binary.LittleEndian.Uint64(b[16:]),
	}
	for b = b[lendHeader:end]; len(b) > 0; {
		if len(b) < lentHeader {
			return nil, fmt.Errorf("%w: entry cut short", errFrame)
		}
		e := &raft.Log{Index: binary.LittleEndian.Uint64(b), Term: binary.LittleEndian.Uint64(b[8:]), Type: raft.LogType(b[16])}
		if at := int64(binary.LittleEndian.Uint64(b[17:])); at != 0 {
			e.AppendedAt = time.Unix(0, at)
		}
		data, ext := uint64(binary.LittleEndian.Uint32(b[25:])), uint64(binary.LittleEndian.Uint32(b[29:]))
		b = b[lentHeader:]
		if data+ext > uint64(len(b)) {
			return nil, fmt.Errorf("%w: entry cut short", errFrame)
		}
		if data > 0 {
			e.Data = b[:data:data]
		}
		if ext > 0 {
			e.Extensions = b[data : data+ext : data+ext]
		}
		l.entries, b = append(l.entries, e), b[data+ext:]
	}
	return l, nil
}

// serveLogRead gives another node what it lost. It runs also before Raft does: two damaged nodes can serve each other what is whole.
func (c *Cluster) serveLogRead(ctx context.Context, from string, body []byte) ([]byte, error) {
	q, err := decodeLogRequest(body)
	if err != nil {
		return nil, err
	}
	out := lentEntries{committed: c.committed(), next: q.from}
	if q.anchor > 0 {
		term, err := c.log.rawTermOf(q.anchor)
		out.anchored = err == nil && term == q.anchorTerm
	}
	last, err := c.log.LastIndex()
	if err != nil {
		return nil, err
	}
	base, _ := c.log.Base()
	size := 0
	for i := max(q.from, base+1); i <= min(q.to, last) && ctx.Err() == nil; i++ {
		e := new(raft.Log)
		switch err := c.log.Log.GetLog(i, e); {
		case isDamage(err) || errors.Is(err, raft.ErrLogNotFound): // damaged here too, or just dropped
			out.next = i + 1
			continue
		case err != nil:
			return nil, fmt.Errorf("read entry %d: %w", i, err)
		}
		if size += lentHeader + len(e.Data) + len(e.Extensions); size > lendBytes && len(out.entries) > 0 {
			break
		}
		out.entries, out.next = append(out.entries, e), i+1
	}
	if len(out.entries) > 0 {
		c.logger.Info("entries are lent for a repair", "peer", from, "first", out.entries[0].Index, "last", out.entries[len(out.entries)-1].Index)
	}
	return out.encode(), nil
}
