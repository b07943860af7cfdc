package api

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/event"
	"penstock/fsm/command"
	"penstock/node/internal/testbed"
)

type tailed struct {
	ids                  []string
	next, first, applied string
	bytes                int
}

func (a answer) page() tailed {
	a.t.Helper()
	require.Equal(a.t, 200, a.code, a.body)
	require.Equal(a.t, "application/x-ndjson", a.header.Get("Content-Type"))
	out := tailed{next: a.header.Get("Penstock-Next"), first: a.header.Get("Penstock-First"), applied: a.header.Get("Penstock-Applied"), bytes: len(a.body)}
	for line := range strings.Lines(a.body) {
		var e struct {
			ID      string `json:"id"`
			Index   int    `json:"penstockindex"`
			Ordinal int    `json:"penstockordinal"`
		}
		require.NoError(a.t, json.Unmarshal([]byte(line), &e), line)
		require.NotZero(a.t, e.Index)
		out.ids = append(out.ids, e.ID)
	}
	return out
}

func (s *surface) tail(query string) tailed {
	s.t.Helper()
	return s.get("/v1/channels/orders/events" + query).page()
}

func TestPagesOfAnySizeShowEveryEventOnce(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	other := orders()
	other.Name = "other"
	s.Put(other)
	var want []string
	for i := range 6 {
		ids := []string{fmt.Sprint(i, "a"), fmt.Sprint(i, "b"), fmt.Sprint(i, "c")}
		s.Commit(s.Batch("orders", ids[:2]...), s.Batch("other", "x"), s.Batch("orders", ids[1:]...)) // "b" twice
		want = append(want, ids...)
		s.Send("other", fmt.Sprint("y", i))
	}
	for _, limit := range []int{1, 2, 3, 4, 5, 7, 17, 18, 19, 1000} {
		var got []string
		next := "1"
		for pages := 0; ; pages++ {
			require.Less(t, pages, 40, "limit %d comes to an end", limit)
			p := s.tail(fmt.Sprintf("?from=%s&limit=%d", next, limit))
			require.LessOrEqual(t, len(p.ids), limit)
			got, next = append(got, p.ids...), p.next
			if len(p.ids) == 0 {
				break
			}
		}
		require.Equal(t, want, got, "limit %d", limit)
		applied, _ := s.Machine.Applied()
		require.Equal(t, event.Position{Index: applied + 1}.String(), next)
	}
}

func TestAPageEndsWithinItsBytes(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	const events, size = 14, 700_000 // 10 MB in all, as base64 a third more
	for i := range events {
		e := testbed.Event(fmt.Sprint(i))
		e.DataKind, e.Data = event.DataBinary, []byte(strings.Repeat("\x00", size))
		s.Commit(s.BatchOf("orders", e))
	}
	var got []string
	for next, pages := "1", 0; ; pages++ {
		p := s.tail("?from=" + next)
		require.LessOrEqual(t, p.bytes, maxTailBytes)
		got, next = append(got, p.ids...), p.next
		if len(p.ids) == 0 {
			break
		}
		require.Less(t, pages, events)
	}
	require.Len(t, got, events)
}

func TestAnEventLargerThanAPageIsAPageOfItsOwn(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	big := testbed.Event("big")
	big.DataKind, big.Data = event.DataText, []byte(strings.Repeat("x", maxTailBytes))
	s.Commit(s.BatchOf("orders", testbed.Event("a")))
	s.Commit(s.BatchOf("orders", big))
	s.Commit(s.BatchOf("orders", testbed.Event("b")))
	p := s.tail("?from=1")
	require.Equal(t, []string{"a"}, p.ids)
	p = s.tail("?from=" + p.next)
	require.Equal(t, []string{"big"}, p.ids)
	p = s.tail("?from=" + p.next)
	require.Equal(t, []string{"b"}, p.ids)
}

func TestTailWithoutFromBeginsAtTheFirstReadableIndex(t *testing.T) {
	s := newSurface(t)
	c := orders()
	c.Retention.Keep = 60e9
	s.Put(c)
	s.Send("orders", "old")
	s.Advance(time.Hour)
	s.Send("orders", "new")
	s.Commit(command.Tick{})
	horizon := s.Machine.Horizon()
	require.Greater(t, horizon, uint64(2))

	p := s.get("/v1/channels/orders/events?from=1").problem(410, "gone")
	require.Equal(t, horizon, p.First)
	all := s.tail("")
	require.Equal(t, []string{"new"}, all.ids)
	require.Equal(t, strconv.FormatUint(horizon, 10), all.first)
	require.Equal(t, all, s.tail("?from=0"))
}

func TestAPositionThatIsNotThereYetIsKept(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	s.Send("orders", "a")
	for _, from := range []string{"100.5", "18446744073709551615.7"} {
		p := s.tail("?from=" + from)
		require.Empty(t, p.ids)
		require.Equal(t, from, p.next)
	}
}

