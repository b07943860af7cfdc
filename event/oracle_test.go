package event

import (
	"bytes"
	"io"
	"net/http"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The CloudEvents SDK is a second opinion: what it writes we read, and what we write it reads, in all three modes. Drawn
// are values on which the two need to agree: the SDK does not percent-encode headers, and it decodes JSON numbers.

func genPlainEvent(t *rapid.T) Event {
	word := rapid.StringMatching(`[a-zA-Z0-9/:._-]{1,20}`)
	e := Event{
		ID: word.Draw(t, "id"), Source: "/" + rapid.StringMatching(`[a-z]{1,5}(/[a-z]{1,5})?`).Draw(t, "source"), Type: word.Draw(t, "type"),
		Subject: rapid.OneOf(rapid.Just(""), word).Draw(t, "subject"),
		Time:    rapid.SampledFrom([]string{"", "2018-04-05T17:31:00Z", "2024-02-29T23:59:59.25Z"}).Draw(t, "time"),
	}
	if rapid.Bool().Draw(t, "with an extension") {
		e.Extensions = []Extension{{Name: "xpartition", Value: word.Draw(t, "value")}}
	}
	switch rapid.IntRange(0, 2).Draw(t, "kind") {
	case 0:
		e.DataContentType, e.DataKind, e.Data = "application/json", DataJSON, []byte(`{"a":[1,"b"]}`)
	case 1:
		e.DataContentType, e.DataKind, e.Data = "text/plain", DataText, []byte(word.Draw(t, "text"))
	case 2:
		e.DataContentType, e.DataKind, e.Data = "application/octet-stream", DataBinary, rapid.SliceOfN(rapid.Byte(), 1, 30).Draw(t, "bytes")
	}
	return e
}

// requireSame compares ours with the SDK's.
func requireSame(t require.TestingT, e Event, s *cloudevents.Event) {
	require.Equal(t, []string{e.ID, e.Source, e.Type, e.Subject, e.DataContentType, "1.0"},
		[]string{s.ID(), s.Source(), s.Type(), s.Subject(), s.DataContentType(), s.SpecVersion()})
	require.Equal(t, string(e.Data), string(s.Data()))
	if e.Time == "" {
		require.True(t, s.Time().IsZero())
	} else {
		when, err := time.Parse(time.RFC3339, e.Time)
		require.NoError(t, err)
		require.True(t, when.Equal(s.Time()), "%s %s", e.Time, s.Time())
	}
	require.Len(t, s.Extensions(), len(e.Extensions))
	for _, x := range e.Extensions {
		require.Equal(t, x.Value, s.Extensions()[x.Name])
	}
}

func request(h http.Header, body []byte) *http.Request {
	return &http.Request{Method: http.MethodPost, Header: h, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body))}
}

func TestTheSDKReadsWhatWeWrite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := genPlainEvent(t)
		got, err := cehttp.NewEventFromHTTPRequest(request(e.BinaryHeaders(), e.Data))
		require.NoError(t, err)
		requireSame(t, e, got)

		got, err = cehttp.NewEventFromHTTPRequest(request(header("Content-Type", structuredType), e.AppendStructured(nil)))
		require.NoError(t, err)
		requireSame(t, e, got)

		list, err := cehttp.NewEventsFromHTTPRequest(request(header("Content-Type", "application/cloudevents-batch+json"), AppendBatchJSON(nil, []Event{e, e})))
		require.NoError(t, err)
		require.Len(t, list, 2)
		requireSame(t, e, &list[1])
	})
}

func TestWeReadWhatTheSDKWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := genPlainEvent(t)
		s := cloudevents.NewEvent()
		s.SetID(e.ID)
		s.SetSource(e.Source)
		s.SetType(e.Type)
		s.SetSubject(e.Subject)
		if e.Time != "" {
			when, err := time.Parse(time.RFC3339, e.Time)
			require.NoError(t, err)
			s.SetTime(when)
		}
		for _, x := range e.Extensions {
			s.SetExtension(x.Name, x.Value)
		}
		s.SetDataContentType(e.DataContentType)
		s.DataEncoded, s.DataBase64 = e.Data, e.DataKind == DataBinary

		for name, ctx := range map[string]func() (*http.Request, error){
			"binary": func() (*http.Request, error) {
				return cehttp.NewHTTPRequestFromEvent(cloudevents.WithEncodingBinary(t.Context()), "http://x/", s)
			},
			"structured": func() (*http.Request, error) {
				return cehttp.NewHTTPRequestFromEvent(cloudevents.WithEncodingStructured(t.Context()), "http://x/", s)
			},
			"batch": func() (*http.Request, error) {
				return cehttp.NewHTTPRequestFromEvents(t.Context(), "http://x/", []cloudevents.Event{s})
			},
		} {
			r, err := ctx()
			require.NoError(t, err, name)
			events, err := ParseHTTP(r.Header, r.Body, Limits{}, Defaults{}, nil)
			require.NoError(t, err, name)
			require.Len(t, events, 1, name)
			require.Equal(t, e, events[0], name)
		}
	})
}
