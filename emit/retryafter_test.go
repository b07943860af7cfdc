package emit

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/spec"
)

// TestB14EveryFormOfRetryAfterOnTheWire: seconds and a date are honoured, what is past, negative, junk or repeated falls back to the
// backoff and never to no wait, and what is huge is capped; each to a destination of its own, at once, beside one that is well.
func TestB14EveryFormOfRetryAfterOnTheWire(t *testing.T) {
	const least, most = 200 * time.Millisecond, 8 * time.Second
	for name, c := range map[string]struct {
		header   []string
		from, to time.Duration
	}{
		"seconds":  {[]string{"7"}, 7 * time.Second, 10 * time.Second},
		"date":     {[]string{time.Now().Add(8 * time.Second).UTC().Format(http.TimeFormat)}, 5 * time.Second, 10 * time.Second},
		"past":     {[]string{"Wed, 21 Oct 2015 07:28:00 GMT"}, least * 8 / 10, 5 * time.Second},
		"negative": {[]string{"-5"}, least * 8 / 10, 5 * time.Second},
		"junk":     {[]string{"1000abc"}, least * 8 / 10, 5 * time.Second},
		"overflow": {[]string{"99999999999"}, most * 8 / 10, 12 * time.Second},
		"a week":   {[]string{"604800"}, most * 8 / 10, 12 * time.Second},
		"repeated": {[]string{"1", "junk"}, least * 8 / 10, 5 * time.Second},
	} {
		for _, status := range []int{503, 429} {
			t.Run(fmt.Sprint(name, status), func(t *testing.T) {
				t.Parallel()
				var mu sync.Mutex
				var at []time.Time
				g := newTarget(t, func(_ string, w http.ResponseWriter, _ *http.Request) {
					mu.Lock()
					defer mu.Unlock()
					if at = append(at, time.Now()); len(at) == 1 {
						for _, h := range c.header {
							w.Header().Add("Retry-After", h)
						}
						w.WriteHeader(status)
					}
				})
				w := newWorld(t)
				w.add(1)
				cfg := quick(g.URL)
				cfg.Emitter.Retry.Backoff = spec.Backoff{Min: spec.Duration(least), Max: spec.Duration(most), Jitter: 0.2}
				stop := w.startWith(cfg, webhookSink(t, cfg))
				require.Eventually(t, func() bool { return w.kind(1) == Delivered }, 30*time.Second, 5*time.Millisecond)
				noError(t, stop)
				gap := at[1].Sub(at[0])
				require.GreaterOrEqual(t, gap, c.from)
				require.LessOrEqual(t, gap, c.to)
			})
		}
	}
}
