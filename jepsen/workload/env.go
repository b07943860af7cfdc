package workload

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"time"

	"penstock/jepsen/client"
	"penstock/jepsen/history"
)

// Env is what all clients of a run share.
type Env struct {
	Clients []*client.Client // one per node
	Clock   history.Clock
	Dir     string // of the histories
	Seed    uint64
	// Acked counts acknowledged events, for progress and the liveness phase.
	Acked atomic.Int64
	// LastAck is the time (Clock) of the newest acknowledgement.
	LastAck atomic.Int64
}

// random gives each client a stream of its own that follows from the seed.
func (e *Env) random(name string) *rand.Rand {
	h := fnv.New64a()
	h.Write(binary.LittleEndian.AppendUint64(nil, e.Seed))
	h.Write([]byte(name))
	return rand.New(rand.NewPCG(e.Seed, h.Sum64()))
}

// recorder is one client's history.
type recorder struct {
	env    *Env
	name   string
	out    *history.Writer[history.Op]
	seq    uint64
	random *rand.Rand
}

func (e *Env) recorder(name string) (*recorder, error) {
	out, err := history.Create[history.Op](filepath.Join(e.Dir, name+".jsonl"))
	if err != nil {
		return nil, err
	}
	return &recorder{env: e, name: name, out: out, random: e.random(name)}, nil
}

// invoke records that an operation starts and returns the operation for its completion.
func (r *recorder) invoke(op history.Op) history.Op {
	r.seq++
	op.Client, op.Seq, op.T, op.Type = r.name, r.seq, r.env.Clock.Now(), history.Invoke
	r.out.Append(op)
	return op
}

// complete records how it ended. What the invocation said already is not repeated.
func (r *recorder) complete(op history.Op, a client.Answer) history.Op {
	op.T = r.env.Clock.Now()
	op.IDs, op.Sums, op.From = nil, nil, ""
	op.Status, op.Problem = a.Status, a.Problem
	switch a.Outcome {
	case client.Done:
		op.Type = history.OK
	case client.NotDone:
		op.Type, op.Error = history.Fail, a.Error()
	default:
		op.Type, op.Error = history.Info, a.Error()
	}
	r.out.Append(op)
	return op
}

// node picks a node: mostly the one used before, as real clients do, sometimes another, always another after a failure.
func (r *recorder) node(current *client.Client, failed bool) *client.Client {
	if current != nil && !failed && r.random.IntN(20) != 0 {
		return current
	}
	return r.env.Clients[r.random.IntN(len(r.env.Clients))]
}

func (e *Env) acked(n int) {
	e.Acked.Add(int64(n))
	e.LastAck.Store(e.Clock.Now())
}

// pause waits unless ctx ends first.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// payload is the data of one event: who wrote it, its number, and padding that differs in size.
func payload(r *rand.Rand, process string, n uint64) []byte {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	size := 16 + r.IntN(240)
	if r.IntN(50) == 0 {
		size = 4096 + r.IntN(8192)
	}
	pad := make([]byte, size)
	for i := range pad {
		pad[i] = letters[r.IntN(len(letters))]
	}
	return fmt.Appendf(nil, `{"process":%q,"n":%d,"pad":"%s"}`, process, n, pad)
}
