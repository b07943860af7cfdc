package spec

import (
	"math"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func (e *Emitter) validate(p *problems, path string) {
	p.name(path+".name", e.Name)
	e.validateKind(p, path)
	if e.Start != "latest" && e.Start != "earliest" {
		if n, err := strconv.ParseUint(e.Start, 10, 64); err != nil || n == 0 {
			p.add(path+".start", "%q is not latest, earliest or an index from 1", e.Start)
		}
	}
	inRange(p, path+".compaction.events", e.Compaction.Events, 1, MaxCompactionEvents)
	inRange(p, path+".compaction.bytes", e.Compaction.Bytes, 0, maxCompactionBytes)
	inRange(p, path+".compaction.linger", e.Compaction.Linger, 0, maxLinger)
	inRange(p, path+".concurrency", e.Concurrency, 1, MaxConcurrency)
	inRange(p, path+".dead_letter.max_retries", e.DeadLetter.MaxRetries, 0, maxRetries)
	e.Retry.validate(p, path+".retry")
	for _, status := range sortedKeys(e.Classes) {
		if !classKey.MatchString(status) {
			p.add(path+".classes", "%q is no status such as 404 and no range such as 5xx (3xx to 5xx)", status)
		}
		p.oneOf(path+".classes["+status+"]", e.Classes[status], "transient", "permanent", "auth", "poison")
	}
}

// classKey is a status or a range of them that is no success.
var classKey = regexp.MustCompile(`^[345](xx|[0-9][0-9])$`)

func (e *Emitter) validateKind(p *problems, path string) {
	switch {
	case e.Kind == "":
		p.add(path+".kind", "is required; say webhook, file or stdout")
	case slices.Contains(notYet, e.Kind):
		p.add(path+".kind", "%s is not built yet; say webhook, file or stdout", e.Kind)
	default:
		p.oneOf(path+".kind", e.Kind, KindWebhook, KindFile, KindStdout)
	}
	for _, s := range []struct {
		kind string
		set  bool
	}{{KindWebhook, e.Webhook != nil}, {KindFile, e.File != nil}, {KindStdout, e.Stdout != nil}} {
		if s.set && s.kind != e.Kind {
			p.add(path+"."+s.kind, "is set, but the kind is %q", e.Kind)
		}
	}
	p.oneOf(path+".idempotent_by", e.IdempotentBy, ByEventID, ByCompactionID, ByNone)
	switch e.Kind {
	case KindWebhook:
		if e.Webhook == nil {
			p.add(path+".webhook", "is required, with its url")
			return
		}
		e.Webhook.validate(p, path+".webhook")
	case KindFile:
		if e.IdempotentBy != ByCompactionID {
			p.add(path+".idempotent_by", "%q, but a file is named by its compaction: leave it out or say compaction-id", e.IdempotentBy)
		}
		if e.File != nil {
			e.File.validate(p, path+".file")
		}
	case KindStdout:
		if e.IdempotentBy != ByNone {
			p.add(path+".idempotent_by", "%q, but standard output recognises no repeats: leave it out or say none", e.IdempotentBy)
		}
	}
	if e.Kind != KindWebhook && len(e.Classes) > 0 {
		p.add(path+".classes", "is set, but only a webhook answers with a status")
	}
}

func (r *Retry) validate(p *problems, path string) {
	inRange(p, path+".ttl", r.TTL, 0, maxRetryTime)
	inRange(p, path+".max_attempts", r.MaxAttempts, 0, maxAttempts)
	if r.TTL == 0 && r.MaxAttempts == 0 {
		p.add(path, "ttl and max_attempts are both 0, which would retry for ever; limit one of them")
	}
	if r.Backoff.Min == 0 {
		p.add(path+".backoff.min", "0s would retry without a pause; say at least 1ms")
	} else {
		inRange(p, path+".backoff.min", r.Backoff.Min, Duration(1e6), maxRetryTime)
	}
	if r.Backoff.Max < r.Backoff.Min {
		p.add(path+".backoff.max", "%v is less than backoff.min of %v", r.Backoff.Max, r.Backoff.Min)
	}
	inRange(p, path+".backoff.max", r.Backoff.Max, 0, maxRetryTime)
	if j := r.Backoff.Jitter; math.IsNaN(j) || j < 0 || j > 1 {
		p.add(path+".backoff.jitter", "%v is not between 0 and 1", j)
	}
}

func (f *File) validate(p *problems, path string) {
	p.text(path+".directory", f.Directory)
	if !filepath.IsAbs(f.Directory) && !filepath.IsLocal(f.Directory) {
		p.add(path+".directory", "%q leaves the data directory; give an absolute path or one without ..", f.Directory)
	}
}

func (w *Webhook) validate(p *problems, path string) {
	w.validateURL(p, path+".url")
	inRange(p, path+".timeout", w.Timeout, Duration(1e6), maxTimeout)
	if len(w.Secrets) > 2 {
		p.add(path+".secrets", "%d, more than the two that a rotation needs", len(w.Secrets))
	}
	for i, s := range w.Secrets {
		if !validSecret(s) { // the value stays out of the message
			p.add(path+".secrets["+strconv.Itoa(i)+"]", "want a reference, ${env:NAME} or ${file:/path}: a spec is shown and replicated, a secret never")
		}
	}
	if len(w.Headers) > 64 {
		p.add(path+".headers", "%d, more than 64", len(w.Headers))
	}
	for _, name := range sortedKeys(w.Headers) {
		value := w.Headers[name]
		switch lower := strings.ToLower(name); {
		case !headerName.MatchString(name):
			p.add(path+".headers", "%q is no header name", name)
		case slices.Contains(ownHeaders, http.CanonicalHeaderKey(name)), strings.HasPrefix(lower, "ce-"),
			strings.HasPrefix(lower, "webhook-"), strings.HasPrefix(lower, "penstock-"):
			p.add(path+".headers", "%q is set by Penstock", name)
		case credential.MatchString(name) && !strings.Contains(value, "${env:") && !strings.Contains(value, "${file:"):
			p.add(path+".headers["+name+"]", "holds a credential: give it by reference, ${env:NAME} or ${file:/path}")
		case len(value) > maxText || strings.ContainsFunc(value, func(r rune) bool { return r < 0x20 && r != '\t' || r == 0x7F }):
			p.add(path+".headers["+name+"]", "holds a control character or more than %d bytes", maxText)
		}
	}
}

var (
	headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")
	// credential: headers whose value must not stand in a spec, which every node keeps and every reader is shown.
	credential = regexp.MustCompile(`(?i)authorization|cookie|token|secret|password|api-?key`)
	ownHeaders = []string{"Host", "Content-Type", "Content-Length", "Content-Encoding", "Transfer-Encoding", "Connection", "Te", "Trailer", "Upgrade"}
	secretEnv  = regexp.MustCompile(`^\$\{env:[A-Za-z_][A-Za-z0-9_]*\}$`)
	secretFile = regexp.MustCompile(`^\$\{file:/[^{}\x00-\x1f]+\}$`)
)

func (w *Webhook) validateURL(p *problems, path string) {
	if w.URL == "" {
		p.add(path, "is required")
		return
	}
	u, err := url.Parse(w.URL)
	switch {
	case err != nil:
		p.add(path, "is no URL") // the error would quote it, with what may be a password in it
	case len(w.URL) > maxText:
		p.add(path, "%d bytes, more than %d", len(w.URL), maxText)
	case u.User != nil:
		p.add(path, "holds a user name or password, which would be shown; use headers")
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Opaque != "":
		p.add(path, "%q is no absolute URL with http or https and a host", w.URL)
	case u.Fragment != "" || strings.HasSuffix(w.URL, "#"):
		p.add(path, "%q has a fragment, which is never sent", w.URL)
	case u.Port() != "":
		if n, err := strconv.Atoi(u.Port()); err != nil || n < 1 || n > 65535 {
			p.add(path, "%q: the port is not between 1 and 65535", w.URL)
		}
	}
}

// validSecret: only references. A secret in a spec would be in the log, in backups and in answers.
func validSecret(s string) bool { return secretEnv.MatchString(s) || secretFile.MatchString(s) }

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
