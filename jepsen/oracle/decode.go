package oracle

import (
	"encoding/json"
	"fmt"

	"penstock/event"
	"penstock/fsm/command"
	"penstock/internal/spec"
	"penstock/internal/vfs"
	"penstock/wal"

	"github.com/cespare/xxhash/v2"
)

// record is one entry as the log decoder hands it out.
type record struct {
	index, term uint64
	typ         uint8
	data        []byte
}

// typeCommand is raft.LogCommand: the only entries whose data is the product's own.
const typeCommand = 0

// walk reads the records of a log directory in order of index.
func walk(dir string, fn func(record) error) error {
	return wal.Walk(vfs.OS, dir, func(r wal.Record) error {
		return fn(record{index: r.Index, term: r.Term, typ: uint8(r.Type), data: r.Data})
	})
}

// decode turns one record into what this package looks at.
func decode(r record) (Entry, error) {
	e := Entry{Index: r.index, Term: r.term, Type: r.typ, Sum: fmt.Sprintf("%d-%016x", r.typ, xxhash.Sum64(r.data))}
	if r.typ != typeCommand || len(r.data) == 0 {
		return e, nil
	}
	raw, err := command.DecodeEntry(r.data)
	if err != nil {
		return e, fmt.Errorf("entry %d: %w", r.index, err)
	}
	e.Stamp = raw.Stamp
	for i, c := range raw.Commands {
		decoded, err := decodeCommand(c)
		if err != nil {
			return e, fmt.Errorf("entry %d, command %d: %w", r.index, i, err)
		}
		e.Commands = append(e.Commands, decoded...)
	}
	return e, nil
}

func decodeCommand(b []byte) ([]Command, error) {
	c, err := command.Decode(b)
	if err != nil {
		return nil, err
	}
	switch c := c.(type) {
	case command.ChannelPut:
		put, err := decodePut(c)
		return []Command{put}, err
	case command.ChannelDelete:
		return []Command{{Delete: c.Name}}, nil
	case command.Batch:
		batch, err := decodeBatch(c.Body)
		return []Command{batch}, err
	case command.Yield:
		return []Command{{Yield: c.Index}}, nil
	case command.Assign:
		var all []Command
		for _, a := range c.Items {
			all = append(all, Command{Assign: &Assign{ChannelIndex: a.ChannelIndex, EmitterIndex: a.EmitterIndex, Node: a.Node, IfEpoch: a.IfEpoch}})
		}
		return all, nil
	}
	return nil, nil
}

func decodePut(c command.ChannelPut) (Command, error) {
	var s struct {
		Name  string `json:"name"`
		Dedup struct {
			Window spec.Duration `json:"window"`
		} `json:"dedup"`
		Emitters []struct {
			Name string `json:"name"`
		} `json:"emitters"`
	}
	if err := json.Unmarshal(c.Spec, &s); err != nil {
		return Command{}, fmt.Errorf("channel spec: %w", err)
	}
	p := &Put{Name: s.Name, Spec: fmt.Sprintf("%016x", xxhash.Sum64(c.Spec)), WindowNanos: int64(s.Dedup.Window), IfVersion: c.IfVersion}
	for _, e := range s.Emitters {
		p.Emitters = append(p.Emitters, e.Name)
	}
	return Command{Put: p}, nil
}

func decodeBatch(body []byte) (Command, error) {
	raw, err := event.DecodeBatch(body)
	if err != nil {
		return Command{}, err
	}
	events, err := raw.Events()
	if err != nil {
		return Command{}, err
	}
	header := raw.Header()
	b := &Batch{ChannelIndex: header.ChannelIndex, SpecVersion: header.SpecVersion}
	for i := range events {
		server := raw.Envelope(i).Flags&event.FlagServerID != 0
		b.Events = append(b.Events, Event{Source: events[i].Source, ID: events[i].ID, ServerID: server})
	}
	if o := header.Offset; o != nil {
		b.Offset = &Offset{Source: o.Source, Partition: o.Partition, Position: o.Position, Record: o.Record, Closed: o.Closed}
	}
	return Command{Batch: b}, nil
}
