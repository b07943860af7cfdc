package wal

import (
	"errors"
	"io"
	"sync"
)

// readBuffers keeps the raw blocks that reads go through. Nothing of them
// leaves the package: payloads are gathered into slices of their own.
var readBuffers bufferPool

type bufferPool struct{ pool sync.Pool }

type buffer struct{ b []byte }

func (p *bufferPool) get(blocks int) *buffer {
	n := blocks * blockSize
	if v, ok := p.pool.Get().(*buffer); ok && cap(v.b) >= n {
		v.b = v.b[:n]
		return v
	}
	return &buffer{b: make([]byte, n, max(n, 16*blockSize))}
}

func (p *bufferPool) put(b *buffer) {
	if cap(b.b) <= 1<<20 {
		p.pool.Put(b)
	}
}

func isEOF(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
