package event

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// HashKey is the cluster's random key for dedup keys. It is made once, goes through the log, and never changes: whoever
// does not know it cannot make two ids collide.
type HashKey [32]byte

// DedupKeyOf is the 128-bit keyed hash of (channel, source, id): the first half of SHA-256 over the key, the channel's
// creation index, and both texts with their lengths in front. The length of a truncated digest does not matter here, and
// SHA-256 instructions make it a fraction of a microsecond.
func DedupKeyOf(k HashKey, channelIndex uint64, source, id string) [16]byte {
	var stack [256]byte
	b := append(stack[:0], k[:]...)
	b = binary.LittleEndian.AppendUint64(b, channelIndex)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(source)))
	b = append(b, source...)
	b = append(b, id...)
	sum := sha256.Sum256(b)
	return [16]byte(sum[:16])
}

// IDHashOf is the hash by which an event is looked up by its id alone. It is not keyed: who finds by it compares the id.
func IDHashOf(id string) uint64 { return xxhash.Sum64String(id) }

// ContentHashOf hashes all of an event but its id and source, which the dedup key covers. Two events of one producer id
// with different content hashes are a conflict.
func ContentHashOf(e *Event) uint64 {
	var d xxhash.Digest
	d.Reset()
	var stack [512]byte
	b := appendAttributes(stack[:0], e, false)
	_, _ = d.Write(b)
	_, _ = d.Write(e.Data)
	return d.Sum64()
}

// orderKeyOf hashes what order "key" keeps together; 0 is no key.
func orderKeyOf(e *Event) uint64 {
	key := e.OrderKey()
	if key == "" {
		return 0
	}
	return max(xxhash.Sum64String(key), 1)
}
