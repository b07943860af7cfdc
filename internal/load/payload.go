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

// webhook is one JSON object of one of four shapes: what repeats in real ones (member names, hosts, nulls, the same name in several
// URLs) repeats, what does not (ids, times, amounts, names, hashes) is drawn anew. A member of text brings it to the size; when the
// size is too small for a shape, the text is all there is.
func (p *payloads) webhook() []byte {
	var b bytes.Buffer
	switch p.n % 4 {
	case 0:
		p.change(&b)
	case 1:
		p.invoice(&b)
	case 2:
		p.order(&b)
	case 3:
		p.alert(&b)
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

func (p *payloads) id() uint64 { return 1e9 + p.rng.Uint64N(9e9) }

func (p *payloads) change(b *bytes.Buffer) {
	repo, user := p.word()+"/"+p.word(), p.word()+p.word()
	fmt.Fprintf(b, `{"action":"%s","number":%d,"repository":{"id":%d,"full_name":"%s","private":%t,"html_url":"https://git.example/%s",`+
		`"url":"https://api.git.example/repos/%s","forks_url":"https://api.git.example/repos/%s/forks","hooks_url":"https://api.git.example/repos/%s/hooks",`+
		`"default_branch":"main","has_issues":true,"has_wiki":false,"archived":false,"license":null},`+
		`"sender":{"login":"%s","id":%d,"url":"https://api.git.example/users/%s","type":"User","site_admin":false},`+
		`"head":{"sha":"%x","ref":"refs/heads/%s"},"merged":false,"draft":false,"created_at":"%s",`,
		p.pick("opened", "closed", "edited"), p.rng.IntN(9000), p.id(), repo, p.rng.IntN(2) == 0, repo, repo, repo, repo,
		user, p.id(), user, p.bytes(20), p.word(), p.time())
}

func (p *payloads) invoice(b *bytes.Buffer) {
	created := 1_700_000_000 + p.rng.IntN(90_000_000)
	fmt.Fprintf(b, `{"id":"evt_%x","object":"event","api_version":"2026-02-01","created":%d,"livemode":true,"pending_webhooks":1,"type":"%s",`+
		`"data":{"object":{"id":"in_%x","object":"invoice","amount_due":%d,"amount_paid":0,"attempt_count":1,"attempted":true,`+
		`"application_fee_amount":null,"charge":null,"collection_method":"charge_automatically","currency":"%s","customer":"cus_%x",`+
		`"customer_address":null,"customer_email":"%s@%s.example","customer_phone":null,"customer_shipping":null,"default_source":null,`+
		`"discount":null,"due_date":null,"ending_balance":null,"footer":null,"paid":%t,"period_end":%d,"period_start":%d}},`,
		p.bytes(12), created, p.pick("invoice.paid", "charge.failed", "invoice.created"), p.bytes(12), p.rng.IntN(1e6),
		p.pick("eur", "usd", "chf"), p.bytes(7), p.word(), p.word(), p.rng.IntN(2) == 0, created, created-2_592_000)
}

func (p *payloads) order(b *bytes.Buffer) {
	fmt.Fprintf(b, `{"order_id":%d,"status":"placed","placed_at":"%s","customer":{"first_name":"%s","last_name":"%s","city":"%s","zip":"%05d",`+
		`"country":"%s","phone":null,"company":null},"line_items":[`,
		p.id(), p.time(), p.word(), p.word(), p.word(), p.rng.IntN(1e5), p.pick("DE", "FR", "IT", "US"))
	for i := range 2 + p.rng.IntN(2) {
		fmt.Fprintf(b, `%s{"sku":"SKU-%05d","title":"%s %s","quantity":%d,"unit_price":"%d.%02d","tax_rate":"0.19","discount":null,"gift":false,"fulfilment":"warehouse"}`,
			[]string{"", ","}[min(i, 1)], p.rng.IntN(1e5), p.word(), p.word(), 1+p.rng.IntN(9), p.rng.IntN(900), p.rng.IntN(100))
	}
	b.WriteString("],")
}

func (p *payloads) alert(b *bytes.Buffer) {
	name := p.word() + "_" + p.word()
	fmt.Fprintf(b, `{"version":"4","receiver":"webhook","status":"%s","alerts":[{"labels":{"alertname":"%s","instance":"10.0.%d.%d:9100",`+
		`"severity":"%s","job":"node","namespace":"production","cluster":"eu-central-1"},"annotations":{"summary":"%s is above its threshold",`+
		`"runbook_url":"https://runbooks.example/%s"},"startsAt":"%s","endsAt":"0001-01-01T00:00:00Z",`+
		`"generatorURL":"https://prometheus.example/graph?g0.expr=%s&g0.tab=1","fingerprint":"%x"}],"truncatedAlerts":0,"value":%.3f,`,
		p.pick("firing", "resolved"), name, p.rng.IntN(256), p.rng.IntN(256), p.pick("page", "warning", "info"), name, name, p.time(), name,
		p.bytes(8), p.rng.Float64()*1e4)
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

// text writes sentences until b has n bytes.
func (p *payloads) text(b *bytes.Buffer, n int) {
	for b.Len() < n {
		w := phrases[p.rng.IntN(len(phrases))] + " "
		b.WriteString(w[:min(len(w), n-b.Len())])
	}
}

// phrases are what people write into such fields: much the same, in another order.
var phrases = strings.Split("the customer asked for|a new delivery address|please call before|as discussed on the phone|the build failed on|the main branch|"+
	"it works again since|we have seen this|in the last release|thank you for|your quick answer|no change in behaviour|see the ticket for|more details|"+
	"on two of three machines|after the update|the disk is nearly full|a refund was made|to the card that|was used before|closes the issue|"+
	"adds a test for|the case that|was reported by|one of our users|with the next shipment|until further notice", "|")

func (p *payloads) pick(from ...string) string { return from[p.rng.IntN(len(from))] }

func (p *payloads) time() string {
	return fmt.Sprintf("2026-%02d-%02dT%02d:%02d:%02d.%03dZ", 1+p.rng.IntN(12), 1+p.rng.IntN(28), p.rng.IntN(24), p.rng.IntN(60), p.rng.IntN(60), p.rng.IntN(1000))
}

// syllables make names.
var syllables = strings.Fields("a be ca do en fi go har il ja ko la me no or pa que ri so ta un ve wi xa yo zu str ent ing ion ous tle")

func (p *payloads) word() string {
	n := 1 + p.rng.IntN(2) + p.rng.IntN(2)
	var b strings.Builder
	for range n {
		b.WriteString(syllables[p.rng.IntN(len(syllables))])
	}
	return b.String()
}
