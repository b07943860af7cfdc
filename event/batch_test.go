package event

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the golden files anew")

var testKey = HashKey{1, 2, 3, 31: 4}

// genEvent draws an event as ParseHTTP could have returned it.
func genEvent(t *rapid.T) Event {
	text := rapid.StringOfN(rapid.RuneFrom([]rune("abc /:%\"\\é€😀\u2028")), 1, 12, -1)
	optional := rapid.OneOf(rapid.Just(""), text)
	e := Event{
		ID: text.Draw(t, "id"), Source: text.Draw(t, "source"), Type: text.Draw(t, "type"), Subject: optional.Draw(t, "subject"),
		Time:       rapid.SampledFrom([]string{"", "2018-04-05T17:31:00Z", "2024-12-31T23:59:60.5+01:00"}).Draw(t, "time"),
		DataSchema: optional.Draw(t, "dataschema"),
		ServerID:   rapid.Bool().Draw(t, "server id"),
		DataKind:   DataKind(rapid.IntRange(0, 3).Draw(t, "kind")),
	}
	switch e.DataKind {
	case DataJSON:
		e.DataContentType = rapid.SampledFrom([]string{"", "application/json", "application/x+json; charset=utf-8"}).Draw(t, "type of JSON")
		e.Data = []byte(rapid.SampledFrom([]string{`null`, `{"a":1,"a":1e400}`, `"\ud800"`, "[ 1,2 ]", `"` + strings.Repeat("x", 5000) + `"`}).Draw(t, "JSON"))
	case DataText:
		e.DataContentType = "text/plain"
		e.Data = []byte(text.Draw(t, "text"))
	case DataBinary:
		e.DataContentType = rapid.SampledFrom([]string{"", "application/octet-stream"}).Draw(t, "type of bytes")
		e.Data = rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "bytes")
	}
	names := rapid.SliceOfNDistinct(rapid.StringMatching(`x[a-z0-9]{0,5}`), 0, 4, rapid.ID).Draw(t, "names")
	slices.Sort(names)
	for _, n := range names {
		x := Extension{Name: n, Kind: ExtensionKind(rapid.IntRange(0, 2).Draw(t, "extension kind"))}
		switch x.Kind {
		case ExtensionString:
			x.Value = text.Draw(t, "value")
		case ExtensionInteger:
			x.Value = fmt.Sprint(rapid.Int64().Draw(t, "value"))
		case ExtensionBoolean:
			x.Value = fmt.Sprint(rapid.Bool().Draw(t, "value"))
		}
		e.Extensions = append(e.Extensions, x)
	}
	return e
}

func TestBatchRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events := rapid.SliceOfN(rapid.Custom(genEvent), 0, 8).Draw(t, "events")
		hdr := BatchHeader{ChannelIndex: rapid.Uint64().Draw(t, "channel"), SpecVersion: rapid.Uint64().Draw(t, "version")}
		if rapid.Bool().Draw(t, "with an offset") {
			hdr.Offset = &Offset{rapid.String().Draw(t, "source"), rapid.String().Draw(t, "partition"),
				SourceOffset{rapid.Uint64().Draw(t, "position"), rapid.Uint64().Draw(t, "record"), rapid.Bool().Draw(t, "closed")}}
		}
		poison := make([]bool, len(events))
		for i := range poison {
			poison[i] = rapid.Bool().Draw(t, "poison")
		}
		prefix := []byte("kept")
		out, err := EncodeBatch(prefix, hdr, testKey, events, poison)
		require.NoError(t, err)
		require.Equal(t, "kept", string(out[:4]))
		b, err := DecodeBatch(out[4:])
		require.NoError(t, err)
		require.Equal(t, hdr, b.Header())
		require.Equal(t, len(events), b.Len())
		sum := 0
		for i := range events {
			x := b.Envelope(i)
			sum += int(x.Length)
			require.Equal(t, poison[i], x.Flags&FlagPoison != 0)
			require.Equal(t, events[i].ServerID, x.Flags&FlagServerID != 0)
			require.Equal(t, IDHashOf(events[i].ID), x.IDHash)
			require.Equal(t, ContentHashOf(&events[i]), x.ContentHash)
			if events[i].ServerID {
				require.Zero(t, x.DedupKey)
			} else {
				require.Equal(t, DedupKeyOf(testKey, hdr.ChannelIndex, events[i].Source, events[i].ID), x.DedupKey)
			}
			require.Equal(t, events[i].OrderKey() == "", x.OrderKey == 0)
		}
		require.Equal(t, sum, b.PayloadBytes())
		back, err := b.Events()
		require.NoError(t, err)
		require.Equal(t, append([]Event{}, events...), back)
	})
}

func TestStructuredAndBinaryModeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := genEvent(t)
		e.ServerID = false
		line := e.AppendStructured(nil)
		require.NotContains(t, string(line), "\n")
		require.Nil(t, checkJSON(line, DefaultDepth))
		back, err := ParseStructured(line)
		require.NoError(t, err)
		require.Equal(t, e, back)

		// In binary mode every extension is a string, and data without a type comes with one or as bytes.
		for i := range e.Extensions {
			e.Extensions[i].Kind = ExtensionString
		}
		if e.DataKind == DataJSON && e.DataContentType == "" {
			e.DataContentType = "application/json"
		}
		events, err := ParseHTTP(e.BinaryHeaders(), bytes.NewReader(e.Data), Limits{}, Defaults{}, nil)
		require.NoError(t, err)
		require.Equal(t, []Event{e}, events)
	})
}

// goldenEvents are the events of the committed fixture. Nothing here may ever change.
func goldenEvents() (BatchHeader, []Event, []bool) {
	hdr := BatchHeader{ChannelIndex: 7, SpecVersion: 3, Offset: &Offset{Source: "file://a", Partition: "0", SourceOffset: SourceOffset{Position: 1 << 40, Record: 2, Closed: true}}}
	return hdr, []Event{
		{
			ID: "1", Source: "/s", Type: "t", Subject: "sub", Time: "2018-04-05T17:31:00Z", DataContentType: "application/json", DataSchema: "http://x/y",
			Extensions: []Extension{{"flag", "true", ExtensionBoolean}, {"n", "-7", ExtensionInteger}, {"partitionkey", "k", ExtensionString}},
			Data:       []byte(`{"big":12345678901234567890123456789,"a":1,"a":2}`), DataKind: DataJSON,
		},
		{ID: "made", Source: "/s", Type: "t", DataContentType: "text/plain", Data: []byte("grüße"), DataKind: DataText, ServerID: true},
		{ID: "3", Source: "/s", Type: "t", Data: []byte{0, 255}, DataKind: DataBinary},
		{ID: "4", Source: "/s", Type: "t"},
	}, []bool{false, false, true, false}
}

// The committed fixtures of version 1 must decode for ever. What is encoded today must be the same bytes where the payload
// is stored raw; compressed bytes may change with the compressor, and then only need to decode.
func TestBatchFormatV1(t *testing.T) {
	hdr, events, poison := goldenEvents()
	large := events[0]
	large.Data = []byte(`["` + strings.Repeat("compressible ", 400) + `"]`)
	for name, list := range map[string][]Event{"batch-raw": events[1:3], "batch-s2": append(slices.Clone(events), large), "batch-empty": {}} {
		marks := poison
		switch name {
		case "batch-raw":
			marks = poison[1:3]
		case "batch-s2":
			marks = append(slices.Clone(poison), false)
		case "batch-empty":
			marks = nil
		}
		encoded, err := EncodeBatch(nil, hdr, testKey, list, marks)
		require.NoError(t, err)
		require.Equal(t, name == "batch-s2", encoded[1]&flagS2 != 0, name)
		path := filepath.Join("testdata", "format", "v1", name+".hex")
		if *update {
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, []byte(hex.Dump(encoded)), 0o644))
		}
		golden := readDump(t, path)
		if name != "batch-s2" {
			require.Equal(t, golden, encoded, name)
		}
		b, err := DecodeBatch(golden)
		require.NoError(t, err, name)
		require.Equal(t, hdr, b.Header(), name)
		back, err := b.Events()
		require.NoError(t, err, name)
		require.Equal(t, append([]Event{}, list...), back, name)
		today, err := DecodeBatch(encoded)
		require.NoError(t, err, name)
		for i := range list {
			require.Equal(t, today.Envelope(i), b.Envelope(i), name)
		}
	}
}

// The hashes are part of the format: a node of any version must find the same duplicates.
func TestHashesNeverChange(t *testing.T) {
	key := DedupKeyOf(testKey, 7, "/s", "1")
	require.Equal(t, "d5fdbfe6211ae974cf29ca0f946e4124", hex.EncodeToString(key[:]))
	_, events, _ := goldenEvents()
	require.Equal(t, uint64(0xb7b41276360564d4), IDHashOf("1"))
	require.Equal(t, uint64(0x67dd0d6721078a14), ContentHashOf(&events[0]))
	require.Equal(t, uint64(0xc3d31922c50b1b63), orderKeyOf(&events[0]))
}

// readDump reads hex.Dump back.
func readDump(t *testing.T, path string) []byte {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	var out []byte
	for line := range strings.Lines(string(b)) {
		if len(line) < 60 {
			continue
		}
		for _, two := range strings.Fields(line[8:60]) {
			d, err := hex.DecodeString(two)
			require.NoError(t, err)
			out = append(out, d...)
		}
	}
	return out
}

