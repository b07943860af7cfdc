package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Capability is one thing the harness needs of the machine.
type Capability struct {
	Name   string
	OK     bool
	Detail string
	Needed string // which nemeses or parts do without it
}

// Doctor tries every fault tool once, for real, and says what works here.
func Doctor(ctx context.Context, run string) []Capability {
	var caps []Capability
	add := func(name, needed string, detail string, err error) {
		c := Capability{Name: name, Needed: needed, OK: err == nil, Detail: detail}
		if err != nil {
			c.Detail = err.Error()
		}
		caps = append(caps, c)
	}
	for _, t := range []string{"ip", "nsenter", "iptables", "losetup", "mkfs.ext4", "mkfs.xfs", "strace"} {
		path, err := exec.LookPath(t)
		add("tool "+t, "everything (Debian: iproute2 util-linux iptables e2fsprogs xfsprogs strace)", path, err)
	}
	network, err := NewNetwork(ctx, run)
	add("namespaces and veth", "every run", "", err)
	if err == nil {
		doctorNetwork(ctx, network, add)
		add("removal", "every run", "", network.Close(ctx))
	}
	for _, fs := range []string{"ext4", "xfs"} {
		detail, err := doctorVolume(ctx, run, fs)
		add("power cut on "+fs, "power, power-all, pause-kill", detail, err)
	}
	detail, err := doctorStrace(ctx)
	add("strace injection", "fsync-slow, fsync-fail", detail, err)
	return caps
}

func doctorNetwork(ctx context.Context, network *Network, add func(string, string, string, error)) {
	var errs []error
	for i, h := range []string{"a", "b"} {
		_, err := network.AddHost(ctx, h, 2+i)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		add("hosts", "every run", "", err)
		return
	}
	add("traffic across the bridge", "every run", "", reach(network, true))
	_, err := network.Firewall(ctx, "b", "-A", "INPUT", "-s", network.Addr("a"), "-j", "DROP")
	if err == nil {
		err = reach(network, false)
	}
	add("drop by source", "partitions", "", err)
	_, _ = network.Firewall(ctx, "b", "-F")
	for name, rule := range map[string][]string{
		"random loss": {"-m", "statistic", "--mode", "random", "--probability", "0.3", "-j", "DROP"},
		"tcp reset":   {"-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"},
	} {
		_, err := network.Firewall(ctx, "b", append([]string{"-A", "INPUT"}, rule...)...)
		add(name, "loss, reset", "", err)
	}
	_, _ = network.Firewall(ctx, "b", "-F")
	detail, err := doctorDelay(ctx, network)
	add("packet delay (NFQUEUE)", "delay", detail, err)
}

// reach dials from namespace a to b and wants the dial to work or to time out.
func reach(network *Network, want bool) error {
	var listener net.Listener
	err := InNamespace(network.Namespace("b"), func() (err error) {
		listener, err = net.Listen("tcp", network.Addr("b")+":7000")
		return err
	})
	if err != nil {
		return err
	}
	defer listener.Close()
	err = InNamespace(network.Namespace("a"), func() error {
		conn, err := net.DialTimeout("tcp", network.Addr("b")+":7000", 500*time.Millisecond)
		if err == nil {
			conn.Close()
		}
		return err
	})
	if want != (err == nil) {
		return fmt.Errorf("reachable: want %v, dial said: %v", want, err)
	}
	return nil
}

func doctorDelay(ctx context.Context, network *Network) (string, error) {
	d, err := StartDelay(ctx, network, "b", 40*time.Millisecond, 0)
	if err != nil {
		return "", err
	}
	start := time.Now()
	err = reach(network, true)
	took := time.Since(start)
	packets := d.Packets()
	if err := errors.Join(err, d.Stop(ctx)); err != nil {
		return "", err
	}
	if took < 40*time.Millisecond || packets == 0 {
		return "", fmt.Errorf("a dial took %v with %d packets delayed by 40ms", took, packets)
	}
	return fmt.Sprintf("a dial took %v, %d packets held", took.Round(time.Millisecond), packets), nil
}

// doctorVolume writes a synced and an un-synced file, cuts the power and wants only the first back.
func doctorVolume(ctx context.Context, run, fs string) (detail string, err error) {
	dir := filepath.Join(WorkRoot(), "doctor-"+run)
	v, err := NewVolume(ctx, filepath.Join(dir, fs+".img"), filepath.Join(dir, fs), fs, 320<<20)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, v.Close(ctx), os.RemoveAll(dir)) }()
	write := func(name string, sync bool) error {
		f, err := os.Create(filepath.Join(v.Mount, name))
		if err != nil {
			return err
		}
		_, err = f.WriteString(strings.Repeat("x", 10000))
		if err == nil && sync {
			err = f.Sync()
		}
		return errors.Join(err, f.Close())
	}
	if err := errors.Join(write("synced", true), write("unsynced", false), v.Shutdown(ShutdownDrop), v.Unmount(ctx), v.Remount(ctx)); err != nil {
		return "", err
	}
	synced, err := os.Stat(filepath.Join(v.Mount, "synced"))
	if err != nil || synced.Size() != 10000 {
		return "", fmt.Errorf("the synced file did not survive: %v", err)
	}
	if _, err := os.Stat(filepath.Join(v.Mount, "unsynced")); err == nil {
		return "", errors.New("the un-synced file survived: FS_IOC_SHUTDOWN drops nothing here")
	}
	return "synced file kept, un-synced file gone", nil
}

func doctorStrace(ctx context.Context) (string, error) {
	dir, err := os.MkdirTemp("", "penstock-jepsen-doctor")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "trace")
	_, _ = tool(ctx, "strace", "-f", "-o", out, "-e", "trace=fsync", "-e", "inject=fsync:error=EIO", "sync", dir)
	trace, err := os.ReadFile(out)
	if err != nil {
		return "", err
	}
	if !strings.Contains(string(trace), "(INJECTED)") {
		return "", fmt.Errorf("no injected call in the trace: %.200s", trace)
	}
	return "EIO injected into fsync", nil
}
