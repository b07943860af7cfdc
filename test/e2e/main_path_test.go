package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

const webhookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// corpus is the folder of public payloads and conformance inputs; without it the tests that need it say so and skip.
func corpus(t *testing.T, name string) string {
	t.Helper()
	root := os.Getenv("PENSTOCK_CORPUS")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared", "testdata")
	}
	dir := filepath.Join(root, name)
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("the corpus %s is not here (set PENSTOCK_CORPUS)", dir)
	}
	return dir
}

// payloads are the files of a corpus, or of our own small one where it is not there.
func payloads(t *testing.T) []string {
	t.Helper()
	root := os.Getenv("PENSTOCK_CORPUS")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared", "testdata")
	}
	files, err := filepath.Glob(filepath.Join(root, "github-webhooks", "*.json"))
	require.NoError(t, err)
	if len(files) == 0 {
		t.Log("the corpus github-webhooks is not here (set PENSTOCK_CORPUS): our own payloads stand in")
		files, err = filepath.Glob(filepath.Join("..", "..", "testdata", "payloads", "*.json"))
		require.NoError(t, err)
	}
	require.NotEmpty(t, files)
	return files
}

// TestDevIsReadyWithin5s: one command gives three nodes and the sample channel.
func TestDevIsReadyWithin5s(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(binary, "dev", "--data", dir, "--port-base", freePortBase(t))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	start := time.Now()
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "READY") {
			require.Less(t, time.Since(start), 5*time.Second)
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			for lines.Scan() {
			}
			require.NoError(t, cmd.Wait(), "dev exits 0 at SIGTERM")
			return
		}
	}
	require.Fail(t, "dev ended without READY")
}

// TestPayloadsSentToAFollowerAreDeliveredByteForByte is the whole path: a follower takes real payloads, a file emitter and
// a webhook receiver get each of them once, signed and unchanged.
func TestPayloadsSentToAFollowerAreDeliveredByteForByte(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	hook := startReceiver(t)
	files := payloads(t)
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte(webhookSecret+"\n"), 0o600))
	c := g.client()
	ctx := context.Background()
	_, err := c.PutChannel(ctx, "hooks", channelSpec("hooks", "",
		fileEmitter("files", "out", ""),
		strings.Replace(webhookEmitter("hook", hook.url(), ""), `"webhook":{`, `"webhook":{"secrets":["${file:`+secret+`}"],`, 1)), client.PutOptions{})
	require.NoError(t, err)

	follower := g.follower()
	runPenstock(t, 0, "", append([]string{"--addr", follower.http, "send", "hooks"}, files...)...)
	l := waitDelivered(t, c, "hooks", 30*time.Second)
	require.EqualValues(t, len(files), l.Accepted)
	for _, e := range l.Emitters {
		require.EqualValues(t, len(files), e.Delivered, e.Emitter)
	}
	ids := deliveredFiles(t, g, "out")
	require.Len(t, ids, len(files))

	verifier, err := standardwebhooks.NewWebhook(webhookSecret)
	require.NoError(t, err)
	want := map[string]int{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		want[string(b)]++
	}
	got := map[string]int{}
	for _, r := range hook.all() {
		got[string(r.body)]++
		require.NoError(t, verifier.Verify(r.body, r.header))
		require.NotEmpty(t, r.header.Get("Penstock-Compaction-Id"))
		require.NotEmpty(t, r.header.Get("Ce-Id"))
	}
	require.Equal(t, want, got, "each payload byte for byte, once")
}

// TestJSONCorpus: what RFC 8259 allows is taken, what it forbids gets 400 with a position, and the node goes on.
func TestJSONCorpus(t *testing.T) {
	t.Parallel()
	dir := corpus(t, "json-test-suite")
	g := startGroup(t, options{nodes: 1, single: true})
	_, err := g.client().PutChannel(context.Background(), "json", channelSpec("json", ""), client.PutOptions{})
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	require.NoError(t, err)
	require.Greater(t, len(files), 300)
	hc := &http.Client{Timeout: 5 * time.Second}
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		resp, err := hc.Post("http://"+g.nodes[0].http+"/v1/channels/json/events", "application/json", strings.NewReader(string(b)))
		require.NoError(t, err, "%s", f)
		var p struct {
			Type         string
			Line, Column int
			Byte         *int64
		}
		_ = json.NewDecoder(resp.Body).Decode(&p)
		resp.Body.Close()
		switch name := filepath.Base(f); name[0] {
		case 'y':
			require.Equal(t, 200, resp.StatusCode, name)
		case 'n':
			require.Equal(t, 400, resp.StatusCode, name)
			require.NotNil(t, p.Byte, name)
			require.Positive(t, p.Line, name)
			require.Positive(t, p.Column, name)
		default:
			require.Contains(t, []int{200, 400}, resp.StatusCode, name)
		}
	}
	_, err = g.client().Send(context.Background(), "json", batch("after", 0, 10), batchType, client.SendOptions{})
	require.NoError(t, err, "the node still takes events")
}

// TestFollowedTailShowsWhatComes: tail -f prints events as they are committed.
func TestFollowedTailShowsWhatComes(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	_, err := g.client().PutChannel(context.Background(), "live", channelSpec("live", ""), client.PutOptions{})
	require.NoError(t, err)
	cmd := exec.Command(binary, "--addr", g.follower().http, "--output", "json", "tail", "live", "-f")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := make(chan string)
	go func() {
		s := bufio.NewScanner(stdout)
		for s.Scan() {
			lines <- s.Text()
		}
		close(lines)
	}()
	for i := range 3 {
		_, err := g.client().Send(context.Background(), "live", batch("tail", i, 1), batchType, client.SendOptions{})
		require.NoError(t, err)
		select {
		case line := <-lines:
			require.Contains(t, line, `"tail-`+string(rune('0'+i))+`"`)
		case <-time.After(5 * time.Second):
			require.Fail(t, "tail -f did not show the event within 5 s")
		}
	}
}
