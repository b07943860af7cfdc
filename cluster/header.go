package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A connection opens with one header, before anything else; the accepting side closes what it does not like and says nothing.
//
//	+--------+---------+------+-------+------------+----------+--------+--------+------+----+
//	| magic  | version | kind | group | cluster id | from len | to len | crc32c | from | to |
//	| "PSTK" | u8      | u8   | u16   | 16 bytes   | u8       | u8     | u32    |      |    |
//	+--------+---------+------+-------+------------+----------+--------+--------+------+----+
//
// Integers are little-endian; the CRC covers all but itself. `to` is the node the dialler means: when two nodes swapped addresses,
// the wrong one refuses, so no vote and no entry ever reaches a node under another's name. group is 0 until there are several.
const (
	headerMagic   = "PSTK"
	headerVersion = 1
	headerFixed   = 30
)

type connKind uint8

const (
	kindRaft  connKind = 1
	kindPeer  connKind = 2
	kindHello connKind = 3 // on the gossip port; cluster id and `to` may be empty
	// kindGossip is a stream of memberlist, on the gossip port; `to` is empty.
	kindGossip connKind = 4
)

type connHeader struct {
	Kind     connKind
	Group    uint16
	Cluster  ID16
	From, To string
}

var errBadHeader = errors.New("bad connection header")

func (h connHeader) encode() []byte {
	b := make([]byte, headerFixed, headerFixed+len(h.From)+len(h.To))
	copy(b, headerMagic)
	b[4], b[5] = headerVersion, byte(h.Kind)
	binary.LittleEndian.PutUint16(b[6:], h.Group)
	copy(b[8:24], h.Cluster[:])
	b[24], b[25] = byte(len(h.From)), byte(len(h.To))
	b = append(append(b, h.From...), h.To...)
	binary.LittleEndian.PutUint32(b[26:], headerCRC(b))
	return b
}

func headerCRC(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:26], castagnoli), castagnoli, b[headerFixed:])
}

// readHeader reads exactly the header and no byte more.
func readHeader(r io.Reader) (connHeader, error) {
	b := make([]byte, headerFixed, headerFixed+2*maxNodeID)
	if _, err := io.ReadFull(r, b); err != nil {
		return connHeader{}, fmt.Errorf("read connection header: %w", err)
	}
	from, to := int(b[24]), int(b[25])
	if string(b[:4]) != headerMagic || from > maxNodeID || to > maxNodeID {
		return connHeader{}, fmt.Errorf("%w: % x", errBadHeader, b[:8])
	}
	if b[4] != headerVersion {
		return connHeader{}, fmt.Errorf("%w: version %d, this one speaks %d", errBadHeader, b[4], headerVersion)
	}
	b = b[:headerFixed+from+to]
	if _, err := io.ReadFull(r, b[headerFixed:]); err != nil {
		return connHeader{}, fmt.Errorf("read connection header: %w", err)
	}
	if headerCRC(b) != binary.LittleEndian.Uint32(b[26:]) {
		return connHeader{}, fmt.Errorf("%w: checksum", errBadHeader)
	}
	h := connHeader{Kind: connKind(b[5]), Group: binary.LittleEndian.Uint16(b[6:])}
	copy(h.Cluster[:], b[8:24])
	h.From, h.To = string(b[headerFixed:headerFixed+from]), string(b[headerFixed+from:])
	return h, nil
}
