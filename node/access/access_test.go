package access

import (
	"crypto/sha256"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func entry(t *testing.T, name string, rules ...string) (token, text string) {
	t.Helper()
	token = NewToken()
	hash, err := Hash(token)
	require.NoError(t, err)
	var allow, deny []string
	for _, r := range rules {
		if d, ok := strings.CutPrefix(r, "!"); ok {
			deny = append(deny, d)
		} else {
			allow = append(allow, r)
		}
	}
	text = fmt.Sprintf("  - {name: %s, hash: %q, allow: [%s], deny: [%s]}\n", name, hash, quoted(allow), quoted(deny))
	return token, text
}

func quoted(list []string) string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = fmt.Sprintf("%q", s)
	}
	return strings.Join(out, ", ")
}

func gateOf(t *testing.T, text string) (*Gate, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	require.NoError(t, os.WriteFile(path, []byte("tokens:\n"+text), 0o600))
	g, err := Open("${file:"+path+"}", os.Getenv)
	require.NoError(t, err)
	return g, path
}

func who(t *testing.T, g *Gate, header ...string) (Actor, error) {
	t.Helper()
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "127.0.0.1:9"
	for _, h := range header {
		r.Header.Add("Authorization", h)
	}
	return g.Identify(r)
}

func TestOnlyAKnownTokenIsSomebody(t *testing.T) {
	token, text := entry(t, "shop", "producer:orders")
	g, _ := gateOf(t, text)
	for _, scheme := range []string{"Bearer ", "bearer "} {
		a, err := who(t, g, scheme+token)
		require.NoError(t, err)
		require.Equal(t, "shop", a.Name)
	}
	for name, header := range map[string][]string{
		"none": nil, "empty": {""}, "no scheme": {token}, "another scheme": {"Basic " + token}, "another": {"Bearer " + NewToken()},
		"cut off": {"Bearer " + token[:len(token)-1]}, "longer": {"Bearer " + token + "A"}, "two": {"Bearer " + token, "Bearer " + token},
		"space behind": {"Bearer " + token + " "}, "spaces before": {"Bearer  " + token}, "the hash": {"Bearer " + g.table.Load().tokens[0].ID},
		"dots": {"Bearer " + strings.Repeat(".", 1<<20)}, "control": {"Bearer " + token[:30] + "\x00" + token[31:]},
	} {
		_, err := who(t, g, header...)
		require.ErrorIs(t, err, ErrUnknown, name)
	}
}

func TestRolesGiveWhatTheirRoutesNeed(t *testing.T) {
	view, acts := NeedAny(Viewer), NeedAny(Operator)
	export := Need{Any: []Role{Operator}, Also: []Role{Consumer}}
	for _, c := range []struct {
		rules   []string
		need    Need
		channel string
		want    bool
	}{
		{[]string{"producer:orders"}, NeedAny(Producer), "orders", true},
		{[]string{"producer:orders"}, NeedAny(Producer), "orders2", false},
		{[]string{"producer:orders"}, NeedAny(Consumer), "orders", false},
		{[]string{"producer:orders"}, NeedAny(Producer, Consumer, Viewer), "orders", true},
		{[]string{"producer:orders"}, view, "", false},
		{[]string{"producer:eu-*"}, NeedAny(Producer), "eu-orders", true},
		{[]string{"producer:eu-*"}, NeedAny(Producer), "us-orders", false},
		{[]string{"producer:*", "!producer:orders"}, NeedAny(Producer), "orders", false},
		{[]string{"producer:orders", "!producer:*"}, NeedAny(Producer), "orders", false},
		{[]string{"producer:*", "!producer:o*"}, NeedAny(Producer), "bills", true},
		{[]string{"consumer:*"}, view, "", false},
		{[]string{"viewer"}, NeedAny(Consumer), "orders", false},
		{[]string{"operator"}, view, "", true},
		{[]string{"admin"}, view, "", true},
		{[]string{"admin"}, acts, "", false},
		{[]string{"operator"}, NeedAny(Admin), "", false},
		{[]string{"operator", "!viewer"}, view, "", false},
		{[]string{"operator", "!viewer"}, acts, "", true},
		{[]string{"operator", "viewer", "!operator"}, acts, "", false},
		{[]string{"operator"}, export, "orders", false},
		{[]string{"operator", "consumer:orders"}, export, "orders", true},
		{[]string{"operator", "consumer:orders"}, export, "", false},
		{[]string{"operator", "consumer:*"}, export, "", true},
		{[]string{"operator", "consumer:*", "!consumer:secret"}, export, "", false},
		{[]string{"consumer:*"}, export, "", false},
	} {
		token, text := entry(t, "x", c.rules...)
		g, _ := gateOf(t, text)
		a, err := who(t, g, "Bearer "+token)
		require.NoError(t, err)
		err = g.Allow(a, c.need, c.channel)
		require.Equal(t, c.want, err == nil, "%v: %s on %q: %v", c.rules, c.need, c.channel, err)
		require.Equal(t, c.want, g.Admit(g.Grant(a, c.need, c.channel)) == nil, "the same where it is carried out")
	}
}

