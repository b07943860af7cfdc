package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	bolt "go.etcd.io/bbolt"

	"penstock/fsm"
)

// view is one read transaction. bbolt does not reuse the pages that it sees, so the file grows while one is open.
type view struct {
	file *file
	tx   *bolt.Tx
	head []byte
	once sync.Once
	err  error
}

// View implements fsm.Store.
func (s *Store) View() (fsm.View, error) {
	f, err := s.acquire()
	if err != nil {
		return nil, err
	}
	tx, err := f.db.Begin(false)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("view checkpoint: %w", err), f.release())
	}
	return &view{file: f, tx: tx, head: bytes.Clone(tx.Bucket(bucketMeta).Get(keyHead))}, nil
}

// Head implements fsm.View.
func (v *view) Head() []byte { return v.head }

// Rows implements fsm.View. Buckets are named by the table's number, so their order is that of the tables.
func (v *view) Rows(f func(fsm.Row) error) error {
	for t := 1; t < 256; t++ {
		b := v.tx.Bucket([]byte{byte(t)})
		if b == nil {
			continue
		}
		err := b.ForEach(func(k, value []byte) error {
			return f(fsm.Row{Table: byte(t), Key: k, Value: value})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Close implements fsm.View.
func (v *view) Close() error {
	v.once.Do(func() { v.err = errors.Join(v.tx.Rollback(), v.file.release()) })
	return v.err
}
