package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"penstock/cluster"
	"penstock/fsm"
	"penstock/node/config"
	"penstock/node/replay"
	"penstock/wal"
)

// RecoverOptions say how a cluster that lost its majority is recovered from one node.
type RecoverOptions struct {
	// Do it; otherwise only look.
	Do bool
	// Actor and Reason go into the report, and into the audit trail once the node leads.
	Actor, Reason string
	Logger        *slog.Logger
}

// RecoverReport is what was found, and what was done when NewClusterID is set.
type RecoverReport struct {
	cluster.Recovery
	MayLose []string `json:"may_lose"`
	Actor   string   `json:"actor"`
	Reason  string   `json:"reason"`
	// Path is where the report was written; empty after a look.
	Path string `json:"-"`
}

// The report of a recovery stays in the data directory. While the second name is there, its audit record is still due.
const (
	reportPattern = "recovered-*.json"
	auditDue      = ".audit-due"
)

// Recover works offline on the data directory of a node, which must not run (exit code 12 if it does).
func Recover(cfg config.Config, opts RecoverOptions) (report *RecoverReport, err error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if _, err := os.Stat(cfg.Node.DataDir); err != nil {
		return nil, fmt.Errorf("node.data_dir: %w", err)
	}
	n := &Node{cfg: cfg, log: opts.Logger, registry: newRegistry()}
	n.opts.Fatal = func(code int, err error) { opts.Logger.Error("recover", "error", err, "exit_code", code) }
	if n.lock, err = cluster.LockDir(cfg.Node.DataDir); err != nil {
		return nil, startError("data directory", err)
	}
	defer func() {
		if closing := n.close(); closing != nil {
			err = errors.Join(err, exitWith(ExitDiskFault, "recover", closing))
		}
	}()
	n.wal, err = wal.Open(filepath.Join(cfg.Node.DataDir, "wal"), wal.Config{
		SegmentBytes: int64(cfg.WAL.SegmentBytes), MaxBytes: int64(cfg.WAL.MaxBytes), Logger: n.log, Registerer: n.registry, Fatal: n.fatalDisk,
		AllowDamage: true, MarkLost: func(error) error { return nil }, // what is missing is what the operator decides on
	})
	if err != nil {
		return nil, startError("log", err)
	}
	if err := n.openState(); err != nil {
		return nil, startError("state", err)
	}
	report = &RecoverReport{Actor: opts.Actor, Reason: opts.Reason}
	rc := cluster.RecoverConfig{NodeID: cfg.Node.ID, Name: cfg.Cluster.Name, DataDir: cfg.Node.DataDir, Lost: lostEntries(n.wal), Logger: n.log}
	act := cluster.PlanRecover
	if opts.Do {
		act = cluster.Recover
	}
	found, err := act(rc, n.wal, stateMachine{n.machine})
	if err != nil {
		return nil, startError("recover", err)
	}
	report.Recovery, report.MayLose = *found, found.MayLose()
	if opts.Do {
		err = report.write(cfg.Node.DataDir)
	}
	return report, err
}

func lostEntries(l *wal.Log) []cluster.LostEntries {
	var out []cluster.LostEntries
	for _, d := range l.Damage() {
		if d.First > 0 {
			out = append(out, cluster.LostEntries{First: d.First, Last: d.Last})
		}
	}
	return out
}

// write makes the report durable, with the note that its audit record is due first.
func (r *RecoverReport) write(dir string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the report: %w", err)
	}
	r.Path = filepath.Join(dir, "recovered-"+r.At.Format("20060102T150405.000Z")+".json")
	for _, f := range []struct {
		path string
		body []byte
	}{{r.Path + auditDue, nil}, {r.Path, append(b, '\n')}} {
		if err := writeSynced(f.path, f.body); err != nil {
			return fmt.Errorf("write the report (the recovery itself is done): %w", err)
		}
	}
	return syncDir(dir)
}

func writeSynced(path string, body []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(body)
	return errors.Join(err, f.Sync(), f.Close())
}

// auditRecoveries brings recoveries into the trail once this node leads: there was no cluster to tell before.
func (n *Node) auditRecoveries(ctx context.Context) {
	reports, _ := filepath.Glob(filepath.Join(n.cfg.Node.DataDir, reportPattern+auditDue))
	for _, due := range reports {
		for !n.auditRecovery(ctx, due) {
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return
			}
		}
	}
}

// auditRecovery is true once the record is in the trail.
func (n *Node) auditRecovery(ctx context.Context, due string) bool {
	if !n.cluster.IsLeader() {
		return false
	}
	var r RecoverReport
	b, err := os.ReadFile(strings.TrimSuffix(due, auditDue))
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		n.log.Error("the report of a recovery cannot be read; its record says no more than that it was", "file", due, "error", err)
	}
	act := replay.Act{
		Actor: r.Actor, Action: "cluster.recover", Reason: r.Reason, RequestID: filepath.Base(strings.TrimSuffix(due, auditDue)), Targets: []string{n.cfg.Node.ID},
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	detail := fmt.Sprintf("offline at %s: %d entries kept, voters before %v, cluster id before %s", r.At.Format(time.RFC3339), r.LastIndex, r.Voters, r.OldClusterID)
	if err := n.replays.Audited(ctx, act, func(context.Context) (string, string) { return fsm.AuditSuccess, detail }); err != nil {
		n.log.Warn("the record of a recovery is still due", "error", err)
		return false
	}
	if err := os.Remove(due); err != nil {
		n.log.Warn("the record of a recovery is made, and may be made again", "error", err)
	}
	return true
}
