package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"penstock/jepsen/control"
	"penstock/jepsen/nemesis"
)

// Options of one run. They are stored with it, expanded.
type Options struct {
	Name     string        `json:"name,omitempty"` // of the scenario
	Nodes    int           `json:"nodes"`
	Workload string        `json:"workload"`
	Nemesis  []string      `json:"nemesis"` // as asked
	Kinds    []string      `json:"kinds"`   // expanded
	Time     time.Duration `json:"time"`
	Seed     uint64        `json:"seed"`
	Binary   string        `json:"binary"`
	FS       string        `json:"fs"`
	Out      string        `json:"out"`
	Images   string        `json:"images,omitempty"`
	Env      []string      `json:"env,omitempty"` // of the nodes
	Chaos    bool          `json:"chaos,omitempty"`
	Writers  int           `json:"writers"` // per channel
	Think    time.Duration `json:"think"`
	MinAcks  int           `json:"min_acks"`
	MinFault int           `json:"min_faults,omitempty"` // confirmed activations; 0: one for each kind and half of the windows
	Segment  string        `json:"segment"`
	Snapshot string        `json:"snapshot"`
	Trailing int           `json:"trailing,omitempty"`  // log entries kept behind a snapshot; 0 is the product's default
	Keep     string        `json:"keep"`                // retention of the channels; 0s makes the log go as early as it may
	KeepData bool          `json:"keep_data,omitempty"` // also of a run that passed
	Resolve  time.Duration `json:"resolve,omitempty"`   // how long deliveries may stay pending at the end; 0 is boundResolved
	Patience float64       `json:"patience,omitempty"`  // factor on the bounds of the liveness phase, for slow machines; 0 is 1
	Quiet    bool          `json:"-"`                   // no progress on standard error

	// Endpoints name a cluster that stands already: nothing is laid and nothing broken, FaultCommand may do that.
	Endpoints    []string `json:"endpoints,omitempty"`
	FaultCommand string   `json:"fault_command,omitempty"`
	Listen       string   `json:"listen,omitempty"` // where the destination listens, as the cluster can reach it
	// Compose names a running Compose project: its containers are the nodes, and are killed, paused and disconnected.
	Compose   string `json:"compose,omitempty"`
	TokenFile string `json:"token_file,omitempty"` // of a cluster that stands already: all roles
}

// Workloads are the known ones.
func Workloads() map[string]string {
	return map[string]string{
		"mixed":   "writers with order per key, writers whose destination gives up, source-offset writers, readers everywhere",
		"events":  "the same without source offsets",
		"letters": "writers whose destination gives up, only: no file emitter, so that nothing but the log syncs the data volume",
		"offsets": "source-offset writers and linearizable reads only",
		"none":    "no writers: the verdict must be INVALID",
	}
}

// complete checks the options and fills in what follows from others.
func (o *Options) complete() error {
	var errs []error
	if _, ok := Workloads()[o.Workload]; !ok {
		errs = append(errs, fmt.Errorf("no workload is named %q", o.Workload))
	}
	if !slices.Contains([]string{"ext4", "xfs", "mixed"}, o.FS) {
		errs = append(errs, fmt.Errorf("file system %q: want ext4, xfs or mixed", o.FS))
	}
	switch {
	case o.Compose != "":
		errs = append(errs, o.completeCompose())
	case len(o.Endpoints) > 0:
		errs = append(errs, o.completeOwn())
	default:
		kinds, err := nemesis.Expand(o.Nemesis)
		errs = append(errs, err)
		o.Kinds = kinds
	}
	if o.Time < 5*time.Second || o.Time > 24*time.Hour {
		errs = append(errs, fmt.Errorf("time %v: want 5s to 24h", o.Time))
	}
	if len(o.Endpoints) == 0 && o.Compose == "" {
		if o.Nodes < 3 || o.Nodes > 7 {
			errs = append(errs, fmt.Errorf("%d nodes: want 3 to 7", o.Nodes))
		}
		if _, err := os.Stat(o.Binary); err != nil {
			errs = append(errs, fmt.Errorf("binary: %w", err))
		}
	}
	if o.Chaos {
		o.Kinds = append(o.Kinds, "chaos")
		o.Env = append(o.Env, "PENSTOCK_CHAOS_MODE=yes")
	}
	if o.Patience != 0 && (o.Patience < 1 || o.Patience > 10) {
		errs = append(errs, fmt.Errorf("patience %v: want 1 to 10", o.Patience))
	}
	if o.MinAcks == 0 {
		o.MinAcks = int(o.Time.Seconds()) * 20
	}
	return errors.Join(errs...)
}

// completeOwn: of a cluster of the user's nothing can be broken but by the user's own command.
func (o *Options) completeOwn() error {
	o.Nemesis, o.Kinds = nil, nil
	if o.FaultCommand != "" {
		o.Nemesis, o.Kinds = []string{"external"}, []string{"external"}
	}
	if o.Chaos {
		return errors.New("own cluster: chaos mode is turned on in the environment of its nodes, not here")
	}
	if o.Listen == "" {
		return errors.New("own cluster: --listen HOST:PORT must say where the destination can be reached by it")
	}
	return nil
}

// Defaults of a run.
func Defaults() Options {
	return Options{
		Nodes: 3, Workload: "mixed", Nemesis: []string{"mixed"}, Time: 60 * time.Second, Seed: 1, FS: "ext4",
		Writers: 4, Think: 40 * time.Millisecond, Segment: "4MiB", Snapshot: "4MiB", Keep: "6h",
	}
}

// RunsDir is where runs are stored when nothing else is said.
func RunsDir() string { return filepath.Join(os.TempDir(), "penstock-jepsen-runs") }

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

func controlOptions(o Options, run, dir string, env []string) control.Options {
	images := o.Images
	if images != "" {
		images = filepath.Join(images, "penstock-jepsen-images", run)
	}
	return control.Options{
		Run: run, WorkDir: filepath.Join(control.WorkRoot(), run), LogDir: filepath.Join(dir, "nodes"), Binary: o.Binary,
		Nodes: o.Nodes, FS: o.FS, DataBytes: 1 << 30, DLQBytes: 128 << 20, Env: env, Extra: []string{"d1", "d2"},
		ImageDir: images, Segment: o.Segment, Snapshot: o.Snapshot, Trailing: o.Trailing,
	}
}
