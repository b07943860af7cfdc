package nemesis

import (
	"context"
	"errors"
	"syscall"
	"time"

	"penstock/jepsen/control"
)

func powerFaults() []Fault {
	const confirmed = "a write on the volume gave EIO, the process was killed, the volume was unmounted"
	return []Fault{
		{Name: "power", Nodes: 1, Leader: true, Repeat: true, What: "power cut of one node (FS_IOC_SHUTDOWN on both volumes, kill, remount)", Confirmed: confirmed, begin: power},
		{Name: "power-some", Nodes: -3, What: "power cut of a majority within milliseconds", Confirmed: confirmed, begin: power},
		{Name: "power-all", Nodes: -1, What: "power cut of every node within milliseconds", Confirmed: confirmed, begin: power},
		{Name: "power-fresh", Nodes: -1, Repeat: true, What: "every volume is synced, as the kernel may do at any time, and up to 120 ms later the power of every node is cut: at stake is what was acknowledged in between, too new to be known by any mark",
			Confirmed: confirmed, begin: powerFresh},
		{Name: "pause-kill", Nodes: -1, Alone: true, What: "the recipe that broke NATS: pause A, let B and C commit, cut the power of B (half of the time a moment after its volume was synced), pause C, resume A, start B, later resume C",
			Confirmed: "state T seen for each pause, EIO seen for the cut", begin: pauseKill},
	}
}

// cutFlag: mostly a plain power cut, at times one right after a journal commit, which tears appends and leaves empty files.
func cutFlag(a *Act) uint32 {
	if a.Rand.IntN(3) == 0 {
		return control.ShutdownFlush
	}
	return control.ShutdownDrop
}

func power(ctx context.Context, a *Act) error { return cutPower(ctx, a, cutFlag(a)) }

func cutPower(ctx context.Context, a *Act, flag uint32) error {
	a.Hold = min(a.Hold, 6*time.Second)
	a.later(func(ctx context.Context) error {
		return each(a.Nodes, func(n *control.Node) error { return restart(ctx, a, n) })
	})
	return each(a.Nodes, func(n *control.Node) error {
		exit, err := a.Cluster.PowerCut(ctx, n, flag)
		if err == nil {
			a.confirm("%s: EIO seen after FS_IOC_SHUTDOWN %d, then %v", n.Host, flag, exit)
		}
		return err
	})
}

// powerFresh cuts the power of all a moment after all was synced. A node that acknowledges before its fsync loses nothing
// visible by a cut at any time: a log that ends below its own mark refuses to start. This leaves the marks behind.
func powerFresh(ctx context.Context, a *Act) error {
	a.Hold = min(a.Hold, time.Second)
	if err := fresh(a, a.Nodes); err != nil {
		return err
	}
	return cutPower(ctx, a, control.ShutdownDrop) // a commit of the journal would write some of it back after all
}

// fresh syncs the volumes and lets a moment pass, too short for most marks, long enough for some acknowledgements.
func fresh(a *Act, nodes []*control.Node) error {
	err := each(nodes, func(n *control.Node) error { return errors.Join(n.Data.Sync(), n.DLQ.Sync()) })
	time.Sleep(time.Duration(20+a.Rand.IntN(100)) * time.Millisecond)
	return err
}

// pauseKill is the recipe of faults.md 1.2 for three nodes; with more, the others stay paused with A's role or C's.
func pauseKill(ctx context.Context, a *Act) error {
	third := max(1, (len(a.Nodes)-1)/2)
	late, rest := a.Nodes[:third], a.Nodes[third:]
	victims, others := rest[:1], rest[1:]
	resume := func(nodes []*control.Node) error {
		return each(nodes, func(n *control.Node) error {
			if !n.Process.Running() {
				return nil
			}
			return n.Process.Signal(syscall.SIGCONT)
		})
	}
	a.later(func(ctx context.Context) error {
		err := resume(a.Nodes)
		for _, n := range a.Nodes {
			if e := restart(ctx, a, n); e != nil {
				err = e
			}
		}
		return err
	})
	step := max(a.Hold/4, time.Second)
	if err := each(late, func(n *control.Node) error { return pauseOne(a, n) }); err != nil {
		return err
	}
	time.Sleep(2 * step) // the others commit what the paused never receive
	if a.Rand.IntN(2) == 0 {
		if err := fresh(a, victims); err != nil {
			return err
		}
	}
	flag := cutFlag(a)
	err := each(victims, func(n *control.Node) error {
		exit, err := a.Cluster.PowerCut(ctx, n, flag)
		if err == nil {
			a.confirm("%s: EIO seen after FS_IOC_SHUTDOWN %d, then %v", n.Host, flag, exit)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := each(others, func(n *control.Node) error { return pauseOne(a, n) }); err != nil {
		return err
	}
	if err := resume(late); err != nil {
		return err
	}
	for _, n := range victims {
		if err := restart(ctx, a, n); err != nil {
			return err
		}
	}
	time.Sleep(2 * step) // late and victims are a majority now that never held the suffix together but on disk
	a.Hold = 0
	return nil
}
