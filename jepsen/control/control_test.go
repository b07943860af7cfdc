package control

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHitsCountsOnlyTheMarkedRules(t *testing.T) {
	const listing = `Chain INPUT (policy ACCEPT 0 packets, 0 bytes)
    pkts      bytes target     prot opt in     out     source               destination
      12      720 DROP       0    --  *      *       10.0.0.1             0.0.0.0/0            /* pj7 */
       5      300 REJECT     6    --  *      *       10.0.0.2             0.0.0.0/0            /* pj7 */ reject-with tcp-reset
       9      300 DROP       0    --  *      *       10.0.0.2             0.0.0.0/0            /* pj71 */
`
	n, err := sumHits(listing, "pj7")
	require.NoError(t, err)
	require.EqualValues(t, 17, n)
}

func TestPacketIDsReadsEveryMessageOfADatagram(t *testing.T) {
	one := packet(7)
	require.Equal(t, []uint32{7, 9}, packetIDs(append(one, packet(9)...)))
	require.Empty(t, packetIDs(one[:10]), "a cut message is no message")
}

// packet is a queue message with one packet header, as the kernel sends it.
func packet(id byte) []byte {
	body := attr(attrPacket, []byte{0, 0, 0, id, 8, 0, 1})
	b := []byte{byte(20 + len(body)), 0, 0, 0, 0, 3, 0, 0}
	b = append(b, make([]byte, 12)...)
	return append(b, body...)
}

func TestNodeConfigurationNamesEverySeed(t *testing.T) {
	yaml := NodeConfig{ID: "n1", Addr: "10.0.0.1", Seeds: []string{"10.0.0.1", "10.0.0.2"}, Cluster: "c"}.YAML()
	require.Contains(t, yaml, "seeds: [10.0.0.1:7072, 10.0.0.2:7072]")
	require.Contains(t, yaml, "insecure_plaintext: true")
}

func TestAProcessReportsHowItEnded(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	log := t.TempDir() + "/log"
	p := NewProcess("p", "", log, nil, []string{"sleep", "60"})
	require.NoError(t, p.Start())
	require.Error(t, p.Start(), "it runs already")
	require.NoError(t, p.Signal(syscall.SIGSTOP))
	require.Eventually(t, p.Stopped, time.Second, 5*time.Millisecond)
	exit, err := p.Kill(ctx)
	require.NoError(t, err)
	require.Equal(t, syscall.SIGKILL, exit.Signal)
	require.ErrorIs(t, p.Signal(syscall.SIGKILL), ErrNotRunning)

	p = NewProcess("q", "", log, nil, []string{"sh", "-c", "echo said; exit 11"})
	require.NoError(t, p.Start())
	exit, err = p.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, 11, exit.Code)
	said, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Contains(t, string(said), "said")
}

// What lies below the mount point of a volume that is not mounted is the machine's own file system.
func TestAVolumeThatIsNotMountedIsNeverTouched(t *testing.T) {
	v := &Volume{Mount: "/nowhere/that/exists"}
	require.ErrorContains(t, v.Shutdown(ShutdownDrop), "not mounted")
	require.ErrorContains(t, v.Sync(), "not mounted")
	_, err := v.Fill()
	require.ErrorContains(t, err, "not mounted")
}
