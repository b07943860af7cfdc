package emit

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"penstock/internal/spec"
)

func TestBackoffStaysWithinItsBoundsWhateverTheNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lo := rapid.Int64Range(1, math.MaxInt64).Draw(t, "min")
		hi := rapid.Int64Range(1, math.MaxInt64).Draw(t, "max")
		retry := spec.Retry{Backoff: spec.Backoff{
			Min: spec.Duration(lo), Max: spec.Duration(hi), Jitter: rapid.Float64().Draw(t, "jitter"),
		}}
		seed, attempt := rapid.Uint64().Draw(t, "seed"), rapid.IntRange(-5, math.MaxInt).Draw(t, "attempt")
		from, to := backoffBounds(retry)
		d := Backoff(retry, seed, attempt)
		require.GreaterOrEqual(t, d, from)
		require.LessOrEqual(t, d, to)
		require.Equal(t, d, Backoff(retry, seed, attempt), "deterministic")
		asked := time.Duration(rapid.Int64().Draw(t, "asked"))
		r := retryDelay(retry, seed, attempt, asked)
		require.GreaterOrEqual(t, r, d)
		require.LessOrEqual(t, r, to)
		if asked > 0 {
			require.GreaterOrEqual(t, r, min(asked, to))
		}
	})
}

func TestJitterSpreadsAtEveryStep(t *testing.T) {
	retry := spec.Retry{Backoff: spec.Backoff{Min: spec.Duration(time.Second), Max: spec.Duration(5 * time.Minute), Jitter: 0.2}}
	for _, attempt := range []int{1, 4, 1000} {
		lowest, highest := time.Duration(math.MaxInt64), time.Duration(0)
		for seed := range uint64(1000) {
			d := Backoff(retry, seed, attempt)
			lowest, highest = min(lowest, d), max(highest, d)
		}
		require.Greater(t, float64(highest-lowest), 0.15*float64(highest), "attempt %d", attempt)
	}
	require.GreaterOrEqual(t, Backoff(retry, 1, 1), time.Second)
	require.LessOrEqual(t, Backoff(retry, 1, 1), 1200*time.Millisecond)
}

func TestB14RetryAfterIsHonouredAndBounded(t *testing.T) {
	retry := spec.Retry{Backoff: spec.Backoff{Min: spec.Duration(time.Second), Max: spec.Duration(5 * time.Minute), Jitter: 0.2}}
	for seed := range uint64(200) {
		d := retryDelay(retry, seed, 1, 7*time.Second)
		require.GreaterOrEqual(t, d, 7*time.Second)
		require.LessOrEqual(t, d, 10*time.Second)
		require.Equal(t, 5*time.Minute, retryDelay(retry, seed, 1, 7*24*time.Hour))
		require.Equal(t, Backoff(retry, seed, 1), retryDelay(retry, seed, 1, 0))
		require.Equal(t, Backoff(retry, seed, 1), retryDelay(retry, seed, 1, -time.Second))
	}
}
