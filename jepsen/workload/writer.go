package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"penstock/jepsen/client"
	"penstock/jepsen/history"
)

// Writer writes events `NAME-1`, `NAME-2`, … of source /jepsen/NAME, all with one key, one request at a time.
type Writer struct {
	rec     *recorder
	channel string
	batch   int // most events in a request
	think   time.Duration
	next    uint64
	node    *client.Client
	sent    []sent // some of the requests that are done, to be sent again
}

type sent struct {
	ids, sums []string
	body      []byte
}

// Every resendEvery-th request is one of the last resendKept done ones over again, as from a producer that restarted from
// an old point of its own: nothing of it may count twice, whatever became of the nodes in between.
const (
	resendEvery = 30
	resendKept  = 400
)

// NewWriter opens its history. think is the pause between two requests.
func NewWriter(env *Env, name, channel string, batch int, think time.Duration) (*Writer, error) {
	rec, err := env.recorder(name)
	if err != nil {
		return nil, err
	}
	return &Writer{rec: rec, channel: channel, batch: max(1, batch), think: think}, nil
}

// Run writes until stop is done; the request under way then is retried until last is done. Its error is of the history.
func (w *Writer) Run(stop, last context.Context) error {
	for stop.Err() == nil {
		n := 1 + w.rec.random.IntN(w.batch)
		ids, sums, body := w.request(n)
		if w.settle(last, ids, sums, body) {
			w.keep(sent{ids, sums, body})
		}
		if w.rec.random.IntN(resendEvery) == 0 && len(w.sent) > 0 && stop.Err() == nil {
			again := w.sent[w.rec.random.IntN(len(w.sent))]
			w.settle(last, again.ids, again.sums, again.body)
		}
		pause(stop, w.think/2+time.Duration(w.rec.random.Int64N(int64(w.think)+1)))
	}
	return w.rec.out.Close()
}

func (w *Writer) keep(s sent) {
	if len(w.sent) < resendKept {
		w.sent = append(w.sent, s)
		return
	}
	w.sent[w.rec.random.IntN(resendKept)] = s
}

// request makes the next n events as a batch body.
func (w *Writer) request(n int) (ids, sums []string, body []byte) {
	var b bytes.Buffer
	b.WriteByte('[')
	for i := range n {
		w.next++
		id := fmt.Sprintf("%s-%d", w.rec.name, w.next)
		data := payload(w.rec.random, w.rec.name, w.next)
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"specversion":"1.0","id":%q,"source":"/jepsen/%s","type":"jepsen.event","subject":%q,"datacontenttype":"application/json","data":%s}`,
			id, w.rec.name, w.rec.name, data)
		ids, sums = append(ids, id), append(sums, client.Sum(data))
	}
	b.WriteByte(']')
	return ids, sums, b.Bytes()
}

// settle sends one request again and again until it is done or ctx ends.
func (w *Writer) settle(ctx context.Context, ids, sums []string, body []byte) bool {
	for failed := false; ctx.Err() == nil; failed = true {
		w.node = w.rec.node(w.node, failed)
		op := w.rec.invoke(history.Op{F: history.Write, Node: w.node.Node, Channel: w.channel, IDs: ids, Sums: sums})
		if a := send(ctx, w.rec, w.node, op, nil, body, len(ids)); a.Outcome == client.Done {
			return true
		}
		pause(ctx, time.Duration(20+w.rec.random.IntN(200))*time.Millisecond)
	}
	return false
}

// send makes one ingest attempt and records its end.
func send(ctx context.Context, rec *recorder, c *client.Client, op history.Op, query url.Values, body []byte, want int) client.Answer {
	q := url.Values{"detail": {"1"}}
	for k, v := range query {
		q[k] = v
	}
	a := c.Do(ctx, http.MethodPost, "/v1/channels/"+op.Channel+"/events", q, "application/cloudevents-batch+json", body)
	if a.Outcome == client.Done {
		var answer client.IngestAnswer
		if err := json.Unmarshal(a.Body, &answer); err != nil {
			a.Outcome, a.Err = client.Unknown, fmt.Errorf("answer: %w", err)
		} else if len(answer.Events) != want {
			a.Outcome, a.Err = client.Unknown, fmt.Errorf("answer names %d events of %d: %.200s", len(answer.Events), want, a.Body)
		}
		op.Index, op.Acks = answer.Index, answer.Events
	}
	rec.complete(op, a)
	if a.Outcome == client.Done {
		rec.env.acked(want)
	}
	return a
}
