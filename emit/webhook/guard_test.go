package webhook

import (
	"net/http"
	"net/netip"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/emit/sink"
	"penstock/emit/sink/sinktest"
)

func TestS03NoSpellingOfAPrivateAddressIsPublic(t *testing.T) {
	for _, s := range []string{
		"127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "0.0.0.0", "0.1.2.3",
		"100.64.0.1", "198.18.0.1", "192.0.2.1", "224.0.0.1", "255.255.255.255", "240.0.0.1",
		"::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "fe80::1", "fe80::1%eth0",
		"fc00::1", "fd12::1", "fec0::1", "ff02::1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:7f00:1::", "2001:db8::1",
	} {
		require.False(t, public(netip.MustParseAddr(s)), s)
	}
	for _, s := range []string{"1.1.1.1", "8.8.8.8", "93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:4700:4700::1111", "::ffff:8.8.8.8"} {
		require.True(t, public(netip.MustParseAddr(s)), s)
	}
	require.ErrorIs(t, denyPrivate("tcp", "nonsense", nil), errPrivate)
}

func TestS03DenyPrivateIsCheckedAtTheDialAndSendsNothing(t *testing.T) {
	r := newReceiver(t)
	u, err := url.Parse(r.URL)
	require.NoError(t, err)
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "0x7f000001", "0"} {
		s := newSink(t, "http://"+host+":"+u.Port()+"/", func(c *Config) {
			c.Webhook.DenyPrivate = true
			c.Webhook.Headers = map[string]string{"Authorization": "Bearer hidden"}
		})
		res := s.Deliver(t.Context(), sinktest.Compaction("c1", `{"n":1}`))
		require.False(t, res.OK, host)
		require.Equal(t, sink.Transient, res.Class, "a name may resolve to another address tomorrow")
		require.NotContains(t, res.Reason, "hidden")
	}
	require.Empty(t, r.all())
	open := newSink(t, r.URL)
	require.True(t, open.Deliver(t.Context(), sinktest.Compaction("c1", `{"n":1}`)).OK, "without the option a private address is a destination like any other")
}

func TestS03RedirectsAreNotFollowedAndLeakNoHeader(t *testing.T) {
	target := newReceiver(t)
	from := newReceiver(t)
	from.answer = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", target.URL)
		w.WriteHeader(http.StatusTemporaryRedirect)
	}
	s := newSink(t, from.URL, func(c *Config) { c.Webhook.Headers = map[string]string{"Authorization": "Bearer hidden"} })
	res := s.Deliver(t.Context(), sinktest.Compaction("c1", `{"n":1}`))
	require.Equal(t, sink.Permanent, res.Class)
	require.Empty(t, target.all())
}
