package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// peerPair is a server and a client that knows it as "b".
func peerPair(t *testing.T) (*peerServer, *peerClient, *listener) {
	ctx, cancel := context.WithCancel(context.Background())
	s := newPeerServer(ctx, "n2", func(grant []byte) error {
		if string(grant) == "bad" {
			return errors.New("token removed")
		}
		return nil
	})
	l, err := listen("127.0.0.1:0", slog.New(slog.DiscardHandler), func(connHeader) error { return nil })
	require.NoError(t, err)
	l.handle(kindPeer, s.serve)
	c := newPeerClient(func(ctx context.Context, node string) (net.Conn, error) {
		if node != "b" {
			return nil, errors.New("no such node")
		}
		return dial(ctx, l.ln.Addr().String(), connHeader{Kind: kindPeer, From: "a", To: node})
	})
	t.Cleanup(func() {
		cancel()
		c.Close()
		l.Close()
		s.wg.Wait()
	})
	return s, c, l
}

func TestCallsShareAConnectionAndAnswerInAnyOrder(t *testing.T) {
	s, c, _ := peerPair(t)
	release := make(chan struct{})
	s.handle("slow", laneBulk, func(ctx context.Context, from string, body []byte) ([]byte, error) {
		<-release
		return append([]byte(from+":"), body...), nil
	})
	s.handle("fast", laneBulk, func(context.Context, string, []byte) ([]byte, error) { return []byte("fast"), nil })
	s.handle("bad", laneBulk, func(context.Context, string, []byte) ([]byte, error) { return nil, errors.New("no") })
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			b, err := c.call(t.Context(), laneBulk, "b", "slow", fmt.Append(nil, i))
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("a:%d", i), string(b))
		})
	}
	b, err := c.call(t.Context(), laneBulk, "b", "fast", nil)
	require.NoError(t, err)
	require.Equal(t, "fast", string(b))
	close(release)
	wg.Wait()
	_, err = c.call(t.Context(), laneBulk, "b", "bad", nil)
	var ce *CallError
	require.ErrorAs(t, err, &ce)
	require.True(t, ce.Started && ce.Remote)
	_, err = c.call(t.Context(), laneBulk, "b", "none", nil)
	require.ErrorIs(t, err, errNoMethod)
	require.ErrorAs(t, err, &ce)
	require.False(t, ce.Started)
	_, err = c.call(t.Context(), laneBulk, "x", "fast", nil)
	require.ErrorAs(t, err, &ce)
	require.False(t, ce.Started, "never dialled")
}

func TestLostConnectionEndsEveryCallOnItAsStarted(t *testing.T) {
	s, c, l := peerPair(t)
	began := make(chan struct{}, 10)
	s.handle("hang", laneBulk, func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
		began <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	})
	out := make(chan error, 5)
	for range 5 {
		go func() {
			_, err := c.call(t.Context(), laneBulk, "b", "hang", nil)
			out <- err
		}()
	}
	for range 5 {
		<-began
	}
	l.drop("a")
	for range 5 {
		var ce *CallError
		require.ErrorAs(t, <-out, &ce)
		require.True(t, ce.Started)
		require.ErrorIs(t, ce, errConnClosed)
	}
	s.handle("fine", laneBulk, func(context.Context, string, []byte) ([]byte, error) { return nil, nil })
	_, err := c.call(t.Context(), laneBulk, "b", "fine", nil)
	require.NoError(t, err, "dialled anew")
}

func TestTooManyRequestsAreRefusedBeforeTheyStart(t *testing.T) {
	s, c, _ := peerPair(t)
	s.slots[laneControl] = make(chan struct{}, 2)
	release := make(chan struct{})
	s.handle("wait", laneControl, func(context.Context, string, []byte) ([]byte, error) { <-release; return nil, nil })
	out := make(chan error, 5)
	for range 5 {
		go func() {
			_, err := c.call(t.Context(), laneControl, "b", "wait", nil)
			out <- err
		}()
	}
	for range 3 {
		var ce *CallError
		require.ErrorAs(t, <-out, &ce)
		require.ErrorIs(t, ce, errBusy)
		require.False(t, ce.Started)
	}
	close(release)
	require.NoError(t, <-out)
	require.NoError(t, <-out)
}

func TestCallEndsWithItsContext(t *testing.T) {
	s, c, _ := peerPair(t)
	s.handle("hang", laneBulk, func(ctx context.Context, _ string, _ []byte) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := c.call(ctx, laneBulk, "b", "hang", nil)
	require.Less(t, time.Since(began), time.Second)
	var ce *CallError
	require.ErrorAs(t, err, &ce)
	require.True(t, ce.Started)
}

func TestListenerHoldsNothingForASilentConnection(t *testing.T) {
	_, _, l := peerPair(t)
	for _, sent := range []string{"", "GET / HTTP/1.1\r\n\r\n", headerMagic} {
		conn, err := net.Dial("tcp", l.ln.Addr().String())
		require.NoError(t, err)
		_, err = conn.Write([]byte(sent))
		require.NoError(t, err)
		defer conn.Close()
	}
	eventually(t, headerDeadline+2*time.Second, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.mu.conns) == 0
	}, "connections without a header are closed")
}

// However many connections say nothing, a peer, which says its header at once, gets through.
func TestSilentConnectionsGiveWayToAPeer(t *testing.T) {
	s, c, l := peerPair(t)
	s.handle("fast", laneBulk, func(context.Context, string, []byte) ([]byte, error) { return []byte("fast"), nil })
	for range maxInbound + 100 {
		conn, err := net.Dial("tcp", l.ln.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
	}
	b, err := c.call(within(t, 2*time.Second), laneBulk, "b", "fast", nil)
	require.NoError(t, err)
	require.Equal(t, "fast", string(b))
	l.mu.Lock()
	defer l.mu.Unlock()
	require.LessOrEqual(t, len(l.mu.silent), maxSilent)
}

func TestConnectionForAnotherNodeOrClusterIsRefused(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, "n1")
	n.cfg.Single = true
	n.start()
	awaitLeader(t, n)
	good := connHeader{Kind: kindPeer, Cluster: n.c.clusterID(), From: "n2", To: "n1"}
	for name, change := range map[string]func(*connHeader){
		"": func(*connHeader) {}, "another node": func(h *connHeader) { h.To = "n3" },
		"another cluster": func(h *connHeader) { h.Cluster = fixedID(9) }, "no name": func(h *connHeader) { h.From = "" },
	} {
		h := good
		change(&h)
		c := newPeerClient(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, n.c.raftAddr, h) })
		_, err := c.call(within(t, 3*time.Second), laneControl, "n1", methodWall, nil)
		if name == "" {
			require.NoError(t, err)
		} else {
			require.Error(t, err, name)
		}
		c.Close()
	}
}
