#!/usr/bin/env bash
# 50 kill -9 of servers at random moments under load, and a network that delays, cuts, loses and
# repeats 5 % of the messages: the tables end with the bits of an undisturbed run. More: make soak.
# ctest: COST 20
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid-ps test_ps_crash
seed=${SEED:-$$}
echo "seed $seed (SEED=$seed repeats it)"

crash() { # ROUNDS MODE [SEED]: in the background, beside the others
  timeout -k 5 250 "$bin/test_ps_crash" "$1" "${3:-$seed}" "$2" >"$work/$2$3.out" 2>"$work/$2$3.err" &
  started+=($!) runs+=($!) names+=("$2$3")
}
runs=() names=()
crash 25 sync "$seed"
crash 25 sync "$((seed + 1))"
crash 5 async ""
crash 5 bounded ""
crash 15 net ""
for i in "${!runs[@]}"; do
  code=0
  wait "${runs[i]}" || code=$?
  out=$work/${names[i]}.out err=$work/${names[i]}.err
  cat "$out"
  case ${names[i]} in
  net)
    check "a bad network changes no bit" exits 0
    check "connections were cut" out_says "[1-9][0-9]* connections cut"
    ;;
  sync*)
    check "sync: 25 kills change no bit" exits 0
    check "all of them happened" out_says "25 kills"
    ;;
  *) check "${names[i]}: kills change no bit" exits 0 ;;
  esac
done
finish
