package node

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/cluster"
	"penstock/dlq"
	"penstock/emit"
	"penstock/event"
	"penstock/fsm"
	"penstock/fsm/checkpoint"
	"penstock/fsm/command"
	"penstock/node/access"
	"penstock/node/api"
	"penstock/node/config"
	"penstock/node/logread"
	"penstock/node/owner"
	"penstock/node/replay"
	"penstock/node/retention"
	"penstock/wal"
)

const (
	checkpointInterval = 30 * time.Second
	checkpointLook     = 250 * time.Millisecond
	// entryCacheBytes bounds the decoded entries that tail and the emitters share.
	entryCacheBytes = 64 << 20
)

// Node is one running node. Its parts are opened in the order of the fields and closed in the reverse.
type Node struct {
	cfg  config.Config // as it was at the start
	opts Options
	log  *slog.Logger

	running config.Config // with what was reloaded since; reloads' own

	fresh      bool // the directory held no state when it was opened
	cleanStart bool
	registry   *prometheus.Registry
	access     *access.Gate
	listener   *connLimit
	lock       *cluster.DirLock
	wal        *wal.Log
	store      *checkpoint.Store
	machine    *fsm.Machine
	cluster    *cluster.Cluster
	volume     *dlq.Volume
	reader     *logread.Reader
	replays    *replay.Service
	runners    *owner.Runners
	retention  *retention.Keeper
	api        *api.API
	acts       chan replay.Act // of this node's own, for the audit
	removed    chan error      // what the cluster says when this node is no member any more
}

// open opens every part. What was opened before a part failed is closed again.
func open(cfg config.Config, opts Options) (n *Node, err error) {
	n = &Node{cfg: cfg, running: cfg, opts: opts, log: opts.Logger, registry: newRegistry(), removed: make(chan error, 1), acts: make(chan replay.Act, 4)}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if n.access, err = access.Open(cfg.Auth.Tokens, os.Getenv); err != nil {
		return n, err
	}
	if n.lock, err = cluster.LockDir(cfg.Node.DataDir); err != nil {
		return n, startError("data directory", err)
	}
	if err = freeAtStart(cfg.Node.DataDir); err != nil {
		return n, exitWith(ExitDiskFault, "start on a full disk", err)
	}
	n.fresh = isFresh(cfg.Node.DataDir)
	if n.cleanStart, err = takeCleanStop(cfg.Node.DataDir); err != nil {
		return n, exitWith(ExitDiskFault, "start", err)
	}
	for _, part := range []struct {
		name string
		open func() error
	}{
		{"log", n.openLog}, {"state", n.openState}, {"dead letters", n.openDeadLetters}, {"cluster", n.openCluster}, {"metrics", n.openBridges},
	} {
		if err = part.open(); err != nil {
			return n, startError(part.name, err)
		}
	}
	n.reader = logread.New(readableLog{n.wal, n.cluster.Mend}, n.machine, entryCacheBytes)
	n.openRunners()
	n.openRetention()
	n.openAPI()
	return n, nil
}

// startError keeps the exit code that a part's error asks for.
func startError(part string, err error) error {
	err = fmt.Errorf("open %s: %w", part, err)
	var coded *cluster.ExitError
	if errors.As(err, &coded) {
		return &ExitError{Code: coded.Code, Err: err}
	}
	for _, too := range tooNew {
		if errors.Is(err, too) {
			return &ExitError{Code: ExitTooNew, Err: err}
		}
	}
	var tooNewState *fsm.ErrTooNew
	switch {
	case errors.As(err, &tooNewState):
		return &ExitError{Code: ExitTooNew, Err: err}
	case errors.Is(err, dlq.ErrForeign): // the volume may be looked at before the cluster's own identity is
		return &ExitError{Code: ExitForeign, Err: err}
	case errors.Is(err, errState), errors.Is(err, syscall.EIO):
		return &ExitError{Code: ExitDiskFault, Err: err}
	}
	return err
}

