package cluster

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// entriesAtWork is how many entries may be on their way through Raft while a further one is still gathering. Below it an entry
	// goes out at once, so an idle leader adds no wait; at it commands gather until one of the entries is through or there is enough
	// for a full one.
	entriesAtWork = 3
	// entriesAtMost bounds full entries. It is below MaxAppendEntries, the capacity of Raft's apply channel, so that Apply never waits.
	entriesAtMost = 32
	applyEnqueue  = 2 * time.Second
	commandExtra  = 128 // what one command costs beside its bytes, for admission
)

// A proposal is queued, then either taken into an entry or dropped; which of the two is decided once, by compare-and-swap, and it is
// what separates "certainly not committed" from "unknown" when the caller's time runs out.
const (
	stateQueued int32 = iota
	stateTaken
	stateDropped
)

type proposal struct {
	ctx     context.Context
	command []byte
	state   atomic.Int32
	done    chan proposalResult // capacity 1, sent to once
	leave   func()              // gives back its admission, when nothing holds the command any more
}

func (p *proposal) end(result []byte, err *ProposeError) {
	p.done <- proposalResult{result, err}
	p.leave()
}

type proposalResult struct {
	result []byte
	err    *ProposeError
}

// gatherer is a leader's group commit: it makes entries of the commands that wait and gives each command its result.
type gatherer struct {
	apply  func(data []byte, timeout time.Duration) raft.ApplyFuture
	build  func(commands [][]byte) []byte // the entry, with its stamp
	target int                            // bytes of commands an entry aims at
	notify chan struct{}
	wg     sync.WaitGroup

	mu struct {
		sync.Mutex
		closed *ProposeError
		queue  []*proposal
		bytes  int
		atWork int
	}
}

func newGatherer(target int, build func([][]byte) []byte, apply func([]byte, time.Duration) raft.ApplyFuture) *gatherer {
	return &gatherer{apply: apply, build: build, target: target, notify: make(chan struct{}, 1)}
}

func (g *gatherer) wake() {
	select {
	case g.notify <- struct{}{}:
	default:
	}
}

// propose waits for the result of command or the end of ctx. leave is called once, when the command is no longer held: that is later
// than the return if ctx ends first.
func (g *gatherer) propose(ctx context.Context, command []byte, leave func()) ([]byte, *ProposeError) {
	p := &proposal{ctx: ctx, command: command, done: make(chan proposalResult, 1), leave: leave}
	g.mu.Lock()
	if err := g.mu.closed; err != nil {
		g.mu.Unlock()
		leave()
		return nil, err
	}
	g.mu.queue = append(g.mu.queue, p)
	g.mu.bytes += len(command)
	g.mu.Unlock()
	g.wake()
	select {
	case r := <-p.done:
		return r.result, r.err
	case <-ctx.Done():
	}
	if p.state.CompareAndSwap(stateQueued, stateDropped) {
		return nil, notCommitted(ReasonDeadline, ctx.Err())
	}
	select {
	case r := <-p.done:
		return r.result, r.err
	default:
	}
	if p.state.Load() == stateDropped {
		return nil, notCommitted(ReasonDeadline, ctx.Err())
	}
	return nil, unknown(ReasonDeadline, ctx.Err())
}

// run makes entries until ctx ends; what still waits then was never given to Raft.
func (g *gatherer) run(ctx context.Context, why *ProposeError) {
	for {
		if ctx.Err() == nil { // not a moment longer: the stamps of a later leader may be ahead of ours
			if batch := g.take(); len(batch) > 0 {
				g.submit(batch)
				continue
			}
		}
		select {
		case <-g.notify:
		case <-ctx.Done():
			g.close(why)
			return
		}
	}
}

// take removes the commands of the next entry from the queue, or nothing if it is not time for one. A command past its deadline is
// dropped here, the last moment at which that is certain.
func (g *gatherer) take() []*proposal {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.atWork >= entriesAtMost || g.mu.atWork >= entriesAtWork && g.mu.bytes < g.target {
		return nil
	}
	var batch []*proposal
	size, n := 0, 0
	for _, p := range g.mu.queue {
		if len(batch) > 0 && size+len(p.command) > g.target {
			break
		}
		n++
		g.mu.bytes -= len(p.command)
		if err := p.ctx.Err(); err != nil {
			if p.state.CompareAndSwap(stateQueued, stateDropped) {
				p.end(nil, notCommitted(ReasonDeadline, err))
			} else {
				p.leave()
			}
			continue
		}
		if p.state.CompareAndSwap(stateQueued, stateTaken) {
			batch = append(batch, p)
			size += len(p.command)
		} else {
			p.leave() // its caller left a moment ago
		}
	}
	clear(g.mu.queue[:n])
	g.mu.queue = g.mu.queue[n:]
	if len(g.mu.queue) == 0 {
		g.mu.queue = nil
	}
	if len(batch) > 0 {
		g.mu.atWork++
	}
	return batch
}

func (g *gatherer) submit(batch []*proposal) {
	commands := make([][]byte, len(batch))
	for i, p := range batch {
		commands[i] = p.command
	}
	future := g.apply(g.build(commands), applyEnqueue)
	// A future may never be answered (hashicorp/raft#498). Only this goroutine waits for it; callers have their own deadlines.
	g.wg.Go(func() {
		g.finish(batch, future)
		g.mu.Lock()
		g.mu.atWork--
		g.mu.Unlock()
		g.wake()
	})
}

var errNoResult = errors.New("the entry was applied without a result for this command")

func (g *gatherer) finish(batch []*proposal, future raft.ApplyFuture) {
	perr := classifyApply(future.Error())
	var results [][]byte
	if perr == nil {
		switch v := future.Response().(type) {
		case [][]byte:
			results = v
		case error:
			perr = unknown(ReasonInternal, v)
		}
		if perr == nil && len(results) != len(batch) {
			perr = unknown(ReasonInternal, errNoResult)
		}
	}
	for i, p := range batch {
		if perr != nil {
			p.end(nil, perr)
		} else {
			p.end(results[i], nil)
		}
	}
}

// close refuses what waits and whatever comes.
func (g *gatherer) close(why *ProposeError) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.closed = why
	for _, p := range g.mu.queue {
		if p.state.CompareAndSwap(stateQueued, stateDropped) {
			p.end(nil, why)
		} else {
			p.leave()
		}
	}
	g.mu.queue, g.mu.bytes = nil, 0
}

// idle tells whether nothing waits and nothing is at work.
func (g *gatherer) idle() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.mu.queue) == 0 && g.mu.atWork == 0
}

// admission bounds the bytes of proposals in flight on this node.
type admission struct {
	limit int64
	used  atomic.Int64
}

func (a *admission) enter(n int64) bool {
	if a.used.Add(n) > a.limit {
		a.used.Add(-n)
		return false
	}
	return true
}

func (a *admission) leave(n int64) { a.used.Add(-n) }
