package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"penstock/internal/client"
)

// process is one node.
type process struct {
	id, bin, config, log string
	data, http           string
	cmd                  *exec.Cmd
	exited               chan error
}

const channelYAML = `channels:
  - name: orders
    semantics: at-least-once
    order: none
    emitters:
      - name: files
        kind: file
        start: earliest
        compaction: {events: 200, bytes: 1MiB, linger: 200ms}
        file: {directory: out}
`

// layOut writes the configuration of three nodes and of the channel.
func layOut(bin, dir string) ([]*process, error) {
	addresses, err := freeAddresses(9)
	if err != nil {
		return nil, err
	}
	seeds := addresses[6:]
	var nodes []*process
	for i := range 3 {
		p := &process{id: fmt.Sprintf("n%d", i+1), bin: bin, http: addresses[i]}
		p.data, p.log, p.config = filepath.Join(dir, p.id), filepath.Join(dir, p.id+".log"), filepath.Join(dir, p.id+".yaml")
		text := fmt.Sprintf("node:\n  id: %s\n  data_dir: %q\n  http: %s\n  raft: %s\n  gossip: %s\n  debug: \"\"\ncluster:\n  name: demo\n  seeds: [%s]\n",
			p.id, p.data, p.http, addresses[3+i], seeds[i], `"`+strings.Join(seeds, `", "`)+`"`)
		if err := os.WriteFile(p.config, []byte(text), 0o644); err != nil {
			return nil, err
		}
		nodes = append(nodes, p)
	}
	return nodes, os.WriteFile(filepath.Join(dir, "channel.yaml"), []byte(channelYAML), 0o644)
}

// freeAddresses asks the system for ports nobody has, all at once so that they differ.
func freeAddresses(n int) ([]string, error) {
	var out []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		out = append(out, l.Addr().String())
	}
	return out, nil
}

func (p *process) start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = exec.Command(p.bin, "server", "--config", p.config, "--log-format", "text")
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // no node outlives the demo
	if err := p.cmd.Start(); err != nil {
		return err
	}
	exited, cmd := make(chan error, 1), p.cmd
	p.exited = exited
	go func() { exited <- cmd.Wait() }()
	return nil
}

func (p *process) waitReady(ctx context.Context, limit time.Duration) error {
	c, err := client.New(client.Config{Addresses: []string{p.http}, Timeout: 2 * time.Second})
	if err != nil {
		return err
	}
	defer c.Close()
	for deadline := time.Now().Add(limit); ; {
		err := c.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case exit := <-p.exited:
			p.exited <- exit
			return fmt.Errorf("%s ended while it started: %v", p.id, exit)
		default:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not ready after %s: %w", p.id, limit, err)
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// kill is SIGKILL, and waits until the process is gone.
func (p *process) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.exited
	p.cmd = nil
}

// stop is SIGTERM, and wants a clean end.
func (p *process) stop(limit time.Duration) error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-p.exited:
		p.cmd = nil
		if err != nil {
			return fmt.Errorf("%s did not stop cleanly: %w", p.id, err)
		}
		return nil
	case <-time.After(limit):
		p.kill()
		return fmt.Errorf("%s did not stop within %s of SIGTERM", p.id, limit)
	}
}
