package control

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

const inspectedNode = `{"Id": "27310fe1b33dffff", "State": {"Status": "running", "Running": true},
 "Config": {"Labels": {"com.docker.compose.project": "p", "com.docker.compose.service": "n1"}},
 "NetworkSettings": {"Ports": {"7070/tcp": [{"HostIp": "0.0.0.0", "HostPort": "7070"}], "7071/tcp": null},
  "Networks": {"p_penstock": {"Aliases": ["n1", "27310fe1b33d"], "Gateway": "172.18.0.1", "IPAddress": "172.18.0.4", "IPAMConfig": {"IPv4Address": "172.18.0.4"}}}}}`

// TestComposeNodeKeepsWhatItNeedsToComeBack: its names and an address that the file fixed, but not what the engine adds by itself.
func TestComposeNodeKeepsWhatItNeedsToComeBack(t *testing.T) {
	var in inspected
	require.NoError(t, json.Unmarshal([]byte(inspectedNode), &in))
	var c Compose
	require.NoError(t, c.add(in))
	require.Equal(t, []*Container{{
		Name: "n1", ID: "27310fe1b33dffff", URL: "http://127.0.0.1:7070",
		Networks: []Attachment{{Network: "p_penstock", Aliases: []string{"n1"}, IP: "172.18.0.4"}},
	}}, c.Containers)
	require.Equal(t, "172.18.0.1", c.Gateway)

	in.State.Paused, in.State.Status = true, "paused"
	require.ErrorContains(t, c.add(in), "paused", "a project that is not whole is no start for a run")
	in.NetworkSettings.Ports = nil
	require.NoError(t, c.add(in), "a container that publishes no node's port is somebody else's")
	require.Len(t, c.Containers, 1)
}
