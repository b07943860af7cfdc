package fsm

import "errors"

// Row is one row of the state in a store.
type Row struct {
	Table uint8
	Key   []byte
	Value []byte // nil = the row is gone
}

// ErrNoSpace is a Write that found no space on the disk. Nothing was written; the same rows may be written again later.
var ErrNoSpace = errors.New("no space for the checkpoint")

// Store keeps the rows of one state on disk. fsm/checkpoint is the one on bbolt. Methods other than those of a View are
// never called at the same time. Any error of Write or Replace is final: the process ends.
type Store interface {
	// Write makes the rows and the head durable in one step: after a crash either all of them are there or none. It returns
	// after the fsync and does not keep the slices. ErrNoSpace is the one error that is not final.
	Write(head []byte, rows []Row) error
	// Replace makes the store hold the head and exactly these rows, in one step and durable like Write. Views that are open
	// go on showing the old rows.
	Replace(head []byte, rows func(yield func(Row) bool)) error
	// View opens what was last written, as of now.
	View() (View, error)
}

// View is one state of a store; writes after it was opened do not show. Any number of views may be open.
type View interface {
	// Head is the head that was written last; nil when the store is empty. Valid until Close.
	Head() []byte
	// Rows calls f with each row in the order of (table, key), and ends with its first error. f must not keep the slices.
	Rows(f func(Row) error) error
	// Close may be called more than once.
	Close() error
}
