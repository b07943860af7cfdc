# Targets: build test check demo bench soak jepsen jepsen-short jepsen-mutants image up down. Each installs what it needs
# beyond Go, from Debian's packages; a container engine it only asks for.

GO       ?= go
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS  := -s -w -X main.version=$(VERSION)
# Pinned; only make check needs it, and go vet stands in when the module proxy does not serve it.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Packages with unit tests, and the tests that start real processes.
UNIT = $(shell $(GO) list ./... | grep -v '^penstock/test/')
E2E  = ./test/...

.PHONY: build test unit e2e check fmt vet deps rules demo bench soak jepsen jepsen-deps jepsen-short jepsen-mutants jepsen-chaos image image-of-binary compose-installed secrets up down clean

build:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/penstock ./cmd/penstock

# The race detector needs a C compiler; tests that fail or delay a real fsync need strace.
deps:
	@command -v gcc >/dev/null || (apt-get update -q && apt-get install -qy --no-install-recommends gcc libc6-dev)
	@command -v strace >/dev/null || apt-get install -qy --no-install-recommends strace || (apt-get update -q && apt-get install -qy --no-install-recommends strace) || \
		echo "strace is not to be had: the tests that fail an fsync are left out"
	@$(MAKE) -s jepsen-deps || echo "tools of the fault harness are not to be had: the tests of its volumes are left out"

test: deps fmt vet unit e2e

fmt:
	@files=$$(gofmt -l $$(git ls-files '*.go' 2>/dev/null || find . -name '*.go')); \
	if [ -n "$$files" ]; then echo "gofmt wants changes in:"; echo "$$files"; exit 1; fi

vet:
	$(GO) vet ./...

unit: deps
	CGO_ENABLED=1 $(GO) test -race -timeout 10m $(UNIT)
	$(GO) test -run 'TestEach.*OfALogIsClassified' ./wal   # every bit; under the race detector only a sample

# Prometheus and its checker of rules, out of Debian's package, without installing the service.
bin/promtool bin/prometheus &:
	@mkdir -p bin/deb && cd bin/deb && apt-get update -q >/dev/null && apt-get download -q prometheus >/dev/null 2>&1 && \
		dpkg -x prometheus_*.deb . && mv usr/bin/promtool usr/bin/prometheus .. && cd .. && rm -rf deb

rules: bin/promtool
	PROMTOOL=$(CURDIR)/bin/promtool $(GO) test -count=1 ./test/rules

e2e: build bin/promtool bin/prometheus
	PENSTOCK_BINARY=$(CURDIR)/bin/penstock $(GO) test -count=1 -parallel 3 -timeout 15m $(E2E)   # never from the cache: it does not see the binary

check: fmt vet
	@if $(GO) run $(STATICCHECK) -version >/dev/null 2>&1; then \
		$(GO) run $(STATICCHECK) ./...; \
	else echo "staticcheck is not to be had from the module proxy; go vet passed"; fi

# Three real processes, a few thousand events, the leader killed in the middle.
demo: build
	$(GO) run ./test/demo -bin bin/penstock

# The fault harness: as root on Linux, about 20 minutes; jepsen-short about 5; jepsen-mutants about 15; jepsen-chaos 11.
JEPSEN_PACKAGES := iproute2 util-linux iptables e2fsprogs xfsprogs strace

jepsen-deps:
	@for tool in ip nsenter losetup iptables mkfs.ext4 mkfs.xfs strace; do \
		command -v $$tool >/dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends $(JEPSEN_PACKAGES); break; }; \
	done

# Known to be open, see the track record in jepsen/README.md: SCENARIO=CHECK+CHECK, listed and not counted when nothing else fails.
JEPSEN_OPEN :=

jepsen: build jepsen-deps
	$(GO) run ./jepsen suite --binary bin/penstock $(if $(JEPSEN_OPEN),--open $(JEPSEN_OPEN)) $(ARGS)

jepsen-short: build jepsen-deps
	$(GO) run ./jepsen suite --short --binary bin/penstock $(ARGS)

jepsen-mutants: jepsen-deps
	$(GO) run ./jepsen mutants $(ARGS)

