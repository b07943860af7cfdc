package fsm

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"penstock/fsm/command"
	"penstock/fsm/internal/wire"
)

// Bounds of the audit trail, the same on every node for ever.
const (
	maxOpenIntents = 1_000
	maxTargets     = 1_000
	maxAudit       = 10_000           // records kept; open intents are never dropped
	maxAuditBytes  = 16 << 20         // of their text
	intentLife     = 10 * 60 * second // an intent without an outcome for so long closes as unknown
)

// The results of an intent.
const (
	AuditSuccess  = "success"
	AuditFailure  = "failure"
	AuditRejected = "rejected"
	AuditTimeout  = "timeout"
	AuditUnknown  = "unknown"
)

// AuditRecord is one operator's act: its intent, and its outcome once there is one.
type AuditRecord struct {
	Seq                              uint64 // rises by one from record to record
	ID                               [16]byte
	At                               int64 // stamp of the intent, unix nanoseconds
	Actor, Action, Reason, RequestID string
	Targets                          []string
	Open                             bool   // without an outcome yet
	Result                           string // success | failure | rejected | timeout | unknown
	Detail                           string
	ClosedAt                         int64
}

// audit is the trail, ascending by number.
type audit struct {
	records []*AuditRecord
	byID    map[[16]byte]*AuditRecord
	open    int
	bytes   int
}

func newAudit() audit { return audit{byID: map[[16]byte]*AuditRecord{}} }

func auditRow(seq uint64) string { return rowKey(tableAudit, seq) }

func (r *AuditRecord) weight() int {
	n := 128 + len(r.Actor) + len(r.Action) + len(r.Reason) + len(r.RequestID) + len(r.Detail)
	for _, t := range r.Targets {
		n += 16 + len(t)
	}
	return n
}

func (a *audit) add(r *AuditRecord) {
	a.records = append(a.records, r)
	a.byID[r.ID] = r
	a.bytes += r.weight()
	if r.Open {
		a.open++
	}
}

// openIntent is the intent with that id, if it has no outcome.
func (a *audit) openIntent(id [16]byte) bool {
	r := a.byID[id]
	return r != nil && r.Open
}

// intend takes an intent. The same id again changes nothing: the proposer may not know that it was committed.
func (s *state) intend(c command.AuditIntent) command.PlainResult {
	switch {
	case c.ID == [16]byte{} || len(c.Targets) > maxTargets:
		return command.PlainResult{Status: command.Malformed, Message: fmt.Sprintf("an intent has an id and at most %d targets", maxTargets)}
	case s.audit.byID[c.ID] != nil:
		return command.PlainResult{Status: command.OK}
	case s.audit.open >= maxOpenIntents:
		return command.PlainResult{Status: command.TooMany, Message: fmt.Sprintf("%d intents have no outcome yet", s.audit.open)}
	}
	seq := uint64(1)
	if n := len(s.audit.records); n > 0 {
		seq = s.audit.records[n-1].Seq + 1
	}
	s.audit.add(&AuditRecord{
		Seq: seq, ID: c.ID, At: s.stamp, Actor: c.Actor, Action: c.Action, Reason: c.Reason, RequestID: c.RequestID,
		Targets: slices.Clone(c.Targets), Open: true,
	})
	s.mark(auditRow(seq))
	s.pruneAudit()
	return command.PlainResult{Status: command.OK}
}

// conclude closes an intent; the first outcome stays.
func (s *state) conclude(c command.AuditOutcome) command.PlainResult {
	r := s.audit.byID[c.ID]
	switch {
	case !slices.Contains([]string{AuditSuccess, AuditFailure, AuditRejected, AuditTimeout, AuditUnknown}, c.Result):
		return command.PlainResult{Status: command.Malformed, Message: fmt.Sprintf("result %q", c.Result)}
	case r == nil:
		return command.PlainResult{Status: command.NoSuchIntent, Message: "no such intent"}
	case !r.Open && r.Result == c.Result:
		return command.PlainResult{Status: command.OK}
	case !r.Open:
		return command.PlainResult{Status: command.AlreadyClosed, Message: "the intent is closed as " + r.Result}
	}
	s.closeIntent(r, c.Result, c.Detail)
	s.pruneAudit()
	return command.PlainResult{Status: command.OK}
}

func (s *state) closeIntent(r *AuditRecord, result, detail string) {
	s.audit.bytes -= r.weight()
	r.Open, r.Result, r.Detail, r.ClosedAt = false, result, detail, s.stamp
	s.audit.bytes += r.weight()
	s.audit.open--
	s.mark(auditRow(r.Seq))
}

// abandonIntent closes an intent whose act was cut short, so that nobody can tell any more what came of it (I9).
func (s *state) abandonIntent(id [16]byte, why string) {
	if r := s.audit.byID[id]; r != nil && r.Open {
		s.closeIntent(r, AuditUnknown, why)
	}
}

