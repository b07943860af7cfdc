package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"penstock/fsm"
	"penstock/fsm/command"
)

// errNoEmitter: there is no such emitter.
var errNoEmitter = errors.New("no such emitter")

// Pause stops or resumes the attempts of an emitter, under an audit intent.
func (s *Service) Pause(ctx context.Context, act Act, channel, emitter string, paused bool) error {
	if _, err := s.deps.Cluster.ReadIndex(ctx); err != nil {
		return err
	}
	c, ok := s.deps.Machine.Channel(channel)
	e, found := s.deps.Machine.EmitterNamed(c.Index, emitter)
	if !ok || !found {
		s.audit.reject(ctx, act, errNoEmitter.Error())
		return errNoEmitter
	}
	id, err := s.audit.intend(ctx, act)
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	res, err := s.audit.propose(ctx, command.EmitterPause{ChannelIndex: c.Index, EmitterIndex: e.EmitterIndex, Paused: paused})
	switch {
	case err != nil:
		s.audit.conclude(ctx, id, fsm.AuditUnknown, err.Error())
		return err
	case res.Status != command.OK:
		s.audit.conclude(ctx, id, fsm.AuditFailure, res.Status.String())
		return fmt.Errorf("%w: %s", errNoEmitter, res.Status)
	}
	s.audit.conclude(ctx, id, fsm.AuditSuccess, "")
	return nil
}

func (s *Service) servePause(paused bool, actor func(*http.Request) string) http.HandlerFunc {
	action := "emitter.resume"
	if paused {
		action = "emitter.pause"
	}
	return func(w http.ResponseWriter, r *http.Request) {
		channel, emitter := r.PathValue("channel"), r.PathValue("emitter")
		act := Act{Actor: actor(r), Action: action, RequestID: requestID(r), Targets: []string{channel + "/" + emitter}}
		var b struct {
			Reason string `json:"reason"`
		}
		err := json.NewDecoder(r.Body).Decode(&b)
		if (err != nil && !errors.Is(err, io.EOF)) || len(b.Reason) > maxReason {
			s.audit.reject(r.Context(), act, "the body is no request")
			problem(w, http.StatusBadRequest, "bad-request", "want {\"reason\": \"...\"} or nothing")
			return
		}
		act.Reason = b.Reason
		ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
		defer cancel()
		switch err := s.Pause(ctx, act, channel, emitter, paused); {
		case errors.Is(err, errNoEmitter):
			problem(w, http.StatusNotFound, "not-found", err.Error())
		case err != nil:
			s.actProblem(w, err)
		default:
			writeJSON(w, map[string]any{"channel": channel, "emitter": emitter, "paused": paused})
		}
	}
}
