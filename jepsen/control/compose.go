package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Compose is a running Compose project, worked on through the engine's command line (and so through DOCKER_HOST). Only
// containers that carry the project's label are ever touched, and of those only the ones that publish a node's HTTP port.
// Nothing of it is made or removed here.
type Compose struct {
	Project    string
	Containers []*Container
	// Gateway is this machine's address on the project's network: where a destination can be reached from the containers.
	Gateway string
}

// Container is one node of a Compose project. No two may work on the same one at a time.
type Container struct {
	Name     string // the service's name, which is the node's id in the project's file
	ID       string
	URL      string // of the published HTTP port
	Networks []Attachment
}

// Attachment is a container's place on a network, as it was when the project was found, so that it can be given back.
type Attachment struct {
	Network string
	Aliases []string
	IP      string // only when the file gives it one; else the engine does
}

const pauseTries = 5

// containerWait bounds how long a container may take to show what was done to it.
const containerWait = 15 * time.Second

// inspected is what is read of `docker inspect`.
type inspected struct {
	ID    string `json:"Id"`
	State struct {
		Status   string
		Running  bool
		Paused   bool
		ExitCode int
	}
	Config struct{ Labels map[string]string }
	// NetworkSettings holds what is in force now.
	NetworkSettings struct {
		Ports    map[string][]struct{ HostIP, HostPort string }
		Networks map[string]struct {
			Aliases    []string
			Gateway    string
			IPAddress  string
			IPAMConfig *struct{ IPv4Address string }
		}
	}
}

