package gossip

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/memberlist"
)

// ErrKey: what came in was sealed with a key that is not in the ring, or was not sealed at all.
var ErrKey = errors.New("not sealed with a gossip key of this node")

// ParseKey reads a key as it is configured: 16, 24 or 32 bytes in base64 (AES-128, -192, -256).
func ParseKey(text string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil {
		return nil, errors.New("want a key in base64")
	}
	return key, checkKey(key)
}

func checkKey(key []byte) error {
	if err := memberlist.ValidateKey(key); err != nil {
		return fmt.Errorf("want a key of 16, 24 or 32 bytes, not %d", len(key))
	}
	return nil
}

// Keyring seals with its first key and opens with any. A ring that was made without keys seals nothing, for good: turning encryption on
// or off needs every node to start anew. It is safe for concurrent use.
type Keyring struct {
	ring *memberlist.Keyring // nil: plain
}

// NewKeyring makes a ring; no keys is plain.
func NewKeyring(keys [][]byte) (*Keyring, error) {
	if len(keys) == 0 {
		return &Keyring{}, nil
	}
	ring, err := memberlist.NewKeyring(nil, keys[0])
	if err != nil {
		return nil, err
	}
	k := &Keyring{ring: ring}
	return k, k.Set(keys)
}

// Sealed tells whether the ring seals at all.
func (k *Keyring) Sealed() bool { return k.ring != nil }

// Set replaces the keys. The new ones are there before the old ones go, so nothing that is under way is lost.
func (k *Keyring) Set(keys [][]byte) error {
	if k.Sealed() != (len(keys) > 0) {
		return errors.New("gossip encryption cannot be turned on or off while the node runs")
	}
	for _, key := range keys {
		if err := checkKey(key); err != nil {
			return err
		}
	}
	for _, key := range keys {
		if err := k.ring.AddKey(key); err != nil {
			return err
		}
	}
	if len(keys) == 0 {
		return nil
	}
	if err := k.ring.UseKey(keys[0]); err != nil {
		return err
	}
	for _, old := range k.ring.GetKeys() {
		kept := false
		for _, key := range keys {
			kept = kept || bytes.Equal(key, old)
		}
		if kept {
			continue
		}
		if err := k.ring.RemoveKey(old); err != nil {
			return err
		}
	}
	return nil
}

// sealedVersion opens a sealed message. Plain ones are JSON and open with '{'.
const sealedVersion = 1

// Seal gives the message as it travels; bound is authenticated with it and must be the same at Open. A plain ring gives it as it is.
//
//	+---------+-------+------------+-----+
//	| version | nonce | ciphertext | tag |   AES-GCM
//	| 1       | 12    |            | 16  |
//	+---------+-------+------------+-----+
func (k *Keyring) Seal(message, bound []byte) ([]byte, error) {
	if !k.Sealed() {
		return message, nil
	}
	aead, err := newAEAD(k.ring.GetPrimaryKey())
	if err != nil {
		return nil, err
	}
	out := make([]byte, 1+aead.NonceSize(), 1+aead.NonceSize()+len(message)+aead.Overhead())
	out[0] = sealedVersion
	rand.Read(out[1:])
	return aead.Seal(out, out[1:], message, bound), nil
}

// Open is the inverse of Seal, with any key of the ring. Other than sealed with one of them gives ErrKey.
func (k *Keyring) Open(b, bound []byte) ([]byte, error) {
	sealed := len(b) > 0 && b[0] == sealedVersion
	switch {
	case !k.Sealed() && sealed:
		return nil, fmt.Errorf("%w: it is sealed, and no key is configured here", ErrKey)
	case !k.Sealed():
		return b, nil
	case !sealed:
		return nil, fmt.Errorf("%w: it is plain", ErrKey)
	}
	for _, key := range k.ring.GetKeys() {
		aead, err := newAEAD(key)
		if err != nil {
			return nil, err
		}
		n := aead.NonceSize()
		if len(b) < 1+n+aead.Overhead() {
			break
		}
		if out, err := aead.Open(nil, b[1:1+n], b[1+n:], bound); err == nil {
			return out, nil
		}
	}
	return nil, ErrKey
}

func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
