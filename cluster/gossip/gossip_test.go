package gossip

import (
	"strings"
	"testing"

	"github.com/hashicorp/memberlist"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestMetadataSurvivesAndFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := func(label string, most int) string {
			return strings.Repeat("x", rapid.IntRange(0, most).Draw(t, label))
		}
		m := Meta{
			ID: "n" + text("id", 62), Incarnation: rapid.Uint64().Draw(t, "incarnation"), Raft: text("raft", 261), HTTP: text("http", 261),
			Version: text("version", 64), Zone: text("zone", 64), FeatureMin: 1, FeatureMax: rapid.Uint32().Draw(t, "feature"),
			Leaving: rapid.Bool().Draw(t, "leaving"),
		}
		b := m.encode()
		if len(b) > memberlist.MetaMaxSize {
			t.Fatalf("%d bytes", len(b))
		}
		got, err := decodeMeta(b)
		if err != nil {
			t.Fatal(err)
		}
		if got.HTTP == "" { // may be what did not fit
			m.HTTP = ""
		}
		if got.Zone == "" && got.HTTP == "" {
			m.Zone = ""
		}
		if got != m {
			t.Fatalf("%+v became %+v", m, got)
		}
	})
}

func FuzzMetadata(f *testing.F) {
	f.Add((&Meta{ID: "n1", Raft: "a:1"}).encode())
	f.Fuzz(func(t *testing.T, b []byte) { decodeMeta(b) })
}

func TestKeysRotate(t *testing.T) {
	key := func(b byte) []byte { return []byte(strings.Repeat(string(rune(b)), 16)) }
	old, err := NewKeyring([][]byte{key(1)})
	require.NoError(t, err)
	peer, err := NewKeyring([][]byte{key(1)})
	require.NoError(t, err)
	exchange := func() {
		t.Helper()
		for _, pair := range [][2]*Keyring{{old, peer}, {peer, old}} {
			b, err := pair[0].Seal([]byte("hello"), []byte("bound"))
			require.NoError(t, err)
			got, err := pair[1].Open(b, []byte("bound"))
			require.NoError(t, err)
			require.Equal(t, "hello", string(got))
			_, err = pair[1].Open(b, []byte("other"))
			require.ErrorIs(t, err, ErrKey)
		}
	}
	// One node after the other at each step: they understand one another throughout.
	for _, step := range [][][]byte{{key(1), key(2)}, {key(2), key(1)}, {key(2)}} {
		require.NoError(t, old.Set(step))
		exchange()
		require.NoError(t, peer.Set(step))
		exchange()
	}
	b, err := peer.Seal([]byte("hello"), nil)
	require.NoError(t, err)
	stale, err := NewKeyring([][]byte{key(1)})
	require.NoError(t, err)
	for name, k := range map[string]*Keyring{"the old key": stale, "none": {}} {
		_, err = k.Open(b, nil)
		require.ErrorIs(t, err, ErrKey, name)
	}
	_, err = peer.Open([]byte(`{"plain":1}`), nil)
	require.ErrorIs(t, err, ErrKey)
	for cut := range b {
		_, err = peer.Open(b[:cut], nil)
		require.Error(t, err)
	}
	_, err = NewKeyring([][]byte{{1, 2, 3}})
	require.Error(t, err)
	_, err = ParseKey("not base64 !")
	require.Error(t, err)
	_, err = ParseKey("AAAA")
	require.ErrorContains(t, err, "not 3")
}
