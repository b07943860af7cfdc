package node

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// get sends a request on a connection of its own that stays open, and returns the status.
func get(t *testing.T, c net.Conn, path string) int {
	t.Helper()
	require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	req, err := http.NewRequest("GET", "http://node"+path, nil)
	require.NoError(t, err)
	require.NoError(t, req.Write(c))
	return readStatus(t, c)
}

func readStatus(t *testing.T, c net.Conn) int {
	t.Helper()
	line := make([]byte, 12) // HTTP/1.1 NNN
	_, err := io.ReadFull(c, line)
	require.NoError(t, err)
	return int(line[9]-'0')*100 + int(line[10]-'0')*10 + int(line[11]-'0')
}

func TestConnectionsAreBoundedAndTheLastOnesAreToldSo(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &httptest.Server{Listener: limitConnections(l, connLimits{2, 2, 100}), Config: &http.Server{
		ConnContext: connContext,
		Handler:     refuseCrowded(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })),
	}}
	server.Start()
	defer server.Close()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	one, two := dial(), dial()
	require.Equal(t, 204, get(t, one, "/v1/channels"))
	require.Equal(t, 204, get(t, two, "/v1/channels"))
	three := dial()
	require.Equal(t, 429, get(t, three, "/v1/channels"))
	health := dial()
	require.Equal(t, 204, get(t, health, "/healthz"), "health is answered all the same")
	fourth := dial()
	require.Equal(t, 204, get(t, fourth, "/metrics"), "the refused connection was closed, its place is free again")

	// All places are taken: the next one waits until one of them is free.
	waiting := dial()
	req, err := http.NewRequest("GET", "http://node/healthz", nil)
	require.NoError(t, err)
	require.NoError(t, req.Write(waiting))
	require.NoError(t, one.Close())
	require.NoError(t, waiting.SetDeadline(time.Now().Add(10*time.Second)))
	require.Equal(t, 204, readStatus(t, waiting))
}

func TestAFullListenerStillCloses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	limited := limitConnections(l, connLimits{1, 0, 1})
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	accepted, err := limited.Accept()
	require.NoError(t, err)
	defer accepted.Close()
	got := make(chan error, 1)
	go func() {
		_, err := limited.Accept()
		got <- err
	}()
	require.NoError(t, limited.Close())
	require.ErrorIs(t, <-got, net.ErrClosed)
	require.Error(t, limited.Close())
	require.NoError(t, accepted.Close())
	require.Error(t, accepted.Close(), "its place is given back once")
	require.Zero(t, limited.mu.open)
	require.Empty(t, limited.mu.from)
}

// One address holds no more than its share, however it tries; the others get in.
func TestOneAddressKeepsNobodyOut(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &httptest.Server{Listener: limitConnections(l, connLimits{10, 2, 3}), Config: &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }),
	}}
	server.Start()
	defer server.Close()
	from := func(ip string) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
		c, err := d.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	var held []net.Conn
	for range 3 {
		c := from("127.0.0.2")
		require.Equal(t, 204, get(t, c, "/"))
		held = append(held, c)
	}
	for range 20 {
		c := from("127.0.0.2")
		require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
		require.False(t, errors.Is(err, os.ErrDeadlineExceeded), "closed at once")
	}
	require.Equal(t, 204, get(t, from("127.0.0.3"), "/"))
	require.NoError(t, held[0].Close())
	require.Eventually(t, func() bool { return tryGet(from("127.0.0.2")) == 204 }, 10*time.Second, 10*time.Millisecond, "its place is free again")
}

func tryGet(c net.Conn) int {
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return 0
	}
	line := make([]byte, 12)
	if _, err := io.ReadFull(c, line); err != nil {
		return 0
	}
	return int(line[9]-'0')*100 + int(line[10]-'0')*10 + int(line[11]-'0')
}
