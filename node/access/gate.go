package access

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// ErrUnknown: no token was presented, or one that this node does not know. ErrForbidden: it is known, and does not hold what is needed.
var (
	ErrUnknown   = errors.New("no valid token")
	ErrForbidden = errors.New("not allowed")
)

// Actor is who asks.
type Actor struct {
	// Name stands in the audit trail: the token's, or anonymous@HOST while there are no tokens.
	Name string
	// Token names the token between nodes; "" while there are no tokens.
	Token string
	local bool // asks from this machine
}

// Gate decides, with the newest good table. It is safe for concurrent use.
type Gate struct {
	table atomic.Pointer[Table] // nil: no tokens are configured

	mu      sync.Mutex // one reload at a time; guards what is below
	source  string
	getenv  func(string) string
	stamp   fileStamp
	refused fileStamp // of the file that Refresh has said to be wrong
}

// fileStamp tells one state of a file from another.
type fileStamp struct {
	size    int64
	changed time.Time
}

var reference = regexp.MustCompile(`^\$\{(env|file):([^{}\x00-\x1f]+)\}$`)

// CheckSource says what is wrong with where tokens are to come from. The tokens themselves never stand in a configuration.
func CheckSource(source string) error {
	if source != "" && !reference.MatchString(source) {
		return errors.New("want a reference, ${file:/path} or ${env:NAME}: tokens, and be they hashed, never stand in the configuration")
	}
	return nil
}

// Open reads the tokens from source, a reference; "" means that there are none, and whoever reaches the node may send, read and see.
func Open(source string, getenv func(string) string) (*Gate, error) {
	g := &Gate{getenv: getenv}
	_, err := g.Load(source)
	return g, err
}

// Load reads the tokens anew, from source. After an error the table is what it was. The changes name tokens that came and went.
func (g *Gate) Load(source string) (changes []string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	stamp := stampOf(source)
	next, err := g.read(source)
	if err != nil {
		return nil, err
	}
	g.source, g.stamp, g.refused = source, stamp, stamp
	before := g.table.Swap(next)
	return difference(before, next), nil
}

// Refresh is Load when the file changed since it was read. What is wrong with it is said once.
func (g *Gate) Refresh() (changes []string, err error) {
	g.mu.Lock()
	source, stamp, refused := g.source, g.stamp, g.refused
	g.mu.Unlock()
	now := stampOf(source)
	if !strings.HasPrefix(source, "${file:") || now == stamp || now == refused && now != (fileStamp{}) {
		return nil, nil
	}
	changes, err = g.Load(source)
	if err != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.refused == now {
			return nil, nil
		}
		g.refused = now
	}
	return changes, err
}

func stampOf(source string) (s fileStamp) {
	if m := reference.FindStringSubmatch(source); m != nil && m[1] == "file" {
		if info, err := os.Stat(m[2]); err == nil {
			s = fileStamp{info.Size(), info.ModTime()}
		}
	}
	return s
}

func (g *Gate) read(source string) (*Table, error) {
	if source == "" {
		return nil, nil
	}
	m := reference.FindStringSubmatch(source)
	if m == nil {
		return nil, CheckSource(source)
	}
	var text []byte
	var err error
	if m[1] == "env" {
		text = []byte(g.getenv(m[2]))
		if len(text) == 0 {
			err = errors.New("the variable is not set")
		}
	} else {
		text, err = os.ReadFile(m[2])
	}
	if err != nil {
		return nil, fmt.Errorf("tokens from %s: %w", source, err)
	}
	t, err := ParseTable(text)
	if err != nil {
		return nil, fmt.Errorf("tokens from %s: %w", source, err)
	}
	return t, nil
}

// difference names what came, went and changed.
func difference(before, after *Table) (out []string) {
	for _, name := range before.names() {
		if !slices.Contains(after.names(), name) {
			out = append(out, "-"+name)
		}
	}
	for _, name := range after.names() {
		i := slices.Index(before.names(), name)
		switch j := slices.Index(after.names(), name); {
		case i < 0:
			out = append(out, "+"+name)
		case !reflect.DeepEqual(before.tokens[i], after.tokens[j]):
			out = append(out, "~"+name)
		}
	}
	return out
}

// Enabled tells whether there are tokens.
func (g *Gate) Enabled() bool { return g.table.Load() != nil }

// Identify says who asks. While there are tokens only a valid one is somebody; the error is ErrUnknown.
func (g *Gate) Identify(r *http.Request) (Actor, error) {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = "unknown"
	}
	ip := net.ParseIP(host)
	actor := Actor{Name: "anonymous@" + host, local: ip != nil && ip.IsLoopback()}
	t := g.table.Load()
	if t == nil {
		return actor, nil
	}
	presented, err := bearer(r.Header)
	if err != nil {
		return actor, err
	}
	token := t.find(presented)
	if token == nil {
		return actor, ErrUnknown
	}
	return Actor{Name: token.Name, Token: token.ID}, nil
}

// bearer is the token of a request. What cannot be one is refused before it is hashed.
func bearer(h http.Header) (string, error) {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return "", ErrUnknown
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || checkToken(token) != nil {
		return "", ErrUnknown
	}
	return token, nil
}

// Allow tells whether the actor holds what is needed on the channel ("": all of them, or none in particular).
func (g *Gate) Allow(a Actor, need Need, channel string) error {
	if need.Public() {
		return nil
	}
	t := g.table.Load()
	if t == nil {
		if need.Privileged() && !a.local {
			return fmt.Errorf("%w: with no token and no issuer configured this route answers on loopback only", ErrForbidden)
		}
		return nil
	}
	token := t.byID(a.Token)
	if token == nil {
		return ErrUnknown
	}
	if !need.met(token.allow, token.deny, channel) {
		return fmt.Errorf("%w: token %s needs %s", ErrForbidden, token.Name, need.on(channel))
	}
	return nil
}

func (n Need) on(channel string) string {
	if channel == "" || !slices.ContainsFunc(append(slices.Clone(n.Any), n.Also...), Role.perChannel) {
		return n.String()
	}
	return n.String() + " of " + fmt.Sprintf("%.128q", channel)
}

// grant is what travels with a request: who asks, for what. A node believes its peers that the token was presented, and looks
// itself whether it is still good for this.
type grant struct {
	Actor   string `json:"actor"`
	Token   string `json:"token,omitempty"`
	Need    Need   `json:"need"`
	Channel string `json:"channel,omitempty"`
}

// Grant makes what travels with the actor's request.
func (g *Gate) Grant(a Actor, need Need, channel string) []byte {
	b, err := json.Marshal(grant{Actor: a.Name, Token: a.Token, Need: need, Channel: channel})
	if err != nil {
		return []byte("{}") // a struct of strings has no error; an empty grant is refused where there are tokens
	}
	return b
}

// Admit checks a grant against this node's own table.
func (g *Gate) Admit(b []byte) error {
	if !g.Enabled() {
		return nil
	}
	var q grant
	if err := json.Unmarshal(b, &q); err != nil {
		return fmt.Errorf("%w: the grant cannot be read", ErrForbidden)
	}
	if q.Token == "" {
		return fmt.Errorf("%w: %s came in at a node without tokens", ErrForbidden, q.Actor)
	}
	if err := g.Allow(Actor{Name: q.Actor, Token: q.Token}, q.Need, q.Channel); err != nil {
		if errors.Is(err, ErrUnknown) {
			return fmt.Errorf("%w: token %s is not known here", ErrUnknown, q.Actor)
		}
		return err
	}
	return nil
}
