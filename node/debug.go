package node

import (
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// startDebug serves pprof on the debug address, which the configuration keeps on loopback. "" is off.
func (n *Node) startDebug() (stop func(), err error) {
	if n.cfg.Node.Debug == "" {
		return func() {}, nil
	}
	listener, err := net.Listen("tcp", n.cfg.Node.Debug)
	if err != nil {
		return nil, fmt.Errorf("node.debug: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	return func() { _ = server.Close() }, nil
}
