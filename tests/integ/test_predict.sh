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

# Bags: rows that are pooled by max come as rows even when servers may pool, and data.first_n cuts what is
# scored as it cut what was trained.
for i in $(seq 400); do
  echo "$((i % 2)),u$((i % 17)),t$((i % 5))|t$((i % 7))|t$((i % 11))"
done >"$work/bags.csv"
sed 's/|[^|]*$//' "$work/bags.csv" >"$work/cut.csv"
bags=(--set data.format=csv --set "data.schema=y:label,u:cat,tags:multi(|)" --set data.generate.rows=0
  --set data.generate.test_rows=0 --set data.test= --set ps.pooling=server --set model.kind=mlp --set model.bottom=
  --set model.combiner=tags:max --set train.batch=20)
train_bags() { # RUN INPUT [OPTION...]
  braid run "$job" --run-dir "$1" --workers 1 --servers 2 "${bags[@]}" --set data.train="$work/$2" "${@:3}"
  check "trains $1 on $2" exits 0
}
train_bags whole_bags bags.csv --set data.first_n=2
hash=$(result param_hash)
train_bags cut_bags cut.csv
check "the first two ids of a bag are what cutting it leaves" test "$(result param_hash)" = "$hash"
train_bags async_bags bags.csv --set data.first_n=tags:2 --set consistency=async
score_bags() { # INPUT OUTPUT [OPTION...]
  braid predict "$job" --run-dir async_bags --input "$work/$1" --output "$2" "${bags[@]}" \
    --set data.train="$work/bags.csv" --set consistency=async "${@:3}"
  check "predict $1 ends well" exits 0
}
score_bags bags.csv first.txt --set data.first_n=2
score_bags cut.csv cut.txt
check "and so for predictions" cmp "$work/first.txt" "$work/cut.txt"
score_bags bags.csv here.txt --set data.first_n=2 --set ps.pooling=client
check "wherever bags may be pooled" cmp "$work/first.txt" "$work/here.txt"
score_bags bags.csv all.txt
differ() { ! cmp -s "$1" "$2"; }
check "a third id makes a difference" differ "$work/first.txt" "$work/all.txt"
finish