// Adding a deny never widens what a token may do, whatever else it holds.
func TestDenyNeverWidens(t *testing.T) {
	rules := rapid.Custom(func(t *rapid.T) rule {
		role := rapid.SampledFrom(Roles).Draw(t, "role")
		if !role.perChannel() {
			return rule{role: role}
		}
		return rule{role: role, channel: rapid.SampledFrom([]string{"*", "a*", "a", "ab", "ab*", "b"}).Draw(t, "channel")}
	})
	rapid.Check(t, func(t *rapid.T) {
		allow, deny := rapid.SliceOfN(rules, 0, 5).Draw(t, "allow"), rapid.SliceOfN(rules, 0, 5).Draw(t, "deny")
		more := append(append([]rule{}, deny...), rules.Draw(t, "more"))
		for _, role := range Roles {
			for _, channel := range []string{"", "a", "ab", "abc", "b", "c"} {
				if holds(allow, more, role, channel) && !holds(allow, deny, role, channel) {
					t.Fatalf("%v: a deny gave %s on %q", more, role, channel)
				}
				for _, d := range deny {
					if d.matches(role, channel) && channel != "" && holds(allow, deny, role, channel) {
						t.Fatalf("%v is denied and held", d)
					}
				}
			}
		}
	})
}

func TestWithoutTokensOnlyThisMachineOperates(t *testing.T) {
	g, err := Open("", os.Getenv)
	require.NoError(t, err)
	require.False(t, g.Enabled())
	local, err := who(t, g, "Bearer whatever")
	require.NoError(t, err)
	require.Equal(t, "anonymous@127.0.0.1", local.Name)
	require.NoError(t, g.Allow(local, NeedAny(Admin), ""))
	r := httptest.NewRequest("GET", "/", nil)
	for _, from := range []string{"10.0.0.1:99", "[2001:db8::1]:99", "", "localhost", "[::ffff:10.0.0.1]:99"} {
		r.RemoteAddr = from
		a, err := g.Identify(r)
		require.NoError(t, err)
		require.ErrorIs(t, g.Allow(a, NeedAny(Operator, Admin), ""), ErrForbidden, from)
		require.NoError(t, g.Allow(a, NeedAny(Producer), "orders"))
		require.NoError(t, g.Allow(a, Need{}, ""))
	}
	require.NoError(t, g.Admit([]byte(`{"actor":"x"}`)), "a node without tokens cannot check more than its peer did")
}

