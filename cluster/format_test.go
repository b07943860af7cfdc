package cluster

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"penstock/cluster/gossip"
)

var update = flag.Bool("update", false, "write the fixtures of this version anew; only before it was ever released")

func fixedID(b byte) (id ID16) {
	for i := range id {
		id[i] = b + byte(i)
	}
	return id
}

// fixtures are the bytes of each durable and each wire format, made of fixed values.
func fixtures(t *testing.T) map[string][]byte {
	t.Helper()
	sealed := func(magic string, version uint32, v any) []byte {
		b, err := json.Marshal(v)
		require.NoError(t, err)
		return encodeSealed(magic, version, b)
	}
	var q, a bytes.Buffer
	w := bufio.NewWriter(&q)
	require.NoError(t, (&request{id: 7, millis: 1500, method: "cluster.propose", grant: []byte("grant"), body: []byte("command")}).writeTo(w))
	w = bufio.NewWriter(&a)
	require.NoError(t, (&answer{id: 7, status: statusOK, body: []byte("result")}).writeTo(w))
	return map[string][]byte{
		"identity": sealed(identityMagic, identityVersion, identity{
			NodeID: "n1", Directory: fixedID(1), Incarnation: 5, ClusterName: "prod", ClusterID: fixedID(101), Bootstrap: []string{"n1", "n2"}}),
		"peers": sealed(bookMagic, bookVersion, bookFile{
			Peers: []peerInfo{{ID: "n2", Directory: fixedID(2), Incarnation: 3, Raft: "h:7071", Gossip: "h:7072", HTTP: "h:7070",
				LastIndex: 9, LastTerm: 2, Member: true}},
			Config:      []raft.Server{{Suffrage: raft.Voter, ID: "n1", Address: "n1"}, {Suffrage: raft.Nonvoter, ID: "n2", Address: "n2"}},
			ConfigIndex: 4}),
		"install":     sealed(markerMagic, markerVersion, installMarker{Phase: phaseCatchingUp, ID: "00000000000000000048-2-2", LabelIndex: 24, LabelTerm: 2, Until: 48}),
		"header":      connHeader{Kind: kindPeer, Group: 0, Cluster: fixedID(101), From: "n1", To: "n2"}.encode(),
		"request":     q.Bytes(),
		"answer":      a.Bytes(),
		"outcome":     encodeOutcome(nil, notCommitted(ReasonNoLeader, errors.New("text"))),
		"doubt":       sealed(doubtMagic, doubtVersion, doubtNote{Until: 48, Why: "text", Since: 1700000000}),
		"log-request": logRequest{from: 3, to: 9, anchor: 10, anchorTerm: 2}.encode(),
		"log-entries": (&lentEntries{anchored: true, committed: 9, next: 5, entries: []*raft.Log{
			{Index: 3, Term: 2, Type: raft.LogCommand, Data: []byte("data"), Extensions: []byte("ext"), AppendedAt: time.Unix(1700000000, 5)},
			{Index: 4, Term: 2, Type: raft.LogNoop}}}).encode(),
		"vote": sealValue([]byte("LastVoteCand"), []byte("n2")),
	}
}

func TestEveryFormatIsThatOfItsFixture(t *testing.T) {
	for name, b := range fixtures(t) {
		path := filepath.Join("testdata", "format", "v1", name)
		if *update {
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, b, 0o644))
		}
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, want, b, "%s: bytes written today differ from those written by version 1", name)
	}
	path := filepath.Join("testdata", "format", "v1", "snapshot")
	if *update {
		writeTestSnapshot(t, path)
	}
	m, err := readSnapMeta(path)
	require.NoError(t, err)
	require.Equal(t, uint64(48), m.StateIndex)
	require.Equal(t, uint64(24), m.LabelIndex)
	require.Equal(t, "n1", string(raft.DecodeConfiguration(m.Configuration).Servers[0].ID))
	f, data, err := openSnapData(path, m)
	require.NoError(t, err)
	defer f.Close()
	b, err := io.ReadAll(data)
	require.NoError(t, err)
	index, term, err := decodeStateHeader(b)
	require.NoError(t, err)
	require.Equal(t, []uint64{48, 2}, []uint64{index, term})
	require.Equal(t, "the state", string(b[stateHeaderLen:]))
}