// Source and id are told apart: moving a character from one to the other gives another key.
func TestDedupKeysTellTheirPartsApart(t *testing.T) {
	require.NotEqual(t, DedupKeyOf(testKey, 1, "ab", "c"), DedupKeyOf(testKey, 1, "a", "bc"))
	require.NotEqual(t, DedupKeyOf(testKey, 1, "a", "b"), DedupKeyOf(testKey, 2, "a", "b"))
	require.NotEqual(t, DedupKeyOf(testKey, 1, "a", "b"), DedupKeyOf(HashKey{}, 1, "a", "b"))
	long := strings.Repeat("x", MaxAttributeBytes)
	require.NotEqual(t, DedupKeyOf(testKey, 1, long, "b"), DedupKeyOf(testKey, 1, long, "c"))
}

func TestContentHashCoversAllButTheIdentity(t *testing.T) {
	base := Event{ID: "1", Source: "s", Type: "t", Data: []byte("1"), DataKind: DataJSON, DataContentType: "application/json"}
	same := base
	same.ID, same.Source, same.ServerID = "2", "r", true
	require.Equal(t, ContentHashOf(&base), ContentHashOf(&same))
	for _, change := range []func(e *Event){
		func(e *Event) { e.Type = "u" }, func(e *Event) { e.Subject = "u" }, func(e *Event) { e.Time = "u" },
		func(e *Event) { e.DataContentType = "u" }, func(e *Event) { e.DataSchema = "u" }, func(e *Event) { e.Data = []byte("2") },
		func(e *Event) { e.DataKind = DataText }, func(e *Event) { e.Extensions = []Extension{{Name: "a"}} },
	} {
		other := base
		change(&other)
		require.NotEqual(t, ContentHashOf(&base), ContentHashOf(&other))
	}
}

func TestIncompressiblePayloadsAreStoredRaw(t *testing.T) {
	noise := make([]byte, 10_000)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(noise)
	for name, data := range map[string][]byte{"noise": noise, "zeros": make([]byte, 10_000), "tiny": []byte("aaaa")} {
		out, err := EncodeBatch(nil, BatchHeader{}, testKey, []Event{{ID: "1", Data: data, DataKind: DataBinary}}, nil)
		require.NoError(t, err)
		require.Equal(t, name == "zeros", out[1]&flagS2 != 0, name)
		b, err := DecodeBatch(out)
		require.NoError(t, err)
		back, err := b.Events()
		require.NoError(t, err)
		require.Equal(t, data, back[0].Data)
	}
}

// Each change of one byte is refused or gives the same structure: no panic, no other number of events, no large allocation.
func TestDamagedBatchesAreRefused(t *testing.T) {
	hdr, events, poison := goldenEvents()
	good, err := EncodeBatch(nil, hdr, testKey, events, poison)
	require.NoError(t, err)
	for n := range good {
		_, err := DecodeBatch(good[:n])
		require.ErrorIs(t, err, ErrNotBatch, "cut to %d", n)
	}
	_, err = DecodeBatch(append(bytes.Clone(good), 0))
	require.ErrorIs(t, err, ErrNotBatch)
	for i := range good {
		for _, flip := range []byte{1, 0x80, 0xFF} {
			bad := bytes.Clone(good)
			bad[i] ^= flip
			b, err := DecodeBatch(bad)
			if err != nil {
				require.ErrorIs(t, err, ErrNotBatch)
				continue
			}
			if list, err := b.Events(); err != nil {
				require.ErrorIs(t, err, ErrNotBatch)
			} else {
				require.Len(t, list, len(events))
			}
		}
	}
	future := bytes.Clone(good)
	future[0] = 2
	_, err = DecodeBatch(future)
	require.ErrorContains(t, err, "format version 2, this build reads 1")
}

