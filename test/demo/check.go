package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"penstock/event"
	"penstock/internal/client"
)

// check holds everything the demo claims, and gives the number of delivered files.
func (d *demo) check(ctx context.Context) (files int, err error) {
	l, err := d.client.Ledger(ctx, channel)
	if err != nil {
		return 0, err
	}
	if len(l.Emitters) != 1 {
		return 0, fmt.Errorf("the ledger has %d emitters, want 1", len(l.Emitters))
	}
	e := l.Emitters[0]
	if n := uint64(d.events); !l.Balanced || e.Accepted != e.Sum() || e.Accepted != n || e.Delivered != n {
		return 0, fmt.Errorf("the ledger says %+v, want %d accepted and delivered", e, n)
	}
	if files, err = d.checkFiles(); err != nil {
		return files, err
	}
	if err := d.checkTails(ctx); err != nil {
		return files, err
	}
	return files, d.checkStates(ctx)
}

// checkFiles unites the delivered files of all nodes by name: after a move of the emitter the same name may lie on two
// nodes, with the same bytes. Each acknowledged event must be in them once.
func (d *demo) checkFiles() (int, error) {
	contents := map[string][]byte{}
	paths, err := filepath.Glob(filepath.Join(d.dir, "n*", "out", "*.ndjson"))
	if err != nil {
		return 0, err
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		name := filepath.Base(path)
		if other, ok := contents[name]; ok && !bytes.Equal(other, b) {
			return 0, fmt.Errorf("%s has other bytes than the file of that name on another node", path)
		}
		contents[name] = b
	}
	seen := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(contents)) {
		for line := range bytes.Lines(contents[name]) {
			e, err := event.ParseStructured(line)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", name, err)
			}
			seen[e.ID]++
		}
	}
	for _, id := range d.writer.ids {
		if seen[id] != 1 {
			return 0, fmt.Errorf("event %s was acknowledged and is in the delivered files %d times", id, seen[id])
		}
	}
	if len(seen) != len(d.writer.ids) {
		return 0, fmt.Errorf("%d events are in the delivered files, %d were acknowledged", len(seen), len(d.writer.ids))
	}
	return len(contents), nil
}

// checkTails compares what each node shows of the channel, from the first event on.
func (d *demo) checkTails(ctx context.Context) error {
	first := ""
	for _, n := range d.nodes {
		sum, count, err := tailSum(ctx, n.http)
		if err != nil {
			return fmt.Errorf("tail of %s: %w", n.id, err)
		}
		if count != d.events {
			return fmt.Errorf("tail of %s shows %d events, want %d", n.id, count, d.events)
		}
		if first == "" {
			first = sum
		} else if sum != first {
			return fmt.Errorf("tail of %s differs from that of %s", n.id, d.nodes[0].id)
		}
	}
	return nil
}

func tailSum(ctx context.Context, address string) (sum string, count int, err error) {
	c, err := client.New(client.Config{Addresses: []string{address}})
	if err != nil {
		return "", 0, err
	}
	defer c.Close()
	h := sha256.New()
	for o := (client.TailOptions{}); ; {
		end, err := c.Tail(ctx, channel, o, func(e client.TailEvent) error {
			count++
			h.Write(e.Raw)
			h.Write([]byte{'\n'})
			return nil
		})
		if err != nil {
			return "", 0, err
		}
		if end.Events == 0 && end.Next.Index > end.Applied || end.Next == o.From {
			return hex.EncodeToString(h.Sum(nil)), count, nil
		}
		o.From = end.Next
	}
}

// checkStates waits until all nodes have applied the same index, and compares the hashes of their states at it.
func (d *demo) checkStates(ctx context.Context) error {
	var last string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		hashes := map[string]string{}
		indexes := map[uint64]bool{}
		for _, n := range d.nodes {
			c, err := client.New(client.Config{Addresses: []string{n.http}})
			if err != nil {
				return err
			}
			s, err := c.Cluster(ctx)
			c.Close()
			if err != nil {
				return err
			}
			hashes[s.StateHash.Hash] = n.id
			indexes[s.StateHash.Index] = true
		}
		if len(indexes) == 1 {
			if len(hashes) != 1 {
				return fmt.Errorf("the states differ at the same index: %v", hashes)
			}
			return nil
		}
		last = fmt.Sprint(slices.Sorted(maps.Keys(indexes)))
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("the nodes did not get to the same index: %s", last)
}
