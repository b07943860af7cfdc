package node

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"penstock/node/config"
)

// stoppedWithEvents is the configuration of a node that accepted three events and stopped clean.
func stoppedWithEvents(t *testing.T) config.Config {
	cfg := single(t)
	r := start(t, cfg)
	r.putChannel("orders")
	code, body := r.request("POST", "/v1/channels/orders/events", "application/x-ndjson", strings.NewReader("1\n2\n3\n"))
	require.Equal(t, 200, code, body)
	r.stop()
	require.NoError(t, r.wait())
	return cfg
}

func quiet() Options { return Options{Logger: slog.New(slog.DiscardHandler)} }

func overwrite(t *testing.T, path string, at int64, with []byte) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(with, at)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// spoilRow changes one row of the state, and leaves the file whole.
func spoilRow(t *testing.T, path string, change func(value []byte) []byte) {
	db, err := bolt.Open(path, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte{2})
		require.NotNil(t, b)
		k, v := b.Cursor().First()
		return b.Put(bytes.Clone(k), change(bytes.Clone(v)))
	}))
	require.NoError(t, db.Close())
}

// The checkpoint holds nothing that snapshot and log do not: it is kept apart and made again.
func TestADamagedCheckpointIsKeptApartAndMadeAgain(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"pages of zeros": func(t *testing.T, path string) {
			info, err := os.Stat(path)
			require.NoError(t, err)
			overwrite(t, path, 8192, make([]byte, info.Size()-8192))
		},
		"nothing of it left": func(t *testing.T, path string) { overwrite(t, path, 0, bytes.Repeat([]byte{0xff}, 65536)) },
		"malformed row":      func(t *testing.T, path string) { spoilRow(t, path, func(v []byte) []byte { return v[:len(v)/2] }) },
		"changed row": func(t *testing.T, path string) {
			spoilRow(t, path, func(v []byte) []byte { v[len(v)-1] ^= 1; return v })
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := stoppedWithEvents(t)
			path := filepath.Join(cfg.Node.DataDir, "fsm.db")
			damage(t, path)
			r := start(t, cfg)
			code, body := r.request("GET", "/v1/channels/orders/ledger", "", nil)
			require.Equal(t, 200, code, body)
			var ledger struct {
				Accepted uint64
				Balanced bool
			}
			require.NoError(t, json.Unmarshal([]byte(body), &ledger))
			require.Equal(t, uint64(3), ledger.Accepted)
			require.True(t, ledger.Balanced)
			kept, err := filepath.Glob(path + ".damaged-*")
			require.NoError(t, err)
			require.Len(t, kept, 1)
			r.stop()
			require.NoError(t, r.wait())
			require.Contains(t, r.log.String(), "unclean=", "not a fresh directory")
		})
	}
}

// Moving it away would throw away what the newer binary wrote, and its log is too new as well.
func TestACheckpointOfALaterVersionIsNotCalledDamaged(t *testing.T) {
	cfg := stoppedWithEvents(t)
	db, err := bolt.Open(filepath.Join(cfg.Node.DataDir, "fsm.db"), 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("penstock"))
		head := bytes.Clone(b.Get([]byte("head")))
		head[0]++ // its version
		return b.Put([]byte("head"), head)
	}))
	require.NoError(t, db.Close())
	err = Run(context.Background(), cfg, quiet())
	require.Equal(t, ExitTooNew, ExitCode(err), "%v", err)
	kept, err := filepath.Glob(filepath.Join(cfg.Node.DataDir, "fsm.db.damaged-*"))
	require.NoError(t, err)
	require.Empty(t, kept)
}

func TestADamagedStableStoreIsADiskFault(t *testing.T) {
	cfg := stoppedWithEvents(t)
	path := filepath.Join(cfg.Node.DataDir, "stable.db")
	overwrite(t, path, 8192, bytes.Repeat([]byte{0xff}, 16384))
	err := Run(context.Background(), cfg, quiet())
	require.Equal(t, ExitDiskFault, ExitCode(err), "%v", err)
	require.ErrorContains(t, err, path)
}

// Whichever part notices first: the volume of dead letters is opened before the cluster's own identity is.
func TestADirectoryOfAnotherNodeIsForeign(t *testing.T) {
	cfg := stoppedWithEvents(t)
	other := cfg
	other.Node.ID = "n2"
	err := Run(context.Background(), other, quiet())
	require.Equal(t, ExitForeign, ExitCode(err), "%v", err)
	require.ErrorContains(t, err, "n1")
	require.ErrorContains(t, err, "n2")
}

func TestAStartAfterAKillIsUncleanAndNotFresh(t *testing.T) {
	cfg := stoppedWithEvents(t)
	_, err := takeCleanStop(cfg.Node.DataDir) // as by a start that was killed
	require.NoError(t, err)
	r := start(t, cfg)
	r.stop()
	require.NoError(t, r.wait())
	require.Contains(t, r.log.String(), "unclean=true")
	require.NotContains(t, r.log.String(), "fresh=")
}

// Durations in log lines are text: as numbers nobody knows their unit.
func TestDurationsInTheLogAreText(t *testing.T) {
	var log bytes.Buffer
	cfg := single(t)
	ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	require.NoError(t, Run(ctx, cfg, Options{Logger: slog.New(slog.NewJSONHandler(&log, nil)), Ready: func(Info) { stop() }}))
	for _, what := range []string{`"msg":"log opened".*"took":"[0-9.]+m?s"`, `"msg":"this node leads".*"after":"[0-9.]+m?s"`, `"msg":"draining","node":"n1","limit":"10s"`} {
		require.Regexp(t, what, log.String())
	}
}
