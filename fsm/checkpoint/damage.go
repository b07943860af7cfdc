package checkpoint

import (
	"errors"
	"fmt"

	"penstock/internal/boltcheck"
)

// ErrDamaged is a file that is not, or is no longer, what was written into it. The state can be made again without it.
var ErrDamaged = errors.New("checkpoint is damaged")

// errPanic marks damage that bbolt met with a panic.
var errPanic = errors.New("bbolt gave up")

// verify reads the file before bbolt does, which opens no damaged file without a panic that may be in a goroutine of its own.
func verify(path string) error {
	err := boltcheck.File(path)
	if errors.Is(err, boltcheck.ErrDamaged) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

// catch turns a panic of bbolt into ErrDamaged: the file has changed since it was verified. It is deferred around reads of
// the file only.
func catch(path string, err *error) {
	if p := recover(); p != nil {
		*err = panicked(path, p)
	}
}

func panicked(path string, p any) error {
	return fmt.Errorf("%w: %s: %w: %v", ErrDamaged, path, errPanic, p)
}
