#!/usr/bin/env bash
# How real runs end before their time: a worker dies, a server may not be replaced, the user stops.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
job=$repo/tests/integ/small.yaml
opts=(--workers 2 --servers 2 --set train.epochs=400)

child() { sed -n 's/^\[braid\] started as process //p' "$work/$1/$2.log" | tail -1; } # RUN NAME
is_training() { [ "$(grep -c '"type":"train"' "$work/$1/metrics.jsonl")" -gt 20 ]; }

start() { # RUN options...
  local name=$1
  shift
  braid_start run "$job" --run-dir "$name" "${opts[@]}" "$@"
  check "$name: trains" until_true 30 is_training "$name"
}
wait_at_most() { # SECONDS
  local end=$((SECONDS + $1))
  check "ends within $1 s" until_true "$1" is_gone "$pid"
  [ $SECONDS -lt $end ] || kill -9 "$pid"
  braid_wait
}

start worker
kill -9 "$(child worker worker-1)"
wait_at_most 20
check "a killed worker ends the run" exits 137
check "it is the root cause, not the rank that noticed" err_says '^error: worker-1 ended by signal 9'
check "which names it too" grep -qE 'rank 1' "$work/worker/worker-0.log"
check "no result" test ! -s "$out"

start fail --set on_server_exit=fail
kill -9 "$(child fail ps-1)"
wait_at_most 20
check "a killed server ends the run, if the job wants it so" exits 137
check "named" err_says '^error: ps-1 ended by signal 9'

start stop
ask() { "$bin/braid" "$@" --run-dir "$work/stop"; } # while it trains
check "ps status: both servers" test "$(ask ps status | grep -c 127.0.0.1)" = 2
check "as JSON" test "$(ask ps status --format json | grep -o '"answers":true' | wc -l)" = 2
check "table list: rows of all servers" grep -qE 'emb.C1 +8 +200 ' <(ask table list)
kill -INT "$pid"
wait_at_most 20
check "Ctrl-C" exits 130
check "leaves a checkpoint" compgen -G "$work/stop/checkpoints/step-*"
check "and no process" until_true 5 is_gone "$(child stop ps-0)"
code=0
ask ps status --timeout 500ms >"$work/ps.txt" 2>&1 || code=$?
check "ps status without servers" exits 4
check "names the address" grep -qE '^error: .*127.0.0.1:[0-9]+' "$work/ps.txt"
finish
