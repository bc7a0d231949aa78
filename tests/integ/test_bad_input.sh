#!/usr/bin/env bash
# What a user gets wrong: one line that names the culprit, the right exit code, soon.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
LIMIT_S=30
job=$repo/tests/integ/small.yaml

refused() { # CODE PATTERN: what the last braid did
  check "exit code $1 for: $2" exits "$1"
  check "says: $2" err_says "^error: .*$2"
  check "says it once, in one line" test "$(grep -c '^error: ' "$err")" = 1
  check "within 10 s" within 10
  check "no result" test ! -s "$out"
}

# The job file.
sed 's/  batch: 128/  bacth: 128/' "$job" >"$work/typo.yaml"
braid run typo.yaml
refused 2 'typo.yaml:[0-9]+.*train.bacth.*train.batch'
braid run no-such-job.yaml
refused 2 'no-such-job.yaml'
braid run "$job" --set train.batch=0
refused 2 'train.batch'
braid run "$job" --set model.kind=dlmr
refused 2 'model.kind.*dlmr.*dlrm'

# The data.
cat >"$work/csv.yaml" <<'YAML'
name: csv
model: {kind: mlp, dim: 4, top: [4]}
data:
  format: csv
  train: rows.csv
  schema: [a:numeric, b:cat, y:label(value)]
train: {batch: 4}
YAML
braid run csv.yaml
refused 3 'rows.csv'
printf '1,x,0\n2,y,1\n3,z\n4,x,1\n' >"$work/rows.csv"
braid run csv.yaml
refused 3 'rows.csv:3.*2 columns.*3'
printf '1,x,0\n2,y,1\nabc,z,0\n4,x,1\n' >"$work/rows.csv"
braid run csv.yaml
refused 3 'rows.csv:3:1: .*abc'
printf '1\t2\t3\n' >"$work/short.tsv"
braid run "$job" --set data.generate.rows=0 --set data.train=short.tsv
refused 3 'short.tsv:1.*3 columns.*40'

# The machine. A port is taken by a server of our own.
mkdir "$work/holder"
"$bin/braid-ps" --index 0 --servers 1 --listen 127.0.0.1:0 --data-dir "$work/holder" --ready-fd 3 3>"$work/ready" 2>"$work/holder.log" &
started+=($!)
check "a server of our own comes up" until_true 10 grep -q READY "$work/ready"
port=$(sed -n 's/^READY .*:\([0-9]*\)$/\1/p' "$work/ready")
braid run "$job" --port "$port"
refused 1 "127.0.0.1:$port.*in use"
braid run "$job" --ps-bin "$repo/tests/integ/fake/deaf.sh" --ready-timeout 1s
refused 4 'ps-0 did not become ready within 1.0 s'

# A second worker of the same rank.
braid_start run "$job" --workers 1 --servers 1 --run-dir twice --set train.epochs=50
check "the first one trains" until_true 30 test -s "$work/twice/metrics.jsonl"
coordinator=$(sed -n 's/.*serv.*\(127.0.0.1:[0-9]*\).*/\1/p' "$work/twice/ps-0.log" | head -1)
took=$SECONDS code=0
(cd "$work" && timeout 20 "$bin/braid-worker" "$job" --set data.train=data/gen-*/train.tsv --rank 0 --world 1 \
  --coordinator "${coordinator:-127.0.0.1:1}" --run-dir twice) >"$out" 2>"$work/second.txt" || code=$?
took=$((SECONDS - took))
check "the second one of rank 0 is refused" grep -qE "^error: .*rank 0" "$work/second.txt"
check "within 10 s" within 10
check "with a code" test "$code" != 0
kill -INT "$pid"
braid_wait
check "the first one was not hurt, and stops" exits 130
finish
