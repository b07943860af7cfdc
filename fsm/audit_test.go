package fsm

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/fsm/command"
)

func (r *rig) plain(c command.Command) command.Status {
	res, err := command.DecodePlainResult(r.apply(c)[0])
	require.NoError(r.t, err)
	return res.Status
}

func (r *rig) letters(c command.Command) command.LettersResult {
	res, err := command.DecodeLettersResult(r.apply(c)[0])
	require.NoError(r.t, err)
	return res
}

func intentID(n int) (id [16]byte) {
	binary.BigEndian.PutUint64(id[8:], uint64(n))
	id[0] = 1
	return id
}

func (r *rig) intend(n int) [16]byte {
	require.Equal(r.t, command.OK, r.plain(command.AuditIntent{ID: intentID(n), Actor: "ops", Action: "dlq.replay", Targets: []string{"a"}}))
	return intentID(n)
}

func TestI9OutcomeNeedsAnIntentAndTheFirstOneStays(t *testing.T) {
	r := newRig(t)
	require.Equal(t, command.NoSuchIntent, r.plain(command.AuditOutcome{ID: intentID(1), Result: AuditSuccess}))
	id := r.intend(1)
	r.intend(1) // the proposer did not know that it was committed
	require.Len(t, r.m.Audit(AuditQuery{}), 1)
	require.Equal(t, command.Malformed, r.plain(command.AuditOutcome{ID: id, Result: "fine"}))
	require.Equal(t, command.OK, r.plain(command.AuditOutcome{ID: id, Result: AuditSuccess, Detail: "1 delivered"}))
	require.Equal(t, command.OK, r.plain(command.AuditOutcome{ID: id, Result: AuditSuccess}))
	require.Equal(t, command.AlreadyClosed, r.plain(command.AuditOutcome{ID: id, Result: AuditUnknown}))
	rec, ok := r.m.AuditOf(id)
	require.True(t, ok)
	require.False(t, rec.Open)
	require.Equal(t, "1 delivered", rec.Detail)
	require.Equal(t, r.stamp, rec.ClosedAt)
	require.Equal(t, dumpOf(t, r.m), dumpOf(t, r.reopen()))
}

func TestAuditIsBoundedAndNeverDropsAnOpenIntent(t *testing.T) {
	r := newRig(t)
	first := r.intend(1)
	var commands []command.Command
	for n := 2; n <= maxAudit+500; n++ {
		commands = append(commands, command.AuditIntent{ID: intentID(n), Actor: "ops"}, command.AuditOutcome{ID: intentID(n), Result: AuditSuccess})
		if len(commands) >= 1000 {
			r.apply(commands...)
			commands = nil
		}
	}
	r.apply(commands...)
	require.Len(t, r.m.mu.audit.records, maxAudit)
	rec, ok := r.m.AuditOf(first)
	require.True(t, ok)
	require.True(t, rec.Open)
	_, ok = r.m.AuditOf(intentID(2))
	require.False(t, ok, "the oldest closed ones go")
	last := r.m.Audit(AuditQuery{Newest: true, Limit: 1})
	require.EqualValues(t, maxAudit+500, last[0].Seq)
	n, oldest := r.m.OpenIntents()
	require.Equal(t, 1, n)
	require.Equal(t, rec.At, oldest)
	require.Equal(t, dumpOf(t, r.m), dumpOf(t, r.reopen()))

	page := r.m.Audit(AuditQuery{After: rec.Seq, Limit: 3})
	require.Len(t, page, 3)
	require.Equal(t, page[0].Seq+2, page[2].Seq)
	require.Len(t, r.m.Audit(AuditQuery{OpenOnly: true}), 1)
	require.Len(t, r.m.Audit(AuditQuery{Action: "dlq.*"}), 1)
	require.Empty(t, r.m.Audit(AuditQuery{Action: "dlq"}))
}

func TestSoManyOpenIntentsAndNoMore(t *testing.T) {
	r := newRig(t)
	for n := range maxOpenIntents {
		r.intend(n)
	}
	require.Equal(t, command.TooMany, r.plain(command.AuditIntent{ID: intentID(maxOpenIntents)}))
	r.stamp += intentLife
	r.apply(command.Tick{})
	open, _ := r.m.OpenIntents()
	require.Zero(t, open, "an intent whose outcome never came closes as unknown")
	rec, _ := r.m.AuditOf(intentID(1))
	require.Equal(t, AuditUnknown, rec.Result)
	r.intend(maxOpenIntents)
}
