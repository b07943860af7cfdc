package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// systems are what is compared.
func systems(o options) []system {
	all := []system{
		&penstock{binary: o.binary}, &jetstream{always: true}, &jetstream{}, &raftSystem{store: "raft-wal"}, &raftSystem{store: "raft-boltdb"},
	}
	var out []system
	for _, s := range all {
		if strings.Contains(s.name(), o.only) {
			out = append(out, s)
		}
	}
	return out
}

// peer is this program as one server of a system, or as the receiver of webhooks.
func peer(args []string) error {
	if len(args) == 2 && args[0] == "receiver" {
		return receive(args[1])
	}
	if len(args) != 10 {
		return fmt.Errorf("%d arguments", len(args))
	}
	i, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	switch args[0] {
	case "nats":
		return runNATS(i, args[2], args[3] == "true", args[4:])
	case "raft":
		return runRaft(i, args[2], args[3], args[4:])
	}
	return errors.New("no such peer")
}

// slowAnswer is how long the path /slow takes.
const slowAnswer = time.Second

// receive takes webhooks.
func receive(addr string) error {
	return (&http.Server{Addr: addr, ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil && r.URL.Path == "/slow" {
			time.Sleep(slowAnswer)
		}
	})}).ListenAndServe()
}
