package api

import (
	"encoding/hex"
	"fmt"
	"net/http"

	"penstock/event"
)

type offsetAnswer struct {
	Source    string `json:"source"`
	Partition string `json:"partition"`
	Position  uint64 `json:"position"`
	Record    uint64 `json:"record"`
	Closed    bool   `json:"closed"`
	// Hex is the 24 bytes as they are stored.
	Hex string `json:"hex"`
}

func offsetAnswerOf(o event.Offset) offsetAnswer {
	return offsetAnswer{
		Source: o.Source, Partition: o.Partition, Position: o.Position, Record: o.Record, Closed: o.Closed,
		Hex: hex.EncodeToString(o.SourceOffset.Append(nil)),
	}
}

func (a *API) offsets(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := a.requestContext(r)
	defer cancel()
	if prob := a.fresh(ctx, r); prob != nil {
		prob.write(w)
		return
	}
	ch, prob := a.channel(ctx, r.PathValue("channel"))
	if prob != nil {
		prob.write(w)
		return
	}
	out := []offsetAnswer{}
	for _, o := range a.deps.Machine.Offsets(ch.Name) {
		out = append(out, offsetAnswerOf(event.Offset{Source: o.Source, Partition: o.Partition, SourceOffset: o.Offset}))
	}
	writeJSON(w, map[string]any{"offsets": out})
}

// offset answers 404 when nothing was committed for the source: absent is never 0.
func (a *API) offset(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := a.requestContext(r)
	defer cancel()
	if prob := a.fresh(ctx, r); prob != nil {
		prob.write(w)
		return
	}
	ch, prob := a.channel(ctx, r.PathValue("channel"))
	if prob != nil {
		prob.write(w)
		return
	}
	source, partition := r.PathValue("source"), r.PathValue("partition")
	o, ok := a.deps.Machine.Offset(ch.Name, source, partition)
	if !ok {
		newProblem(http.StatusNotFound, kindNotFound, "no offset", fmt.Sprintf("nothing was committed for source %.128q, partition %.128q", source, partition)).write(w)
		return
	}
	writeJSON(w, offsetAnswerOf(event.Offset{Source: source, Partition: partition, SourceOffset: o}))
}
