package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/hashicorp/raft"

	"penstock/internal/mutant"
)

const (
	bookMagic   = "PSpe"
	bookVersion = 1
	maxPeers    = 1024
)

// peerInfo is what is known of one node.
type peerInfo struct {
	ID          string `json:"id"`
	Directory   ID16   `json:"directory"`
	Incarnation uint64 `json:"incarnation"`
	Raft        string `json:"raft,omitempty"`
	Gossip      string `json:"gossip,omitempty"`
	HTTP        string `json:"http,omitempty"`
	// LastIndex and LastTerm are the end of its log as it last told; Member that it is, or once was, in Raft's configuration.
	LastIndex uint64 `json:"last_index,omitempty"`
	LastTerm  uint64 `json:"last_term,omitempty"`
	Member    bool   `json:"member,omitempty"`
}

// book is this node's memory of the others. It is what a wiped or restored disk is recognised by, so incarnations and directories of
// members are durable before they are acted on, and never go down. Addresses are hints: whoever is dialled must name itself.
type book struct {
	path string
	self string
	// moved is called, outside the lock, when the Raft address of a node changed.
	moved func(id string)
	// fatal ends the process: what is known of the others could not be made durable.
	fatal func(code int, err error)

	mu struct {
		sync.Mutex
		peers  map[string]*peerInfo
		config raft.Configuration
		index  uint64 // of config
		dirty  bool
	}
}

type bookFile struct {
	Peers       []peerInfo    `json:"peers"`
	Config      []raft.Server `json:"config"`
	ConfigIndex uint64        `json:"config_index"`
}

// openBook reads what is known. fresh tells that there need not be a file yet.
func openBook(dir, self string, fresh bool, moved func(string), fatal func(int, error)) (*book, error) {
	b := &book{path: filepath.Join(dir, "peers"), self: self, moved: moved, fatal: fatal}
	b.mu.peers = map[string]*peerInfo{}
	body, err := readSealed(b.path, bookMagic, bookVersion)
	if errors.Is(err, os.ErrNotExist) {
		if !fresh {
			return nil, damaged("%s is missing: it held what this node knows of the others", b.path)
		}
		return b, b.saveLocked()
	}
	if err != nil {
		return nil, err
	}
	var f bookFile
	if err := json.Unmarshal(body, &f); err != nil {
		return nil, damaged("%s: %v", b.path, err)
	}
	for _, p := range f.Peers {
		b.mu.peers[p.ID] = &p
	}
	b.mu.config, b.mu.index = raft.Configuration{Servers: f.Config}, f.ConfigIndex
	return b, nil
}

func (b *book) saveLocked() error {
	f := bookFile{Config: b.mu.config.Servers, ConfigIndex: b.mu.index}
	for _, id := range slices.Sorted(maps.Keys(b.mu.peers)) {
		if p := b.mu.peers[id]; p.Member {
			f.Peers = append(f.Peers, *p)
		}
	}
	body, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode peers: %w", err)
	}
	err = writeSealed(b.path, bookMagic, bookVersion, body)
	// A full disk is no fault: the file before stays, and what is new in it comes again with the next report.
	if b.mu.dirty = errors.Is(err, syscall.ENOSPC); b.mu.dirty {
		return nil
	}
	return err
}

// save writes what changed since the last save.
func (b *book) save() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.mu.dirty {
		return nil
	}
	return b.saveLocked()
}

// knows compares what p says of itself with what is known: nil when it may be that node.
func (k *peerInfo) knows(p peerInfo) error {
	if !k.Member || k.Directory.IsZero() || mutant.On(mutant.WipedNodeKeepsID) {
		return nil
	}
	if k.Directory != p.Directory {
		return wiped("node %s is known with another data directory (incarnation %d)", p.ID, k.Incarnation)
	}
	if k.Incarnation > p.Incarnation {
		return wiped("node %s is known at incarnation %d, its data directory says %d", p.ID, k.Incarnation, p.Incarnation)
	}
	return nil
}

// learn takes what a node says of itself, first hand. The error is ErrWiped when it cannot be the node that is known by this id.
func (b *book) learn(p peerInfo) error {
	if p.ID == b.self || checkNodeID(p.ID) != nil {
		return nil
	}
	b.mu.Lock()
	k := b.mu.peers[p.ID]
	if k == nil {
		if len(b.mu.peers) >= maxPeers {
			b.mu.Unlock()
			return errors.New("too many nodes known")
		}
		k = &peerInfo{ID: p.ID}
		b.mu.peers[p.ID] = k
	}
	if err := k.knows(p); err != nil {
		b.mu.Unlock()
		return err
	}
	moved := k.Raft != p.Raft
	renewed := k.Incarnation != p.Incarnation || k.Directory != p.Directory
	k.Directory, k.Incarnation = p.Directory, p.Incarnation
	if moved || k.Gossip != p.Gossip || k.HTTP != p.HTTP {
		k.Raft, k.Gossip, k.HTTP = p.Raft, p.Gossip, p.HTTP
		b.mu.dirty = b.mu.dirty || k.Member
	}
	var err error
	if renewed && k.Member {
		err = b.saveLocked()
	}
	b.mu.Unlock()
	if err != nil {
		b.fatal(ExitDisk, fmt.Errorf("save what is known of the others: %w", err))
		return err
	}
	if moved && b.moved != nil {
		b.moved(p.ID)
	}
	return nil
}

// hear takes what a third node says of p: only what is not known, or newer on the same directory.
func (b *book) hear(p peerInfo) error {
	if p.ID == b.self || checkNodeID(p.ID) != nil {
		return nil
	}
	b.mu.Lock()
	k := b.mu.peers[p.ID]
	if k != nil && !k.Directory.IsZero() && (k.Directory != p.Directory || k.Incarnation >= p.Incarnation) {
		b.mu.Unlock()
		return nil
	}
	b.mu.Unlock()
	return b.learn(p)
}

// progress notes the end of a node's log.
func (b *book) progress(id string, index, term uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.mu.peers[id]; p != nil && (p.LastIndex != index || p.LastTerm != term) {
		p.LastIndex, p.LastTerm = index, term
		b.mu.dirty = b.mu.dirty || p.Member
	}
}

// configure notes the members as of index. They stay members for the book, so that a removed id is not taken again by another disk.
func (b *book) configure(conf raft.Configuration, index uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if index < b.mu.index {
		return nil
	}
	b.mu.config, b.mu.index = conf, index
	for _, s := range conf.Servers {
		id := string(s.ID)
		if id == b.self {
			continue
		}
		if b.mu.peers[id] == nil {
			b.mu.peers[id] = &peerInfo{ID: id}
		}
		b.mu.peers[id].Member = true
	}
	return b.saveLocked()
}

func (b *book) get(id string) (peerInfo, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.mu.peers[id]
	if p == nil {
		return peerInfo{}, false
	}
	return *p, true
}

// all gives every node known but this one, by id.
func (b *book) all() []peerInfo {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]peerInfo, 0, len(b.mu.peers))
	for _, id := range slices.Sorted(maps.Keys(b.mu.peers)) {
		out = append(out, *b.mu.peers[id])
	}
	return out
}

// configured tells whether a node is in the newest committed configuration.
func (b *book) configured(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.mu.config.Servers, func(s raft.Server) bool { return string(s.ID) == id })
}

func (b *book) configuration() (raft.Configuration, uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.config.Clone(), b.mu.index
}
