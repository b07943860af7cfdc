// Package node is the composition root: it alone knows all the parts and wires them. See docs/ARCHITECTURE.md for the
// picture.
//
// It owns the life cycle of one node: directories, the lock, the order in which parts open and close, the listeners, the
// drain, the clean-stop marker, the metrics registry. It promises that a node that returns nil from Run has answered each
// request it accepted, committed each outcome it knew, and synced its log and checkpoint; and that without that the next
// start counts as unclean. Everything else is decided in the parts: node/api (HTTP), node/owner (who emits what),
// node/logread (events out of the log), node/config (what the user said).
package node
