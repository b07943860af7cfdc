package runner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"penstock/jepsen/client"
	"penstock/jepsen/control"
	"penstock/jepsen/history"
	"penstock/jepsen/nemesis"
)

// completeCompose: the nodes and their addresses are found when the run is laid.
func (o *Options) completeCompose() error {
	if len(o.Endpoints) > 0 || o.FaultCommand != "" || o.Chaos {
		return errors.New("compose: --endpoints, --fault-command and --chaos do not go with it")
	}
	var err error
	o.Kinds, err = nemesis.ExpandContainers(o.Nemesis)
	return err
}

// layCompose finds the project's nodes. From then on it is a cluster of the user's, with faults that the harness has.
func (r *run) layCompose(ctx context.Context) error {
	project, err := control.FindCompose(ctx, r.o.Compose)
	if err != nil {
		return err
	}
	for _, c := range project.Containers {
		r.o.Endpoints = append(r.o.Endpoints, c.URL)
		node := client.New(c.Name, c.URL, requestTimeout)
		r.clients, r.admin = append(r.clients, node), append(r.admin, node)
	}
	if r.o.Listen == "" {
		if r.o.Listen, err = freeAt(project.Gateway); err != nil {
			return fmt.Errorf("destination on the project's network (--listen says another address): %w", err)
		}
	}
	r.compose, r.o.Nodes = project, len(project.Containers)
	return r.settle(ctx)
}

// freeAt finds a free port of an address of this machine.
func freeAt(host string) (string, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func (r *run) composeFaults(ctx context.Context) {
	start := time.Now()
	env := &nemesis.ContainerEnv{Compose: r.compose, Clock: r.clock, Log: r.fault, Leader: r.obs.leader}
	nemesis.RunContainers(ctx, env, r.windows)
	pause(ctx, r.o.Time-time.Since(start))
}

// healCompose brings every container back, whatever was done to it.
func (r *run) healCompose(ctx context.Context) error {
	var errs []error
	for _, c := range r.compose.Containers {
		started, err := c.Heal(ctx)
		errs = append(errs, err)
		if started {
			r.fault(history.Fault{Phase: history.Started, Kind: "heal", Targets: []string{c.Name}, Wall: time.Now().UnixNano()})
		}
	}
	return errors.Join(errs...)
}
