package webhook

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// ResolveReference replaces each ${env:NAME} and ${file:/path} in s; the white space at the end of a file is dropped. What is no
// reference stands for itself. Errors name the reference, never a value.
func ResolveReference(s string) (string, error) {
	var failed error
	out := references.ReplaceAllStringFunc(s, func(ref string) string {
		kind, name, _ := strings.Cut(ref[2:len(ref)-1], ":")
		if kind == "env" {
			value, ok := os.LookupEnv(name)
			if !ok {
				failed = errors.Join(failed, fmt.Errorf("secret %s: not set", ref))
			}
			return value
		}
		b, err := os.ReadFile(name)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("secret %s: %w", ref, errors.Unwrap(err)))
		}
		return strings.TrimRight(string(b), " \t\r\n")
	})
	if failed != nil {
		return "", failed
	}
	return out, nil
}

var references = regexp.MustCompile(`\$\{(?:env|file):[^}]+\}`)

// secretsAndHeaders resolves what the spec refers to.
func (s *Sink) secretsAndHeaders() (keys [][]byte, headers map[string]string, err error) {
	for i, ref := range s.secrets {
		value, err := s.resolve(ref)
		if err != nil {
			return nil, nil, err
		}
		key, err := signingKey(value)
		if err != nil {
			return nil, nil, fmt.Errorf("secret %d of the webhook: %w", i+1, err)
		}
		keys = append(keys, key)
	}
	headers = make(map[string]string, len(s.headers))
	for name, ref := range s.headers {
		value, err := s.resolve(ref)
		if err != nil {
			return nil, nil, err
		}
		headers[name] = value
	}
	return keys, headers, nil
}

// signingKey decodes a Standard Webhooks secret: whsec_ and base64; the prefix may be missing.
func signingKey(secret string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(strings.TrimSpace(secret), "whsec_"))
	if err != nil {
		return nil, errors.New("not whsec_ and base64")
	}
	if len(key) == 0 {
		return nil, errors.New("is empty")
	}
	return key, nil
}
