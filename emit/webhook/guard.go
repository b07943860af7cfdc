package webhook

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
)

// errPrivate: webhook.deny_private is set and the destination's address is not one of the public internet.
var errPrivate = errors.New("the address is private and deny_private is set")

// special are ranges that no public destination has, besides those netip names itself.
var special = func() (all []netip.Prefix) {
	for _, p := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24",
		"203.0.113.0/24", "240.0.0.0/4", // IPv4: this network, carrier NAT, protocols, documentation, benchmarks, reserved
		"::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/32", "2001:db8::/32", "2002::/16", "fec0::/10", // IPv6:
		// IPv4 in IPv6 in all its forms (compatible, NAT64, Teredo, 6to4), discard, documentation, site-local
	} {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}()

// denyPrivate refuses a connection by the address that is about to be dialled, so that no spelling of a host (decimal,
// IPv4-mapped IPv6, with a zone) and no name that resolves to a private address gets past it. Nothing was sent yet.
func denyPrivate(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %s", errPrivate, "unreadable address")
	}
	if !public(ap.Addr()) {
		return errPrivate
	}
	return nil
}

func public(a netip.Addr) bool {
	a = a.WithZone("").Unmap()
	if !a.IsGlobalUnicast() || a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() {
		return false
	}
	for _, p := range special {
		if p.Contains(a) {
			return false
		}
	}
	return true
}
