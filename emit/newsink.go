package emit

import (
	"crypto/tls"
	"fmt"
	"io"
	"path/filepath"

	"penstock/emit/file"
	"penstock/emit/stdout"
	"penstock/emit/webhook"
	"penstock/internal/spec"
	"penstock/internal/vfs"
)

// SinkDeps is what the kinds need of their node.
type SinkDeps struct {
	// DataDir is what a relative directory of a file emitter stands under.
	DataDir string
	NodeID  string
	// Secret resolves a reference (${env:NAME}, ${file:/path}); nil for webhook.ResolveReference.
	Secret func(reference string) (string, error)
	// TLS is the webhooks' client configuration; nil for the system's roots.
	TLS *tls.Config
	// FS is where files go; nil for the real one.
	FS vfs.FS
	// Stdout is what the stdout kind writes to; required for it.
	Stdout io.Writer
}

// NewSink makes the sink of an emitter's kind. It does not reach for a webhook's destination.
func NewSink(e spec.Emitter, deps SinkDeps) (Sink, error) {
	switch {
	case e.Kind == "webhook" && e.Webhook != nil:
		return webhook.New(webhook.Config{
			Webhook: *e.Webhook, Concurrency: e.Concurrency, Classes: e.Classes, Resolve: deps.Secret, TLS: deps.TLS,
		})
	case e.Kind == "file" && e.File != nil:
		dir := e.File.Directory
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(deps.DataDir, dir)
		}
		fsys := deps.FS
		if fsys == nil {
			fsys = vfs.OS
		}
		return file.Open(fsys, dir, deps.NodeID)
	case e.Kind == "stdout" && deps.Stdout != nil:
		return stdout.New(deps.Stdout), nil
	}
	return nil, fmt.Errorf("emitter %q: kind %q cannot be built", e.Name, e.Kind)
}
