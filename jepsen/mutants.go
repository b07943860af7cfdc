package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock/internal/mutant"
	"penstock/jepsen/check"
	"penstock/jepsen/runner"
)

// hunt is how a planted bug is looked for.
type hunt struct {
	nemesis []string
	time    time.Duration
	tune    func(*runner.Options)
}

// hunts: each bug has the faults that should show it. The run's bound is three minutes with everything.
func hunts() map[mutant.Name]hunt {
	return map[mutant.Name]hunt{
		mutant.AckBeforeFsync:       {[]string{"power-fresh"}, 30 * time.Second, busy},
		mutant.SkipDirFsync:         {[]string{"power-all", "power-some"}, 40 * time.Second, small},
		mutant.TruncateAtBadCRC:     {[]string{"flip-pair"}, 20 * time.Second, nil},
		mutant.DedupNotInSnapshot:   {[]string{"replace-all"}, 10 * time.Second, trimmed},
		mutant.OutcomeBeforeDLQSync: {[]string{"dest-refuse"}, 20 * time.Second, letters},
		mutant.EmitOldEpoch:         {[]string{"owner-cut"}, 25 * time.Second, busy},
		mutant.LabelAtFloor:         {[]string{"replace-all"}, 10 * time.Second, trimmed},
		mutant.NoBaseRecord:         {[]string{"replace-all"}, 10 * time.Second, trimmed},
		mutant.WipedNodeKeepsID:     {[]string{"lost-disk"}, 10 * time.Second, nil},
		mutant.VoteNotPersisted:     {[]string{"kill-all", "kill"}, 30 * time.Second, nil},
	}
}

// small makes segments and snapshots frequent.
func small(o *runner.Options) { o.Segment, o.Snapshot = "1MiB", "1MiB" }

// busy lets many acknowledgements come in a short time.
func busy(o *runner.Options) { o.Think = 10 * time.Millisecond }

// letters has nothing but events that are given up: their records must be on disk when the power is cut at the end.
func letters(o *runner.Options) { o.Workload, o.Think = "letters", 10*time.Millisecond }

// trimmed also lets the log go as early as it may, so that a new node needs a snapshot.
func trimmed(o *runner.Options) {
	small(o)
	o.Keep, o.Trailing, o.Think = "0s", 16, 10*time.Millisecond
}

// huntBound: a planted bug that takes longer to be found does not count as caught.
const huntBound = 3 * time.Minute

// caught is the result of one hunt.
type caught struct {
	Mutant  mutant.Name  `json:"mutant"`
	Build   string       `json:"build"` // of the binary; results of another build say nothing about this one
	Caught  bool         `json:"caught"`
	By      []string     `json:"by,omitempty"`
	Verdict check.Status `json:"verdict"`
	Took    string       `json:"took"`
	Seed    uint64       `json:"seed"`
	Dir     string       `json:"dir"`
}

func mutantsCommand() *cobra.Command {
	o := runner.Defaults()
	var shard, state string
	var only []string
	cmd := &cobra.Command{
		Use: "mutants", Short: "plant each bug in turn and see which checker finds it; sharded, resumable", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			mine, of, err := parseShard(shard)
			if err != nil {
				return usageError{err}
			}
			if o.Binary == "" {
				if o.Binary, err = build(cmd, "mutants"); err != nil {
					return err
				}
			}
			done, err := loadState(state)
			if err != nil {
				return err
			}
			id, err := fingerprint(o.Binary)
			if err != nil {
				return err
			}
			for name, c := range done {
				if c.Build != id {
					delete(done, name)
				}
			}
			wanted := func(i int, name mutant.Name) bool {
				return i%of == mine && (len(only) == 0 || inList(only, string(name)))
			}
			for i, name := range mutant.All() {
				if _, have := done[name]; have || !wanted(i, name) || cmd.Context().Err() != nil {
					continue
				}
				c := chase(cmd, o, name)
				c.Build = id
				if cmd.Context().Err() != nil {
					return cmd.Context().Err() // an interrupted hunt has no result
				}
				done[name] = c
				if err := saveState(state, done); err != nil {
					return err
				}
			}
			return tellMutants(cmd, done, wanted)
		},
	}
	runFlags(cmd, &o)
	cmd.Flags().StringVar(&shard, "shard", "0/1", "I/N: every N-th mutant, from the I-th on")
	cmd.Flags().StringVar(&state, "state", filepath.Join(runner.RunsDir(), "mutants.json"), "results so far; what stands in it is not run again")
	cmd.Flags().StringSliceVar(&only, "only", nil, "only these mutants")
	return cmd
}

func inList(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func parseShard(s string) (mine, of int, err error) {
	a, b, _ := strings.Cut(s, "/")
	mine, errA := strconv.Atoi(a)
	of, errB := strconv.Atoi(b)
	if errA != nil || errB != nil || of < 1 || mine < 0 || mine >= of {
		return 0, 0, fmt.Errorf("shard %q: want I/N with 0 <= I < N", s)
	}
	return mine, of, nil
}

// chase runs one mutant. FAIL is a catch; INVALID and UNKNOWN are not.
func chase(cmd *cobra.Command, o runner.Options, name mutant.Name) caught {
	h := hunts()[name]
	o.Name, o.Nemesis, o.Time, o.Out = "mutant "+string(name), h.nemesis, h.time, ""
	o.Env = append([]string{"PENSTOCK_MUTANT=" + string(name)}, o.Env...)
	if h.tune != nil {
		h.tune(&o)
	}
	o.Resolve = 20 * time.Second // a planted bug may keep them pending for ever
	start := time.Now()
	dir, v, err := runner.Run(cmd.Context(), o)
	c := caught{Mutant: name, Verdict: v.Verdict, Took: time.Since(start).Round(time.Second).String(), Seed: o.Seed, Dir: dir}
	if err != nil {
		c.Verdict, c.By = check.Invalid, []string{"harness: " + err.Error()}
		return c
	}
	c.By = failed(v)
	// That nodes do not come back is a weak sign of a bug that loses data: something must be seen that is wrong.
	seen := slices.ContainsFunc(c.By, func(name string) bool { return name != "liveness" && name != "enough happened" })
	c.Caught = v.Verdict == check.Fail && seen && time.Since(start) <= huntBound
	fmt.Fprintf(cmd.OutOrStdout(), "%-26s caught %-5v %-8s %5s  by %s\n", name, c.Caught, c.Verdict, c.Took, strings.Join(c.By, ", "))
	return c
}

// fingerprint names a binary by its bytes.
func fingerprint(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

func loadState(path string) (map[mutant.Name]caught, error) {
	done := map[mutant.Name]caught{}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return done, nil
	}
	if err != nil {
		return nil, err
	}
	return done, json.Unmarshal(b, &done)
}

// saveState replaces the file whole, so that an interrupted run leaves the old one.
func saveState(path string, done map[mutant.Name]caught) error {
	b, err := json.MarshalIndent(done, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", b, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

func tellMutants(cmd *cobra.Command, done map[mutant.Name]caught, wanted func(int, mutant.Name) bool) error {
	missed := 0
	for i, name := range mutant.All() {
		c, have := done[name]
		if !wanted(i, name) {
			continue
		}
		if !have || !c.Caught {
			missed++
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%-26s caught %-5v %-8s %5s  seed %d  by %s\n", name, c.Caught, c.Verdict, c.Took, c.Seed, strings.Join(c.By, ", "))
	}
	if missed > 0 {
		return fmt.Errorf("%d planted bugs were not caught", missed)
	}
	return nil
}
