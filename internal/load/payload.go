package load

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
)

// The kinds of payloads.
const (
	Random = "random" // bytes that nothing compresses
	JSON   = "json"   // the shapes of webhooks, padded to the size with text
	Files  = "files"  // what the user gave
)

// payloads makes one event's data after the other, no two of them alike.
type payloads struct {
	cfg Config
	rng *rand.Rand
	n   int
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x70656e73746f636b)) }

func (p *payloads) next() []byte {
	p.n++
	switch p.cfg.Payload {
	case Random:
		return p.bytes(p.cfg.Size)
	case Files:
		return p.cfg.Texts[(p.n-1)%len(p.cfg.Texts)]
	}
	return p.webhook()
}

func (p *payloads) bytes(n int) []byte {
	b := make([]byte, 0, n+8)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint64(b, p.rng.Uint64())
	}
	return b[:n]
}

// webhook is one JSON object of one of four shapes: what repeats in real ones (member names, hosts, constants) repeats, what does
// not (ids, times, amounts, names, hashes, text) is drawn anew. A member of text brings it to the size; when the size is too small
// for a shape, the text is all there is.
func (p *payloads) webhook() []byte {
	var b bytes.Buffer
	id := func() uint64 { return 1e9 + p.rng.Uint64N(9e9) }
	switch p.n % 4 {
	case 0:
		fmt.Fprintf(&b, `{"action":"%s","number":%d,"repository":{"id":%d,"full_name":"%s/%s","private":%t,"html_url":"https://git.example/%s"},`+
			`"sender":{"login":"%s","id":%d,"type":"User"},"head":{"sha":"%x","ref":"refs/heads/%s"},"created_at":"%s",`,
			p.pick("opened", "closed", "edited"), p.rng.IntN(9000), id(), p.word(), p.word(), p.rng.IntN(2) == 0, p.word(), p.word(), id(),
			p.bytes(20), p.word(), p.time())
	case 1:
		fmt.Fprintf(&b, `{"id":"evt_%x","object":"event","created":%d,"livemode":true,"type":"%s","data":{"object":{"id":"in_%x","amount_due":%d,`+
			`"currency":"%s","customer":"cus_%x","email":"%s@%s.example","paid":%t,"period_end":%d}},`,
			p.bytes(12), 1_700_000_000+p.rng.IntN(90_000_000), p.pick("invoice.paid", "charge.failed", "invoice.created"), p.bytes(12), p.rng.IntN(1e6),
			p.pick("eur", "usd", "chf"), p.bytes(7), p.word(), p.word(), p.rng.IntN(2) == 0, 1_700_000_000+p.rng.IntN(90_000_000))
	case 2:
		fmt.Fprintf(&b, `{"order_id":%d,"placed_at":"%s","customer":{"name":"%s %s","city":"%s","zip":"%05d"},"lines":[`, id(), p.time(), p.word(), p.word(),
			p.word(), p.rng.IntN(1e5))
		for i := range 1 + p.rng.IntN(3) {
			fmt.Fprintf(&b, `%s{"sku":"%x","title":"%s %s","quantity":%d,"price":"%d.%02d"}`, []string{"", ","}[min(i, 1)], p.bytes(4), p.word(), p.word(),
				1+p.rng.IntN(9), p.rng.IntN(900), p.rng.IntN(100))
		}
		b.WriteString("],")
	case 3:
		fmt.Fprintf(&b, `{"status":"%s","alert":"%s_%s","fingerprint":"%x","labels":{"instance":"10.%d.%d.%d:9100","severity":"%s","job":"%s"},`+
			`"startsAt":"%s","value":%.6f,`, p.pick("firing", "resolved"), p.word(), p.word(), p.bytes(8), p.rng.IntN(256), p.rng.IntN(256), p.rng.IntN(256),
			p.pick("page", "warning", "info"), p.word(), p.time(), p.rng.Float64()*1e4)
	}
	const open, end = `"text":"`, `"}`
	if b.Len()+len(open)+len(end) > p.cfg.Size {
		return p.small()
	}
	b.WriteString(open)
	p.text(&b, p.cfg.Size-len(end))
	b.WriteString(end)
	return b.Bytes()
}

// small is a JSON string of the size, or a digit.
func (p *payloads) small() []byte {
	if p.cfg.Size < 2 {
		return []byte{'0' + byte(p.rng.IntN(10))}
	}
	var b bytes.Buffer
	b.WriteByte('"')
	p.text(&b, p.cfg.Size-1)
	b.WriteByte('"')
	return b.Bytes()
}

// text writes words until b has n bytes.
func (p *payloads) text(b *bytes.Buffer, n int) {
	for b.Len() < n {
		w := p.word() + " "
		b.WriteString(w[:min(len(w), n-b.Len())])
	}
}

func (p *payloads) pick(from ...string) string { return from[p.rng.IntN(len(from))] }

func (p *payloads) time() string {
	return fmt.Sprintf("2026-%02d-%02dT%02d:%02d:%02d.%03dZ", 1+p.rng.IntN(12), 1+p.rng.IntN(28), p.rng.IntN(24), p.rng.IntN(60), p.rng.IntN(60), p.rng.IntN(1000))
}

// words are syllables put together: some thousands of words, the short ones often, as text has it.
var syllables = strings.Fields("a be ca do en fi go har il ja ko la me no or pa que ri so ta un ve wi xa yo zu str ent ing ion ous tle")

func (p *payloads) word() string {
	n := 1 + p.rng.IntN(2) + p.rng.IntN(2)
	var b strings.Builder
	for range n {
		b.WriteString(syllables[p.rng.IntN(len(syllables))])
	}
	return b.String()
}
