#!/usr/bin/env bash
# 50 kill -9 of servers at random moments under load, and a network that delays, cuts, loses and
# repeats 5 % of the messages: the tables end with the bits of an undisturbed run. More: make soak.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid-ps test_ps_crash
seed=${SEED:-$$}
echo "seed $seed (SEED=$seed repeats it)"

crash() { # ROUNDS MODE
  local from=$SECONDS
  code=0
  timeout -k 5 200 "$bin/test_ps_crash" "$1" "$seed" "$2" >"$out" 2>"$err" || code=$?
  took=$((SECONDS - from))
  cat "$out"
}

crash 50 sync
check "sync: 50 kills change no bit" exits 0
check "all of them happened" out_says "50 kills"
crash 5 async
check "async: kills change no bit" exits 0
crash 5 bounded
check "bounded: kills change no bit" exits 0
crash 15 net
check "a bad network changes no bit" exits 0
check "connections were cut" out_says "[1-9][0-9]* connections cut"
finish
