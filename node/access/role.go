package access

import (
	"fmt"
	"slices"
	"strings"
)

// Role is what a token may be. Producer and consumer are held per channel.
type Role string

const (
	Producer Role = "producer" // sends events to a channel, and reads its source offsets
	Consumer Role = "consumer" // reads the events of a channel, payloads included
	Viewer   Role = "viewer"   // sees everything but payloads and the audit trail
	Operator Role = "operator" // replays and discards dead letters, pauses emitters; sees what a viewer sees, and the audit trail
	Admin    Role = "admin"    // changes channels and members; sees what a viewer sees, and the audit trail
)

// Roles are all of them, in the order of the documents.
var Roles = []Role{Producer, Consumer, Viewer, Operator, Admin}

func (r Role) perChannel() bool { return r == Producer || r == Consumer }

// rule is one line of allow or deny: a role, and for those held per channel which channels.
type rule struct {
	role    Role
	channel string // a name, or a prefix with * behind it; "" for a role that is not per channel
}

// parseRule reads ROLE or ROLE:CHANNEL.
func parseRule(s string) (rule, error) {
	name, channel, scoped := strings.Cut(s, ":")
	r := rule{role: Role(name), channel: channel}
	switch {
	case !slices.Contains(Roles, r.role):
		return r, fmt.Errorf("%.64q: no such role, want one of %s", name, join(Roles))
	case r.role.perChannel() && channel == "":
		return r, fmt.Errorf("%.64q: want %s:CHANNEL; %s:* is every channel", s, name, name)
	case !r.role.perChannel() && scoped:
		return r, fmt.Errorf("%.64q: %s is held for the whole cluster, not per channel", s, name)
	case strings.Contains(strings.TrimSuffix(channel, "*"), "*"):
		return r, fmt.Errorf("%.64q: a * stands only at the end", s)
	}
	return r, nil
}

// matches tells whether the rule says something about the role on that channel.
func (r rule) matches(role Role, channel string) bool {
	if r.role != role {
		return false
	}
	prefix, open := strings.CutSuffix(r.channel, "*")
	return r.channel == channel || open && strings.HasPrefix(channel, prefix)
}

func join(roles []Role) string {
	out := make([]string, len(roles))
	for i, r := range roles {
		out[i] = string(r)
	}
	return strings.Join(out, ", ")
}

// Need is what a route asks for: one of Any, and each of Also. The zero value asks for nothing: health is everybody's.
type Need struct {
	Any  []Role `json:"any,omitempty"`
	Also []Role `json:"also,omitempty"`
}

// NeedAny asks for one of the roles.
func NeedAny(roles ...Role) Need { return Need{Any: roles} }

// Public asks for nobody.
func (n Need) Public() bool { return len(n.Any) == 0 && len(n.Also) == 0 }

// Privileged asks for an operator or an admin. While there are no tokens that is whoever is on this machine.
func (n Need) Privileged() bool {
	return slices.ContainsFunc(n.Any, func(r Role) bool { return r == Operator || r == Admin })
}

// String is the need in words.
func (n Need) String() string {
	if n.Public() {
		return "nothing"
	}
	s := strings.ReplaceAll(join(n.Any), ", ", " or ")
	for _, r := range n.Also {
		s += " and " + string(r)
	}
	return s
}

// holds tells whether the rules give the role on the channel. channel "" stands for every channel there is or will be.
func holds(allow, deny []rule, role Role, channel string) bool {
	if role.perChannel() && channel == "" {
		every := func(r rule) bool { return r.role == role && r.channel == "*" }
		some := func(r rule) bool { return r.role == role }
		return slices.ContainsFunc(allow, every) && !slices.ContainsFunc(deny, some)
	}
	if !role.perChannel() {
		channel = ""
	}
	gives := []Role{role}
	if role == Viewer {
		gives = append(gives, Operator, Admin)
	}
	if slices.ContainsFunc(deny, func(r rule) bool { return r.matches(role, channel) }) {
		return false
	}
	return slices.ContainsFunc(allow, func(r rule) bool {
		return slices.ContainsFunc(gives, func(g Role) bool { return r.matches(g, channel) })
	})
}

func (n Need) met(allow, deny []rule, channel string) bool {
	has := func(r Role) bool { return holds(allow, deny, r, channel) }
	if len(n.Any) > 0 && !slices.ContainsFunc(n.Any, has) {
		return false
	}
	return !slices.ContainsFunc(n.Also, func(r Role) bool { return !has(r) })
}
