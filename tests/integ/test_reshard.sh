#!/usr/bin/env bash
# A job moves from 2 servers to 3 and on to 1, each cluster on data folders of its own: the new servers
# pull their parts from the old ones, which are stopped after it. The model is that of a run on one
# server which nobody disturbed, bit for bit.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
: >"$out" && : >"$err"
"$bin/braid" datagen --rows 6000 --out "$work/c.tsv.gz" >/dev/null 2>&1
declare -A ps address
start_cluster() { # NAME N RESTORE_FROM: folders $work/NAME-<i>
  local i ready
  address[$1]=
  for ((i = 0; i < $2; i++)); do
    ready=$work/$1-$i.ready
    "$bin/braid-ps" --index "$i" --servers "$2" --data-dir "$work/$1-$i" --listen 127.0.0.1:0 \
      --coordinator "${address[$1]%% *}" --restore-from "$3" --ready-fd 3 3>"$ready" 2>"$work/$1-$i.log" &
    ps[$1-$i]=$!
    started+=($!)
    until_true 30 grep -q READY "$ready" || { cat "$work/$1-$i.log"; return 1; }
    address[$1]="${address[$1]:+${address[$1]} }$(sed -n 's/^READY //p' "$ready")"
  done
}
from() { printf 'ps://%s' "${address[$1]// /,ps://}"; } # NAME: all of its servers, for restore_from
stop_cluster() { # NAME N
  local i
  for ((i = $2 - 1; i >= 0; i--)); do
    kill "${ps[$1-$i]}" && wait "${ps[$1-$i]}" || return 1
  done
}
train() { # NAME RUN_DIR [OPTION]...
  local at=${address[$1]%% *} dir=$2
  shift 2
  code=0
  timeout 120 "$bin/braid-worker" "$repo/tests/integ/small.yaml" --set data.generate.rows=0 \
    --set data.generate.test_rows=0 --set data.train="$work/c.tsv.gz" --set train.epochs=4 --run-dir "$dir" \
    --coordinator "$at" "$@" >"$out" 2>"$err" || code=$?
}

check "one server" start_cluster whole 1 ""
train whole "$work/calm"
check "an undisturbed run ends" exits 0
want=$(result param_hash)
check "with a hash" test -n "$want"
check "it stops" stop_cluster whole 1

check "two servers" start_cluster two 2 ""
train two "$work/r" --set train.max_steps=60
check "step 60" exits 0
check "three more, beside them" start_cluster three 3 "$(from two)"
train three "$work/r" --resume auto --set train.max_steps=120
check "step 120 on three" exits 0
check "after step 60" grep -q "step-60" "$err" "$out"
check "server 1 of 3 holds slots of both old ones" test "$(grep -c "came from another server" "$work/three-1.log")" = 2
check "no copy is left" test ! -e "$work/three-1/.pulled"
check "the two stop" stop_cluster two 2
rm -rf "$work"/two-?
check "one, beside the three" start_cluster one 1 "$(from three)"
train one "$work/r" --resume auto
check "the job ends on one" exits 0
check "the three stop" stop_cluster three 3
check "the model is the same, bit for bit" test "$(result param_hash)" = "$want"

# An old server that is gone: the error names it, and nothing has happened.
check "a new one" start_cluster lone 1 "$(from three)"
train lone "$work/r" --resume step-120 --set ps.wait=2s
check "without the old ones there is no restore" test "$code" != 0
check "and one of them is named" err_says "ps://${address[three]%% *}"
finish
