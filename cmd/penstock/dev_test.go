package main

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

func TestDevIsReadyOnceTheEmittersHaveOwners(t *testing.T) {
	asked := 0
	f := newFake(t, nil)
	f.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		owner := ""
		if asked > 2 {
			owner = "n2"
		}
		fmt.Fprintf(w, `{"channel":"demo","emitters":[{"emitter":"a","owner":"n1"},{"emitter":"b","owner":%q}]}`, owner)
	})
	c, err := client.New(client.Config{Addresses: []string{f.URL}})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, awaitOwners(context.Background(), c, "demo", time.Now().Add(10*time.Second)))
	require.Equal(t, 3, asked)

	f.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"channel":"demo","emitters":[{"emitter":"a"}]}`)
	})
	start := time.Now()
	require.ErrorContains(t, awaitOwners(context.Background(), c, "demo", start.Add(150*time.Millisecond)), "no owner yet")
	require.Less(t, time.Since(start), 5*time.Second)
}
