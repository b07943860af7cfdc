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
	Chain string // INPUT or OUTPUT
	Spec  []string
}

// Add appends the rule.
func (r Rule) Add(ctx context.Context, network *Network) error {
	_, err := network.Firewall(ctx, r.Host, append([]string{"-A", r.Chain}, r.Spec...)...)
	return err
}

// Remove deletes the rule.
func (r Rule) Remove(ctx context.Context, network *Network) error {
	_, err := network.Firewall(ctx, r.Host, append([]string{"-D", r.Chain}, r.Spec...)...)
	return err
}

// DroppedPackets sums the packet counters of a host's rules that drop or reject. Counters start at 0 with each rule.
func DroppedPackets(ctx context.Context, network *Network, host string) (int64, error) {
	out, err := network.Firewall(ctx, host, "-L", "-v", "-n", "-x")
	if err != nil {
		return 0, err
	}
	return sumDrops(out)
}

func sumDrops(listing string) (int64, error) {
	var sum int64
	for _, line := range splitLines(listing) {
		fields := strings.Fields(line)
		if len(fields) < 3 || (fields[2] != "DROP" && fields[2] != "REJECT") {
			continue
		}
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
