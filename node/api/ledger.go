package api

import "net/http"

type ledgerAnswer struct {
	Channel      string      `json:"channel"`
	AppliedIndex uint64      `json:"applied_index"`
	Accepted     uint64      `json:"accepted"`
	Duplicates   uint64      `json:"duplicates"`
	Balanced     bool        `json:"balanced"`
	Emitters     []ledgerRow `json:"emitters"`
}

// ledgerRow is P3 for one emitter, counted from where it started: accepted is the sum of the six behind it.
type ledgerRow struct {
	Emitter   string `json:"emitter"`
	Owner     string `json:"owner"`
	Epoch     uint64 `json:"epoch"`
	Accepted  uint64 `json:"accepted"`
	Delivered uint64 `json:"delivered"`
	Dead      uint64 `json:"dead"`
	Poison    uint64 `json:"poison"`
	Discarded uint64 `json:"discarded"`
	Lost      uint64 `json:"lost"`
	Pending   uint64 `json:"pending"`
	Balanced  bool   `json:"balanced"`
}

// ledger shows the balance. It is read under one lock of the state machine, so it is of one applied index (I5).
func (a *API) ledger(w http.ResponseWriter, r *http.Request) {
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
	l, ok := a.deps.Machine.LedgerOf(ch.Name)
	if !ok {
		newProblem(http.StatusNotFound, kindNoSuchChannel, "no such channel", "the channel was deleted meanwhile").write(w)
		return
	}
	out := ledgerAnswer{Channel: ch.Name, AppliedIndex: l.AppliedIndex, Accepted: l.Accepted, Duplicates: l.Duplicates, Balanced: true, Emitters: []ledgerRow{}}
	for _, e := range l.Rows {
		row := ledgerRow{
			Emitter: e.Emitter, Owner: e.Owner, Epoch: e.Epoch, Accepted: e.Accepted, Delivered: e.Delivered, Dead: e.Dead,
			Poison: e.Poison, Discarded: e.Discarded, Lost: e.Lost, Pending: e.Pending,
		}
		row.Balanced = e.Accepted == e.Delivered+e.Dead+e.Poison+e.Discarded+e.Lost+e.Pending
		out.Balanced = out.Balanced && row.Balanced
		out.Emitters = append(out.Emitters, row)
	}
	writeJSON(w, out)
}
