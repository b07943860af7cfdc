package emit

import (
	"context"
	"crypto/rand"
	"time"
)

// The stop rules of a scan: so many failures in a row, or more than half of at least so many attempts.
const (
	scanFailures = 3
	scanSample   = 10
	scanPage     = 64
)

// Run replays by schedule until ctx ends: every Scan, each letter that is below max_retries at most once, one at a time, at a
// bounded and ramped rate. A destination that does not work at full pace gets one replay a scan, as a probe. A scan ends when
// its replays fail; the next one goes on behind the letter it ended at, so that those which fail never keep the others from
// their turn.
func (r *Replayer) Run(ctx context.Context) {
	// Emitters that share an interval do not scan at the same moment.
	spread := float64ToDuration(float64(r.cfg.Scan) * fraction(Seed(r.cfg.ChannelIndex, r.cfg.EmitterIndex, 0), 1))
	sleep(ctx, spread)
	var after uint64
	for ctx.Err() == nil {
		if r.deps.Lease.Valid() {
			r.releaseStale(ctx) // a claim of an earlier process may have been committed after Prepare
			after = r.scan(ctx, after)
		}
		sleep(ctx, r.cfg.Scan)
	}
}

// Prepare gives back what an earlier process of this node claimed in this epoch. Call it before anything is replayed; it tries
// until it succeeds or ctx ends, and tells which.
func (r *Replayer) Prepare(ctx context.Context) bool {
	for ctx.Err() == nil {
		if r.releaseStale(ctx) {
			return true
		}
		sleep(ctx, time.Second)
	}
	return false
}

func (r *Replayer) releaseStale(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	err := r.deps.Letters.ReleaseStale(ctx)
	if err != nil {
		r.log.Warn("replay claims of an earlier process are not released", "error", err)
	}
	return err == nil
}

// scan goes once round the letters, beginning above after, and gives where the next scan begins.
func (r *Replayer) scan(ctx context.Context, after uint64) uint64 {
	var (
		start, wrapped = after, after == 0
		tried, failed  int
		row            int // failures in a row
		rate           = min(1, r.cfg.Rate)
		delivered      int
		log            = r.log
	)
	defer func() {
		if tried > 0 {
			log.Info("scheduled replay ended", "tried", tried, "delivered", delivered)
		}
	}()
	for {
		page, err := r.deps.Letters.Replayable(ctx, after, scanPage)
		if err != nil {
			log.Warn("dead letters cannot be listed", "error", err)
			return after
		}
		if len(page) == 0 {
			if wrapped || start == 0 {
				return 0
			}
			after, wrapped = 0, true
			continue
		}
		for len(page) > 0 {
			u := r.nextUnit(ctx, &page)
			last := u.letters[len(u.letters)-1].Seq
			if wrapped && start > 0 && u.letters[0].Seq > start {
				return 0
			}
			if ctx.Err() != nil || !r.deps.Lease.Valid() {
				return after
			}
			healthy := r.gate.Healthy(time.Now())
			if u.entered, _ = r.gate.Enter(time.Now(), true); !u.entered {
				return after
			}
			after = last
			ok, made := r.attempt(u)
			if !made { // taken by somebody else, or not to be had now
				sleep(ctx, 50*time.Millisecond)
				continue
			}
			tried++
			if ok {
				delivered++
				row, rate = 0, min(2*rate, r.cfg.Rate)
			} else {
				failed++
				row, rate = row+1, min(1, r.cfg.Rate)
			}
			if row >= scanFailures || (row > 0 && !healthy) || (tried >= scanSample && 2*failed > tried) {
				log.Warn("scheduled replay stopped: too many fail", "tried", tried, "failed", failed)
				return after
			}
			sleep(ctx, float64ToDuration(float64(time.Second)/rate))
		}
	}
}

// nextUnit takes the next unit off the page.
func (r *Replayer) nextUnit(ctx context.Context, page *[]Letter) unit {
	first := (*page)[0]
	u := unit{claim: Claim{Scheduled: true}, letters: (*page)[:1:1], answer: func(ReplayStatus) {}}
	_, _ = rand.Read(u.claim.ID[:])
	*page = (*page)[1:]
	if !r.cfg.Whole || first.CompactionID == "" {
		return u
	}
	if all, err := r.deps.Letters.Compaction(ctx, first.CompactionID); err == nil && len(all) > 0 {
		u.letters = all
		last := all[len(all)-1].Seq
		for len(*page) > 0 && (*page)[0].Seq <= last {
			*page = (*page)[1:]
		}
	}
	return u
}