func writeTestSnapshot(t *testing.T, path string) {
	w, err := newSnapWriter(path)
	require.NoError(t, err)
	_, err = w.Write(append(encodeStateHeader(48, 2), "the state"...))
	require.NoError(t, err)
	require.NoError(t, w.finish(&snapMeta{ID: "x", StateIndex: 48, StateTerm: 2, LabelIndex: 24, LabelTerm: 2, ConfigurationIndex: 4,
		Configuration: raft.EncodeConfiguration(raft.Configuration{Servers: []raft.Server{{ID: "n1", Address: "n1"}}})}))
}

// I10: no flipped bit and no lost tail of a snapshot, an identity, a vote or a header goes unseen.
func TestEveryFlippedBitIsSeen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	writeTestSnapshot(t, path)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	readAll := func(b []byte) error {
		require.NoError(t, os.WriteFile(path, b, 0o600))
		m, err := readSnapMeta(path)
		if err != nil {
			return err
		}
		f, _, err := openSnapData(path, m)
		if err == nil {
			f.Close()
		}
		return err
	}
	require.NoError(t, readAll(whole))
	for i := range whole {
		b := bytes.Clone(whole)
		b[i] ^= 1 << (i % 8)
		require.Error(t, readAll(b), "byte %d", i)
		require.Error(t, readAll(whole[:i]), "cut at %d", i)
	}

	all := fixtures(t)
	for i := range all["identity"] {
		b := bytes.Clone(all["identity"])
		b[i] ^= 1 << (i % 8)
		_, err := decodeSealed("identity", identityMagic, identityVersion, b)
		require.ErrorIs(t, err, ErrDamaged, "byte %d", i)
		_, err = decodeSealed("identity", identityMagic, identityVersion, all["identity"][:i])
		require.Error(t, err)
	}
	for i := range all["vote"] {
		b := bytes.Clone(all["vote"])
		b[i] ^= 1 << (i % 8)
		_, err := unsealValue([]byte("LastVoteCand"), b)
		require.Error(t, err)
	}
	_, err = unsealValue([]byte("CurrentTerm"), all["vote"])
	require.Error(t, err, "a value under another key")
	for i := range all["header"] {
		b := bytes.Clone(all["header"])
		b[i] ^= 1 << (i % 8)
		_, err := readHeader(bytes.NewReader(b))
		require.Error(t, err, "byte %d", i)
	}
}

func TestNewerVersionIsNotDamage(t *testing.T) {
	b := encodeSealed(identityMagic, 2, []byte("{}"))
	_, err := decodeSealed("identity", identityMagic, identityVersion, b)
	require.ErrorIs(t, err, ErrTooNew)
	require.Equal(t, ExitTooNew, exitCodeOf(err, 0))
}

func FuzzReadHeader(f *testing.F) {
	f.Add(connHeader{Kind: kindRaft, Cluster: fixedID(1), From: "n1", To: "n2"}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHeader(bytes.NewReader(b))
		if err == nil && !bytes.HasPrefix(b, h.encode()) {
			t.Fatalf("%x read as %+v", b, h)
		}
	})
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x13\x00\x00\x00\x01\x07\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x01mbody"))
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := readFrame(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		parseRequest(frame)
		parseAnswer(frame)
		decodeOutcome(frame)
	})
}

func FuzzReadHello(f *testing.F) {
	var b bytes.Buffer
	require.NoError(f, writeHello(&b, &hello{Self: peerInfo{ID: "n1"}, ClusterName: "x"}, &gossip.Keyring{}))
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) { readHello(bytes.NewReader(b), &gossip.Keyring{}) })
}

func TestLentEntriesComeBackAsTheyWere(t *testing.T) {
	for name, b := range fixtures(t) {
		switch name {
		case "log-request":
			q, err := decodeLogRequest(b)
			require.NoError(t, err)
			require.Equal(t, b, q.encode())
		case "log-entries":
			l, err := decodeLentEntries(b)
			require.NoError(t, err)
			require.Equal(t, b, l.encode())
			for i := range b { // no byte of it may change
				broken := bytes.Clone(b)
				broken[i] ^= 1
				_, err := decodeLentEntries(broken)
				require.Error(t, err, "byte %d", i)
			}
		}
	}
}

func FuzzLentEntries(f *testing.F) {
	f.Add((&lentEntries{committed: 9, next: 5, entries: []*raft.Log{{Index: 3, Term: 2, Data: []byte("data")}}}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)) // get past it
		if l, err := decodeLentEntries(b); err == nil {
			for _, e := range l.entries {
				require.LessOrEqual(t, len(e.Data)+len(e.Extensions), len(b))
			}
		}
	})
}
