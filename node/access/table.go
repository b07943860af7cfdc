package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// maxTokens bounds a table: each token that is presented is compared with every one.
const maxTokens = 1000

// Token is one entry of a table.
type Token struct {
	// Name stands in the audit trail as the actor.
	Name string
	// ID is the first half of the hash in hex: it names the token between nodes.
	ID          string
	hash        [sha256.Size]byte
	allow, deny []rule
}

// Table is a set of tokens. It never changes.
type Table struct{ tokens []Token }

// Entry is a token as a file holds it.
type Entry struct {
	Name  string   `yaml:"name"`
	Hash  string   `yaml:"hash"`
	Allow []string `yaml:"allow"`
	Deny  []string `yaml:"deny,omitempty"`
}

type tokenFile struct {
	Tokens []Entry `yaml:"tokens"`
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$`)

// ParseTable reads a file of tokens. The error says everything that is wrong, and shows no hash and no token.
func ParseTable(text []byte) (*Table, error) {
	var f tokenFile
	if err := yaml.UnmarshalWithOptions(text, &f, yaml.Strict()); err != nil {
		return nil, syntaxError(err)
	}
	if len(f.Tokens) == 0 {
		return nil, errors.New("tokens: want at least one; leave auth.tokens out to run without")
	}
	if len(f.Tokens) > maxTokens {
		return nil, fmt.Errorf("tokens: %d, want at most %d", len(f.Tokens), maxTokens)
	}
	t := &Table{}
	var errs []error
	names, hashes := map[string]bool{}, map[[sha256.Size]byte]bool{}
	for i, e := range f.Tokens {
		token, err := parseEntry(e)
		switch {
		case err != nil:
		case names[e.Name]:
			err = errors.New("name: another token has it")
		case hashes[token.hash]:
			err = errors.New("hash: another token has it")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("tokens[%d] (%.64q): %w", i, e.Name, err))
			continue
		}
		names[e.Name], hashes[token.hash] = true, true
		t.tokens = append(t.tokens, token)
	}
	return t, errors.Join(errs...)
}

// syntaxError keeps the place and the message, and drops the excerpt of the file that the parser would show: it may be a token.
func syntaxError(err error) error {
	var y yaml.Error
	if !errors.As(err, &y) || y.GetToken() == nil {
		return errors.New("no valid YAML")
	}
	p := y.GetToken().Position
	return fmt.Errorf("%d:%d: %s", p.Line, p.Column, strings.ReplaceAll(y.GetMessage(), "\n", " "))
}

func parseEntry(e Entry) (Token, error) {
	t := Token{Name: e.Name}
	if !namePattern.MatchString(e.Name) {
		return t, errors.New("name: want 1 to 63 of A-Z a-z 0-9 . _ @ - that start with a letter or digit")
	}
	var err error
	if t.hash, err = parseHash(e.Hash); err != nil {
		return t, fmt.Errorf("hash: %w", err)
	}
	t.ID = idOf(t.hash)
	if len(e.Allow) == 0 {
		return t, errors.New("allow: want at least one role")
	}
	for _, list := range []struct {
		key  string
		from []string
		to   *[]rule
	}{{"allow", e.Allow, &t.allow}, {"deny", e.Deny, &t.deny}} {
		for _, s := range list.from {
			r, err := parseRule(s)
			if err != nil {
				return t, fmt.Errorf("%s: %w", list.key, err)
			}
			*list.to = append(*list.to, r)
		}
	}
	return t, nil
}

func idOf(hash [sha256.Size]byte) string { return hex.EncodeToString(hash[:sha256.Size/2]) }

// find looks a presented token up. Every entry is compared, each in constant time, whether one was found or not.
func (t *Table) find(presented string) (found *Token) {
	sum := sha256.Sum256([]byte(presented))
	for i := range t.tokens {
		if subtle.ConstantTimeCompare(t.tokens[i].hash[:], sum[:]) == 1 {
			found = &t.tokens[i]
		}
	}
	return found
}

// byID looks a token up by what names it between nodes.
func (t *Table) byID(id string) *Token {
	i := slices.IndexFunc(t.tokens, func(x Token) bool { return x.ID == id })
	if i < 0 {
		return nil
	}
	return &t.tokens[i]
}

// names are those of the table, for the log.
func (t *Table) names() []string {
	if t == nil {
		return nil
	}
	out := make([]string, len(t.tokens))
	for i, x := range t.tokens {
		out[i] = x.Name
	}
	return out
}
