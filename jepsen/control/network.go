package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
)

// prefix starts the name of every namespace this package makes.
const prefix = "pj-"

// Network is one bridge in a namespace of its own (the hub), so that the host's firewall never sees the traffic between
// nodes, with one namespace per host and one link to the harness.
//
//	root namespace          hub namespace               node namespaces
//	pjRUNh 10.S.R.1 ──────── v-host ┐
//	                                ├ br0 ┬ v-n1 ────── eth0 10.S.R.11   pj-RUN-n1
//	                                      └ v-n2 ────── eth0 10.S.R.12   pj-RUN-n2
type Network struct {
	Run     string
	subnet  string // "10.213.7": the first three octets
	hosts   map[string]string
	removes []func(context.Context) error
}

// NewNetwork lays the hub and the harness's link. On error what was made is removed again.
func NewNetwork(ctx context.Context, run string) (*Network, error) {
	subnet, err := freeSubnet()
	if err != nil {
		return nil, err
	}
	n := &Network{Run: run, subnet: subnet, hosts: map[string]string{}}
	if err := n.layHub(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("lay network: %w", err), n.Close(ctx))
	}
	return n, nil
}

func (n *Network) layHub(ctx context.Context) error {
	hub, link := n.Namespace("hub"), "pj"+n.Run+"h"
	if err := n.addNamespace(ctx, "hub"); err != nil {
		return err
	}
	if _, err := tool(ctx, "ip", "link", "add", link, "type", "veth", "peer", "name", "v-host", "netns", hub); err != nil {
		return err
	}
	n.removes = append(n.removes, func(ctx context.Context) error { _, err := tool(ctx, "ip", "link", "del", link); return err })
	for _, args := range [][]string{
		{"-n", hub, "link", "add", "br0", "type", "bridge"},
		{"-n", hub, "link", "set", "br0", "up"},
		{"-n", hub, "link", "set", "v-host", "master", "br0", "up"},
		{"addr", "add", n.HostAddr() + "/24", "dev", link},
		{"link", "set", link, "up"},
	} {
		if _, err := tool(ctx, "ip", args...); err != nil {
			return err
		}
	}
	return nil
}

func (n *Network) addNamespace(ctx context.Context, host string) error {
	ns := n.Namespace(host)
	if _, err := tool(ctx, "ip", "netns", "add", ns); err != nil {
		return err
	}
	n.removes = append(n.removes, func(ctx context.Context) error { _, err := tool(ctx, "ip", "netns", "del", ns); return err })
	_, err := tool(ctx, "ip", "-n", ns, "link", "set", "lo", "up")
	return err
}

// AddHost makes a namespace with one address on the bridge. number is the last octet, 2 to 254.
func (n *Network) AddHost(ctx context.Context, host string, number int) (addr string, err error) {
	if err := n.addNamespace(ctx, host); err != nil {
		return "", fmt.Errorf("add host %s: %w", host, err)
	}
	ns, hub, port := n.Namespace(host), n.Namespace("hub"), "v-"+host
	addr = fmt.Sprintf("%s.%d", n.subnet, number)
	for _, args := range [][]string{
		{"link", "add", "eth0", "netns", ns, "type", "veth", "peer", "name", port, "netns", hub},
		{"-n", hub, "link", "set", port, "master", "br0", "up"},
		{"-n", ns, "addr", "add", addr + "/24", "dev", "eth0"},
		{"-n", ns, "link", "set", "eth0", "up"},
	} {
		if _, err := tool(ctx, "ip", args...); err != nil {
			return "", fmt.Errorf("add host %s: %w", host, err)
		}
	}
	n.hosts[host] = addr
	return addr, nil
}

// Namespace is the name of a host's network namespace.
func (n *Network) Namespace(host string) string { return prefix + n.Run + "-" + host }

// HostAddr is the harness's own address on the bridge.
func (n *Network) HostAddr() string { return n.subnet + ".1" }

// Addr is a host's address, "" when there is no such host.
func (n *Network) Addr(host string) string { return n.hosts[host] }

// Firewall runs iptables inside a host's namespace.
func (n *Network) Firewall(ctx context.Context, host string, args ...string) (string, error) {
	full := append([]string{"--net=/run/netns/" + n.Namespace(host), "iptables", "-w", "10"}, args...)
	return tool(ctx, "nsenter", full...)
}

// Close removes everything in reverse order; it goes on after an error.
func (n *Network) Close(ctx context.Context) error {
	var errs []error
	for i := len(n.removes) - 1; i >= 0; i-- {
		errs = append(errs, n.removes[i](ctx))
	}
	n.removes = nil
	return errors.Join(errs...)
}

// freeSubnet finds a 10.213.x.0/24 that no interface of this machine overlaps.
func freeSubnet() (string, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("list addresses: %w", err)
	}
	for third := 1; third < 255; third++ {
		subnet := fmt.Sprintf("10.213.%d", third)
		_, want, _ := net.ParseCIDR(subnet + ".0/24")
		free := true
		for _, a := range addrs {
			ipnet, ok := a.(*net.IPNet)
			if ok && (want.Contains(ipnet.IP) || ipnet.Contains(want.IP)) {
				free = false
			}
		}
		if free {
			return subnet, nil
		}
	}
	return "", errors.New("no free 10.213.x.0/24 subnet on this machine")
}

// namespaces lists the network namespaces that carry our prefix.
func namespaces(ctx context.Context) ([]string, error) {
	out, err := tool(ctx, "ip", "netns", "list")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, line := range strings.Split(out, "\n") {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(name, prefix) {
			found = append(found, name)
		}
	}
	return found, nil
}
