package nemesis

import (
	"context"
	"errors"
)

func destinationFaults() []Fault {
	return []Fault{{
		Name: "dest-refuse", Long: true,
		What:      "the destination of the emitter that gives up answers 400 to everything: each of its deliveries becomes a dead letter",
		Confirmed: "the destination counted attempts it refused", begin: refuseAll,
	}, {
		Name: "dest-fail", Long: true,
		What:      "the destination of one webhook emitter fails in one of nine ways: 503, 400, 429, reset, kept but reset, hang, slow, flaky",
		Confirmed: "the destination counted attempts it did not answer with 200 (slow: the mode was set)", begin: failDestination, end: countFailures,
	}}
}

// modes are named as the destination process knows them. 400 makes dead letters, so it is for emitters that may have them.
var modes = []string{"503", "429", "reset", "200-reset", "hang", "slow", "flaky", "flaky-keep"}

func refuseAll(ctx context.Context, a *Act) error { return failWith(ctx, a, "strict", "400") }

func failDestination(ctx context.Context, a *Act) error {
	emitter := a.Emitters[a.Rand.IntN(len(a.Emitters))]
	if a.Rand.IntN(3) == 0 {
		emitter = "strict" // the one that gives up: dead letters
	}
	mode := modes[a.Rand.IntN(len(modes))]
	if emitter == "strict" && a.Rand.IntN(3) == 0 {
		mode = "400"
	}
	return failWith(ctx, a, emitter, mode)
}

func failWith(ctx context.Context, a *Act, emitter, mode string) error {
	before, err := a.Failures(ctx)
	if err != nil {
		return err
	}
	if err := a.Destination(ctx, emitter, mode); err != nil {
		return err
	}
	a.later(func(ctx context.Context) error {
		after, err := a.Failures(ctx)
		if after > before || mode == "slow" {
			a.confirm("%s in mode %s, %d attempts failed", emitter, mode, after-before)
		}
		return errors.Join(err, a.Destination(ctx, emitter, "ok"))
	})
	return nil
}

func countFailures(context.Context, *Act) error { return nil } // counted when it is undone
