package dlq

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/vfs"
	"penstock/internal/vfs/errfs"
	"penstock/internal/vfs/memfs"
)

type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

func TestFilesAreSealedByAge(t *testing.T) {
	fsys, c := memfs.New(), &clock{at}
	v := open(t, fsys, func(cfg *Config) { cfg.Now, cfg.SealAge = c.Now, time.Minute })
	require.NoError(t, v.Append(t.Context(), records(1, 1)))
	c.now = c.now.Add(59 * time.Second)
	require.NoError(t, v.Maintain(t.Context()))
	require.Equal(t, []string{activeName}, names(t, fsys))
	c.now = c.now.Add(time.Second)
	require.NoError(t, v.Maintain(t.Context()))
	require.Equal(t, []string{sealedName(1)}, names(t, fsys))
	require.NoError(t, v.Append(t.Context(), records(2, 2)))
	require.Len(t, latest(t, v), 2)
}

func TestFilesSealedByAgeAreMergedBeforeTheyUseUpMaxFiles(t *testing.T) {
	fsys, c := memfs.New(), &clock{at}
	v := open(t, fsys, func(cfg *Config) { cfg.Now, cfg.SealAge, cfg.MaxFiles = c.Now, time.Minute, 4 })
	for n := 1; n <= 40; n++ {
		require.NoError(t, v.Append(t.Context(), records(n, n)))
		c.now = c.now.Add(time.Minute)
		if n%2 == 0 {
			require.NoError(t, v.Maintain(t.Context()))
		}
	}
	require.Len(t, latest(t, v), 40)
	require.LessOrEqual(t, len(names(t, fsys)), 4)
	st, err := v.Stats()
	require.NoError(t, err)
	require.Equal(t, 40, st.Dead)
	require.NoError(t, v.Update(t.Context(), []Change{{ID: record(3).ID, Resolved: true}}))
	require.Len(t, latest(t, v), 39)
}

func TestDropOldestTellsOfEachRecordBeforeItGoes(t *testing.T) {
	fsys := memfs.New()
	var dropped []string
	refuse := false
	v := open(t, fsys, func(c *Config) {
		c.SegmentBytes, c.MaxFiles, c.Overflow = 2500, 3, DropOldest
		c.Discard = func(_ context.Context, drops []Drop) error {
			if refuse {
				return errors.New("no quorum")
			}
			for _, d := range drops {
				require.Equal(t, "max_files", d.Cause)
				require.EqualValues(t, 5, d.ChannelIndex)
				dropped = append(dropped, d.ID)
			}
			return nil
		}
	})
	held := func() int { return len(latest(t, v)) }
	n := 0
	for len(dropped) == 0 {
		n++
		require.NoError(t, v.Append(t.Context(), records(n, n)))
		require.Less(t, n, 50)
	}
	require.Equal(t, n, held()+len(dropped))
	for i, id := range dropped {
		require.Equal(t, record(i+1).ID, id, "the oldest go")
	}
	refuse = true
	var err error
	for err == nil {
		n++
		err = v.Append(t.Context(), records(n, n))
	}
	require.ErrorContains(t, err, "no quorum")
	require.Equal(t, n-1, held()+len(dropped), "without a committed discard nothing goes")
	refuse = false
	require.NoError(t, v.Append(t.Context(), records(n, n)))
	require.Equal(t, n, held()+len(dropped))
	_, err = Open("/other", Config{NodeID: "n1", FS: fsys, Overflow: DropOldest})
	require.Error(t, err, "drop_oldest without a discard")
	_, err = Open("/other", Config{NodeID: "n1", FS: fsys, Overflow: "lose"})
	require.Error(t, err)
}

