package replay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"penstock/dlq"
	"penstock/emit"
	"penstock/event"
	"penstock/fsm"
	"penstock/fsm/command"
	"penstock/node/logread"
)

// Cluster is what this package needs of the cluster.
type Cluster interface {
	Propose(ctx context.Context, command []byte) ([]byte, error)
	ReadIndex(ctx context.Context) (uint64, error)
	Call(ctx context.Context, nodeID, method string, body []byte) ([]byte, error)
	Handle(method string, fn func(ctx context.Context, from string, body []byte) ([]byte, error))
	Now() time.Time
}

// letters is the authority over one emitter's dead letters as emit's Replayer asks it: the state machine, and the log.
type letters struct {
	info    fsm.EmitterInfo
	nodeID  string
	machine *fsm.Machine
	reader  *logread.Reader
	cluster Cluster
	volume  *dlq.Volume
	log     *slog.Logger

	// claimed are the letters whose replay is under way in this process, or may be, and by which claim: what else is claimed in
	// this epoch an earlier process left behind.
	mu      sync.Mutex
	claimed map[uint64][16]byte
}

// begin notes what is about to be claimed, unless another claim of ours has it.
func (l *letters) begin(id [16]byte, seqs []uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.claimed == nil {
		l.claimed = map[uint64][16]byte{}
	}
	for _, s := range seqs {
		if _, ok := l.claimed[s]; !ok {
			l.claimed[s] = id
		}
	}
}

// end forgets what the claim had.
func (l *letters) end(id [16]byte, seqs ...uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range seqs {
		if l.claimed[s] == id {
			delete(l.claimed, s)
		}
	}
}

// resolved forgets a letter whose outcome is committed.
func (l *letters) resolved(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.claimed, seq)
}

func (l *letters) underWay(seq uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.claimed[seq]
	return ok
}

const pageSize = 1000

func (l *letters) query(after uint64, limit int) fsm.LetterQuery {
	return fsm.LetterQuery{
		Channel: l.info.Channel, Emitter: l.info.Emitter, Limit: limit,
		After: fsm.LetterCursor{ChannelIndex: l.info.ChannelIndex, EmitterIndex: l.info.EmitterIndex, Seq: after},
	}
}

// each calls fn for each open letter of the emitter until it returns false.
func (l *letters) each(fn func(fsm.DeadLetter) bool) {
	q := l.query(0, pageSize)
	for more := true; more; {
		var page []fsm.DeadLetter
		page, q.After, more = l.machine.DeadLetterPage(q)
		for i := range page {
			if page[i].EmitterIndex == l.info.EmitterIndex && !fn(page[i]) {
				return
			}
		}
	}
}

// Replayable implements emit.Letters.
func (l *letters) Replayable(_ context.Context, after uint64, limit int) ([]emit.Letter, error) {
	q := l.query(after, limit)
	q.Replayable = true
	page, _, _ := l.machine.DeadLetterPage(q)
	out := make([]emit.Letter, 0, len(page))
	for i := range page {
		if page[i].EmitterIndex == l.info.EmitterIndex {
			out = append(out, letterOf(&page[i]))
		}
	}
	return out, nil
}

func letterOf(d *fsm.DeadLetter) emit.Letter {
	return emit.Letter{
		ID: d.ID, Seq: d.Seq, Poison: d.State == fsm.StatePoison, Redeliveries: d.Redeliveries, CompactionID: d.CompactionID,
	}
}

// Find implements emit.Letters.
func (l *letters) Find(_ context.Context, id string) (emit.Letter, emit.LetterState, error) {
	switch f := l.machine.FindLetter(id); {
	case f.Settled:
		return emit.Letter{}, emit.LetterResolved, nil
	case !f.Open || f.Letter.EmitterIndex != l.info.EmitterIndex || f.Letter.ChannelIndex != l.info.ChannelIndex:
		return emit.Letter{}, emit.LetterNotFound, nil
	case f.Letter.Claimed:
		return letterOf(&f.Letter), emit.LetterInProgress, nil
	default:
		return letterOf(&f.Letter), emit.LetterOpen, nil
	}
}

// Compaction implements emit.Letters.
func (l *letters) Compaction(_ context.Context, id string) (out []emit.Letter, err error) {
	l.each(func(d fsm.DeadLetter) bool {
		if d.CompactionID == id {
			out = append(out, letterOf(&d))
		}
		return true
	})
	return out, nil
}

// Load implements emit.Letters.
func (l *letters) Load(_ context.Context, list []emit.Letter) ([]emit.Delivery, error) {
	out := make([]emit.Delivery, 0, len(list))
	for _, x := range list {
		d, ok := l.machine.DeadLetterOf(l.info.ChannelIndex, l.info.EmitterIndex, x.Seq)
		if !ok {
			return nil, fmt.Errorf("dead letter %s was resolved meanwhile", x.ID)
		}
		e, key, err := eventAt(l.reader, d.ChannelIndex, d.Position)
		if err != nil {
			return nil, fmt.Errorf("dead letter %s: %w", x.ID, err)
		}
		out = append(out, emit.Delivery{Seq: x.Seq, Position: d.Position, Event: e, OrderKey: key})
	}
	return out, nil
}

