package config

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// splitAddress reads host:port with a numeric port; the host may be empty (all interfaces).
func splitAddress(s string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, errors.New("want host:port")
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, errors.New("want host:port with a port from 0 to 65535")
	}
	if strings.ContainsAny(host, " /\\@?#") {
		return "", 0, errors.New("want host:port with a name or an IP address as the host")
	}
	return host, port, nil
}

func joinAddress(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// unspecified: a host to listen on that means every interface, and that nobody can dial.
func unspecified(host string) bool {
	if host == "" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsUnspecified()
}

// loopback: a host that only this machine can reach.
func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// checkListen says what is wrong with an address to listen on.
func checkListen(s string) error {
	_, _, err := splitAddress(s)
	return err
}

// checkDial says what is wrong with an address that other nodes are to dial.
func checkDial(s string) error {
	host, port, err := splitAddress(s)
	switch {
	case err != nil:
		return err
	case unspecified(host):
		return errors.New("want a name or address that the other nodes can dial, not all interfaces")
	case port == 0:
		return errors.New("want host:port with a port from 1 to 65535")
	}
	return nil
}

// Resolver looks a host name up; *net.Resolver is one.
type Resolver interface {
	LookupHost(ctx context.Context, host string) ([]string, error)
}

// resolveTimeout keeps a start with a wrong name under 3 s (B49).
const resolveTimeout = 2 * time.Second

// CheckNames resolves the names this node tells the others to dial. Seeds are not looked up: they may start later.
func (c *Config) CheckNames(ctx context.Context, r Resolver) error {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	for _, s := range []struct{ key, value string }{
		{"node.advertise", c.Node.Advertise},
		{"node.advertise_gossip", c.Node.AdvertiseGossip},
		{"node.advertise_http", c.Node.AdvertiseHTTP},
	} {
		host, _, err := splitAddress(s.value)
		if s.value == "" || err != nil {
			continue
		}
		if _, err := netip.ParseAddr(host); err == nil {
			continue
		}
		if _, err := r.LookupHost(ctx, host); err != nil {
			return c.fault(s.key, s.value, fmt.Sprintf("want a name that resolves (%s)", lookupReason(err)))
		}
	}
	return nil
}

// lookupReason is the short form of a resolver's error.
func lookupReason(err error) string {
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return dns.Err
	}
	return err.Error()
}
