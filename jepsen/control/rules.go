package control

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

func splitLines(s string) []string { return strings.Split(strings.TrimSpace(s), "\n") }

func containsAll(s string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(s, p) {
			return false
		}
	}
	return true
}

// deleteRule removes the rule that `iptables -S` printed as `-A CHAIN …`.
func deleteRule(ctx context.Context, network *Network, host, line string) error {
	fields := strings.Fields(line)
	fields[0] = "-D"
	_, err := network.Firewall(ctx, host, fields...)
	return err
}

// Rule is one firewall rule of a host that can be counted and taken back.
type Rule struct {
	Host  string
	Chain string   // INPUT or OUTPUT
	Match []string // e.g. -s ADDRESS
	Jump  []string // e.g. DROP
	First bool     // before all other rules, whose verdict would keep packets from it; for rules that catch only some packets
	Mark  string   // names the fault that made it, so that its packets can be counted apart
}

func (r Rule) args(action string) []string {
	args := append([]string{action, r.Chain}, r.Match...)
	args = append(args, "-m", "comment", "--comment", r.Mark, "-j")
	return append(args, r.Jump...)
}

// Add puts the rule at the end of its chain, or at the start.
func (r Rule) Add(ctx context.Context, network *Network) error {
	action := "-A"
	if r.First {
		action = "-I"
	}
	_, err := network.Firewall(ctx, r.Host, r.args(action)...)
	return err
}

// Remove deletes the rule.
func (r Rule) Remove(ctx context.Context, network *Network) error {
	_, err := network.Firewall(ctx, r.Host, r.args("-D")...)
	return err
}

// Hits sums the packets that the rules with this mark caught on one host.
func Hits(ctx context.Context, network *Network, host, mark string) (int64, error) {
	out, err := network.Firewall(ctx, host, "-L", "-v", "-n", "-x")
	if err != nil {
		return 0, err
	}
	return sumHits(out, mark)
}

func sumHits(listing, mark string) (int64, error) {
	var sum int64
	for _, line := range splitLines(listing) {
		if !strings.Contains(line, "/* "+mark+" */") {
			continue
		}
		fields := strings.Fields(line)
		n, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("iptables listing %q: %w", line, err)
		}
		sum += n
	}
	return sum, nil
}

// Flush removes every rule of a host.
func Flush(ctx context.Context, network *Network, host string) error {
	_, err := network.Firewall(ctx, host, "-F")
	return err
}
