package config

// Example is a commented configuration of one node of three; it passes Load.
func Example() string { return example }

const example = `# One node of a cluster of three. Every key may also be said by a variable, PENSTOCK_SECTION_KEY
# (PENSTOCK_NODE_DATA_DIR, PENSTOCK_CLUSTER_SEEDS=a:7072,b:7072), and by a flag (--set node.data_dir=...);
# flags win over variables, variables over this file. Durations and sizes need a unit.
node:
  id: n1                          # unique in the cluster, for ever: a node whose disk was lost comes back under a new id
  data_dir: /var/lib/penstock     # all of this node's state
  http: 127.0.0.1:7070            # ingest and administration
  raft: 127.0.0.1:7071            # the log between the nodes
  gossip: 127.0.0.1:7072          # how nodes find one another
  debug: 127.0.0.1:7073           # profiles, loopback only; "" is off
  # advertise: n1.example:7071    # what the others dial; must be set when raft listens on all interfaces
  # advertise_gossip: n1.example:7072    # default: the host of advertise, the port of gossip
  # advertise_http: n1.example:7070      # default: the host of advertise, the port of http
  # insecure_plaintext: true      # TLS and tokens are not built yet: without this line only loopback is served

cluster:
  name: prod
  seeds: ["127.0.0.1:7072", "127.0.0.1:7082", "127.0.0.1:7092"]  # gossip addresses of the first nodes, the same list on each
  heartbeat: 400ms                # the timers must be the same on every node
  election: 400ms                 # at least heartbeat
  lease: 300ms                    # half of heartbeat to all of it
  snapshot_bytes: 128MiB          # a snapshot is due each so many bytes of log
  trailing_entries: 8192          # log entries kept behind a snapshot for followers that lag

wal:
  storage: clustered              # clustered | disk (a cluster of one, no seeds); s3 is not built yet
  max_bytes: 50GiB
  segment_bytes: 64MiB

dead_letter:
  # directory: /var/lib/penstock-dlq     # default: dlq under node.data_dir
  max_files: 100
  max_bytes: 5GiB
  max_age: 0s                     # 0s: no bound by age
  overflow: block                 # at the bound the emitter is held; nothing is lost
  scan: 1m

limits:
  event_bytes: 1MiB               # one event
  body_bytes: 4MiB                # one request, decompressed
  events: 10000                   # in one request
  depth: 512                      # of nested JSON
  in_flight_bytes: 64MiB          # of all requests that wait for the log
  request: 10s                    # every ingest request is answered within

drain: 30s                        # how long a SIGTERM may take to finish what was accepted

# tls: {cert: ..., key: ..., ca: ...}         # not built yet, refused
# auth: {tokens: ..., issuer: ...}            # not built yet, refused
`
