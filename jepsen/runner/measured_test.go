package runner

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/jepsen/check"
	"penstock/jepsen/history"
)

// measured is a good measurement of two kills, two hand-overs and a minute of load.
func measured() Measured {
	const second = int64(time.Second)
	return Measured{
		AskedKills: 2, AskedHandovers: 2, AskedSteady: time.Minute,
		Kills:     []Sample{{"n1", "signal killed", 800 * time.Millisecond, 1, time.Second}, {"n2", "signal killed", 900 * time.Millisecond, 2, time.Second}},
		Handovers: []Sample{{"n1", "exit code 0", 100 * time.Millisecond, 1, time.Second}, {"n3", "exit code 0", 200 * time.Millisecond, 1, time.Second}},
		Steady:    &Steady{From: 10 * second, To: 70 * second, TermFrom: 2, TermTo: 2, Acks: 60 * 1000},
	}
}

func TestAMeasurementIsJudgedByItsTargetsAndByHowMuchWasMeasured(t *testing.T) {
	verdict, why := measured().Judge()
	require.Equal(t, check.Pass, verdict, why)
	cases := []struct {
		name   string
		change func(*Measured)
		want   check.Status
	}{
		{"nothing asked", func(m *Measured) { *m = Measured{} }, check.Invalid},
		{"fewer kills than asked", func(m *Measured) { m.AskedKills = 3 }, check.Invalid},
		{"a kill that was none", func(m *Measured) { m.Kills[0].Exit = "exit code 10" }, check.Invalid},
		{"a node that did not lead", func(m *Measured) { m.Kills[0].Rise = 0 }, check.Invalid},
		{"steady too short", func(m *Measured) { m.AskedSteady = time.Hour }, check.Invalid},
		{"steady without load", func(m *Measured) { m.Steady.Acks = 60 }, check.Invalid},
		{"steady never came", func(m *Measured) { m.Steady = nil }, check.Invalid},
		{"no term was told", func(m *Measured) { m.Steady.TermFrom, m.Steady.TermTo = 0, 0 }, check.Invalid},
		{"a false election", func(m *Measured) { m.Steady.TermTo++ }, check.Fail},
		{"slow median", func(m *Measured) {
			m.Kills[0].Took = 1100 * time.Millisecond
			m.Kills[1].Took = 1200 * time.Millisecond
		}, check.Fail},
		{"slow worst", func(m *Measured) { m.Kills[1].Took = 4 * time.Second }, check.Fail},
		{"slow hand-over", func(m *Measured) { m.Handovers[0].Took, m.Handovers[1].Took = time.Second, time.Second }, check.Fail},
		{"a failed drain", func(m *Measured) { m.Handovers[0].Exit = "exit code 14" }, check.Fail},
		{"late to be equal", func(m *Measured) { m.Kills[0].Back = time.Minute }, check.Fail},
		{"a miss outweighs too few", func(m *Measured) { m.AskedKills, m.Steady.TermTo = 9, 3 }, check.Fail},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m := measured()
			c.change(&m)
			got, why := m.Judge()
			require.Equal(t, c.want, got, why)
			require.NotEmpty(t, why)
		})
	}
}

func TestRecheckOfAMeasurementCountsElectionsAnew(t *testing.T) {
	dir := t.TempDir()
	_, ok, err := RecheckFailover(dir)
	require.NoError(t, err)
	require.False(t, ok)

	m := measured()
	require.NoError(t, writeJSON(filepath.Join(dir, measuredFile), m))
	lines(t, filepath.Join(dir, "observations.jsonl"),
		history.Observation{T: m.Steady.From + 1, Node: "n1", Up: true, Term: 2}, history.Observation{T: m.Steady.To + 1, Node: "n1", Up: true, Term: 9})
	again, ok, err := RecheckFailover(dir)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, m, again, "what came after the load is no false election")

	require.NoError(t, os.Remove(filepath.Join(dir, "observations.jsonl")))
	lines(t, filepath.Join(dir, "observations.jsonl"), history.Observation{T: m.Steady.From + 1, Node: "n1", Up: true, Term: 3})
	again, _, err = RecheckFailover(dir)
	require.NoError(t, err)
	verdict, _ := again.Judge()
	require.Equal(t, check.Fail, verdict)
}

func TestQuantileIsTheNearestRank(t *testing.T) {
	var d []time.Duration
	for i := range 50 {
		d = append(d, time.Duration(i+1)*time.Second)
	}
	require.Equal(t, 25*time.Second, quantile(d, .5))
	require.Equal(t, 50*time.Second, quantile(d, .99))
	require.Equal(t, 50*time.Second, quantile(d, 1))
	require.Equal(t, time.Second, quantile(d[:1], .5))
	require.Equal(t, time.Second, quantile(d[:2], .5))
}
