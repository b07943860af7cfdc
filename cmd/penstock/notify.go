package main

import (
	"fmt"
	"log/slog"
	"net"

	"golang.org/x/sys/unix"
)

// notifier tells the service manager how the process is (sd_notify); without one, as in a shell, it tells nobody.
type notifier struct {
	socket string // $NOTIFY_SOCKET
	log    *slog.Logger
}

func (n notifier) say(state string) {
	if n.socket == "" {
		return
	}
	name := n.socket
	if name[0] == '@' {
		name = "\x00" + name[1:] // an abstract socket
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err == nil {
		_, err = c.Write([]byte(state))
		_ = c.Close()
	}
	if err != nil {
		n.log.Warn("the service manager was not told", "state", state, "error", err)
	}
}

func (n notifier) ready()    { n.say("READY=1") }
func (n notifier) stopping() { n.say("STOPPING=1") }

// reloading is followed by ready once the configuration was read.
func (n notifier) reloading() {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) == nil {
		n.say(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", t.Nano()/1000))
	}
}