# Ten minutes in which every node kills itself now and then; INVALID with fewer than 20 kills.
jepsen-chaos: build jepsen-deps
	$(GO) run ./jepsen run --binary bin/penstock --nemesis none --chaos --time 10m --min-faults 20 $(ARGS)

# The container image. Works with docker's classic builder and with BuildKit; pulls nothing. TREE is its file tree, made anew.
IMAGE  ?= penstock
BINARY ?= bin/penstock
TREE   ?= bin/image
CA_CERTIFICATES := /etc/ssl/certs/ca-certificates.crt

image: build image-of-binary

image-of-binary:
	@command -v docker >/dev/null || { echo "make $@ needs a container engine, e.g. apt-get install docker.io"; exit 1; }
	@[ -r $(CA_CERTIFICATES) ] || { apt-get update -q && apt-get install -qy --no-install-recommends ca-certificates; }
	rm -rf $(TREE)
	install -d -m 0755 $(TREE)/var/lib/penstock $(TREE)/var/lib/penstock-dlq
	install -D -m 0755 $(BINARY) $(TREE)/usr/local/bin/penstock
	install -D -m 0644 $(CA_CERTIFICATES) $(TREE)$(CA_CERTIFICATES)
	docker build --build-arg TREE=$(TREE) --build-arg VERSION=$(VERSION) -t $(IMAGE):latest -t $(IMAGE):$(VERSION) .
	docker run --rm --network none $(IMAGE):$(VERSION) version   # a binary that is not static would not start

# The three nodes of docker-compose.yml, with Compose v2 where it is installed, else v1.
COMPOSE ?= $(shell if docker compose version >/dev/null 2>&1; then echo docker compose; else echo docker-compose; fi)
NODES   := 127.0.0.1:$(or $(PENSTOCK_PORT_N1),7070),127.0.0.1:$(or $(PENSTOCK_PORT_N2),7080),127.0.0.1:$(or $(PENSTOCK_PORT_N3),7090)

compose-installed:
	@command -v $(firstword $(COMPOSE)) >/dev/null || { echo "this needs Docker Compose, e.g. apt-get install docker-compose"; exit 1; }

# Tokens of the three nodes, made once; see the script for who may do what with which.
secrets: build
	deploy/compose/make-tokens.sh $(or $(PENSTOCK_SECRETS),deploy/compose/secrets) bin/penstock

up: compose-installed image secrets
	PENSTOCK_IMAGE=$(IMAGE):latest $(COMPOSE) up -d
	bin/penstock health --ready --wait 2m --addr $(NODES)

# The volumes stay; "$(COMPOSE) down -v" removes them, and with them everything that was acknowledged.
down: compose-installed
	$(COMPOSE) --profile metrics down

# Penstock beside its peers, on the disk of BENCH_DIR; the tables go to docs/benchmarks.md. A module of its own: peers stay out of go.mod.
SECONDS   ?= 3
ROUNDS    ?= 3
PARTS     ?= ingest,emit
BENCH_DIR ?= $(CURDIR)/bin

bench: build
	cd bench && $(GO) build -o $(CURDIR)/bin/compare ./compare
	bin/compare -binary bin/penstock -dir $(BENCH_DIR) -doc docs/benchmarks.md -seconds $(SECONDS) -rounds $(ROUNDS) -parts $(PARTS)

# The long form of every test that has one (PENSTOCK_FULL=1): hours, some 40 GiB of disk, as root where a test wants a file system
# of its own. SOAK narrows it: make soak SOAK=TestB35
SOAK ?= .
soak: deps build bin/promtool
	PENSTOCK_FULL=1 $(GO) test -count=1 -p 1 -timeout 2h -run '$(SOAK)' -v ./fsm/... ./wal ./dlq ./emit
	PENSTOCK_FULL=1 PENSTOCK_BINARY=$(CURDIR)/bin/penstock PROMTOOL=$(CURDIR)/bin/promtool $(GO) test -count=1 -p 1 -parallel 1 -timeout 6h -run '$(SOAK)' -v $(E2E)

clean:
	rm -rf bin demo-data coverage.out
