#!/usr/bin/env bash
# `braid predict` reads a run and changes nothing of it: rows that are further on than the checkpoint stay.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
job=$repo/tests/integ/small.yaml

braid run "$job" --run-dir r --workers 1 --servers 2 --set train.max_steps=60 \
  --set train.checkpoint_every=40 --set train.checkpoint_at_end=false
check "trains" exits 0
input=$(echo "$work"/data/gen-*/test.tsv)
files() { (cd "$work/r" && find ps-* checkpoints config.json -type f -name '[!.]*' -exec cksum {} +) | sort -k3; }
files | grep -vE '\.log$' >"$work/before.txt"

score() { # OUTPUT
  braid predict "$job" --run-dir r --input "$input" --output "$1"
  check "predict ends well" exits 0
  check "a probability for each row" test "$(wc -l <"$work/$1")" = "$(wc -l <"$input")"
}
score one.txt
files | grep -vE '\.log$' >"$work/after.txt"
check "nothing of the run has changed" diff "$work/before.txt" "$work/after.txt"
check "and no folder is left" test -z "$(find "$work/r" -maxdepth 1 -name '.predict-*')"
score two.txt
check "the same scores again" cmp "$work/one.txt" "$work/two.txt"

braid run "$job" --run-dir r --workers 1 --servers 2 --resume auto --set train.max_steps=60
check "the run goes on from its checkpoint" exits 0
hash=$(result param_hash)
braid run "$job" --run-dir whole --workers 1 --servers 2 --set train.max_steps=60
check "and ends as one that was never asked" test "$(result param_hash)" = "$hash"
finish
