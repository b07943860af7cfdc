package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"penstock/jepsen/check"
	"penstock/jepsen/destination"
	"penstock/jepsen/history"
	"penstock/jepsen/nemesis"
	"penstock/jepsen/oracle"
	"penstock/jepsen/workload"
)

// Load reads the evidence of a stored run.
func Load(dir string) (check.Input, error) {
	var in check.Input
	var o Options
	var windows []nemesis.Window
	at := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(readJSON(at("options.json"), &o), readJSON(at("plan.json"), &windows), readJSON(at("final.json"), &in.Final))
	if err != nil {
		return in, fmt.Errorf("load run: %w", err)
	}
	in.Expect = expect(o, windows)
	for _, e := range workload.Emitters() {
		if contains(in.Expect.Channels, e.Channel) {
			in.Emitters = append(in.Emitters, check.EmitterInfo{Channel: e.Channel, Name: e.Name, Kind: e.Kind, Ordered: e.Ordered})
		}
	}
	var errs []error
	in.Ops, err = history.ReadOps(at("history"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err) // a cluster that never formed has no histories
	}
	in.Faults, err = history.Read[history.Fault](at("faults.jsonl"))
	errs = append(errs, err)
	in.Observations, err = history.Read[history.Observation](at("observations.jsonl"))
	errs = append(errs, err)
	if in.Attempts, err = readAttempts(at("destinations")); err != nil {
		errs = append(errs, err)
	}
	in.Logs, err = readLogs(at("logs"))
	errs = append(errs, err)
	in.Expect.Quiet = resolved(in.Final)
	return in, errors.Join(errs...)
}

// resolved tells whether the run waited until no delivery was pending.
func resolved(f check.Final) bool {
	for _, l := range f.Liveness {
		if l.Name == "deliveries resolved" {
			return l.OK
		}
	}
	return false
}

func expect(o Options, windows []nemesis.Window) check.Expect {
	e := check.Expect{
		MinAcks: o.MinAcks, Kinds: o.Kinds, MinFinalRead: max(1, o.Nodes), Reachable: len(o.Endpoints) > 0,
		Channels: (&run{o: o}).channels(), Trimmed: o.Keep != "" && o.Keep != "6h",
	}
	if e.Reachable {
		e.MinFinalRead = len(o.Endpoints)
	}
	busy := 0
	for _, w := range windows {
		e.Scenarios += len(w.Steps)
		if len(w.Steps) > 0 {
			busy++
		}
	}
	for _, k := range o.Kinds {
		if k == "chaos" || k == "external" {
			e.Scenarios++
		}
	}
	e.MinFaults = max(len(o.Kinds), busy/2, o.MinFault)
	return e
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func readAttempts(dir string) ([]destination.Attempt, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var all []destination.Attempt
	for _, f := range files {
		attempts, err := history.Read[destination.Attempt](f)
		if err != nil {
			return nil, err
		}
		all = append(all, attempts...)
	}
	return all, nil
}

func readLogs(dir string) (map[string]*oracle.Log, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	logs := map[string]*oracle.Log{}
	for _, f := range files {
		var l oracle.Log
		if err := readJSON(f, &l); err != nil {
			return nil, err
		}
		logs[strings.TrimSuffix(filepath.Base(f), ".json")] = &l
	}
	return logs, nil
}
