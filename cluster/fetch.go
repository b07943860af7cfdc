package cluster

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	methodSnapOpen = "cluster.snapshot-open"
	methodSnapRead = "cluster.snapshot-read"
	fetchChunk     = 1 << 20
	fetchIdle      = 30 * time.Second // an unread snapshot is closed after this
	maxFetches     = 4                // snapshots that others read here at once
)

// Raft cannot start on a node whose snapshots all end below its log's base and whose state does not reach it either: there is no state
// to go on from. Such a node takes a snapshot from a peer first, over peer requests: one opens it there and pins the floor, the others
// read it piece by piece.

type snapOffer struct {
	Token      uint64 `json:"token"`
	LabelIndex uint64 `json:"label_index"`
	LabelTerm  uint64 `json:"label_term"`
	Size       int64  `json:"size"`
	Conf       []byte `json:"configuration"`
	ConfIndex  uint64 `json:"configuration_index"`
}

// fetchTable holds the snapshots that others read from this node.
type fetchTable struct {
	mu   sync.Mutex
	open map[uint64]*fetchSession
}

type fetchSession struct {
	r     io.ReadCloser
	at    int64
	timer *time.Timer
}

func (t *fetchTable) close(token uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.open[token]; s != nil {
		s.timer.Stop()
		s.r.Close()
		delete(t.open, token)
	}
}

func (t *fetchTable) closeAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for token, s := range t.open {
		s.timer.Stop()
		s.r.Close()
		delete(t.open, token)
	}
}

func (c *Cluster) serveSnapOpen(_ context.Context, from string, _ []byte) ([]byte, error) {
	newest := c.snaps.newest()
	if newest == nil {
		return nil, errors.New("no snapshot here")
	}
	meta, r, err := c.snaps.Open(newest.ID)
	if err != nil {
		return nil, err
	}
	c.fetches.mu.Lock()
	defer c.fetches.mu.Unlock()
	if len(c.fetches.open) >= maxFetches {
		r.Close()
		return nil, errBusy
	}
	if sr, ok := r.(*snapshotReader); ok {
		sr.assign(from)
	}
	var b [8]byte
	rand.Read(b[:])
	token := binary.LittleEndian.Uint64(b[:])
	if c.fetches.open == nil {
		c.fetches.open = map[uint64]*fetchSession{}
	}
	c.fetches.open[token] = &fetchSession{r: r, timer: time.AfterFunc(fetchIdle, func() { c.fetches.close(token) })}
	c.logger.Info("a snapshot is fetched from here", "peer", from, "label", meta.Index)
	return json.Marshal(snapOffer{
		Token: token, LabelIndex: meta.Index, LabelTerm: meta.Term, Size: meta.Size,
		Conf: raft.EncodeConfiguration(meta.Configuration), ConfIndex: meta.ConfigurationIndex,
	})
}

// serveSnapRead gives the piece at an offset, which must be where the last one ended. The body is token and offset, u64 each.
func (c *Cluster) serveSnapRead(_ context.Context, _ string, body []byte) ([]byte, error) {
	if len(body) != 16 {
		return nil, fmt.Errorf("%w: snapshot read of %d bytes", errFrame, len(body))
	}
	token, at := binary.LittleEndian.Uint64(body), int64(binary.LittleEndian.Uint64(body[8:]))
	c.fetches.mu.Lock()
	defer c.fetches.mu.Unlock() // a read of one file piece under the lock; there are few readers
	s := c.fetches.open[token]
	if s == nil || s.at != at {
		return nil, errors.New("no such snapshot is open, or not at this offset")
	}
	s.timer.Reset(fetchIdle)
	b := make([]byte, fetchChunk)
	n, err := io.ReadFull(s.r, b)
	s.at += int64(n)
	if err == nil {
		return b[:n], nil
	}
	s.timer.Stop()
	s.r.Close()
	delete(c.fetches.open, token)
	if err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	return b[:n], nil
}

// fetchFrom takes the newest snapshot of a peer and makes it this node's.
func (c *Cluster) fetchFrom(ctx context.Context, node string) error {
	b, err := c.client.call(ctx, laneBulk, node, methodSnapOpen, nil)
	if err != nil {
		return err
	}
	var offer snapOffer
	if err := json.Unmarshal(b, &offer); err != nil {
		return fmt.Errorf("decode the offer of a snapshot: %w", err)
	}
	label, term := offer.LabelIndex, offer.LabelTerm
	if base, baseTerm := c.log.Base(); label < base { // this log begins above the label: it goes on from its own base
		label, term = base, baseTerm
	}
	sink, err := c.snaps.Create(1, label, term, raft.DecodeConfiguration(offer.Conf), offer.ConfIndex, nil)
	if err != nil {
		return err
	}
	k := sink.(*snapshotSink)
	k.fetched = true
	r := &fetchReader{ctx: ctx, c: c, node: node, offer: offer}
	if _, err := io.CopyN(k, r, offer.Size); err != nil {
		k.Cancel()
		return err
	}
	if err := c.raiseTerm(max(term, k.meta.StateTerm)); err != nil {
		k.Cancel()
		return err
	}
	if err := k.Close(); err != nil {
		return err
	}
	c.logger.Info("a snapshot was fetched", "peer", node, "label", label, "applied", k.meta.StateIndex)
	return c.openCheck()
}

type fetchReader struct {
	ctx   context.Context
	c     *Cluster
	node  string
	offer snapOffer
	at    int64
	left  []byte
}

func (r *fetchReader) Read(p []byte) (int, error) {
	if len(r.left) == 0 {
		ctx, cancel := context.WithTimeout(r.ctx, defaultCall)
		defer cancel()
		body := binary.LittleEndian.AppendUint64(nil, r.offer.Token)
		b, err := r.c.client.call(ctx, laneBulk, r.node, methodSnapRead, binary.LittleEndian.AppendUint64(body, uint64(r.at)))
		if err != nil {
			return 0, err
		}
		if len(b) == 0 {
			return 0, io.ErrUnexpectedEOF
		}
		r.left, r.at = b, r.at+int64(len(b))
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

// fetchSnapshot asks those that answered, one after the other.
func (c *Cluster) fetchSnapshot(ctx context.Context, answers []helloAnswer) error {
	errs := []error{errors.New("a snapshot that reaches the log's base")}
	for _, a := range answers {
		if a.err != nil || a.Self.ID == c.cfg.NodeID {
			continue
		}
		err := c.fetchFrom(ctx, a.Self.ID)
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", a.Self.ID, err))
	}
	return errors.Join(errs...)
}
