package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
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
			bounded, cancel := context.WithTimeout(ctx, time.Minute)
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

// layOwn takes a cluster that stands already.
func (r *run) layOwn() error {
	for i, e := range r.o.Endpoints {
		c := client.New(fmt.Sprintf("n%d", i+1), strings.TrimSuffix(e, "/"), requestTimeout)
		r.clients, r.admin = append(r.clients, c), append(r.admin, c)
	}
	if r.o.FaultCommand != "" {
		r.o.Kinds = append(r.o.Kinds, "external")
	}
	if r.o.Listen == "" {
		return errors.New("own cluster: --listen HOST:PORT must say where the destination can be reached by it")
	}
	if err := r.startDestination("d1", "", r.o.Listen); err != nil {
		return err
	}
	for _, e := range webhooks() {
		r.bases[e] = "http://" + r.o.Listen
	}
	return nil
}
