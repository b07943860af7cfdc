package nemesis

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/jepsen/control"
)

func TestContainerKindsAreNamedAndPlanned(t *testing.T) {
	kinds, err := ExpandContainers([]string{"mixed", "kill"})
	require.NoError(t, err)
	require.Equal(t, []string{"disconnect", "kill", "pause"}, kinds)
	_, err = ExpandContainers([]string{"bitflip"})
	require.ErrorContains(t, err, "want kill, pause, disconnect")
	for seed := range uint64(50) {
		require.ElementsMatch(t, kinds, planned(Plan(kinds, time.Minute, seed)), "seed %d: each kind comes", seed)
	}
}

// TestContainersAreClaimedByOneFaultAtATime: two faults never work on one container, and a third finds none.
func TestContainersAreClaimedByOneFaultAtATime(t *testing.T) {
	env := &ContainerEnv{Compose: &control.Compose{Containers: []*control.Container{{Name: "n1"}, {Name: "n2"}}}, Leader: func() string { return "n2" }}
	r := rand.New(rand.NewPCG(1, 1))
	first, second := env.claim(r), env.claim(r)
	require.NotEqual(t, first, second)
	require.Nil(t, env.claim(r))
	env.release(first)
	require.Equal(t, first, env.claim(r))
}
