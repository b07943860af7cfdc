package control

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// spawner starts processes from one operating system thread that never ends: PDEATHSIG is bound to the thread that forked,
// so the children die when the harness does and not when the Go runtime retires a thread. The thread enters the child's
// network namespace for the fork only. (`ip netns exec` is no alternative: it also copies the mount table, and a volume
// another node holds in such a copy could never be unmounted for a power cut.)
type spawner struct {
	once sync.Once
	work chan func()
}

var spawn spawner

func (s *spawner) start(cmd *exec.Cmd, namespace string) error {
	s.once.Do(func() {
		s.work = make(chan func())
		go func() {
			runtime.LockOSThread()
			for f := range s.work {
				f()
			}
		}()
	})
	result := make(chan error, 1)
	s.work <- func() { result <- startIn(cmd, namespace) }
	return <-result
}

func startIn(cmd *exec.Cmd, namespace string) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	cmd.SysProcAttr.Setpgid = true // a terminal's ^C is for the harness, which stops its children in order
	if namespace == "" {
		return cmd.Start()
	}
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("open own network namespace: %w", err)
	}
	defer own.Close()
	other, err := os.Open("/run/netns/" + namespace)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer other.Close()
	if err := unix.Setns(int(other.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", namespace, err)
	}
	startErr := cmd.Start()
	if err := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); err != nil {
		panic(fmt.Sprintf("leave network namespace %s: %v", namespace, err)) // the thread would start everything else in there
	}
	return startErr
}

// InNamespace runs f on a thread that is inside the namespace; sockets f opens stay in it.
func InNamespace(namespace string, f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, it is not to be reused
		other, err := os.Open("/run/netns/" + namespace)
		if err != nil {
			result <- fmt.Errorf("open network namespace: %w", err)
			return
		}
		defer other.Close()
		if err := unix.Setns(int(other.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("enter network namespace %s: %w", namespace, err)
			return
		}
		result <- f()
	}()
	return <-result
}

// Dialer dials from inside a namespace. With 127.0.0.1 that is the node's own loopback, where it answers operators.
func Dialer(namespace string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		err = InNamespace(namespace, func() (err error) {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}
}
