package chaos

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func env(pairs ...string) func(string) string {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(name string) string { return m[name] }
}

func TestOffUnlessToldInSoManyWords(t *testing.T) {
	s, err := FromEnv(env())
	require.NoError(t, err)
	require.False(t, s.On)
	start(s, slog.Default(), func() { t.Fatal("killed") })()
	Point("wal.before_fsync")

	for _, bad := range [][]string{
		{"PENSTOCK_CHAOS_MODE", "1"},
		{"PENSTOCK_CHAOS_MODE", "yes", "PENSTOCK_CHAOS_MODE_MIN", "soon"},
		{"PENSTOCK_CHAOS_MODE", "yes", "PENSTOCK_CHAOS_MODE_MIN", "70"},
		{"PENSTOCK_CHAOS_MODE", "yes", "PENSTOCK_CHAOS_MODE_MAX", "-5"},
	} {
		_, err := FromEnv(env(bad...))
		require.Error(t, err, "%v", bad)
	}
	s, err = FromEnv(env("PENSTOCK_CHAOS_MODE", "yes", "PENSTOCK_CHAOS_MODE_MIN", "5", "PENSTOCK_CHAOS_MODE_MAX", "1m"))
	require.NoError(t, err)
	require.Equal(t, Settings{On: true, Min: 5 * time.Second, Max: time.Minute}, s)
}

func TestEndsOnceWithinItsTimeAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		kills := make(chan struct{}, 10)
		stop := start(Settings{On: true, Min: 5 * time.Second, Max: 10 * time.Second}, slog.New(slog.NewTextHandler(&said, nil)), func() { kills <- struct{}{} })
		for range 4 {
			time.Sleep(time.Second)
			Point("early")
		}
		require.Empty(t, kills, "not before the least time")
		time.Sleep(time.Minute)
		stop()
		require.Len(t, kills, 1)
		require.Contains(t, said.String(), "CHAOS MODE IS ON")
		require.Contains(t, said.String(), "SIGKILL to self")
	})
}

func TestPrefersADangerousPoint(t *testing.T) {
	at := 0
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			var said bytes.Buffer
			dead := make(chan struct{})
			stop := start(Settings{On: true, Min: time.Second, Max: time.Second}, slog.New(slog.NewTextHandler(&said, nil)), func() { close(dead) })
			for {
				select {
				case <-dead:
					stop()
					if bytes.Contains(said.Bytes(), []byte("wal.before_fsync")) {
						at++
					}
					return
				case <-time.After(time.Millisecond):
					Point("wal.before_fsync")
				}
			}
		})
	}
	require.Greater(t, at, 15)
}

func TestATriggerEndsWhoCrossesItsPointFirst(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trigger")
	settings, err := FromEnv(env("PENSTOCK_CHAOS_MODE", "yes", "PENSTOCK_CHAOS_MODE_TRIGGER", file))
	require.NoError(t, err)
	kills := 0
	stop := start(settings, slog.New(slog.DiscardHandler), func() { kills++ })
	Point("emit.before_send") // no file yet
	require.NoError(t, os.WriteFile(file, []byte("emit.before_send\n"), 0o600))
	Point("emit.after_send")
	require.Zero(t, kills, "another point")
	Point("emit.before_send")
	require.Equal(t, 1, kills)
	require.NoFileExists(t, file)
	stop()
	require.NoError(t, os.WriteFile(file, []byte("emit.before_send"), 0o600))
	Point("emit.before_send")
	require.FileExists(t, file, "off again")

	settings, err = FromEnv(env("PENSTOCK_CHAOS_MODE_TRIGGER", file))
	require.NoError(t, err)
	require.False(t, settings.On, "a trigger alone turns nothing on")
}
