package cluster

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const hour = int64(time.Hour)

func TestNewLeaderJumpsOnlyForwardAndOnlyWithAMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newStampClock(time.Now)
		c.lead(10 * hour)
		require.Equal(t, 10*hour, c.read())
		require.False(t, c.jump([]int64{11 * hour}, 3), "one of three is no majority")
		require.False(t, c.jump([]int64{11 * hour, 12 * hour}, 3), "two that do not agree are none either")
		require.Equal(t, 10*hour, c.read())
		require.True(t, c.jump([]int64{11 * hour, 11*hour + int64(time.Second), 20 * hour}, 3))
		require.Equal(t, 11*hour+int64(time.Second), c.read(), "the median; the one that is far off decides nothing")
		require.True(t, c.jump([]int64{hour, hour, hour}, 3))
		require.Equal(t, 11*hour+int64(time.Second), c.read(), "never back")
	})
}

// S21, in the cluster's own time: a wall clock that is stepped an hour moves it by no more than a tenth of the time that passes.
func TestSteppedWallClocksBendTheClockByATenthAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newStampClock(time.Now)
		c.lead(10 * hour)
		for _, wall := range []int64{hour, 100 * hour} {
			before := c.read()
			for range 60 {
				c.steer([]int64{wall, wall, wall})
				time.Sleep(time.Second)
			}
			passed := time.Duration(c.read() - before)
			require.InDelta(t, time.Minute.Seconds(), passed.Seconds(), 6.01)
			require.NotEqual(t, time.Minute, passed)
		}
		for range 600 { // and it settles on walls that run on
			now := c.readLocked()
			c.steer([]int64{now + int64(time.Second)})
			time.Sleep(time.Second)
		}
	})
}

func TestClockSettlesOnTheMedian(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newStampClock(time.Now)
		c.lead(time.Now().UnixNano() - int64(5*time.Second))
		for range 300 {
			c.steer([]int64{time.Now().UnixNano()})
			time.Sleep(time.Second)
		}
		require.InDelta(t, 0, float64(time.Now().UnixNano()-c.read()), float64(300*time.Millisecond))
	})
}

func TestClockNeverGoesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Now()
		c := newStampClock(func() time.Time { return now })
		last := c.read()
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			at := rapid.Int64Range(0, 20*hour).Draw(t, "at")
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "pass")))
			case 1:
				c.lead(at)
			case 2:
				c.follow(at)
			case 3:
				c.steer([]int64{at})
			case 4:
				c.jump([]int64{at, at}, 3)
			}
			if got := c.read(); got < last {
				t.Fatalf("%d after %d", got, last)
			} else {
				last = got
			}
		}
	})
}

func TestLeaseLapsesAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newOwnerLease(time.Now)
		require.False(t, l.Valid())
		<-l.Lost()
		require.True(t, l.extend(time.Now().Add(2*time.Second)))
		lost := l.Lost()
		time.Sleep(time.Second)
		require.False(t, l.extend(time.Now().Add(2*time.Second)), "renewed, not gained")
		time.Sleep(1900 * time.Millisecond)
		require.True(t, l.Valid())
		select {
		case <-lost:
			require.Fail(t, "lost while renewed")
		default:
		}
		time.Sleep(200 * time.Millisecond)
		require.False(t, l.Valid())
		<-lost
		require.False(t, l.extend(time.Now()), "an answer that came too late renews nothing")
		require.True(t, l.extend(time.Now().Add(time.Second)))
		require.NotEqual(t, lost, l.Lost())
		l.drop()
		<-l.Lost()
	})
}

func TestContactsCountFromWhenTheRequestWasSent(t *testing.T) {
	var c contacts
	t0 := time.Now()
	c.note("n2", 5, t0)
	require.Equal(t, t0, c.at("n2", 5))
	c.note("n2", 5, t0.Add(-time.Second))
	require.Equal(t, t0, c.at("n2", 5), "a late answer to an early request is no news")
	c.note("n2", 4, t0.Add(time.Second))
	require.Equal(t, t0, c.at("n2", 5))
	c.note("n3", 6, t0)
	require.True(t, c.at("n2", 6).IsZero(), "contact in another term says nothing")
}
