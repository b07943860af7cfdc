package fsm

// floor is the lowest index that a delivery still needs (I3): at or below the entry that holds the bytes of every pending
// delivery and of every open dead letter, which is the one that committed it or the one that carried it; the next index when
// there are none.
//
// It never goes down: a busy emitter's point only moves up, one that becomes busy does so at the entry being applied,
// a dead letter's own index is at or above the point that the delivery was held by, what is carried goes to the entry being
// applied, and a new emitter starts at or above the floor.
func (s *state) floor() uint64 {
	floor := min(s.index+1, s.locations.lowest())
	for _, c := range s.order {
		for _, e := range c.emitters {
			if e.frontier() < c.seq {
				floor = min(floor, e.need.index)
			}
			floor = min(floor, e.oldestLetter())
		}
	}
	return floor
}

// Kept is the lowest index that retention.keep alone holds. It rises with the stamps.
func (m *Machine) Kept() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.keptAll()
}

func (s *state) keptAll() uint64 {
	h := uint64(noIndex)
	for _, c := range s.order {
		h = min(h, c.kept(s.stamp))
	}
	return h
}

// moveHorizon raises the horizon to what the floor and the channels' keep allow, and forgets what lies behind it.
func (s *state) moveHorizon() {
	s.raiseHorizon(min(s.floor(), s.keptAll()))
}

// yield raises the horizon over what is only kept.
func (s *state) yield(index uint64) {
	s.raiseHorizon(min(index, s.floor()))
}

// raiseHorizon forgets what lies behind h. The horizon never goes down, so what yielded stays gone whatever keep says later.
func (s *state) raiseHorizon(h uint64) {
	if h <= s.horizon {
		return
	}
	s.horizon = h
	s.mark(rowClock)
	for _, c := range s.order {
		for _, row := range c.points.prune(h) {
			s.mark(row)
		}
	}
	for len(s.rejectLine) > 0 && s.rejectLine[0] < h {
		index := s.rejectLine[0]
		delete(s.rejects, index)
		s.mark(rowKey(tableRejects, index))
		s.rejectLine = s.rejectLine[1:]
	}
}

// kept is the lowest index that the channel wants to stay readable: that of the first point whose stretch of events does
// not lie wholly before stamp - keep.
func (c *channel) kept(stamp int64) uint64 {
	cutoff := stamp - int64(c.spec.Retention.Keep)
	if c.lastStamp <= cutoff {
		return noIndex
	}
	// The last point with prev <= cutoff begins the first stretch to keep: every stretch before it ends by then.
	if p, ok := c.points.find(func(p *point) bool { return p.prev <= cutoff }); ok {
		return p.index
	}
	if p, ok := c.points.after(func(*point) bool { return false }); ok {
		return p.index
	}
	return noIndex
}
