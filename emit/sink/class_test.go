package sink

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStatusesFallIntoTheDocumentedClasses(t *testing.T) {
	c, err := NewClassifier(nil)
	require.NoError(t, err)
	for status := 300; status < 600; status++ {
		want := Permanent
		switch {
		case status == 401, status == 403:
			want = Auth
		case status == 408, status == 425, status == 429, status >= 500:
			want = Transient
		}
		require.Equal(t, want, c.Class(status), "status %d", status)
	}
	require.Equal(t, Transient, c.Class(0))
	require.Equal(t, Transient, c.Class(101))
	require.Equal(t, Transient, c.Class(999))
	require.Equal(t, Transient, c.Class(-1))
}

func TestOverridesWinTheStatusOverItsHundred(t *testing.T) {
	c, err := NewClassifier(map[string]string{"5xx": "permanent", "503": "transient", "404": "transient", "422": "poison", "403": "permanent"})
	require.NoError(t, err)
	require.Equal(t, Permanent, c.Class(500))
	require.Equal(t, Transient, c.Class(503))
	require.Equal(t, Transient, c.Class(404))
	require.Equal(t, Poison, c.Class(422))
	require.Equal(t, Permanent, c.Class(403))
	require.Equal(t, Auth, c.Class(401))
}

func TestBadOverridesAreRefused(t *testing.T) {
	for _, m := range []map[string]string{{"2xx": "transient"}, {"200": "poison"}, {"6xx": "auth"}, {"abc": "auth"}, {"404": "sometimes"}, {"404": "none"}, {"": "auth"}} {
		_, err := NewClassifier(m)
		require.Error(t, err, "%v", m)
	}
}