// tooNew is what each part says of files of a later version.
var tooNew = []error{wal.ErrTooNew, checkpoint.ErrTooNew, dlq.ErrTooNew, cluster.ErrTooNew}

func (n *Node) fatalDisk(err error) { n.opts.Fatal(ExitDiskFault, err) }

// openLog opens the log also when it is damaged: the cluster repairs it before Raft starts, or refuses to start.
func (n *Node) openLog() (err error) {
	n.wal, err = wal.Open(filepath.Join(n.cfg.Node.DataDir, "wal"), wal.Config{
		SegmentBytes: int64(n.cfg.WAL.SegmentBytes), MaxBytes: int64(n.cfg.WAL.MaxBytes), ReserveBytes: int64(n.cfg.WAL.SegmentBytes),
		Logger: n.log, Registerer: n.registry, Fatal: n.fatalDisk,
		AllowDamage: true, MarkLost: n.markLost,
	})
	return err
}

func (n *Node) openState() (err error) {
	path := filepath.Join(n.cfg.Node.DataDir, "fsm.db")
	if gcOurs() {
		debug.SetGCPercent(loadPercent)
		defer tuneGC()
	}
	if err := n.openCheckpoint(path); err != nil {
		return err
	}
	n.registry.MustRegister(newStateMetrics(n.machine))
	return nil
}

func (n *Node) openDeadLetters() (err error) {
	n.volume, err = dlq.Open(n.cfg.DeadLetterDirectory(), dlq.Config{
		NodeID: n.cfg.Node.ID, MaxFiles: n.cfg.DeadLetter.MaxFiles, MaxBytes: int64(n.cfg.DeadLetter.MaxBytes),
		MaxAge: time.Duration(n.cfg.DeadLetter.MaxAge), Overflow: n.cfg.DeadLetter.Overflow, Discard: n.dropDeadLetters,
		Logger: n.log, Registerer: n.registry,
	})
	return err
}

// dropDeadLetters discards what the volume gives up at its bound. Nothing is appended before the service is there.
func (n *Node) dropDeadLetters(ctx context.Context, drops []dlq.Drop) error {
	return n.replays.Drop(ctx, drops)
}

func (n *Node) openCluster() (err error) {
	c := n.cfg
	keys, err := gossipKeys(c)
	if err != nil {
		return err
	}
	n.cluster, err = cluster.Open(cluster.Config{
		NodeID: c.Node.ID, Name: c.Cluster.Name, DataDir: c.Node.DataDir,
		RaftAddr: c.Node.Raft, RaftAdvertise: c.RaftAdvertise(),
		GossipAddr: c.Node.Gossip, GossipAdvertise: c.GossipAdvertise(), HTTPAdvertise: c.HTTPAdvertise(),
		Seeds: c.Cluster.Seeds, Single: c.Single(), GossipKeys: keys,
		NodeTold: cluster.NodeTold{Version: n.opts.Version, Zone: c.Node.Zone, FeatureMin: featureMin, FeatureMax: featureMax},
		Timers: cluster.Timers{
			Heartbeat: time.Duration(c.Cluster.Heartbeat), Election: time.Duration(c.Cluster.Election), Lease: time.Duration(c.Cluster.Lease),
		},
		SnapshotBytes: int64(c.Cluster.SnapshotBytes), TrailingLogs: uint64(c.Cluster.TrailingEntries),
		Admit:       n.access.Admit,
		AppendEntry: command.AppendEntry, InitCommand: initCommand, ReportExtra: n.report,
		Lock: n.lock, Logger: n.log, Registerer: n.registry, Fatal: n.opts.Fatal,
		Removed:    func(err error) { n.removed <- err },
		ScrubEvery: scrubEvery(c.WAL.Scrub), Audit: n.act,
	}, repairableLog{n.wal}, stateMachine{n.machine})
	return err
}

