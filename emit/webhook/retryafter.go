package webhook

import (
	"math"
	"net/http"
	"strings"
	"time"
)

// parseRetryAfter gives how long an answer asks to wait, 0 when it does not, or says it in no form that exists.
//
// Both forms count: whole seconds, and a date, which is measured against the answer's own Date when it has one, so that the
// difference between two clocks does not matter. What is in the past, negative, or junk ("1000abc") is ignored. Of a repeated
// header the longest wait that makes sense counts. Whoever asks bounds the result.
func parseRetryAfter(h http.Header, now time.Time) time.Duration {
	var longest time.Duration
	for _, v := range h.Values("Retry-After") {
		v = strings.TrimSpace(v)
		if d, ok := parseSeconds(v); ok {
			longest = max(longest, d)
			continue
		}
		at, err := http.ParseTime(v)
		if err != nil {
			continue
		}
		from := now.Truncate(time.Second) // dates have no fractions
		if date, err := http.ParseTime(h.Get("Date")); err == nil {
			from = date
		}
		longest = max(longest, at.Sub(from))
	}
	return longest
}

// parseSeconds reads digits and nothing else; too many of them are a long time.
func parseSeconds(s string) (time.Duration, bool) {
	if s == "" {
		return 0, false
	}
	const most = int64(math.MaxInt64 / time.Second)
	var n int64
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		if n = n*10 + int64(s[i]-'0'); n > most/10 {
			n = most / 10 // stays there: bounded, and cannot overflow with one more digit
		}
	}
	return time.Duration(n) * time.Second, true
}
