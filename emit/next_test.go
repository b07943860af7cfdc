package emit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/spec"
)

func TestTheNextAttemptIsAPureFunctionOfWhatIsKnown(t *testing.T) {
	retry := spec.Retry{TTL: spec.Duration(10 * time.Minute), MaxAttempts: 8, Backoff: spec.Backoff{
		Min: spec.Duration(time.Second), Max: spec.Duration(4 * time.Minute),
	}}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	tried := func(n uint32, age time.Duration, class Class) Tried {
		return Tried{Attempts: n, FirstFailed: at.Add(-age), LastFailed: at, Class: class}
	}
	for name, c := range map[string]struct {
		tried Tried
		parks bool
		asked time.Duration
		want  NextAttempt
	}{
		"nothing tried":               {want: NextAttempt{}},
		"the first backoff":           {tried: tried(1, 0, ClassTransient), want: NextAttempt{At: at.Add(time.Second)}},
		"the third":                   {tried: tried(3, time.Minute, ClassTransient), want: NextAttempt{At: at.Add(4 * time.Second)}},
		"auth waits as transient":     {tried: tried(3, time.Minute, ClassAuth), want: NextAttempt{At: at.Add(4 * time.Second)}},
		"clamped to the ttl":          {tried: tried(7, 9*time.Minute+30*time.Second, ClassTransient), want: NextAttempt{At: at.Add(30 * time.Second), Last: true}},
		"Retry-After goes before ttl": {tried: tried(2, 9*time.Minute+30*time.Second, ClassTransient), asked: 2 * time.Minute, want: NextAttempt{At: at.Add(2 * time.Minute)}},
		"Retry-After is bounded":      {tried: tried(1, 0, ClassTransient), asked: 7 * 24 * time.Hour, want: NextAttempt{At: at.Add(4 * time.Minute)}},
		"attempts are used up":        {tried: tried(8, time.Minute, ClassTransient), want: NextAttempt{At: at.Add(2*time.Minute + 8*time.Second), Spent: "retry.max_attempts 8 used up"}},
		"it parks":                    {tried: tried(8, time.Minute, ClassTransient), parks: true, want: NextAttempt{At: at.Add(4 * time.Minute), Spent: "retry.max_attempts 8 used up", Parked: true}},
		"refused for good":            {tried: tried(1, 0, ClassPermanent), want: NextAttempt{At: at.Add(time.Second), Spent: "the destination refused it for good"}},
		"the ttl is used up":          {tried: tried(5, 10*time.Minute, ClassTransient), want: NextAttempt{At: at.Add(time.Second), Last: true, Spent: "retry.ttl 10m0s used up after 5 attempts"}},
	} {
		require.Equal(t, c.want, Next(retry, 1, c.tried, c.parks, c.asked), name)
	}
}
