package cluster

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const (
	identityMagic   = "PSid"
	identityVersion = 1
)

// ID16 is a random 128-bit id, written as hex.
type ID16 [16]byte

// IsZero tells whether id was never set.
func (id ID16) IsZero() bool { return id == ID16{} }

func (id ID16) String() string { return hex.EncodeToString(id[:]) }

// MarshalText writes the zero id as the empty string.
func (id ID16) MarshalText() ([]byte, error) {
	if id.IsZero() {
		return nil, nil
	}
	return []byte(id.String()), nil
}

// UnmarshalText is the inverse of MarshalText.
func (id *ID16) UnmarshalText(b []byte) error {
	*id = ID16{}
	if len(b) == 0 {
		return nil
	}
	if len(b) != 32 {
		return fmt.Errorf("id %q: must be 32 hex digits", b)
	}
	_, err := hex.Decode(id[:], b)
	return err
}

func newID16() ID16 {
	var id ID16
	rand.Read(id[:])
	return id
}

// identity says whose directory this is.
//
// Directory is made with the directory and never changes, so that a wiped disk is told from the one before it even at the same
// incarnation. Incarnation is raised, durably, at each start. Bootstrap lists the members of the cluster this node is making: it is
// written together with the cluster id, before the first log entry, and cleared after it, so that a crash between the two goes on.
type identity struct {
	NodeID      string   `json:"node_id"`
	Directory   ID16     `json:"directory"`
	Incarnation uint64   `json:"incarnation"`
	ClusterName string   `json:"cluster_name"`
	ClusterID   ID16     `json:"cluster_id"`
	Bootstrap   []string `json:"bootstrap,omitempty"`
	// Supersedes are the ids this cluster had before it was recovered with a majority lost; nodes of those are refused.
	Supersedes []ID16 `json:"supersedes,omitempty"`
}

type identityFile struct {
	path string
	identity
}

// openIdentity reads the identity of dir, makes one if there is none, and raises the incarnation before it returns.
func openIdentity(dir, nodeID, clusterName string) (*identityFile, error) {
	f := &identityFile{path: filepath.Join(dir, "identity")}
	body, err := readSealed(f.path, identityMagic, identityVersion)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if left := stateFiles(dir); left != "" {
			return nil, damaged("%s is there, the identity file is not", left)
		}
		f.identity = identity{NodeID: nodeID, Directory: newID16(), ClusterName: clusterName}
	case err != nil:
		return nil, err
	default:
		if err := json.Unmarshal(body, &f.identity); err != nil {
			return nil, damaged("%s: %v", f.path, err)
		}
	}
	if f.NodeID != nodeID {
		return nil, foreign("%s belongs to node %q, not to %q", dir, f.NodeID, nodeID)
	}
	if f.ClusterName != clusterName {
		return nil, foreign("%s belongs to cluster %q, not to %q", dir, f.ClusterName, clusterName)
	}
	f.Incarnation++
	return f, f.save()
}

// stateFiles names a file that only a directory with an identity can hold.
func stateFiles(dir string) string {
	for _, name := range []string{"stable.db", "peers", "install"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return name
		}
	}
	return ""
}

func (f *identityFile) save() error {
	body, err := json.Marshal(f.identity)
	if err != nil {
		return fmt.Errorf("encode identity: %w", err)
	}
	return writeSealed(f.path, identityMagic, identityVersion, body)
}
