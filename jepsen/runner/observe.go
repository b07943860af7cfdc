package runner

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"penstock/jepsen/client"
	"penstock/jepsen/history"
)

// observer asks every node about itself, several times a second, and remembers the newest answers.
type observer struct {
	clock history.Clock
	out   *history.Writer[history.Observation]

	mu     sync.Mutex
	newest map[string]history.Observation
}

const observeEvery = 250 * time.Millisecond

func (o *observer) follow(ctx context.Context, c *client.Client) {
	for ctx.Err() == nil {
		o.note(o.look(ctx, c))
		select {
		case <-ctx.Done():
		case <-time.After(observeEvery):
		}
	}
}

func (o *observer) look(ctx context.Context, c *client.Client) history.Observation {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	v, err := c.Cluster(ctx)
	obs := history.Observation{T: o.clock.Now(), Node: c.Node, Up: err == nil}
	if err != nil {
		return obs
	}
	obs.State, obs.Leader, obs.Term = strings.ToLower(v.State), v.Leader, v.Term
	obs.Commit, obs.Applied, obs.First, obs.Last = v.Commit, v.Applied, v.First, v.Last
	if len(v.Hashes) > 0 {
		obs.Hashes = map[string]string{}
		for _, h := range v.Hashes {
			obs.Hashes[strconv.FormatUint(h.K, 10)] = strconv.FormatUint(h.Index, 10) + ":" + h.Hash
		}
	}
	return obs
}

func (o *observer) note(obs history.Observation) {
	o.mu.Lock()
	was := o.newest[obs.Node]
	o.newest[obs.Node] = obs
	o.mu.Unlock()
	if was.Hashes != nil && obs.Hashes != nil { // the ring repeats itself in each answer; only what is new is kept
		fresh := map[string]string{}
		for k, h := range obs.Hashes {
			if was.Hashes[k] != h {
				fresh[k] = h
			}
		}
		obs.Hashes = fresh
	}
	o.out.Append(obs)
}

// leader is the host that last called itself leader of the highest term, "" when none did within two seconds.
func (o *observer) leader() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var best history.Observation
	for _, obs := range o.newest {
		if obs.Up && obs.State == "leader" && obs.Term > best.Term && o.clock.Now()-obs.T < int64(2*time.Second) {
			best = obs
		}
	}
	return best.Node
}

// highest is the highest applied index any node has shown so far. (Not the commit index: the state machine's applied index
// does not count the entries Raft makes for itself, so an idle cluster never shows the two equal after an election.)
func (o *observer) highest() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	var top uint64
	for _, obs := range o.newest {
		top = max(top, obs.Applied)
	}
	return top
}