// The feature levels this program can run at: what every member tells by gossip.
const (
	featureMin = 1
	featureMax = 1
)

// initCommand is the first command of a new cluster: its id, and a random key for the hashes of producer ids.
func initCommand(clusterID [16]byte, name string) []byte {
	cmd := command.ClusterInit{ClusterID: clusterID, Name: name}
	rand.Read(cmd.Key[:])
	return command.Encode(cmd)
}

// reported is what a node tells the others of itself beside the indexes: the newest comparable state hash, and whether it can
// keep dead letters.
type reported struct {
	fsm.RingHash
	VolumeFails bool `json:",omitempty"`
}

func (n *Node) report() json.RawMessage {
	r := reported{VolumeFails: n.volume.Failing() != nil}
	hashes := n.machine.Hashes()
	if len(hashes) == 0 && !r.VolumeFails {
		return nil
	}
	if len(hashes) > 0 {
		r.RingHash = hashes[len(hashes)-1]
	}
	b, err := json.Marshal(r)
	if err != nil {
		return nil
	}
	return b
}

func (n *Node) openRunners() {
	sinks := emit.SinkDeps{DataDir: n.cfg.Node.DataDir, NodeID: n.cfg.Node.ID, Stdout: n.opts.Stdout}
	n.replays = replay.New(replay.Deps{
		NodeID: n.cfg.Node.ID, Machine: n.machine, Reader: n.reader, Cluster: n.cluster, Volume: n.volume, Sinks: sinks,
		Scan: time.Duration(n.cfg.DeadLetter.Scan), Logger: n.log,
	})
	n.registry.MustRegister(replay.NewMetrics(n.machine, n.cluster.Now))
	n.runners = owner.New(owner.Deps{
		NodeID: n.cfg.Node.ID, Machine: n.machine, Reader: n.reader, Cluster: n.cluster,
		CaughtUp: func() bool { return n.cluster.Status().Ready },
		Lease:    leaseOf(n.cluster), Dead: n.volume,
		Sinks: sinks, Metrics: emit.NewMetrics(n.registry), Logger: n.log, Beside: n.replays.Beside,
		Grace: emitterGrace(time.Duration(n.cfg.Drain)), Flush: emitterFlush(time.Duration(n.cfg.Drain)),
	})
}

func (n *Node) openRetention() {
	n.retention = &retention.Keeper{
		Machine: n.machine, Reader: n.reader, Cluster: n.cluster, Log: n.wal, SegmentBytes: int64(n.cfg.WAL.SegmentBytes), Logger: n.log,
	}
	n.retention.Use(retention.NewMetrics(n.registry, n.machine))
}

// openBridges shows what the cluster and its libraries report of themselves.
func (n *Node) openBridges() error {
	b, err := processBridge()
	if err != nil {
		return fmt.Errorf("metrics of the libraries: %w", err)
	}
	n.registry.MustRegister(b.all...)
	n.registry.MustRegister(newQuorumMetrics(n.cluster.Members))
	return nil
}

func (n *Node) openAPI() {
	n.api = api.New(surfaceOf(n.cfg.Limits), api.Deps{
		NodeID: n.cfg.Node.ID, Access: n.access, OpenMetrics: n.cfg.Auth.OpenMetrics,
		Cluster: n.cluster, Machine: n.machine, Reader: n.reader, Log: n.wal, Ready: n.ready,
		Operate: n.replays.Handlers(api.ActorOf), Audit: n.replays,
		Gatherer: n.registry, Metrics: n.registry, Logger: n.log,
	})
}

// surfaceOf are the bounds of the surface.
func surfaceOf(l config.Limits) api.Config {
	return api.Config{
		Limits:  event.Limits{EventBytes: int(l.EventBytes), BodyBytes: int(l.BodyBytes), Events: l.Events, Depth: l.Depth},
		Timeout: time.Duration(l.Request), InFlight: l.InFlight, InFlightBytes: int64(l.InFlightBytes),
	}
}

