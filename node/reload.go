package node

import (
	"context"
	"log/slog"
	"time"

	"penstock/node/config"
)

// tokensLook is how often the file of tokens is looked at, beside SIGHUP: what mounts secrets sends no signal.
const tokensLook = time.Second

// reloads takes over what can change in a running node, and tokens as soon as their file changes.
func (n *Node) reloads(ctx context.Context) {
	tick := time.NewTicker(tokensLook)
	defer tick.Stop()
	for {
		select {
		case next := <-n.opts.Reload:
			n.reload(next)
		case <-tick.C:
			changes, err := n.access.Refresh()
			if err != nil {
				n.log.Error("tokens not taken over; those that were stay good", "error", err)
			} else if len(changes) > 0 {
				n.log.Info("tokens taken over", "changed", changes)
			}
		case <-ctx.Done():
			return
		}
	}
}

// reload changes all that can be changed, or nothing, and says what.
func (n *Node) reload(next config.Config) {
	keys, err := gossipKeys(next)
	var tokens []string
	if err == nil {
		tokens, err = n.access.Load(next.Auth.Tokens)
	}
	if err == nil {
		err = n.cluster.SetGossipKeys(keys) // they are good; what it may still refuse is to begin or to end sealing
	}
	if err != nil {
		n.log.Error("configuration not taken over: nothing was changed but tokens, perhaps", "error", err)
		return
	}
	now, restart := n.running.Changes(&next)
	n.running = n.running.Reloaded(&next)
	n.api.SetConfig(surfaceOf(n.running.Limits))
	n.listener.resize(connectionLimits(n.running.Limits))
	if n.opts.Level != nil {
		var level slog.Level
		if level.UnmarshalText([]byte(n.running.Log.Level)) == nil { // it was validated
			n.opts.Level.Set(level)
		}
	}
	n.log.Info("configuration taken over", "changed", lines(now), "tokens", tokens, "needs_restart", lines(restart))
}

func lines(changes []config.Change) []string {
	out := make([]string, len(changes))
	for i, c := range changes {
		out[i] = c.String()
	}
	return out
}
