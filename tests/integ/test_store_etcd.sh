#!/usr/bin/env bash
# A job whose cluster keeps its state in etcd: the same model as without, also when etcd is killed
# and started again in the middle, and with what a former job left in it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
command -v etcd >/dev/null || skip "etcd (etcd-server) is not installed"

client=$(free_port) peer=$(free_port)
etcd_start() {
  etcd --data-dir "$work/etcd" --name one --initial-cluster one=http://127.0.0.1:"$peer" \
    --listen-client-urls http://127.0.0.1:"$client" --advertise-client-urls http://127.0.0.1:"$client" \
    --listen-peer-urls http://127.0.0.1:"$peer" --initial-advertise-peer-urls http://127.0.0.1:"$peer" \
    --heartbeat-interval 10 --election-timeout 100 >"$work/etcd.log" 2>&1 &
  etcd_pid=$!
  started+=("$etcd_pid")
}
keys() { ETCDCTL_API=3 etcdctl --endpoints 127.0.0.1:"$client" get --prefix --keys-only "$1"; }
store=etcd://127.0.0.1:$client/test
job=("$repo/tests/integ/small.yaml" --workers 2 --servers 2)
etcd_start

braid run "${job[@]}" --run-dir plain
check "without etcd" exits 0
plain=$(result param_hash)

braid run "${job[@]}" --run-dir first --store "$store"
check "with etcd" exits 0
check "the same model: $plain, $(result param_hash)" test "$(result param_hash)" = "$plain"
epochs=2 further=50
if is_long; then
  epochs=12 further=200
fi
if command -v etcdctl >/dev/null; then
  keys /test/ >"$out"
  check "the shard map is in etcd" out_says '^/test/kv/braid/map$'
  check "the job epoch is in etcd" out_says '^/test/kv/braid/job_epoch$'
fi

# The keys of the former job are all still there; etcd dies while the next one trains.
braid_start run "${job[@]}" --run-dir second --store "$store" --set train.epochs=$epochs
step_of() { tail -1 "$work/second/metrics.jsonl" | grep -oE '"step":[0-9]+' | head -1 | cut -d: -f2; }
trains() { [ "$(step_of)" -gt "$1" ]; }
until_true 60 trains 100 || true
check "it trains" trains 100
kill -9 "$etcd_pid"
wait "$etcd_pid" 2>/dev/null || true
at=$(step_of)
until_true 60 trains $((at + further)) || true
check "steps go on without etcd" trains $((at + further))
etcd_start
braid_wait
check "etcd killed and started again in the middle, a former job's state in it" exits 0
second=$(result param_hash)
braid run "${job[@]}" --run-dir calm --set train.epochs=$epochs
check "and the model is that of an undisturbed run: $second, $(result param_hash)" test "$(result param_hash)" = "$second"

if is_long; then # make soak
# etcd comes late: servers and workers wait for it.
kill -9 "$etcd_pid"
wait "$etcd_pid" 2>/dev/null || true
braid_start run "${job[@]}" --run-dir late --store "$store"
until_true 30 grep -q 'waiting for' "$work/late/ps-0.log" || true
check "a server says what it waits for" grep -q 'waiting for.*etcd' "$work/late/ps-0.log"
etcd_start
braid_wait
check "etcd comes late" exits 0
check "the same model" test "$(result param_hash)" = "$plain"

# Another number of servers with the same keys: server 0 says how many there are now.
braid run "$repo/tests/integ/small.yaml" --workers 1 --servers 3 --run-dir more --store "$store"
check "another number of servers" exits 0
fi

# A clear error where there is none.
LIMIT_S=30 braid run "$repo/tests/integ/small.yaml" --workers 1 --servers 1 --run-dir none --store redis://x:1
check "another kind of store" exits 2
check "is named" err_says 'store "redis://x:1": not etcd://'
finish