// B21: a full volume takes records again within one append after an operator removed a file or records were replayed, an idle
// one gives up what is too old, a restart changes none of it, and the gauge of bytes is what du says.
func TestB21VolumeNoticesAnOperatorAndItsAge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dlq")
	c := &clock{at}
	var dropped int
	config := func(overflow string) Config {
		return Config{
			NodeID: "n1", FS: vfs.OS, MaxBytes: 64 << 10, SegmentBytes: 8 << 10, Now: c.Now, MaxAge: time.Minute, Overflow: overflow,
			Discard: func(_ context.Context, drops []Drop) error { dropped += len(drops); return nil },
		}
	}
	du := func() (n int64) {
		files, err := filepath.Glob(filepath.Join(path, "*.jsonl"))
		require.NoError(t, err)
		for _, f := range files {
			info, err := os.Stat(f)
			require.NoError(t, err)
			n += info.Size()
		}
		return n
	}
	v, err := Open(path, config(Block))
	require.NoError(t, err)
	same := func() Stats {
		st, err := v.Stats()
		require.NoError(t, err)
		require.Equal(t, du(), st.Bytes)
		require.Len(t, latest(t, v), st.Dead)
		return st
	}
	n := 0
	fill := func() {
		for {
			n++
			if err := v.Append(t.Context(), records(n, n)); err != nil {
				require.ErrorIs(t, err, ErrFull)
				return
			}
		}
	}
	fill()
	require.True(t, same().Full)
	require.NoError(t, os.Remove(filepath.Join(path, sealedName(1)))) // (i) an operator removes the oldest file
	require.NoError(t, v.Append(t.Context(), records(n, n)))
	same()
	fill()
	full := same().Dead
	require.NoError(t, v.Update(t.Context(), []Change{{ID: record(n - 1).ID, Resolved: true}, {ID: record(n - 2).ID, Resolved: true}})) // (ii)
	require.NoError(t, v.Append(t.Context(), records(n, n)))
	require.Equal(t, full-1, same().Dead)
	c.now = c.now.Add(time.Hour) // (iii) idle: block keeps everything
	require.NoError(t, v.Maintain(t.Context()))
	require.Equal(t, full-1, same().Dead)
	require.NoError(t, v.Close())

	v, err = Open(path, config(DropOldest)) // (iv)
	require.NoError(t, err)
	before := same()
	require.NoError(t, v.Maintain(t.Context()))
	require.Equal(t, before.Dead, dropped)
	require.Zero(t, same().Bytes, "what is expired goes while nothing is appended")
	require.NoError(t, v.Append(t.Context(), records(1, 1)))
	require.NoError(t, os.Remove(filepath.Join(path, activeName)))
	require.NoError(t, v.Append(t.Context(), records(2, 2)), "an active file that was removed is made anew")
	same()
	require.NoError(t, v.Close())
	v, err = Open(path, config(Block))
	require.NoError(t, err)
	require.Equal(t, []string{"2"}, ids(all(t, v)), "and what was acknowledged after that is durable")
	require.NoError(t, v.Close())
}

func TestARemovedFileMakesTheEarlierRecordOfAnIDCountAgain(t *testing.T) {
	fsys := memfs.New()
	v := open(t, fsys, func(c *Config) { c.SegmentBytes = 2000 })
	require.NoError(t, v.Append(t.Context(), records(1, 2)))
	require.NoError(t, v.Append(t.Context(), records(1, 3)))
	require.NoError(t, fsys.Remove(dir+"/"+sealedName(2)))
	st, err := v.Stats()
	require.NoError(t, err)
	require.Equal(t, 2, st.Dead)
	_, ok, err := v.Get(record(1).ID)
	require.NoError(t, err)
	require.True(t, ok)
	_, ok, err = v.Get(record(3).ID)
	require.NoError(t, err)
	require.False(t, ok)
}

func TestACutActiveFileIsPutInOrderBeforeAnythingIsAppended(t *testing.T) {
	fsys := memfs.New()
	v := open(t, fsys)
	require.NoError(t, v.Append(t.Context(), records(1, 3)))
	text := read(t, fsys, activeName)
	put(t, fsys, activeName, text[:len(text)-10])
	require.NoError(t, v.Append(t.Context(), records(4, 4)))
	require.Equal(t, []string{"1", "2", "4"}, ids(all(t, v)))
	st, err := v.Stats()
	require.NoError(t, err)
	require.Equal(t, 3, st.Dead)
	require.Contains(t, fmt.Sprint(names(t, fsys)), quarantineName)
}

func TestAVolumeThatFailsIsToldFromOneAtItsBound(t *testing.T) {
	fsys := errfs.Wrap(memfs.New(), nil)
	v := open(t, fsys, func(c *Config) { c.MaxBytes = 5000 })
	require.NoError(t, v.Append(t.Context(), records(1, 2)))
	require.ErrorIs(t, v.Append(t.Context(), records(3, 6)), ErrFull)
	require.NoError(t, v.Failing(), "a full one holds the emitter and does not move it")
	readOnly := errors.New("read-only file system")
	fsys.Set(func(op errfs.Op) error {
		if op.Kind.Mutates() {
			return readOnly
		}
		return nil
	})
	require.ErrorIs(t, v.Append(t.Context(), records(3, 3)), readOnly)
	require.ErrorIs(t, v.Failing(), readOnly)
	require.ErrorIs(t, v.Probe(), readOnly)
	fsys.Set(nil)
	require.ErrorIs(t, v.Failing(), readOnly)
	require.NoError(t, v.Probe())
	require.NoError(t, v.Failing(), "mended")
	require.Equal(t, []string{activeName}, names(t, fsys))
	require.NoError(t, v.Append(t.Context(), records(3, 3)))
}
