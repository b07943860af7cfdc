package fsm

// Balance is the ledger of a channel at one applied index (P3, I5).
type Balance struct {
	AppliedIndex         uint64
	Accepted, Duplicates uint64 // of the channel, since it was created
	Rows                 []BalanceRow
}

// BalanceRow is one emitter's row and whose the emitter is.
type BalanceRow struct {
	LedgerRow
	Owner string
	Epoch uint64
}

// LedgerOf is the whole balance of a channel, read at once: its emitters as the spec has them, then those removed.
func (m *Machine) LedgerOf(name string) (Balance, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c := m.mu.names[name]
	if c == nil {
		return Balance{}, false
	}
	b := Balance{AppliedIndex: m.mu.index, Accepted: c.seq, Duplicates: c.duplicates}
	for _, e := range c.emitters {
		b.Rows = append(b.Rows, BalanceRow{LedgerRow: e.ledger(), Owner: e.owner, Epoch: e.epoch})
	}
	for _, r := range c.retired {
		b.Rows = append(b.Rows, BalanceRow{LedgerRow: r})
	}
	return b, true
}
