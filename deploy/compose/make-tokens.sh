#!/bin/sh
# make-tokens.sh DIR [PENSTOCK]: tokens for the nodes of docker-compose.yml, made once; an existing set is never touched.
#
#   DIR/tokens.yaml      hashes and roles: all that the nodes get. Readable for the containers' user; DIR itself is for its owner alone.
#   DIR/admin.token      every role: the first day's token, also for the fault harness
#   DIR/producer.token   sends to any channel and reads its offsets, nothing else
#   DIR/viewer.token     sees everything but payloads; Prometheus scrapes with it
#
# Another one: penstock token new NAME --allow ..., its entry into tokens.yaml (written in place: the containers hold the file, not
# its name), then `docker compose kill -s HUP`.
set -eu
dir=$1
penstock=${2:-bin/penstock}
[ ! -e "$dir/tokens.yaml" ] || exit 0
umask 077
mkdir -p "$dir"
entry() {
	name=$1
	shift
	text=$("$penstock" token new "$name" --write "$dir/$name.token" "$@")
	echo "$text" | sed '/^#/d; /^tokens:$/d'
}
{
	echo "tokens:"
	entry admin --allow admin --allow operator --allow 'producer:*' --allow 'consumer:*'
	entry producer --allow 'producer:*'
	entry viewer --allow viewer
} >"$dir/tokens.yaml.new"
chmod 0644 "$dir/tokens.yaml.new" "$dir/viewer.token"
mv "$dir/tokens.yaml.new" "$dir/tokens.yaml"
echo "made $dir/tokens.yaml, and the tokens beside it"