// expireIntents closes the intents that have been without an outcome for too long: whoever was to report it is gone.
func (s *state) expireIntents() {
	if s.audit.open == 0 {
		return
	}
	for _, r := range s.audit.records {
		if r.Open && s.stamp-r.At >= intentLife {
			s.closeIntent(r, AuditUnknown, "no outcome was reported in time")
		}
	}
	s.pruneAudit()
}

// pruneAudit drops the oldest closed records beyond the bounds. The newest record stays, since numbers go on from it.
func (s *state) pruneAudit() {
	a := &s.audit
	extra := len(a.records) - maxAudit
	if extra <= 0 && a.bytes <= maxAuditBytes {
		return
	}
	last := a.records[len(a.records)-1]
	a.records = slices.DeleteFunc(a.records, func(r *AuditRecord) bool {
		if r.Open || r == last || (extra <= 0 && a.bytes <= maxAuditBytes) {
			return false
		}
		extra--
		a.bytes -= r.weight()
		delete(a.byID, r.ID)
		s.mark(auditRow(r.Seq))
		return true
	})
}

func (a *audit) find(seq uint64) (int, bool) {
	return slices.BinarySearchFunc(a.records, seq, func(r *AuditRecord, seq uint64) int { return cmp.Compare(r.Seq, seq) })
}

func (a *audit) appendRow(dst []byte, seq uint64) ([]byte, bool) {
	i, ok := a.find(seq)
	if !ok {
		return dst, false
	}
	r := a.records[i]
	dst = wire.AppendInt(append(dst, r.ID[:]...), r.At)
	for _, t := range [...]string{r.Actor, r.Action, r.Reason, r.RequestID} {
		dst = wire.AppendString(dst, t)
	}
	dst = wire.AppendUint(dst, uint64(len(r.Targets)))
	for _, t := range r.Targets {
		dst = wire.AppendString(dst, t)
	}
	dst = wire.AppendString(wire.AppendString(wire.AppendBool(dst, r.Open), r.Result), r.Detail)
	return wire.AppendInt(dst, r.ClosedAt), true
}

func (a *audit) readRow(seq uint64, r *wire.Reader) {
	const text = 1024
	rec := &AuditRecord{Seq: seq}
	copy(rec.ID[:], r.Raw(len(rec.ID)))
	rec.At = r.Int()
	rec.Actor, rec.Action, rec.Reason, rec.RequestID = r.String(text), r.String(text), r.String(text), r.String(text)
	for range r.Count(1) {
		rec.Targets = append(rec.Targets, r.String(text))
	}
	rec.Open, rec.Result, rec.Detail, rec.ClosedAt = r.Bool(), r.String(text), r.String(text), r.Int()
	if r.Err() == nil {
		a.add(rec)
	}
}

// AuditQuery chooses audit records.
type AuditQuery struct {
	After    uint64 // records above this number
	Limit    int    // at most so many; 0 = 100
	Newest   bool   // the newest ones, newest first; After is then the lower end
	OpenOnly bool   // without an outcome only
	Action   string // of this action only; "" = all. A trailing * takes every action that begins so
}

// Audit gives audit records, oldest first unless the query says otherwise.
func (m *Machine) Audit(q AuditQuery) []AuditRecord {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if q.Limit <= 0 {
		q.Limit = 100
	}
	records := m.mu.audit.records
	from, found := m.mu.audit.find(q.After)
	if found {
		from++
	}
	records = records[from:]
	var all []AuditRecord
	take := func(r *AuditRecord) bool {
		if (!q.OpenOnly || r.Open) && matches(q.Action, r.Action) {
			c := *r
			c.Targets = slices.Clone(r.Targets)
			all = append(all, c)
		}
		return len(all) < q.Limit
	}
	if q.Newest {
		for i := len(records) - 1; i >= 0 && take(records[i]); i-- {
		}
		return all
	}
	for i := 0; i < len(records) && take(records[i]); i++ {
	}
	return all
}

func matches(pattern, s string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(s, prefix)
	}
	return pattern == "" || pattern == s
}

// AuditOf is the record of one intent, as long as it is kept.
func (m *Machine) AuditOf(id [16]byte) (AuditRecord, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	r := m.mu.audit.byID[id]
	if r == nil {
		return AuditRecord{}, false
	}
	c := *r
	c.Targets = slices.Clone(r.Targets)
	return c, true
}

// OpenIntents is the number of intents without an outcome, and the stamp of the oldest; 0 without one.
func (m *Machine) OpenIntents() (n int, oldest int64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.mu.audit.open == 0 {
		return 0, 0
	}
	for _, r := range m.mu.audit.records {
		if r.Open {
			return m.mu.audit.open, r.At
		}
	}
	return m.mu.audit.open, 0
}
