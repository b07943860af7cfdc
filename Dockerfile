# The image of Penstock: the static binary, CA certificates for webhooks over https, and nothing else. No base image is
# pulled. `make image` lays its file tree (TREE) below bin/ and builds it, with the classic builder or with BuildKit.
#
# No time zones are needed (all times are UTC), no shell is there (health checks and `docker exec` run the binary itself).
FROM scratch

ARG VERSION=dev
ARG TREE=bin/image
LABEL org.opencontainers.image.title="penstock" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"

COPY ${TREE}/usr/ /usr/
COPY ${TREE}/etc/ /etc/
# Two empty directories that belong to the user below: a fresh named volume takes owner and mode from here.
COPY --chown=65532:65532 ${TREE}/var/ /var/

# Numeric, so that it needs no /etc/passwd and a platform can see that it is not root.
USER 65532:65532

# The log and everything else of the node; its dead letters. Apart, so that one may fill or fail without the other.
VOLUME ["/var/lib/penstock", "/var/lib/penstock-dlq"]

# Ingest and administration, Raft, gossip. The debug port stays on loopback inside the container.
EXPOSE 7070 7071 7072

# Alive, not ready: what a platform that replaces unhealthy containers may act on. A node that waits for its peers is alive.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["/usr/local/bin/penstock", "health", "--timeout", "4s"]

ENTRYPOINT ["/usr/local/bin/penstock"]
CMD ["server", "--config", "/etc/penstock/penstock.yaml"]
