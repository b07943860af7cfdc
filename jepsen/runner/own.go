package runner

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"penstock/jepsen/client"
	"penstock/jepsen/history"
)

// external runs the user's own fault command in turns: begin, hold, end. Exit code 0 of both confirms the fault.
func (r *run) external(ctx context.Context) error {
	deadline := time.Now().Add(r.o.Time)
	if r.o.FaultCommand == "" {
		pause(ctx, time.Until(deadline))
		return nil
	}
	for id := 1; time.Now().Before(deadline) && ctx.Err() == nil; id++ {
		confirmed := true
		for _, phase := range []string{"begin", "end"} {
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute) // what began must end
			cmd := exec.CommandContext(bounded, "sh", "-c", r.o.FaultCommand+" "+phase)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			err := cmd.Run()
			cancel()
			r.fault(history.Fault{Phase: phase, ID: id, Kind: "external", Detail: strings.TrimSpace(out.String())})
			if err != nil {
				confirmed = false
				r.fault(history.Fault{Phase: history.Error, ID: id, Kind: "external", Detail: err.Error()})
			}
			pause(ctx, min(10*time.Second, time.Until(deadline)))
		}
		if confirmed {
			r.fault(history.Fault{Phase: history.Confirmed, ID: id, Kind: "external"})
		}
	}
	return nil
}

// layOwn takes a cluster that stands already. Its channels of these names are somebody's: it is refused when one is there.
func (r *run) layOwn(ctx context.Context) error {
	for i, e := range r.o.Endpoints {
		c := client.New(fmt.Sprintf("n%d", i+1), strings.TrimSuffix(e, "/"), requestTimeout)
		r.clients, r.admin = append(r.clients, c), append(r.admin, c)
	}
	return r.settle(ctx)
}

// settle makes sure of a cluster that stands already, and starts the destination that it can reach.
func (r *run) settle(ctx context.Context) error {
	token, err := readToken(r.o.TokenFile)
	if err != nil {
		return err
	}
	for _, c := range append(slices.Clone(r.clients), r.admin...) {
		c.Token = token
	}
	if err := r.unused(ctx); err != nil {
		return err
	}
	if err := r.startDestination("d1", "", r.o.Listen); err != nil {
		return err
	}
	for _, e := range webhooks() {
		r.bases[e] = "http://" + r.o.Listen
	}
	return nil
}

// unused makes sure that every endpoint answers and that no channel of the run is there yet, be it of an earlier run, whose
// events would be taken for this one's, or of the user's own.
func (r *run) unused(ctx context.Context) error {
	for _, c := range r.clients {
		for _, channel := range r.channels() {
			a := c.Do(ctx, http.MethodGet, "/v1/channels/"+channel, nil, "", nil)
			switch {
			case a.Outcome == client.Done:
				return fmt.Errorf("own cluster: channel %s is there already; after an earlier run of the harness, delete it: penstock channel delete %s --discard --addr %s", channel, channel, c.Base)
			case a.Status != http.StatusNotFound:
				return fmt.Errorf("own cluster: %s: %s", c.Base, a.Error())
			}
		}
	}
	return nil
}

// readToken reads the file that --token-file names, "" when none is named.
func readToken(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