// A header that promises more than is there costs nothing.
func TestHostileLengthsAllocateNothing(t *testing.T) {
	good, err := EncodeBatch(nil, BatchHeader{}, testKey, []Event{{ID: "1", Data: make([]byte, 10_000), DataKind: DataBinary}}, nil)
	require.NoError(t, err)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, at := range []int{4, 24, 28} {
		bad := bytes.Clone(good)
		binary.LittleEndian.PutUint32(bad[at:], 0xFFFF_FFF0)
		_, err := DecodeBatch(bad)
		require.ErrorIs(t, err, ErrNotBatch)
	}
	bad := bytes.Clone(good) // a payload said to be large, in header and envelope alike: what S2 says of itself disagrees
	binary.LittleEndian.PutUint32(bad[28:], MaxPayloadBytes)
	binary.LittleEndian.PutUint32(bad[batchHeader+40:], MaxPayloadBytes)
	b, err := DecodeBatch(bad)
	require.NoError(t, err)
	_, err = b.Events()
	require.ErrorIs(t, err, ErrNotBatch)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

// A payload larger than the compressor's window still decodes with the bounded window, and one over the limit is refused
// before anything is built.
func TestLargeBatchesRoundTripAndTooLargeOnesAreRefused(t *testing.T) {
	data := []byte(`"` + strings.Repeat("x", 1<<20) + `"`)
	var events []Event
	for i := range maxWindow>>20 + 2 {
		events = append(events, Event{ID: fmt.Sprint(i), Source: "s", Type: "t", Data: data, DataKind: DataJSON})
	}
	out, err := EncodeBatch(nil, BatchHeader{}, testKey, events, nil)
	require.NoError(t, err)
	b, err := DecodeBatch(out)
	require.NoError(t, err)
	back, err := b.Events()
	require.NoError(t, err)
	require.Len(t, back, len(events))
	for len(events) < MaxPayloadBytes>>20 {
		events = append(events, events[0])
	}
	_, err = EncodeBatch(nil, BatchHeader{}, testKey, events, nil)
	require.Equal(t, int64(MaxPayloadBytes), requireRefused(t, err, TooLarge).Limit)
}

func TestEncodeRefusesWhatTheFormatCannotHold(t *testing.T) {
	_, err := EncodeBatch(nil, BatchHeader{}, testKey, []Event{{ID: "1"}}, []bool{})
	require.ErrorContains(t, err, "1 events, 0 poison marks")
	_, err = EncodeBatch(nil, BatchHeader{Offset: &Offset{Source: strings.Repeat("x", MaxOffsetNameBytes+1)}}, testKey, nil, nil)
	require.ErrorContains(t, err, "more than 1024")
}

func FuzzDecodeBatch(f *testing.F) {
	hdr, events, poison := goldenEvents()
	for _, list := range [][]Event{events, events[:1], nil} {
		b, err := EncodeBatch(nil, hdr, testKey, list, poison[:len(list)])
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		b, err := DecodeBatch(in)
		if err != nil {
			require.ErrorIs(t, err, ErrNotBatch)
			return
		}
		list, err := b.Events()
		if err != nil {
			require.ErrorIs(t, err, ErrNotBatch)
			return
		}
		require.Len(t, list, b.Len())
		sum := 0
		for i := range list {
			sum += int(b.Envelope(i).Length)
		}
		require.Equal(t, b.PayloadBytes(), sum)
	})
}

func FuzzParseHTTP(f *testing.F) {
	one := `{"specversion":"1.0","id":"1","source":"s","type":"t","x":1,"data":{"a":[1,"\ud800"]}}`
	for _, s := range []struct{ contentType, encoding, ce, body string }{
		{"application/json", "", "", `{"a":1}`},
		{"application/x-ndjson", "", "", "1\n\n[2]\r\n"},
		{structuredType, "", "", one},
		{"application/cloudevents-batch+json", "", "", "[" + one + "," + one + "]"},
		{"text/plain", "", "%20\"a\"", "text"},
		{"application/json", "gzip", "", string(gzipped(f, []byte("1")))},
		{"application/json", "zstd", "", string(zstded(f, []byte("1")))},
	} {
		f.Add(s.contentType, s.encoding, s.ce, []byte(s.body))
	}
	f.Fuzz(func(t *testing.T, contentType, encoding, ce string, body []byte) {
		h := header("Content-Type", contentType, "Content-Encoding", encoding)
		if ce != "" {
			for _, name := range []string{"Ce-Id", "Ce-Source", "Ce-Type", "Ce-X"} {
				h[name] = []string{ce}
			}
			h["Ce-Specversion"] = []string{"1.0"}
		}
		events, err := ParseHTTP(h, bytes.NewReader(body), Limits{BodyBytes: 1 << 16, EventBytes: 1 << 15, Events: 100, Depth: 64}, testDefaults, counter())
		if err != nil {
			require.Nil(t, events)
			requireRefused(t, err, err.(*Error).Kind)
			return
		}
		for i := range events {
			e := &events[i]
			require.NotEmpty(t, e.ID)
			require.NotEmpty(t, e.Source)
			require.NotEmpty(t, e.Type)
			line := e.AppendStructured(nil)
			require.False(t, bytes.ContainsAny(line, "\r\n"))
			back, err := ParseStructured(line)
			require.NoError(t, err, "%s", line)
			require.Equal(t, e.ID, back.ID)
			require.Equal(t, e.DataKind, back.DataKind)
		}
		out, err := EncodeBatch(nil, BatchHeader{}, testKey, events, nil)
		require.NoError(t, err)
		b, err := DecodeBatch(out)
		require.NoError(t, err)
		back, err := b.Events()
		require.NoError(t, err)
		require.Equal(t, append([]Event{}, events...), back)
	})
}
