package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/memberlist"
)

// Meta is what a node tells of itself with every sign of life.
type Meta struct {
	ID          string // at most 63 bytes
	Directory   [16]byte
	Incarnation uint64
	Cluster     [16]byte
	Raft, HTTP  string // as the others dial them
	Version     string // of the program
	Zone        string // as configured
	// FeatureMin and FeatureMax are the feature levels the node can run at.
	FeatureMin, FeatureMax uint32
	// Leaving: it is about to stop on purpose. memberlist knows a goodbye from a death, but does not tell.
	Leaving bool
}

// name is the node's name in memberlist. An id holds no '#'.
func (m *Meta) name() string { return fmt.Sprintf("%s#%d", m.ID, m.Incarnation) }

const (
	metaVersion = 1
	flagLeaving = 1
	maxText     = 300 // a DNS name and a port
)

// encode gives the metadata within memberlist's limit. What does not fit, which takes very long names, is left out from the end: the
// hello tells it again.
//
//	version u8 · flags u8 (1: leaving) · directory 16 · cluster 16 · incarnation · feature min · feature max (uvarint)
//	then, each with its length (uvarint): id · raft · version · zone · http
func (m *Meta) encode() []byte {
	b := make([]byte, 2, memberlist.MetaMaxSize)
	b[0] = metaVersion
	if m.Leaving {
		b[1] = flagLeaving
	}
	b = append(append(b, m.Directory[:]...), m.Cluster[:]...)
	for _, n := range []uint64{m.Incarnation, uint64(m.FeatureMin), uint64(m.FeatureMax)} {
		b = binary.AppendUvarint(b, n)
	}
	texts := []string{m.ID, m.Raft, m.Version, m.Zone, m.HTTP}
	for i, s := range texts {
		rest := len(texts) - 1 - i // one byte each for the empty ones behind
		if len(s) > maxText || len(b)+2+len(s)+rest > memberlist.MetaMaxSize {
			s = ""
		}
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return b
}

var errMeta = errors.New("metadata of another kind")

// decodeMeta reads what encode wrote. Bytes behind what it knows are a later version's.
func decodeMeta(b []byte) (Meta, error) {
	var m Meta
	if len(b) < 34 || b[0] != metaVersion {
		return m, errMeta
	}
	m.Leaving = b[1]&flagLeaving != 0
	copy(m.Directory[:], b[2:18])
	copy(m.Cluster[:], b[18:34])
	b = b[34:]
	var numbers [3]uint64
	for i := range numbers {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return m, errMeta
		}
		numbers[i], b = v, b[n:]
	}
	m.Incarnation, m.FeatureMin, m.FeatureMax = numbers[0], uint32(numbers[1]), uint32(numbers[2])
	for _, s := range []*string{&m.ID, &m.Raft, &m.Version, &m.Zone, &m.HTTP} {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > maxText || uint64(len(b)-n) < v {
			return m, errMeta
		}
		*s, b = string(b[n:n+int(v)]), b[n+int(v):]
	}
	if m.ID == "" || len(m.ID) > 63 {
		return m, errMeta
	}
	return m, nil
}