func TestAFileOfTokensIsTakenWholeOrNotAtAll(t *testing.T) {
	shop, shopText := entry(t, "shop", "producer:orders")
	ops, opsText := entry(t, "ops", "operator")
	g, path := gateOf(t, shopText+opsText)
	write := func(text string, at int) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		stamp := time.Unix(1_700_000_000+int64(at), 0)
		require.NoError(t, os.Chtimes(path, stamp, stamp))
	}
	changes, err := g.Refresh()
	require.NoError(t, err)
	require.Empty(t, changes, "the file is what it was")

	write("tokens:\n"+opsText, 1)
	changes, err = g.Refresh()
	require.NoError(t, err)
	require.Equal(t, []string{"-shop"}, changes)
	_, err = who(t, g, "Bearer "+shop)
	require.ErrorIs(t, err, ErrUnknown, "removed")

	for i, bad := range []string{"", "tokens: []\n", "tokens:\n" + opsText + opsText, "tokens:\n  - {name: x, token: " + shop + "}\n", "{", "x: 1\n"} {
		write(bad, 10+i)
		_, err = g.Refresh()
		require.Error(t, err, bad)
		require.NotContains(t, err.Error(), shop, "no error shows a token")
		require.NotContains(t, err.Error(), g.table.Load().tokens[0].ID)
		_, err = g.Refresh()
		require.NoError(t, err, "said once")
		_, err = who(t, g, "Bearer "+ops)
		require.NoError(t, err, "the last good table stands")
	}
	require.NoError(t, os.Remove(path))
	_, err = g.Refresh()
	require.Error(t, err, "a file that went away does not open the door")
	require.True(t, g.Enabled())
	write("tokens:\n"+strings.Replace(opsText, "operator", "viewer", 1)+shopText, 30)
	changes, err = g.Refresh()
	require.NoError(t, err)
	require.Equal(t, []string{"~ops", "+shop"}, changes)
}

func TestAGrantIsGoodWhereItsTokenIs(t *testing.T) {
	shop, shopText := entry(t, "shop", "producer:orders")
	_, other := entry(t, "other", "viewer")
	here, _ := gateOf(t, shopText)
	there, _ := gateOf(t, other)
	a, err := who(t, here, "Bearer "+shop)
	require.NoError(t, err)
	grant := here.Grant(a, NeedAny(Producer), "orders")
	require.NoError(t, here.Admit(grant))
	require.ErrorIs(t, there.Admit(grant), ErrUnknown)
	require.NotContains(t, string(grant), shop)
	require.Error(t, here.Admit(here.Grant(a, NeedAny(Producer), "bills")))
	require.Error(t, here.Admit(here.Grant(Actor{Name: "anonymous@10.0.0.1"}, NeedAny(Producer), "orders")), "came in at a node without tokens")
	for _, b := range []string{"", "x", "{}", "null", "[]"} {
		require.Error(t, here.Admit([]byte(b)), b)
	}
}

func TestWhatIsNoTableIsRefusedWithItsPlace(t *testing.T) {
	_, good := entry(t, "ok", "viewer")
	for _, c := range []struct{ text, want string }{
		{"tokens:\n  - {name: a b, hash: x, allow: [viewer]}", "tokens[0]"},
		{"tokens:\n  - {name: a, hash: x, allow: [viewer]}", "penstock token hash"},
		{"tokens:\n" + strings.Replace(good, `"viewer"`, "", 1), "at least one role"},
		{"tokens:\n" + strings.Replace(good, "viewer", "king", 1), `"king": no such role`},
		{"tokens:\n" + strings.Replace(good, "viewer", "producer", 1), "producer:CHANNEL"},
		{"tokens:\n" + strings.Replace(good, "viewer", "admin:orders", 1), "whole cluster"},
		{"tokens:\n" + strings.Replace(good, "viewer", "producer:a*b", 1), "at the end"},
		{"tokens:\n" + good + good, "another token has it"},
		{"tokens:\n  - {name: a, hash: x, allow: [viewer], roles: [x]}", "2:"},
	} {
		_, err := ParseTable([]byte(c.text))
		require.ErrorContains(t, err, c.want, c.text)
	}
	require.Error(t, CheckSource("pst_abc"))
	require.Error(t, CheckSource("/etc/tokens"))
	require.NoError(t, CheckSource("${file:/etc/tokens}"))
	_, err := Open("${env:NOT_SET}", func(string) string { return "" })
	require.ErrorContains(t, err, "not set")
	_, err = Hash("short")
	require.Error(t, err)
}

func FuzzParseTable(f *testing.F) {
	f.Add([]byte("tokens:\n  - {name: a, hash: \"sha256:" + strings.Repeat("0", 2*sha256.Size) + "\", allow: [viewer]}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if table, err := ParseTable(b); err == nil && len(table.tokens) == 0 {
			t.Fatal("a table without tokens opens nothing and closes nothing")
		}
	})
}
