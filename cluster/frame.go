package cluster

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Peer requests and their answers share a connection; the id pairs them, so answers come in any order.
//
//	request  +--------+------+-----+------------+------------+-----------+--------+-------+------+
//	         | length | 1    | id  | timeout ms | method len | grant len | method | grant | body |
//	         | u32    | u8   | u64 | u32        | u8         | u16       |        |       |      |
//	         +--------+------+-----+------------+------------+-----------+--------+-------+------+
//	answer   +--------+------+-----+--------+------+
//	         | length | 2    | id  | status | body |
//	         | u32    | u8   | u64 | u8     |      |
//	         +--------+------+-----+--------+------+
//
// Integers are little-endian; length counts what follows it. The body of an answer with a status other than ok is the error text.
const (
	frameRequest = 1
	frameAnswer  = 2
	maxFrame     = 16 << 20

	statusOK      = 0
	statusError   = 1 // the handler failed
	statusBusy    = 2 // not started: too many requests at once
	statusUnknown = 3 // not started: no such method
	statusRefused = 4 // not started: the grant is refused

	statusAbandoned = 255 // never sent: the asking node waits no longer

	requestFixed = 16
)

var errFrame = errors.New("bad frame")

type request struct {
	id     uint64
	millis uint32
	method string
	grant  []byte // for whom, see WithGrant; empty when the asking node acts by itself
	body   []byte
}

func (q *request) writeTo(w *bufio.Writer) error {
	b := binary.LittleEndian.AppendUint32(nil, uint32(requestFixed+len(q.method)+len(q.grant)+len(q.body)))
	b = append(b, frameRequest)
	b = binary.LittleEndian.AppendUint64(b, q.id)
	b = binary.LittleEndian.AppendUint32(b, q.millis)
	b = append(b, byte(len(q.method)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(q.grant)))
	b = append(append(b, q.method...), q.grant...)
	if _, err := w.Write(b); err != nil {
		return err
	}
	if _, err := w.Write(q.body); err != nil {
		return err
	}
	return w.Flush()
}

type answer struct {
	id     uint64
	status uint8
	body   []byte
}

func (a *answer) writeTo(w *bufio.Writer) error {
	b := binary.LittleEndian.AppendUint32(nil, uint32(10+len(a.body)))
	b = append(b, frameAnswer)
	b = binary.LittleEndian.AppendUint64(b, a.id)
	b = append(b, a.status)
	if _, err := w.Write(b); err != nil {
		return err
	}
	if _, err := w.Write(a.body); err != nil {
		return err
	}
	return w.Flush()
}

// readFrame reads one frame, less its length. The length is bounded before anything is allocated.
func readFrame(r *bufio.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n == 0 || n > maxFrame {
		return nil, fmt.Errorf("%w: length %d", errFrame, n)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

func parseRequest(b []byte) (request, error) {
	if len(b) < requestFixed || b[0] != frameRequest {
		return request{}, fmt.Errorf("%w: not a request (%d bytes)", errFrame, len(b))
	}
	method := requestFixed + int(b[13])
	grant := method + int(binary.LittleEndian.Uint16(b[14:]))
	if len(b) < grant || grant-method > maxGrant {
		return request{}, fmt.Errorf("%w: a request of %d bytes", errFrame, len(b))
	}
	return request{
		id: binary.LittleEndian.Uint64(b[1:]), millis: binary.LittleEndian.Uint32(b[9:]),
		method: string(b[requestFixed:method]), grant: b[method:grant:grant], body: b[grant:],
	}, nil
}

func parseAnswer(b []byte) (answer, error) {
	if len(b) < 10 || b[0] != frameAnswer {
		return answer{}, fmt.Errorf("%w: not an answer (%d bytes)", errFrame, len(b))
	}
	return answer{id: binary.LittleEndian.Uint64(b[1:]), status: b[9], body: b[10:]}, nil
}
