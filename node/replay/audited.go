package replay

import (
	"context"
	"errors"
	"fmt"

	"penstock/fsm"
)

// ErrNoIntent: the audit intent of an act was not committed, so nothing was done (P9).
var ErrNoIntent = errors.New("nothing was done: its audit intent was not committed")

// Audited does one act of an operator between its audit intent and its outcome. do says how it ended, as one of the results of the
// trail (fsm.Audit...), with a detail. Without a committed intent do is not called, and the error is ErrNoIntent.
func (s *Service) Audited(ctx context.Context, act Act, do func(ctx context.Context) (result, detail string)) error {
	id, err := s.audit.intend(ctx, act)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoIntent, err)
	}
	result, detail := fsm.AuditUnknown, "the act did not return"
	defer func() { s.audit.conclude(ctx, id, result, detail) }()
	result, detail = do(ctx)
	return nil
}

// Rejected leaves a record of an act that was refused before anything was done; a flood of them is not recorded.
func (s *Service) Rejected(ctx context.Context, act Act, why string) { s.audit.reject(ctx, act, why) }