// ready is nil while this node has caught up and can answer: it is in contact with a leader that has a quorum (the lease
// says so), and has applied what the log holds up to the leader's commit.
func (n *Node) ready() error {
	s := n.cluster.Status()
	switch {
	case s.Waiting != "":
		return fmt.Errorf("waiting for %s", s.Waiting)
	case s.Leader == "":
		return errors.New("no leader is known")
	case !n.cluster.Lease().Valid():
		return errors.New("no contact with a leader that has a quorum")
	case !s.Ready:
		return errors.New("catching up")
	}
	if _, ok := n.machine.HashKey(); !ok {
		return errors.New("the cluster is being initialized")
	}
	if s := n.wal.Stats(); s.LowWater {
		return fmt.Errorf("the log's file system is below its low-water mark: %d bytes free", s.FreeBytes)
	}
	return nil
}

// startLoops starts what runs in the background; the channel is closed when all of it has ended.
func (n *Node) startLoops(ctx context.Context) <-chan struct{} {
	var wg sync.WaitGroup
	placer := &owner.Placer{Machine: n.machine, Cluster: n.cluster, Members: members(n.cluster), Logger: n.log}
	ticker := &owner.Ticker{Machine: n.machine, Cluster: n.cluster, IsLeader: n.cluster.IsLeader, Logger: n.log}
	wg.Go(func() { n.runners.Run(ctx) })
	wg.Go(func() { placer.Run(ctx) })
	wg.Go(func() { ticker.Run(ctx) })
	wg.Go(func() { n.checkpoints(ctx) })
	wg.Go(func() { n.auditRecoveries(ctx) })
	wg.Go(func() { n.recordActs(ctx) })
	wg.Go(func() { n.retention.Run(ctx) })
	wg.Go(func() { n.reloads(ctx) })
	keeper := &replay.Keeper{
		NodeID: n.cfg.Node.ID, Machine: n.machine, Reader: n.reader, Volume: n.volume, Logger: n.log,
		CaughtUp: func() bool { return n.cluster.Status().Ready },
	}
	mirror := &replay.Mirror{Path: filepath.Join(n.cfg.Node.DataDir, "audit.jsonl"), Machine: n.machine, Logger: n.log}
	wg.Go(func() { keeper.Run(ctx) })
	wg.Go(func() { mirror.Run(ctx) })
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	return done
}

// checkpoints bounds what a restart replays: every 30 s, and as soon as so much has changed that apply would soon have to
// stop for one itself.
func (n *Node) checkpoints(ctx context.Context) {
	tick := time.NewTicker(checkpointLook)
	defer tick.Stop()
	last, late := time.Now(), postponed{}
	n.keepStartReserve()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if !n.machine.CheckpointDue() && time.Since(last) < checkpointInterval {
			continue
		}
		last = time.Now()
		err := n.machine.Checkpoint()
		if err != nil && !errors.Is(err, fsm.ErrNoSpace) {
			n.fatalDisk(fmt.Errorf("checkpoint: %w", err))
		}
		late.note(n, err)
		tuneGC()
		n.keepStartReserve()
	}
}

// close closes what is open, last opened first, and gives the directory up.
func (n *Node) close() error {
	err := n.closeParts()
	if n.lock != nil {
		err = errors.Join(err, n.lock.Unlock())
	}
	return err
}

// closeParts closes all but the lock, with a checkpoint once nothing is applied any more. The directory stays this node's.
func (n *Node) closeParts() error {
	var errs []error
	if n.cluster != nil {
		errs = append(errs, n.cluster.Close())
	}
	if n.machine != nil {
		errs = append(errs, n.machine.Checkpoint())
	}
	for _, c := range []io.Closer{closer(n.volume), closer(n.store), closer(n.wal)} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// closer turns a nil pointer into a nil interface.
func closer[T any, P interface {
	*T
	io.Closer
}](p P) io.Closer {
	if p == nil {
		return nil
	}
	return p
}