// FindCompose looks a project up by its label. Every node must run, since only then its port and network can be seen.
func FindCompose(ctx context.Context, project string) (*Compose, error) {
	out, err := tool(ctx, "docker", "ps", "-aq", "--no-trunc", "--filter", "label=com.docker.compose.project="+project)
	if err != nil {
		return nil, err
	}
	ids := strings.Fields(out)
	if len(ids) == 0 {
		return nil, fmt.Errorf("no container belongs to a Compose project %q; `docker ps --format '{{.Label \"com.docker.compose.project\"}}'` lists the projects", project)
	}
	c := &Compose{Project: project}
	for _, id := range ids {
		in, err := inspect(ctx, id)
		if err != nil {
			return nil, err
		}
		if err := c.add(in); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(c.Containers, func(a, b *Container) int { return strings.Compare(a.Name, b.Name) })
	if len(c.Containers) < 3 {
		return nil, fmt.Errorf("project %s: %d of its containers publish port %d, want 3 nodes or more, all running", project, len(c.Containers), PortHTTP)
	}
	return c, nil
}

// add takes a container in when it is a node.
func (c *Compose) add(in inspected) error {
	published := in.NetworkSettings.Ports[fmt.Sprintf("%d/tcp", PortHTTP)]
	if len(published) == 0 {
		return nil
	}
	host := published[0].HostIP
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	n := &Container{
		Name: in.Config.Labels["com.docker.compose.service"], ID: in.ID, URL: "http://" + net.JoinHostPort(host, published[0].HostPort),
	}
	if !in.State.Running || in.State.Paused || len(in.NetworkSettings.Networks) == 0 {
		return fmt.Errorf("container of %s is %s, on %d networks: start from a project that is whole", n.Name, in.State.Status, len(in.NetworkSettings.Networks))
	}
	for name, at := range in.NetworkSettings.Networks {
		a := Attachment{Network: name}
		for _, alias := range at.Aliases {
			if !strings.HasPrefix(in.ID, alias) { // the engine adds the short id by itself
				a.Aliases = append(a.Aliases, alias)
			}
		}
		if at.IPAMConfig != nil {
			a.IP = at.IPAMConfig.IPv4Address
		}
		n.Networks = append(n.Networks, a)
		c.Gateway = cmp.Or(c.Gateway, at.Gateway)
	}
	c.Containers = append(c.Containers, n)
	return nil
}

func inspect(ctx context.Context, id string) (inspected, error) {
	out, err := tool(ctx, "docker", "inspect", "--type", "container", id)
	if err != nil {
		return inspected{}, err
	}
	var list []inspected
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 {
		return inspected{}, fmt.Errorf("docker inspect %s: %d containers: %w", id, len(list), err)
	}
	return list[0], nil
}

// until looks at the container until it is as wanted, at most containerWait.
func (n *Container) until(ctx context.Context, what string, wanted func(inspected) bool) error {
	ctx, cancel := context.WithTimeout(ctx, containerWait)
	defer cancel()
	for {
		in, err := inspect(ctx, n.ID)
		if err == nil && wanted(in) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, fmt.Errorf("container of %s did not show within %v that it %s: it is %s, exit code %d, on %d networks",
				n.Name, containerWait, what, in.State.Status, in.State.ExitCode, len(in.NetworkSettings.Networks)))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Kill is SIGKILL. It returns once the engine has reaped the process, which says 137; a restart policy does not act on it.
func (n *Container) Kill(ctx context.Context) error {
	if _, err := tool(ctx, "docker", "kill", "--signal", "KILL", n.ID); err != nil {
		return err
	}
	return n.until(ctx, "was killed", func(in inspected) bool { return !in.State.Running && in.State.ExitCode == 137 })
}

// Start starts it when it does not run.
func (n *Container) Start(ctx context.Context) error {
	if _, err := tool(ctx, "docker", "start", n.ID); err != nil {
		return err
	}
	return n.until(ctx, "runs", func(in inspected) bool { return in.State.Running })
}

// Pause freezes every process in it. It returns once the engine says so and the node answers nothing more. On a busy machine the
// engine may give up to freeze a process that keeps forking threads, so it is asked up to pauseTries times.
func (n *Container) Pause(ctx context.Context) error {
	for try := 1; ; try++ {
		_, err := tool(ctx, "docker", "pause", n.ID)
		if err == nil {
			break
		}
		if try == pauseTries || ctx.Err() != nil {
			return err
		}
	}
	if err := n.until(ctx, "is paused", func(in inspected) bool { return in.State.Paused }); err != nil {
		return err
	}
	return n.silent(ctx)
}

// Unpause lets it go on.
func (n *Container) Unpause(ctx context.Context) error {
	_, err := tool(ctx, "docker", "unpause", n.ID)
	return err
}

// Disconnect takes it off its networks, with every connection it has. It returns once the engine shows it on none and its
// published port answers nothing more.
func (n *Container) Disconnect(ctx context.Context) error {
	for _, a := range n.Networks {
		if _, err := tool(ctx, "docker", "network", "disconnect", a.Network, n.ID); err != nil {
			return err
		}
	}
	if err := n.until(ctx, "is cut off", func(in inspected) bool { return len(in.NetworkSettings.Networks) == 0 }); err != nil {
		return err
	}
	return n.silent(ctx)
}

// Connect brings it back under its names. Its address may be another one.
func (n *Container) Connect(ctx context.Context) error {
	for _, a := range n.Networks {
		words := []string{"network", "connect"}
		for _, alias := range a.Aliases {
			words = append(words, "--alias", alias)
		}
		if a.IP != "" {
			words = append(words, "--ip", a.IP)
		}
		if _, err := tool(ctx, "docker", append(words, a.Network, n.ID)...); err != nil {
			return err
		}
	}
	return n.until(ctx, "is connected", func(in inspected) bool { return len(in.NetworkSettings.Networks) == len(n.Networks) })
}

// Heal undoes whatever of the above is in force, and tells whether it started the container anew.
func (n *Container) Heal(ctx context.Context) (started bool, err error) {
	in, err := inspect(ctx, n.ID)
	if err != nil {
		return false, err
	}
	var errs []error
	if in.State.Paused {
		errs = append(errs, n.Unpause(ctx))
	}
	if len(in.NetworkSettings.Networks) == 0 && in.State.Running {
		errs = append(errs, n.Connect(ctx))
	}
	if !in.State.Running {
		started = true
		errs = append(errs, n.Start(ctx))
		if now, err := inspect(ctx, n.ID); err == nil && len(now.NetworkSettings.Networks) == 0 {
			errs = append(errs, n.Connect(ctx))
		}
	}
	return started, errors.Join(errs...)
}

// silent confirms from outside that the node answers nothing: within a second no answer came, not even an unready one.
func (n *Container) silent(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.URL+"/healthz", nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return nil
	}
	resp.Body.Close()
	return fmt.Errorf("%s still answers at %s", n.Name, n.URL)
}
