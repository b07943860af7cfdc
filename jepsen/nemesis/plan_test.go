package nemesis

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/jepsen/history"
)

func TestPlanFollowsFromTheSeed(t *testing.T) {
	kinds := Groups()["all"]
	require.Equal(t, Plan(kinds, 10*time.Minute, 7), Plan(kinds, 10*time.Minute, 7))
	require.NotEqual(t, Plan(kinds, 10*time.Minute, 7), Plan(kinds, 10*time.Minute, 8))
}

func TestPlanShowsEveryKindAndLeavesQuietWindows(t *testing.T) {
	kinds := Groups()["all"]
	quiet, windows := 0, 0
	for seed := range uint64(50) {
		seen := map[string]bool{}
		for _, w := range Plan(kinds, 15*time.Minute, seed) {
			windows++
			if len(w.Steps) == 0 {
				quiet++
			}
			for _, s := range w.Steps {
				seen[s.Kind] = true
				require.GreaterOrEqual(t, s.At, w.Start)
				require.LessOrEqual(t, s.At+s.Hold, w.End)
				f, ok := Find(s.Kind)
				require.True(t, ok)
				if f.Alone {
					for _, other := range w.Steps {
						require.Equal(t, s.Kind, other.Kind, "%s acts alone", s.Kind)
					}
				}
			}
		}
		require.Len(t, seen, len(kinds), "seed %d", seed)
	}
	require.InDelta(t, 0.25, float64(quiet)/float64(windows), 0.12)
}

func TestPlanOfOneKindHasItInAShortRun(t *testing.T) {
	for _, kind := range Groups()["all"] {
		for seed := range uint64(20) {
			n := 0
			for _, w := range Plan([]string{kind}, 20*time.Second, seed) {
				n += len(w.Steps)
			}
			require.Positive(t, n, kind)
		}
	}
}

func TestAnEmptyListMakesAnEmptyPlan(t *testing.T) {
	require.Empty(t, Plan(nil, time.Minute, 1))
	kinds, err := Expand([]string{"none"})
	require.NoError(t, err)
	require.Empty(t, kinds)
}

func TestExpandRefusesAnUnknownKind(t *testing.T) {
	_, err := Expand([]string{"kill", "earthquake"})
	require.ErrorContains(t, err, "earthquake")
	kinds, err := Expand([]string{"kill", "crash"})
	require.NoError(t, err)
	require.Equal(t, "kill", kinds[0])
	require.Greater(t, len(kinds), 4)
}

func TestAKindThatWasNeverConfirmedIsKnown(t *testing.T) {
	env := &Env{Log: func(history.Fault) {}}
	confirmed := watchConfirmed(env)
	env.Log(history.Fault{Kind: "loss", Phase: history.Begin})
	env.Log(history.Fault{Kind: "kill", Phase: history.Confirmed})
	require.False(t, confirmed("loss"))
	require.True(t, confirmed("kill"))
	require.Equal(t, []string{"kill", "loss"}, planned([]Window{{Steps: []Step{{Kind: "kill"}}}, {}, {Steps: []Step{{Kind: "loss"}, {Kind: "kill"}}}}))
}
