package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

const (
	// tokenPrefix lets a scanner for leaked secrets know one of ours.
	tokenPrefix = "pst_"
	hashPrefix  = "sha256:"
	// minToken and maxToken bound a token in bytes. The hash is a plain one, made for random tokens: a short, chosen one could be
	// guessed from it.
	minToken = 24
	maxToken = 256
)

// NewToken makes a token of 256 random bits.
func NewToken() string {
	var b [32]byte
	rand.Read(b[:])
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b[:])
}

// Hash is the token as a file of tokens holds it.
func Hash(token string) (string, error) {
	if err := checkToken(token); err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(token))
	return hashPrefix + hex.EncodeToString(sum[:]), nil
}

// checkToken says what is wrong with a token, without showing it.
func checkToken(token string) error {
	if len(token) < minToken || len(token) > maxToken {
		return fmt.Errorf("a token is %d to %d bytes, this one has %d", minToken, maxToken, len(token))
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("a token is of printable ASCII without spaces")
	}
	return nil
}

func parseHash(s string) (sum [sha256.Size]byte, err error) {
	text, ok := strings.CutPrefix(s, hashPrefix)
	b, err := hex.DecodeString(text)
	if !ok || err != nil || len(b) != len(sum) {
		return sum, errors.New("want sha256: and 64 hex digits, as penstock token hash prints it (never the token itself)")
	}
	copy(sum[:], b)
	return sum, nil
}
