package main

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// jetstream is NATS with one stream of three replicas, file storage.
type jetstream struct {
	always  bool
	clients []string
	nodes   []*process
}

func (n *jetstream) name() string {
	if n.always {
		return "NATS JetStream R3, sync_interval: always"
	}
	return "NATS JetStream R3, default sync (not durable)"
}

func (n *jetstream) rows() []row { return inFlightRows() }

func inFlightRows() []row {
	return []row{{name: "1 message", inFlight: 1}, {name: "64 messages", inFlight: 64}, {name: "1000 messages", inFlight: 1000}}
}

func (n *jetstream) start(dir string) error {
	addresses, err := freePorts(6)
	if err != nil {
		return err
	}
	n.clients = addresses[:3]
	for i := range 3 {
		p, err := self(dir, fmt.Sprintf("nats%d", i), append([]string{"nats", fmt.Sprint(i), filepath.Join(dir, fmt.Sprintf("nats%d", i)),
			fmt.Sprint(n.always)}, addresses...)...)
		if err != nil {
			return err
		}
		n.nodes = append(n.nodes, p)
	}
	return eventually(time.Minute, "a stream of three replicas", func() error {
		nc, err := nats.Connect("nats://" + n.clients[0])
		if err != nil {
			return err
		}
		defer nc.Close()
		js, err := nc.JetStream(nats.MaxWait(5 * time.Second))
		if err != nil {
			return err
		}
		_, err = js.AddStream(&nats.StreamConfig{
			Name: "BENCH", Subjects: []string{"bench"}, Replicas: 3, Storage: nats.FileStorage, MaxBytes: 8 << 30, Discard: nats.DiscardOld,
		})
		return err
	})
}

func (n *jetstream) processes() []*process { return n.nodes }

func (n *jetstream) stop() {
	for _, p := range n.nodes {
		p.kill()
	}
	n.nodes = nil
}

// load publishes from one connection to the stream's leader, asynchronously, as its documentation advises.
func (n *jetstream) load(ctx context.Context, r row, d time.Duration) (sent, error) {
	nc, js, err := n.leader(r.inFlight)
	if err != nil {
		return sent{}, err
	}
	defer nc.Close()
	return window(ctx, r.inFlight, d, func(data []byte) (func() error, error) {
		f, err := js.PublishAsync("bench", data)
		if err != nil {
			return nil, err
		}
		return func() error {
			select {
			case <-f.Ok():
				return nil
			case err := <-f.Err():
				return err
			}
		}, nil
	})
}

func (n *jetstream) leader(inFlight int) (*nats.Conn, nats.JetStreamContext, error) {
	nc, err := nats.Connect("nats://" + n.clients[0])
	if err != nil {
		return nil, nil, err
	}
	defer nc.Close()
	js, err := nc.JetStream()
	if err != nil {
		return nil, nil, err
	}
	info, err := js.StreamInfo("BENCH")
	if err != nil {
		return nil, nil, err
	}
	if info.Cluster == nil || len(info.Cluster.Leader) != 2 {
		return nil, nil, fmt.Errorf("the stream has no leader: %+v", info.Cluster)
	}
	to, err := nats.Connect("nats://"+n.clients[info.Cluster.Leader[1]-'0'], nats.DontRandomize())
	if err != nil {
		return nil, nil, err
	}
	out, err := to.JetStream(nats.PublishAsyncMaxPending(inFlight + 1))
	if err != nil {
		to.Close()
		return nil, nil, err
	}
	return to, out, nil
}

// runNATS is one server; addresses are three for clients, then three for routes.
func runNATS(i int, dir string, always bool, addresses []string) error {
	var routes []*url.URL
	for _, a := range addresses[3:] {
		routes = append(routes, &url.URL{Scheme: "nats", Host: a})
	}
	s, err := natsserver.NewServer(&natsserver.Options{
		ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: port(addresses[i]), JetStream: true, StoreDir: dir, SyncAlways: always,
		Cluster: natsserver.ClusterOpts{Name: "bench", Host: "127.0.0.1", Port: port(addresses[3+i])}, Routes: routes,
		NoSigs: true, JetStreamMaxStore: 64 << 30, JetStreamMaxMemory: 1 << 30,
	})
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	s.Start()
	s.WaitForShutdown()
	return nil
}
