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
	path string
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
	v, err := openView(s.path, f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("view checkpoint: %w", err), f.release())
	}
	return v, nil
}

func openView(path string, f *file) (_ *view, err error) {
	tx, err := f.db.Begin(false)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tx.Rollback())
		}
	}()
	defer catch(path, &err)
	meta := tx.Bucket(bucketMeta)
	if meta == nil {
		return nil, fmt.Errorf("%w: %s: no bucket of the head", ErrDamaged, path)
	}
	return &view{path: path, file: f, tx: tx, head: bytes.Clone(meta.Get(keyHead))}, nil
}

// Head implements fsm.View.
func (v *view) Head() []byte { return v.head }

// Rows implements fsm.View. Buckets are named by the table's number, so their order is that of the tables.
func (v *view) Rows(f func(fsm.Row) error) (err error) {
	inside := false
	defer func() {
		switch p := recover(); {
		case p == nil:
		case inside:
			panic(p) // a bug of f
		default:
			err = panicked(v.path, p)
		}
	}()
	for t := 1; t < 256; t++ {
		b := v.tx.Bucket([]byte{byte(t)})
		if b == nil {
			continue
		}
		err := b.ForEach(func(k, value []byte) error {
			inside = true
			err := f(fsm.Row{Table: byte(t), Key: k, Value: value})
			inside = false
			return err
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
