package runner

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"penstock/jepsen/check"
	"penstock/jepsen/client"
	"penstock/jepsen/control"
	"penstock/jepsen/oracle"
)

// collect cuts the power of all nodes and takes from their volumes what the checkers need: logs, delivered files, dead
// letters. What was acknowledged, delivered or given up must be on the disks now, without a start that rebuilds one from
// another: a dead letter's record was fsynced before its outcome, or it is missing here (I8).
func (r *run) collect(ctx context.Context) error {
	errs := []error{os.MkdirAll(r.path("logs"), 0o755)}
	if r.cluster != nil {
		r.say("cut the power and collect")
		errs = append(errs, r.cluster.CutAll(ctx))
		for _, n := range r.cluster.Nodes() {
			log := oracle.Read(n.Host, filepath.Join(n.DataDir(), "wal"))
			errs = append(errs, writeJSON(r.path("logs", n.Host+".json"), log), r.collectFiles(n), r.collectDead(n))
		}
	}
	return errors.Join(append(errs, writeJSON(r.path("final.json"), r.final))...)
}

// collectFiles reads what the file emitters left on one node.
func (r *run) collectFiles(n *control.Node) error {
	dir := filepath.Join(n.DataDir(), "out")
	return walkFiles(dir, func(path string, data []byte) error {
		name := filepath.Base(path)
		if strings.HasPrefix(name, ".") {
			return nil // a temporary file of an attempt that was cut off
		}
		out := check.FileOut{Node: n.Host, Emitter: "files", Name: name, Sum: client.Sum(data)}
		for _, line := range bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n")) {
			var e struct{ ID, Source string }
			if err := json.Unmarshal(line, &e); err != nil {
				out.Events = append(out.Events, fmt.Sprintf("unreadable line %.60q", line))
				continue
			}
			out.Events = append(out.Events, e.Source+" "+e.ID)
		}
		r.final.Files = append(r.final.Files, out)
		return nil
	})
}

// collectDead reads the lines of one node's dead-letter volume. A line without its end is torn, wherever it stands.
func (r *run) collectDead(n *control.Node) error {
	return walkFiles(n.DLQ.Mount, func(path string, data []byte) error {
		if !strings.Contains(filepath.Base(path), "jsonl") {
			return nil
		}
		lines := bufio.NewScanner(bytes.NewReader(data))
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			d := check.DeadRecord{Node: n.Host, File: filepath.Base(path)}
			var line struct {
				ID, Emitter string
				Event       struct{ ID, Source string }
			}
			if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
				d.Torn = true
			} else if line.Event.ID == "" {
				continue // a header line
			}
			d.ID, d.Emitter, d.Event = line.ID, line.Emitter, line.Event.Source+" "+line.Event.ID
			r.final.DeadRecords = append(r.final.DeadRecords, d)
		}
		return lines.Err()
	})
}

func walkFiles(dir string, f func(path string, data []byte) error) error {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return f(path, data)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// keepData copies the nodes' directories into the run's directory, holes kept as holes.
func (r *run) keepData() error {
	var errs []error
	for _, n := range r.cluster.Nodes() {
		errs = append(errs, copyTree(n.DataDir(), r.path("data", n.Host)), copyTree(n.DLQ.Mount, r.path("data", n.Host+"-dead-letters")))
	}
	return errors.Join(errs...)
}

func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(from, path)
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		used := len(bytes.TrimRight(data, "\x00"))
		f, err := os.Create(target)
		if err != nil {
			return err
		}
		_, err = f.Write(data[:used])
		return errors.Join(err, f.Truncate(int64(len(data))), f.Close())
	})
}
