package emit

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/cespare/xxhash/v2"

	"penstock/internal/spec"
)

// Seed is a delivery's share of the jitter: the same for the compaction that begins at the sequence number first on every node.
func Seed(channelIndex, emitterIndex, first uint64) uint64 {
	var b [24]byte
	binary.LittleEndian.PutUint64(b[0:], channelIndex)
	binary.LittleEndian.PutUint64(b[8:], emitterIndex)
	binary.LittleEndian.PutUint64(b[16:], first)
	return xxhash.Sum64(b[:])
}

// Backoff is the wait after the attempt-th failed attempt (1 is the first): retry.backoff.min doubled attempt-1 times, at
// most max, spread by the jitter j over [base(1-j), base(1+j)], and cut to [min, max]. It depends on nothing but its
// arguments, so every node, and explain, sees the same schedule. It never overflows.
func Backoff(retry spec.Retry, deliverySeed uint64, attempt int) time.Duration {
	lo, hi := backoffBounds(retry)
	base := lo
	for i := 1; i < attempt && base < hi; i++ {
		if base > hi/2 {
			base = hi
			break
		}
		base *= 2
	}
	j := clampFraction(retry.Backoff.Jitter)
	from := min(base, max(lo, float64ToDuration(float64(base)*(1-j))))
	to := min(hi, float64ToDuration(float64(base)*(1+j)))
	if to <= from {
		return from
	}
	return min(to, from+float64ToDuration(float64(to-from)*fraction(deliverySeed, attempt)))
}

// retryDelay is Backoff, or longer when the destination asked for it: Retry-After is honoured with a little jitter on top, so
// that those who were sent away together do not come back together, and is bounded by backoff.max.
func retryDelay(retry spec.Retry, seed uint64, attempt int, asked time.Duration) time.Duration {
	wait := Backoff(retry, seed, attempt)
	if asked <= 0 {
		return wait
	}
	_, hi := backoffBounds(retry)
	asked = min(asked, hi)
	spread := float64ToDuration(float64(asked) * clampFraction(retry.Backoff.Jitter) * fraction(seed, attempt))
	return max(wait, asked+min(hi-asked, spread))
}

func backoffBounds(retry spec.Retry) (lo, hi time.Duration) {
	lo = max(time.Duration(retry.Backoff.Min), time.Millisecond)
	hi = max(time.Duration(retry.Backoff.Max), lo)
	return lo, hi
}

func clampFraction(j float64) float64 {
	if math.IsNaN(j) || j < 0 {
		return 0
	}
	return min(j, 1)
}

// float64ToDuration saturates: a float64 of a large Duration may round up past the largest one.
func float64ToDuration(f float64) time.Duration {
	if f >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(f)
}

// fraction is a fixed point in [0, 1) for each seed and attempt (splitmix64).
func fraction(seed uint64, attempt int) float64 {
	z := seed + uint64(attempt)*0x9e3779b97f4a7c15
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	z ^= z >> 31
	return float64(z>>11) / (1 << 53)
}