func TestTailRefusesWhatItCannotRead(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	for _, q := range []string{"from=x", "from=1.x", "from=-1", "limit=0", "limit=10001", "limit=x", "wait=5", "wait=-1s"} {
		s.get("/v1/channels/orders/events?"+q).problem(400, "bad-request")
	}
	s.get("/v1/channels/none/events").problem(404, "no-such-channel")
	s.Send("orders", "a")
	s.Log.(*testbed.MemLog).BeforeRead = func(uint64) error { return errNotReady }
	s.get("/v1/channels/orders/events?from=1").problem(500, "internal")
}

// The time of one look is bounded: what was found by then is the answer, with where to go on, and not an error.
func TestALongScanGivesShortPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSurface(t)
		s.Put(orders())
		other := orders()
		other.Name = "other"
		s.Put(other)
		s.Send("orders", "first")
		for i := range 20 {
			s.Send("other", fmt.Sprint(i))
		}
		s.Send("orders", "last")
		s.Log.(*testbed.MemLog).BeforeRead = func(uint64) error { time.Sleep(maxTailLook / 8); return nil }
		var got []string
		next, pages := "1", 0
		for ; len(got) < 2; pages++ {
			require.Less(t, pages, 10)
			before := time.Now()
			p := s.tail("?from=" + next)
			require.LessOrEqual(t, time.Since(before), maxTailLook+maxTailLook/8)
			require.NotEqual(t, next, p.next, "it comes further")
			got, next = append(got, p.ids...), p.next
		}
		require.Greater(t, pages, 2)
		require.Equal(t, []string{"first", "last"}, got)
		require.Empty(t, s.api.pages)
	})
}

// One who waits looks on by itself over a long stretch without an event of the channel.
func TestAWaitGoesOnThroughALongScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSurface(t)
		s.Put(orders())
		other := orders()
		other.Name = "other"
		s.Put(other)
		for i := range 20 {
			s.Send("other", fmt.Sprint(i))
		}
		s.Send("orders", "last")
		s.Log.(*testbed.MemLog).BeforeRead = func(uint64) error { time.Sleep(maxTailLook / 8); return nil }
		require.Equal(t, []string{"last"}, s.tail("?from=1&wait=60s").ids)
	})
}

func TestTailWaitsForTheNextEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSurface(t)
		s.Put(orders())
		other := orders()
		other.Name = "other"
		s.Put(other)
		applied, _ := s.Machine.Applied()
		log := s.Log.(*testbed.MemLog)
		got := make(chan tailed)
		begin := time.Now()
		go func() { got <- s.tail(fmt.Sprintf("?from=%d&wait=10s", applied+1)) }()
		synctest.Wait()
		require.Empty(t, s.api.pages, "one who waits holds nothing")
		before := log.Reads()
		time.Sleep(time.Second)
		require.Equal(t, before, log.Reads(), "it does not look while nothing is applied")
		for range 100 {
			s.Send("other", fmt.Sprint(time.Now()))
			time.Sleep(time.Millisecond)
		}
		require.LessOrEqual(t, log.Reads()-before, 100, "each entry is read once")
		s.Send("orders", "a")
		p := <-got
		require.Equal(t, []string{"a"}, p.ids)
		require.Less(t, time.Since(begin), 2*time.Second)
	})
}

func TestAWaitEndsInTime(t *testing.T) {
	for name, end := range map[string]struct {
		query string
		act   func(*surface)
		after time.Duration
	}{
		"at its end":      {"wait=3s", func(*surface) {}, 3 * time.Second},
		"at the longest":  {"wait=10h", func(*surface) {}, maxTailWait},
		"at once":         {"", func(*surface) {}, 0},
		"when it drains":  {"wait=50s", func(s *surface) { s.api.BeginDrain() }, 0},
		"while it drains": {"wait=50s", func(s *surface) { s.api.BeginDrain(); s.Send("other", "x") }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSurface(t)
				s.Put(orders())
				other := orders()
				other.Name = "other"
				s.Put(other)
				applied, _ := s.Machine.Applied()
				begin, got := time.Now(), make(chan tailed)
				go func() { got <- s.tail(fmt.Sprintf("?from=%d&%s", applied+1, end.query)) }()
				synctest.Wait()
				end.act(s)
				p := <-got
				require.Empty(t, p.ids)
				require.NotEmpty(t, p.next)
				require.Equal(t, end.after, time.Since(begin).Truncate(100*time.Millisecond))
				require.NoError(t, s.api.WaitQuiet(context.Background()))
			})
		})
	}
}

func TestSoManyPagesAreMadeAtOnceAndNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSurface(t)
		s.Put(orders())
		s.Send("orders", "a")
		for range maxPages {
			require.True(t, s.api.pages.holder().enter(context.Background()))
		}
		s.get("/v1/channels/orders/events?from=1").problem(429, "overloaded")
		got := make(chan tailed)
		go func() { got <- s.tail("?from=1") }()
		synctest.Wait()
		<-s.api.pages
		require.Equal(t, []string{"a"}, (<-got).ids, "it waits for its turn")
	})
}