// eventAt reads one event out of the log.
func eventAt(r *logread.Reader, channelIndex uint64, p event.Position) (event.Event, uint64, error) {
	it, err := r.At(channelIndex, p)
	if err != nil {
		return event.Event{}, 0, err
	}
	e, err := it.Batch.Event(it.I)
	return e, it.Batch.Envelope(it.I).OrderKey, err
}

// Claim implements emit.Letters.
func (l *letters) Claim(ctx context.Context, c emit.Claim, seqs []uint64) ([]emit.LetterState, error) {
	l.begin(c.ID, seqs)
	states, err := l.propose(ctx, command.ReplayClaim{
		ChannelIndex: l.info.ChannelIndex, EmitterIndex: l.info.EmitterIndex, Epoch: l.info.Epoch, Node: l.nodeID,
		ID: c.ID, Scheduled: c.Scheduled, Force: c.Force, Seqs: seqs,
	})
	out := make([]emit.LetterState, len(states))
	for i, s := range states {
		if out[i] = letterStates[s]; s != command.LetterDone {
			l.end(c.ID, seqs[i])
		}
	}
	return out, err
}

var letterStates = map[command.LetterState]emit.LetterState{
	command.LetterDone: emit.LetterOpen, command.LetterNotFound: emit.LetterNotFound, command.LetterResolved: emit.LetterResolved,
	command.LetterInProgress: emit.LetterInProgress, command.LetterExhausted: emit.LetterExhausted,
	command.LetterForbidden: emit.LetterForbidden,
}

// Release implements emit.Letters.
func (l *letters) Release(ctx context.Context, c emit.Claim, seqs []uint64) error {
	defer l.end(c.ID, seqs...)
	return l.release(ctx, c, seqs)
}

func (l *letters) release(ctx context.Context, c emit.Claim, seqs []uint64) error {
	_, err := l.propose(ctx, command.ReplayRelease{
		ChannelIndex: l.info.ChannelIndex, EmitterIndex: l.info.EmitterIndex, Epoch: l.info.Epoch, Node: l.nodeID, ID: c.ID, Seqs: seqs,
	})
	return err
}

// ReleaseStale implements emit.Letters.
func (l *letters) ReleaseStale(ctx context.Context) error {
	// What the process before had committed is known here only now.
	if _, err := l.cluster.ReadIndex(ctx); err != nil {
		return err
	}
	claims := map[[16]byte][]uint64{}
	l.each(func(d fsm.DeadLetter) bool {
		if d.Claimed && !l.underWay(d.Seq) {
			claims[d.ClaimID] = append(claims[d.ClaimID], d.Seq)
		}
		return true
	})
	for id, seqs := range claims {
		err := l.release(ctx, emit.Claim{ID: id}, seqs)
		if err != nil && !errors.Is(err, emit.ErrStaleEpoch) { // another epoch has ended them already
			return err
		}
		l.log.Info("claims of an earlier process released", "channel", l.info.Channel, "emitter", l.info.Emitter, "letters", len(seqs))
	}
	return nil
}

func (l *letters) propose(ctx context.Context, c command.Command) ([]command.LetterState, error) {
	return proposeLetters(ctx, l.cluster, c)
}

func proposeLetters(ctx context.Context, cluster Cluster, c command.Command) ([]command.LetterState, error) {
	answer, err := cluster.Propose(ctx, command.Encode(c))
	if err != nil {
		return nil, err
	}
	res, err := command.DecodeLettersResult(answer)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", c.Kind(), err)
	case res.Status == command.StaleEpoch || res.Status == command.NoSuchEmitter:
		return nil, emit.ErrStaleEpoch
	case res.Status != command.OK:
		return nil, fmt.Errorf("%s refused: %s", c.Kind(), res.Status)
	}
	return res.States, nil
}

// Resolved implements emit.Letters.
func (l *letters) Resolved(ctx context.Context, results []emit.LetterResult) {
	changes := make([]dlq.Change, len(results))
	for i, r := range results {
		l.resolved(r.Letter.Seq)
		changes[i] = dlq.Change{ID: r.Letter.ID, Resolved: r.Delivered, RedeliveryCount: int(r.Letter.Redeliveries)}
		if !r.Delivered {
			changes[i].Attempt = &dlq.Attempt{
				At: r.Attempt.At, Class: r.Attempt.Class.String(), Status: r.Attempt.Status, Error: r.Attempt.Reason, Response: r.Attempt.Body,
			}
		}
	}
	if err := l.volume.Update(ctx, changes); err != nil {
		l.log.Warn("dead-letter volume does not take the end of a replay; maintenance will", "error", err)
	}
}
