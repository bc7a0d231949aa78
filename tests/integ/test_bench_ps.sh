#!/usr/bin/env bash
# braid bench ps: real servers and client processes, values checked before they are timed; one JSON object a
# line with exactly the promised keys; what cannot be measured is a typed error, and nothing is left behind.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/servers.sh"
need braid braid-ps
export TMPDIR=$work
keys='op keys_per_batch dim row_bytes dist durability servers clients rows_per_s bytes_per_s p50_us p99_us server_rss_bytes'
quick='--rows 3000 --seconds 0.05'

same_keys() { # LINE
  local got
  got=$(sed -n "$1p" "$out" | grep -oE '"[a-z0-9_]+":' | tr -d '":' | tr '\n' ' ')
  [ "$got" = "$keys " ] || { echo "keys: $got"; return 1; }
}

for op in lookup push mixed; do
  # shellcheck disable=SC2086
  braid bench ps --op $op --keys 64,300 --dim 8 --dist zipf $quick --json
  check "$op: exit code 0" exits 0
  check "$op: one line a size" test "$(wc -l <"$out")" = 2
  check "$op: exactly the promised keys" same_keys 1
  check "$op: exactly the promised keys, second line" same_keys 2
  check "$op: is what was asked for" out_says "\"op\":\"$op\",\"keys_per_batch\":300,\"dim\":8,\"row_bytes\":32,\"dist\":\"zipf:1.05\""
  check "$op: rows moved" out_says '"rows_per_s":[1-9]'
  check "$op: the server's memory is known" out_says '"server_rss_bytes":[1-9]'
done
# shellcheck disable=SC2086
braid bench ps --op mixed --consistency sync --clients 2 --servers 2 --keys 100 --dim 16 $quick
check "sync, two clients, two servers" exits 0
# shellcheck disable=SC2086
braid bench ps --op mixed --depth 3 --dtype bf16 --optimizer sgd --durability sync --keys 100 --dim 4 $quick
check "bf16, sgd, durability sync, three lookups in flight" exits 0
# shellcheck disable=SC2086
braid bench ps --op push --dtype i8 --keys 100 --dim 5 --ps-set journal_cap=4MiB,threads=4 $quick
check "i8, options for the server" exits 0
check "no folder is left" test -z "$(find "$work" -maxdepth 1 -name 'braid-bench-*')"

# shellcheck disable=SC2086
braid bench ps --op mixed --wire-rows bf16 --wire-grads f16 --codec zstd --keys 100 --dim 16 $quick --json
check "rows and gradients in fewer bytes" exits 0
check "a row of 16 bf16 numbers has 32 bytes" out_says '"row_bytes":32'
# shellcheck disable=SC2086
braid bench ps --op mixed --wire-rows i8 --wire-grads i8 --codec lz4 --keys 100 --dim 5 $quick
check "i8 and lz4" exits 0

# A signal while it runs: what it has written goes first. (Bash ignores SIGINT for what it starts in the
# background.)
for sig in INT TERM; do
  env --default-signal "$bin/braid" bench ps --op push --keys 100 --dim 4 --rows 3000 --seconds 600 >"$out" 2>"$err" &
  pid=$!
  started+=("$pid")
  check "it runs" until_true 60 grep -q 'p50 us' "$out"
  kill -s $sig "$pid"
  braid_wait
  check "SIG$sig ends it as a signal does" exits $((128 + $(kill -l $sig)))
  check "SIG$sig leaves no folder" test -z "$(find "$work" -maxdepth 1 -name 'braid-bench-*')"
done

servers_start 2
# shellcheck disable=SC2086
braid bench ps --op lookup --coordinator "$coordinator" --keys 50 --dim 8 $quick --json
check "running servers are used" exits 0
check "their memory is not ours to know" out_says '"server_rss_bytes":0}'
server_stop 1
server_stop 0

braid bench ps --keys none
check "a bad size is a usage error" exits 2
check "it is named" err_says '"none"'
braid bench ps --op push --optimizer newton --rows 10 --seconds 0.05
check "an unknown optimiser fails" test "$code" != 0
check "it is named" err_says 'newton'
braid bench ps --ps-set no_such_key=1 --rows 10
check "a wrong option of the server fails" test "$code" != 0
check "the server's own words are shown" err_says 'no_such_key'
braid bench ps --consistency sync --depth 2
check "a depth that cannot be is a usage error" exits 2
finish
