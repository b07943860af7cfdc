package spec

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// valid is a channel with one emitter of each kind that Validate accepts.
func valid() Channel {
	c := Channel{Name: "a", Semantics: AtLeastOnce, Order: OrderKey, Emitters: []Emitter{
		{Name: "w", Kind: KindWebhook, Webhook: &Webhook{URL: "https://x.example/in"}},
		{Name: "f", Kind: KindFile},
		{Name: "s", Kind: KindStdout},
	}}
	c.ApplyDefaults()
	return c
}

func TestEachRuleRefusesWithItsField(t *testing.T) {
	ok := valid()
	require.NoError(t, ok.Validate())
	for name, c := range map[string]struct {
		change func(c *Channel)
		want   string
	}{
		"name":               {func(c *Channel) { c.Name = "A" }, `name: "A" is no name`},
		"name path":          {func(c *Channel) { c.Name = "../x" }, `name: "../x" is no name`},
		"name dot":           {func(c *Channel) { c.Name = ".." }, `name: ".." is no name`},
		"name long":          {func(c *Channel) { c.Name = strings.Repeat("a", 64) }, `is no name`},
		"name line":          {func(c *Channel) { c.Name = "a\nb" }, `is no name`},
		"semantics unsaid":   {func(c *Channel) { c.Semantics = "" }, `semantics: is required and has no default`},
		"semantics":          {func(c *Channel) { c.Semantics = "exactly once" }, `semantics: "exactly once" is not one of`},
		"order unsaid":       {func(c *Channel) { c.Order = "" }, `order: is required and has no default`},
		"order":              {func(c *Channel) { c.Order = "fifo" }, `order: "fifo" is not one of none, key, total`},
		"on_key_failure":     {func(c *Channel) { c.OnKeyFailure = "drop" }, `on_key_failure: "drop" is not one of park, skip`},
		"on_invalid":         {func(c *Channel) { c.OnInvalid = "drop" }, `on_invalid: "drop" is not one of reject, poison`},
		"types empty":        {func(c *Channel) { c.Types = []string{""} }, `types[0]: must not be empty`},
		"types twice":        {func(c *Channel) { c.Types = []string{"a", "a"} }, `types[1]: "a" is listed twice`},
		"id_from":            {func(c *Channel) { c.IDFrom = []string{"/id", "id"} }, `id_from[1]: "id" is no JSON Pointer`},
		"id_from twice":      {func(c *Channel) { c.IDFrom = []string{"/id", "/id"} }, `id_from[1]: "/id" is listed twice`},
		"id_from escape":     {func(c *Channel) { c.IDFrom = []string{"/a~2"} }, `id_from[0]: "/a~2" is no JSON Pointer`},
		"id_from many":       {func(c *Channel) { c.IDFrom = strings.Fields("/1 /2 /3 /4 /5 /6 /7 /8 /9") }, `id_from: 9 fields, more than 8`},
		"source":             {func(c *Channel) { c.Source = "a\nb" }, `source: "a\nb" holds a control character`},
		"window zero":        {func(c *Channel) { c.Dedup.Window = 0 }, `dedup.window: 0s is not between 1s and 168h`},
		"window long":        {func(c *Channel) { c.Dedup.Window = Duration(1000 * time.Hour) }, `dedup.window: 1000h is not between`},
		"max_keys":           {func(c *Channel) { c.Dedup.MaxKeys = 0 }, `dedup.max_keys: 0 is not between 1 and`},
		"on_full":            {func(c *Channel) { c.Dedup.OnFull = "forget" }, `dedup.on_full: "forget" is not one of refuse, shorten`},
		"max_unresolved":     {func(c *Channel) { c.Retention.MaxUnresolved = 0 }, `retention.max_unresolved: 0B is not at least 1MiB`},
		"on_unresolved":      {func(c *Channel) { c.Retention.OnUnresolved = "x" }, `retention.on_unresolved: "x"`},
		"emitters":           {func(c *Channel) { c.Emitters = make([]Emitter, 65) }, `emitters: 65, more than 64`},
		"emitter name":       {func(c *Channel) { c.Emitters[0].Name = "" }, `emitters[0].name: "" is no name`},
		"emitter twice":      {func(c *Channel) { c.Emitters[1].Name = "w" }, `emitters[w].name: another emitter of the channel has it`},
		"kind unsaid":        {func(c *Channel) { c.Emitters[2].Kind = "" }, `emitters[s].kind: is required`},
		"kind unknown":       {func(c *Channel) { c.Emitters[2].Kind = "fax" }, `emitters[s].kind: "fax" is not one of webhook, file, stdout`},
		"kind s3":            {func(c *Channel) { c.Emitters[2].Kind = "s3" }, `emitters[s].kind: s3 is not built yet`},
		"kind kafka":         {func(c *Channel) { c.Emitters[2].Kind = "kafka" }, `emitters[s].kind: kafka is not built yet`},
		"other section":      {func(c *Channel) { c.Emitters[2].File = &File{Directory: "x"} }, `emitters[s].file: is set, but the kind is "stdout"`},
		"start":              {func(c *Channel) { c.Emitters[0].Start = "now" }, `emitters[w].start: "now" is not latest, earliest or an index`},
		"start zero":         {func(c *Channel) { c.Emitters[0].Start = "0" }, `emitters[w].start: "0"`},
		"idempotent_by":      {func(c *Channel) { c.Emitters[0].IdempotentBy = "luck" }, `emitters[w].idempotent_by: "luck" is not one of`},
		"file by event":      {func(c *Channel) { c.Emitters[1].IdempotentBy = ByEventID }, `emitters[f].idempotent_by: "event-id", but a file`},
		"stdout by event":    {func(c *Channel) { c.Emitters[2].IdempotentBy = ByEventID }, `emitters[s].idempotent_by: "event-id", but standard output`},
		"compaction events":  {func(c *Channel) { c.Emitters[0].Compaction.Events = 0 }, `emitters[w].compaction.events: 0 is not between 1 and 65536`},
		"compaction bytes":   {func(c *Channel) { c.Emitters[0].Compaction.Bytes = 1 << 40 }, `emitters[w].compaction.bytes: 1TiB is not between 0B and 64MiB`},
		"compaction linger":  {func(c *Channel) { c.Emitters[0].Compaction.Linger = Duration(2 * time.Hour) }, `compaction.linger: 2h is not between`},
		"concurrency":        {func(c *Channel) { c.Emitters[0].Concurrency = 2000 }, `emitters[w].concurrency: 2000 is not between 1 and 1024`},
		"max_retries":        {func(c *Channel) { c.Emitters[0].DeadLetter.MaxRetries = -1 }, `emitters[w].dead_letter.max_retries: -1`},
		"both limits":        {func(c *Channel) { c.Emitters[0].Retry.TTL = 0 }, `emitters[w].retry: ttl and max_attempts are both 0`},
		"backoff.min":        {func(c *Channel) { c.Emitters[0].Retry.Backoff.Min = 0 }, `emitters[w].retry.backoff.min: 0s would retry without a pause`},
		"backoff.min tiny":   {func(c *Channel) { c.Emitters[0].Retry.Backoff.Min = 1 }, `emitters[w].retry.backoff.min: 1ns is not between 1ms`},
		"backoff.max":        {func(c *Channel) { c.Emitters[0].Retry.Backoff.Max = Duration(time.Millisecond) }, `backoff.max: 1ms is less than backoff.min of 1s`},
		"jitter":             {func(c *Channel) { c.Emitters[0].Retry.Backoff.Jitter = 1.5 }, `emitters[w].retry.backoff.jitter: 1.5 is not between 0 and 1`},
		"class key":          {func(c *Channel) { c.Emitters[0].Classes = map[string]string{"200": "transient"} }, `emitters[w].classes: "200" is no status`},
		"class value":        {func(c *Channel) { c.Emitters[0].Classes = map[string]string{"404": "ignore"} }, `emitters[w].classes[404]: "ignore" is not one of`},
		"classes of a file":  {func(c *Channel) { c.Emitters[1].Classes = map[string]string{"404": "transient"} }, `emitters[f].classes: is set, but only a webhook`},
		"directory":          {func(c *Channel) { c.Emitters[1].File.Directory = "../x" }, `emitters[f].file.directory: "../x" leaves the data directory`},
		"directory NUL":      {func(c *Channel) { c.Emitters[1].File.Directory = "a\x00b" }, `emitters[f].file.directory: "a\x00b" holds a control character`},
		"url unsaid":         {func(c *Channel) { c.Emitters[0].Webhook.URL = "" }, `emitters[w].webhook.url: is required`},
		"url relative":       {func(c *Channel) { c.Emitters[0].Webhook.URL = "/in" }, `emitters[w].webhook.url: "/in" is no absolute URL`},
		"url scheme":         {func(c *Channel) { c.Emitters[0].Webhook.URL = "file:///etc/passwd" }, `is no absolute URL with http or https`},
		"url host":           {func(c *Channel) { c.Emitters[0].Webhook.URL = "http://:80/" }, `is no absolute URL`},
		"url port":           {func(c *Channel) { c.Emitters[0].Webhook.URL = "http://x:99999/" }, `the port is not between 1 and 65535`},
		"url password":       {func(c *Channel) { c.Emitters[0].Webhook.URL = "http://u:secret@x/" }, `holds a user name or password`},
		"url fragment":       {func(c *Channel) { c.Emitters[0].Webhook.URL = "http://x/#a" }, `has a fragment`},
		"url broken":         {func(c *Channel) { c.Emitters[0].Webhook.URL = "http://u:secret@x/%zz" }, `emitters[w].webhook.url: is no URL`},
		"timeout":            {func(c *Channel) { c.Emitters[0].Webhook.Timeout = 0 }, `emitters[w].webhook.timeout: 0s is not between 1ms and 10m`},
		"secrets three":      {func(c *Channel) { c.Emitters[0].Webhook.Secrets = []string{"${env:A}", "${env:B}", "${env:C}"} }, `webhook.secrets: 3, more than the two`},
		"secret plain":       {func(c *Channel) { c.Emitters[0].Webhook.Secrets = []string{"hunter2"} }, `webhook.secrets[0]: want a reference`},
		"secret literal":     {func(c *Channel) { c.Emitters[0].Webhook.Secrets = []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"} }, `webhook.secrets[0]: want a reference`},
		"header credential":  {func(c *Channel) { c.Emitters[0].Webhook.Headers = map[string]string{"X-Api-Key": "x"} }, `webhook.headers[X-Api-Key]: holds a credential`},
		"unresolved lost":    {func(c *Channel) { c.Retention.OnUnresolved, c.Semantics = "dead_letter", AtMostOnce }, `retention.on_unresolved: dead_letter, but an at-most-once channel`},
		"unresolved parked":  {func(c *Channel) { c.Retention.OnUnresolved, c.Order = "dead_letter", OrderKey }, `retention.on_unresolved: dead_letter, but on_key_failure: park`},
		"header ours":        {func(c *Channel) { c.Emitters[0].Webhook.Headers = map[string]string{"ce-id": "x"} }, `webhook.headers: "ce-id" is set by Penstock`},
		"header host":        {func(c *Channel) { c.Emitters[0].Webhook.Headers = map[string]string{"host": "x"} }, `webhook.headers: "host" is set by Penstock`},
		"header name":        {func(c *Channel) { c.Emitters[0].Webhook.Headers = map[string]string{"a b": "x"} }, `webhook.headers: "a b" is no header name`},
		"header injection":   {func(c *Channel) { c.Emitters[0].Webhook.Headers = map[string]string{"X-A": "x\r\nY: z"} }, `webhook.headers[X-A]: holds a control character`},
		"total concurrently": {func(c *Channel) { c.Order = OrderTotal }, `emitters[w].concurrency: 16, but total order is delivered one at a time`},
	} {
		c2 := valid()
		c.change(&c2)
		err := c2.Validate()
		require.ErrorContains(t, err, c.want, name)
		require.NotContains(t, err.Error(), "secret@", name)
		require.NotContains(t, err.Error(), "hunter2", name)
	}
}

func TestAllProblemsAreSaidAtOnce(t *testing.T) {
	c := Channel{Name: "A", Emitters: []Emitter{{Name: "w", Kind: "fax"}}}
	c.ApplyDefaults()
	err := c.Validate()
	for _, want := range []string{"name: ", "semantics: ", "order: ", "emitters[w].kind: "} {
		require.ErrorContains(t, err, want)
	}
}

// P4: exactly-once is refused unless every destination recognises repeats, and for as long as there may be any.
func TestExactlyOnceIsRefusedWhereItCannotBeKept(t *testing.T) {
	exact := func() Channel {
		c := valid()
		c.Semantics, c.Dedup.Window = ExactlyOnce, Duration(time.Hour)
		c.Emitters = c.Emitters[:2]
		return c
	}
	ok := exact()
	require.NoError(t, ok.Validate())
	for want, change := range map[string]func(c *Channel){
		"emitters[w].idempotent_by: none, but exactly-once":              func(c *Channel) { c.Emitters[0].IdempotentBy = ByNone },
		"emitters[s].idempotent_by: none, but exactly-once":              func(c *Channel) { c.Emitters = valid().Emitters },
		"dedup.window: 29m59s is shorter than emitters[w].retry.ttl":     func(c *Channel) { c.Dedup.Window = Duration(30*time.Minute - time.Second) },
		"emitters[w].retry.ttl: 0s means no limit, but exactly-once":     func(c *Channel) { c.Emitters[0].Retry = Retry{MaxAttempts: 3, Backoff: defaultBackoff()} },
		"dedup.on_full: shorten would break exactly-once without a word": func(c *Channel) { c.Dedup.OnFull = "shorten" },
	} {
		c := exact()
		change(&c)
		require.ErrorContains(t, c.Validate(), want)
	}
	equal := exact()
	equal.Dedup.Window = Duration(30 * time.Minute)
	require.NoError(t, equal.Validate(), "a window of exactly the ttl is enough")
}

func TestTotalOrderDefaultsToOneAtATime(t *testing.T) {
	c := Channel{Name: "a", Semantics: AtLeastOnce, Order: OrderTotal, Emitters: []Emitter{{Name: "f", Kind: KindFile}}}
	c.ApplyDefaults()
	require.NoError(t, c.Validate())
	require.Equal(t, 1, c.Emitters[0].Concurrency)
}

func TestNamesAreSafeEverywhere(t *testing.T) {
	for _, ok := range []string{"a", "0", "a.b-c_d", strings.Repeat("a", 63)} {
		require.True(t, ValidName(ok), ok)
	}
	for _, bad := range []string{"", "-a", ".a", "_a", "a/b", "a b", "ä", "a\x00", "A", strings.Repeat("a", 64)} {
		require.False(t, ValidName(bad), bad)
	}
}
