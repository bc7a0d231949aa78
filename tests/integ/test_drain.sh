#!/usr/bin/env bash
# A server's life as an operator sees it: drained, restarted, undrained by that; stopped in the middle of
# its start; a rolling restart of all servers under load costs retries, not the job nor a bit of the model.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
: >"$out" && : >"$err"
# Servers 0 and 1, their pages, the worker's page; a lone server, its coordinator that is not there, its page.
declare -A addr
for name in 0 1 page0 page1 worker lone nobody lone_page; do addr[$name]=127.0.0.1:$(free_port); done
"$bin/braid" datagen --rows 6000 --out "$work/c.tsv.gz" >/dev/null 2>&1
declare -A ps
start_ps() { # INDEX
  "$bin/braid-ps" --index "$1" --servers 2 --data-dir "$work/$run-ps-$1" --listen "${addr[$1]}" \
    --coordinator "${addr[0]}" --metrics-listen "${addr[page$1]}" 2>>"$work/ps-$1.log" &
  ps[$1]=$!
  started+=($!)
}
ready() { curl -sf "http://${addr[page$1]}/healthz" >/dev/null; }
stop_ps() { # INDEX, sets $code
  kill -TERM "${ps[$1]}"
  code=0
  wait "${ps[$1]}" || code=$?
}
train() { # starts the job in the background: $pid
  "$bin/braid-worker" "$repo/tests/integ/small.yaml" --set data.generate.rows=0 --set data.generate.test_rows=0 \
    --set data.train="$work/c.tsv.gz" --set train.epochs=25 --run-dir "$work/$run" \
    --coordinator "${addr[0]}" --metrics-listen "${addr[worker]}" >"$out" 2>"$err" &
  pid=$!
  started+=("$pid")
}
cluster() { for i in 0 1; do start_ps $i; done && for i in 0 1; do until_true 30 ready $i || return 1; done; }

run=calm
check "two servers are ready" cluster
train
braid_wait
check "an undisturbed run ends" exits 0
calm=$(result param_hash)
for i in 1 0; do
  stop_ps $i
  check "SIGTERM: server $i ends with 0" exits 0
done

run=rolled
check "two fresh servers are ready" cluster
braid ps health --coordinator "${addr[0]}"
check "they are ready, by the CLI too" exits 0
braid ps drain --coordinator "${addr[0]}" --server 1
check "drain without --yes shows" exits 0
check "and changes nothing" err_says 'nothing was changed'
check "server 1 is ready still" ready 1
train
stepping() { curl -sf "http://${addr[worker]}/metrics" | awk -v n="$1" '$1 == "braid_worker_steps_total" { s = $2 } END { exit !(s > n) }'; }
check "the job runs" until_true 60 stepping 20
exec 3>&1
for i in 1 0; do
  (cd "$work" && "$bin/braid" ps drain --coordinator "${addr[0]}" --server $i --yes --format json) >"$work/drain.json" 2>&1
  check "server $i drains" grep -q '"draining":true' "$work/drain.json"
  check "so it is not ready" test "$(ready $i && echo ready)" != ready
  steps=$(curl -sf "http://${addr[worker]}/metrics" | awk '$1 == "braid_worker_steps_total" { print $2 }')
  check "the open job goes on meanwhile" until_true 30 stepping "${steps:-0}"
  stop_ps $i
  check "and ends with 0" exits 0
  start_ps $i
  check "it comes back, drained no more" until_true 30 ready $i
done
braid_wait
check "the job ends well" exits 0
check "with the same model, bit for bit" test "$(result param_hash)" = "$calm"

# Stopped while it waits for a coordinator that is not there: at once, not after register_wait.
"$bin/braid-ps" --index 1 --servers 2 --data-dir "$work/lone" --listen "${addr[lone]}" \
  --coordinator "${addr[nobody]}" --register-wait 10m --health-listen "${addr[lone_page]}" 2>"$err" &
lone=$!
started+=("$lone")
check "its rows are loaded" until_true 30 grep -q 'rows are there' "$err"
kill -TERM $lone
check "a server that waits can be stopped" until_true 10 is_gone $lone

# A server whose journal failed answers, but is not ready: an upgrade must not go on to the next one.
page() { curl -sf "http://${addr[lone_page]}/healthz" >/dev/null; }
trains() { # FOLDER, options
  local folder=$1
  shift
  timeout 60 "$bin/braid-worker" "$repo/tests/integ/small.yaml" --set workers=1 --set servers=1 --set data.generate.rows=0 \
    --set data.generate.test_rows=0 --set data.train="$work/c.tsv.gz" --set ps.wait=1s --run-dir "$work/$folder" \
    --coordinator "${addr[lone]}" "$@" >/dev/null 2>&1
}
BRAID_FAULTS=ps.journal.sync=fail:2 "$bin/braid-ps" --data-dir "$work/failed" --listen "${addr[lone]}" \
  --metrics-listen "${addr[lone_page]}" 2>"$work/failed.log" &
started+=($!)
check "it starts" until_true 30 page
braid ps health --coordinator "${addr[lone]}"
check "it is ready" exits 0
trains failed-run || true
no_page() { ! page; }
check "its journal fails" until_true 30 no_page
braid ps health --coordinator "${addr[lone]}"
check "braid ps health sees that" exits 4
check "and says why" out_says 'not ready .*failed: '

# A start that takes long: the page is there before the rows are, and says how far the replay is.
kill_lone() {
  kill -KILL "${started[-1]}"
  wait "${started[-1]}" 2>/dev/null || true
}
start_lone() {
  "$bin/braid-ps" --data-dir "$work/slow" --listen "${addr[lone]}" --metrics-listen "${addr[lone_page]}" 2>"$err" &
  started+=($!)
}
records() { curl -s "http://${addr[lone_page]}/metrics" | awk '$1 == "braid_ps_journal_records" && $2 >= 2 { n = 1 } END { exit !n }'; }
kill_lone
start_lone
check "a server starts" until_true 30 page
trains slow-run --set train.epochs=1000 &
trainer=$!
check "it has records to replay" until_true 30 records
kill_lone
wait $trainer 2>/dev/null || true
BRAID_FAULTS=ps.replay.record=hold:1 start_lone
why() { curl -s "http://${addr[lone_page]}/healthz"; }
replays() { why | grep -Eq '^replaying the journal: [0-9]+ % of [0-9]+ MiB, about [0-9]+ s left'; }
check "/healthz says how far a replay is" until_true 30 replays
check "and is not 200 meanwhile" no_page
finish
