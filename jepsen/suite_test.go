package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/jepsen/check"
	"penstock/jepsen/nemesis"
	"penstock/jepsen/runner"
)

func TestASuiteThatPlayedNothingIsInvalid(t *testing.T) {
	worst, _, _ := overall(nil)
	require.Equal(t, check.Invalid, worst)
}

func TestTheWorstScenarioIsTheSuites(t *testing.T) {
	verdicts := func(list ...check.Status) (done []outcome) {
		for _, v := range list {
			done = append(done, outcome{Verdict: v})
		}
		return done
	}
	for _, order := range [][]check.Status{{check.Fail, check.Invalid, check.Pass}, {check.Pass, check.Invalid, check.Fail}} {
		worst, passed, _ := overall(verdicts(order...))
		require.Equal(t, check.Fail, worst)
		require.Equal(t, 1, passed)
	}
	worst, _, _ := overall(verdicts(check.Invalid, check.Unknown, check.Pass))
	require.Equal(t, check.Invalid, worst)
	worst, _, _ = overall(verdicts(check.Pass, check.Pass))
	require.Equal(t, check.Pass, worst)
}

func TestWhatIsOpenExcusesOnlyWhatIsKnown(t *testing.T) {
	_, err := parseOpen([]string{"bitflip"})
	require.Error(t, err, "a scenario without its checks would excuse the loss of everything")
	open, err := parseOpen([]string{"bitflip=liveness+logs"})
	require.NoError(t, err)
	known := outcome{Verdict: check.Fail, Failed: []string{"logs", "liveness"}}
	require.True(t, open.covers("bitflip", known))
	require.False(t, open.covers("truncate", known))
	require.False(t, open.covers("bitflip", outcome{Verdict: check.Fail, Failed: []string{"liveness", "set"}}))
	require.False(t, open.covers("bitflip", outcome{Verdict: check.Invalid}), "an INVALID run has not shown what is known")

	known.Open = true
	worst, _, n := overall([]outcome{known, {Verdict: check.Pass}})
	require.Equal(t, check.Pass, worst)
	require.Equal(t, 1, n)
}

func TestTheLongSuiteHasEveryKindAloneAndMixed(t *testing.T) {
	alone, mixed, cases := map[string]bool{}, 0, 0
	for _, s := range scenarios(false, 16*time.Second, time.Minute) {
		if s.report != "" {
			cases++
			continue
		}
		kinds, err := nemesis.Expand(s.nemesis)
		require.NoError(t, err)
		if len(kinds) == 1 {
			alone[kinds[0]] = true
		} else {
			mixed++
		}
	}
	for _, f := range nemesis.Kinds() {
		require.True(t, alone[f.Name], f.Name)
	}
	require.Equal(t, 2, mixed)
	require.Equal(t, len(runner.Cases()), cases)
}
