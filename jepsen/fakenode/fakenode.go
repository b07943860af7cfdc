// Package fakenode is a small in-memory stand-in for a Penstock node with the public routes the harness uses, for the
// harness's own tests only: it proves histories and checkers without the product, and can be told to misbehave.
package fakenode

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"penstock/jepsen/client"
	"penstock/jepsen/history"
)

type stored struct {
	raw      map[string]json.RawMessage
	position string
	index    uint64
}

// Store is what the nodes of one fake cluster share.
type Store struct {
	mu       sync.Mutex
	index    uint64
	events   map[string][]stored // by channel
	ids      map[string]string   // channel + source + id -> position
	offsets  map[string]history.Offset
	requests int

	// LoseEvery acknowledges every n-th request without storing it; UnknownEvery stores and answers 504; DropEvery
	// answers 503 no-leader; ForgetIDs accepts duplicates. 0 is off.
	LoseEvery, UnknownEvery, DropEvery int
	ForgetIDs                          bool
}

// NewStore makes an empty cluster.
func NewStore() *Store {
	return &Store{index: 1, events: map[string][]stored{}, ids: map[string]string{}, offsets: map[string]history.Offset{}}
}

// Handler is one node of it.
func (s *Store) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/channels/{channel}/events", s.ingest)
	mux.HandleFunc("GET /v1/channels/{channel}/events", s.tail)
	mux.HandleFunc("PUT /v1/channels/{channel}", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "{}") })
	mux.HandleFunc("GET /v1/channels/{channel}/offsets/{source}/{partition}", s.offset)
	return mux
}

func problem(w http.ResponseWriter, status int, kind string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"type":"urn:penstock:problem:%s"}`, kind)
}

func every(n, count int) bool { return n > 0 && count%n == 0 }

func (s *Store) ingest(w http.ResponseWriter, r *http.Request) {
	var events []map[string]json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&events); err != nil {
		problem(w, 400, "bad-event")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	if every(s.DropEvery, s.requests) {
		problem(w, 503, "no-leader")
		return
	}
	answer := s.commit(r.PathValue("channel"), events, every(s.LoseEvery, s.requests))
	if q := r.URL.Query(); q.Get("offset") != "" {
		position, record, _ := strings.Cut(q.Get("offset"), ":")
		p, _ := strconv.ParseUint(position, 10, 64)
		n, _ := strconv.ParseUint(record, 10, 64)
		s.offsets[q.Get("source")+"/"+q.Get("partition")] = history.Offset{Position: p, Record: n}
	}
	if every(s.UnknownEvery, s.requests) {
		problem(w, 504, "unknown-outcome")
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *Store) commit(channel string, events []map[string]json.RawMessage, lose bool) client.IngestAnswer {
	s.index++
	answer := client.IngestAnswer{Index: s.index}
	for i, e := range events {
		var id, source string
		_ = json.Unmarshal(e["id"], &id)
		_ = json.Unmarshal(e["source"], &source)
		key := channel + " " + source + " " + id
		ack := history.Ack{ID: id, Source: source}
		if first, ok := s.ids[key]; ok && !s.ForgetIDs {
			ack.DuplicateOf = first
			answer.Duplicates++
		} else {
			ack.Position = fmt.Sprintf("%d.%d", s.index, i)
			s.ids[key] = ack.Position
			answer.Accepted++
			if !lose {
				s.events[channel] = append(s.events[channel], stored{raw: e, position: ack.Position, index: s.index})
			}
		}
		answer.Events = append(answer.Events, ack)
	}
	return answer
}

func (s *Store) tail(w http.ResponseWriter, r *http.Request) {
	index, ordinal, _ := strings.Cut(r.URL.Query().Get("from"), ".")
	from, _ := strconv.ParseUint(index, 10, 64)
	skip, _ := strconv.Atoi(ordinal)
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	s.mu.Lock()
	defer s.mu.Unlock()
	next := fmt.Sprintf("%d.0", s.index+1)
	var lines []byte
	count := 0
	for _, e := range s.events[r.PathValue("channel")] {
		_, o, _ := strings.Cut(e.position, ".")
		n, _ := strconv.Atoi(o)
		if e.index < from || (e.index == from && n < skip) {
			continue
		}
		if count == limit {
			next = e.position
			break
		}
		e.raw["penstockindex"] = json.RawMessage(strconv.FormatUint(e.index, 10))
		e.raw["penstockordinal"] = json.RawMessage(o)
		line, _ := json.Marshal(e.raw)
		lines = append(append(lines, line...), '\n')
		count++
	}
	w.Header().Set("Penstock-Next", next)
	_, _ = w.Write(lines)
}

func (s *Store) offset(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.offsets[r.PathValue("source")+"/"+r.PathValue("partition")]
	if !ok {
		problem(w, 404, "not-found")
		return
	}
	_ = json.NewEncoder(w).Encode(o)
}
