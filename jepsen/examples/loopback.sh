#!/usr/bin/env bash
# Three plain penstock processes on loopback, and a fault for them: what `jepsen run --endpoints --fault-command` needs.
#
#   loopback.sh start     n1..n3 on HTTP ports PORT, PORT+10, PORT+20 (default 7070), data below DIR
#   loopback.sh begin     SIGKILL one of them, n1, n2, n3 in turns
#   loopback.sh end       start it again, wait until it is ready
#   loopback.sh stop      SIGTERM all; the directory stays
#
# BINARY (default bin/penstock), DIR (default /tmp/penstock-loopback), PORT.
set -euo pipefail
BINARY=${BINARY:-bin/penstock} DIR=${DIR:-/tmp/penstock-loopback} PORT=${PORT:-7070}

http() { echo $((PORT + 10 * ($1 - 1))); }

run() {
	local i=$1 p
	p=$(http "$i")
	mkdir -p "$DIR/n$i"
	cat >"$DIR/n$i.yaml" <<YAML
node: {id: n$i, data_dir: $DIR/n$i, http: "127.0.0.1:$p", raft: "127.0.0.1:$((p + 1))", gossip: "127.0.0.1:$((p + 2))", debug: ""}
cluster: {name: loopback, seeds: ["127.0.0.1:$((PORT + 2))", "127.0.0.1:$((PORT + 12))", "127.0.0.1:$((PORT + 22))"]}
YAML
	"$BINARY" server --config "$DIR/n$i.yaml" >>"$DIR/n$i.log" 2>&1 &
	echo $! >"$DIR/n$i.pid"
}

ready() {
	for _ in $(seq 300); do
		curl -fs -o /dev/null "http://127.0.0.1:$(http "$1")/readyz" && return
		sleep 0.1
	done
	echo "n$1 is not ready after 30s, see $DIR/n$1.log" >&2
	return 1
}

case ${1:-} in
start)
	for i in 1 2 3; do run $i; done
	for i in 1 2 3; do ready $i; done
	;;
begin)
	turn=$(($(cat "$DIR/turn" 2>/dev/null || echo 0) % 3 + 1))
	echo $turn >"$DIR/turn"
	pid=$(cat "$DIR/n$turn.pid")
	kill -KILL "$pid"
	for _ in $(seq 100); do
		kill -0 "$pid" 2>/dev/null || { echo "killed n$turn"; exit 0; }
		sleep 0.1
	done
	echo "n$turn is still there" >&2
	exit 1
	;;
end)
	turn=$(cat "$DIR/turn")
	run "$turn"
	ready "$turn"
	echo "n$turn is ready again"
	;;
stop)
	for i in 1 2 3; do kill -TERM "$(cat "$DIR/n$i.pid")" 2>/dev/null || true; done
	;;
*)
	sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac
