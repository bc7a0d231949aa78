#!/usr/bin/env bash
# Checkpoints and tables as an operator meets them: resume on another number of servers, `braid ckpt`,
# `braid table` on running and on stopped servers, a kill in the middle of a checkpoint.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
cp "$repo/tests/integ/small.yaml" "$work/job.yaml"
# Rules that see each key by itself: the same on any number of servers (docs/RULES.md).
printf 'embedding:\n  admission: frequency(count=2)\n  eviction: ttl(steps=40, every=16)\n' >>"$work/job.yaml"

json() { # FILE EXPRESSION: a Python expression over j
  python3 -c "import json,sys; j=json.load(open(sys.argv[1])); print($2)" "$1"
}
result_of() { sed -n 's/^RESULT //p' "$out" >"$work/result.json" && json "$work/result.json" "j['$1']"; }
ckpt_is() { json "$work/list.json" "[k['$2'] for k in j if k['name'] == '$1'][0]"; }

# A run that nothing disturbs, on one server.
braid run job.yaml --servers 1 --run-dir whole
check "the undisturbed run ends" exits 0
want=$(result_of param_hash)

# The same, stopped at step 120 on 2 servers, on 3 to step 180, ended on 1: the same bits.
braid run job.yaml --servers 2 --run-dir r --set train.checkpoint_every=60 --set train.checkpoint_keep=10 --set train.max_steps=120
check "two servers" exits 0
braid run job.yaml --run-dir r --resume auto --servers 3 --set train.checkpoint_every=60 --set train.checkpoint_keep=10 --set train.max_steps=180
check "three servers go on" exits 0
check "after step 120" grep -q "resumes after step-120" "$work/r/worker-0.log" "$out" "$err"
braid run job.yaml --run-dir r --resume auto --servers 1 --set train.checkpoint_every=60 --set train.checkpoint_keep=10
check "one server ends it" exits 0
check "the model is the same, bit for bit" test "$(result_of param_hash)" = "$want"

# What there is.
braid ckpt list --run-dir r -o json
check "list" exits 0
cp "$out" "$work/list.json"
check "step-120 was made by two" test "$(ckpt_is step-120 servers)" = 2
check "step-180 was made by three" test "$(ckpt_is step-180 servers)" = 3
check "the last by one" test "$(ckpt_is step-240 servers)" = 1
check "and all are whole" test "$(ckpt_is step-180 state)$(ckpt_is step-240 state)" = wholewhole
braid ckpt verify --run-dir r
check "verify reads them all" exits 0
check "and says so" grep -q "^step-240 .*whole" "$out"
braid ckpt diff step-240 step-240 --run-dir r
check "nothing differs from itself" exits 0
braid ckpt diff step-180 step-240 --run-dir r -o json
check "training changes rows" exits 1
check "and the sums say how many" test "$(json "$out" "sum(t['changed'] for t in j) > 0")" = True

# A bit flips on the disk.
sst=$(find "$work/r/ps-0/checkpoints/step-240/rows" -name '*.sst' | head -1)
cp "$sst" "$work/sst" && rm "$sst"
python3 -c "import sys; b=bytearray(open(sys.argv[1],'rb').read()); b[len(b)//2]^=1; open(sys.argv[2],'wb').write(b)" "$work/sst" "$sst"
braid ckpt verify step-240 --run-dir r
check "verify finds the flipped bit" exits 3
check "and names the file" err_says "^error: .*step-240.*$(basename "$sst") has checksum"
mv "$work/sst" "$sst"
rm "$work/r/ps-0/checkpoints/step-240/MANIFEST"
braid ckpt list --run-dir r -o json
cp "$out" "$work/list.json"
check "without its last word it is damaged" test "$(ckpt_is step-240 state)" = damaged
braid ckpt verify no-such --run-dir r
check "an unknown name" exits 3

# Prune: shows, then does; the newest whole ones stay.
braid ckpt prune --run-dir r --keep 1
check "prune shows what would go" grep -q "^step-120 .*would go" "$out"
check "and touches nothing" test -d "$work/r/checkpoints/step-120"
braid ckpt prune --run-dir r --keep 1 --yes
check "prune" exits 0
check "the old one went" test ! -e "$work/r/checkpoints/step-120" -a ! -e "$work/r/ps-0/checkpoints/step-120"

# Stopped servers: tables from their folders.
braid table list --data-dir whole/ps-0 -o json
check "tables of a stopped server" exits 0
table=$(json "$out" "j[0]['table']")
dim=$(json "$out" "j[0]['dim']")
rows=$(json "$out" "j[0]['rows']")
braid table describe "$table" --data-dir whole/ps-0 -o json
check "describe" test "$(json "$out" "j['optimizer']")" = adagrad
braid table hot "$table" --data-dir whole/ps-0 --top 3 -o json
hot=$(json "$out" "[k['key'] for k in j]")
check "three hot keys" test "$(json "$out" "len(j)")" = 3
key=$(json "$out" "j[0]['key']")
check "the hottest first" test "$(json "$out" "j[0]['frequency'] >= j[2]['frequency'] > 0")" = True
braid table get "$table" "$key" --data-dir whole/ps-0 --with-state -o json
check "get" test "$(json "$out" "len(j[0]['weights'])")" = "$dim"
braid table export "$table" --data-dir whole/ps-0 --output stopped.tsv
check "export" exits 0
check "every row and a header" test "$(wc -l <"$work/stopped.tsv")" = $((rows + 1))
braid table list --data-dir whole
check "a folder of folders" exits 0
braid table list --data-dir job.yaml
check "not a folder" exits 1
braid table get nope 1 --data-dir whole
check "an unknown table" exits 3

# A running server: the same rows; taken out and put back they are the same again.
"$bin/braid-ps" --data-dir "$work/whole/ps-0" --listen 127.0.0.1:0 --ready-fd 3 3>"$work/ready" >"$work/ps.log" 2>&1 &
ps=$!
started+=("$ps")
check "the server comes up" until_true 30 grep -q READY "$work/ready"
at=$(sed -n 's/^READY //p' "$work/ready")
braid table list --data-dir whole
check "a running server's folder is left alone" err_says "a server runs on data folder"
braid table export "$table" --coordinator "$at" --output running.tsv
check "export from it" exits 0
check "is the same file" cmp "$work/stopped.tsv" "$work/running.tsv"
braid table export "$table" --coordinator "$at" --output all.npy --with-state
check "as arrays" test -s "$work/all.keys.npy" -a -s "$work/all.rows.npy" -a -s "$work/all.state.npy"
zeros=$(printf '0.5 %.0s' $(seq "$dim"))
braid table hot-keys "$table" --coordinator "$at" --top 3 -o json
check "the running server's hot keys" test "$(json "$out" "[k['key'] for k in j]")" = "$hot"
check "have shares" test "$(json "$out" "0 < j[0]['share'] < 1")" = True
braid table hot nope --coordinator "$at"
check "hot keys of nobody" exits 3
braid table describe "$table" --coordinator "$at" -o json
check "admission dropped gradients" test "$(json "$out" "j['admission'].startswith('frequency(count=2,') and j['filtered_gradients'] > 0")" = True
check "eviction took rows" test "$(json "$out" "j['eviction'].startswith('ttl(steps=40,') and j['evicted_rows'] > 0")" = True
# shellcheck disable=SC2086 # a word a number
braid table set "$table" "$key" $zeros --coordinator "$at"
check "set" exits 0
braid table get "$table" "$key" --coordinator "$at" -o json
check "get has it" test "$(json "$out" "set(j[0]['weights'])")" = "{0.5}"
braid table import "$table" --input all.npy --with-state --coordinator "$at"
check "import" exits 0
braid table export "$table" --coordinator "$at" --output again.tsv
check "and all rows are as before" cmp "$work/running.tsv" "$work/again.tsv"
sed '3s/\t/\tx/' "$work/running.tsv" >"$work/bad.tsv"
braid table import "$table" --input bad.tsv --coordinator "$at"
check "a bad line is named" err_says "bad.tsv:3:"
check "as bad data" exits 3
braid table set "$table" "$key" 1 --coordinator "$at"
check "a wrong dim is refused" exits 2
kill -9 "$ps"
wait "$ps" 2>/dev/null || true
braid table export "$table" --data-dir whole/ps-0 --output killed.tsv
check "what a killed server had in its journal is there" cmp "$work/running.tsv" "$work/killed.tsv"

# A new job's table begins with exported rows, on two servers and two workers.
cp "$work/killed.tsv" "$work/from-$table.tsv"
braid run job.yaml --servers 2 --workers 2 --run-dir i --set embedding.init_file="$work/from-{table}.tsv" --set train.max_steps=1 --set embedding.eviction= --set train.eval_every=1000
check "a run with init_file" exits 0
braid table list --data-dir "$work/i" -o json
check "every row is there" test "$(json "$out" "[t['rows'] for t in j if t['table'] == '$table'][0]")" -ge "$rows"

# A kill in the middle of a checkpoint: the one before stays whole, the half one is reported and goes.
BRAID_FAULTS=ps.checkpoint.publish=kill:3 braid run job.yaml --servers 2 --run-dir k --set train.checkpoint_every=60 --set on_server_exit=fail
check "the run ends with the kill" exits 137
braid ckpt list --run-dir k -o json
cp "$out" "$work/list.json"
check "the half one is reported" test "$(json "$work/list.json" "sum(k['state'] == 'unfinished' for k in j) >= 1")" = True
newest=$(json "$work/list.json" "[k['name'] for k in j if k['state'] == 'whole'][-1]")
braid ckpt verify "$newest" --run-dir k
check "the former one is whole" exits 0
braid ckpt prune --run-dir k --keep 9 --yes
check "prune takes the half one" exits 0
braid ckpt list --run-dir k -o json
check "and nothing else" test "$(json "$out" "[k['name'] for k in j if k['state'] == 'whole'][-1]")" = "$newest"
check "it is gone" test "$(json "$out" "sum(k['state'] == 'unfinished' for k in j)")" = 0
braid run job.yaml --run-dir k --resume auto
check "and the run goes on from it" exits 0
check "to the same bits" test "$(result_of param_hash)" = "$want"

# An async job: nobody waits for a step, but a cut holds all of every worker up to its own. Going on from it without
# a step more, on another number of servers, has its bits; a kill in a later cut goes back to it.
async='--workers 2 --run-dir a --set consistency=async --set train.checkpoint_every=60 --set train.checkpoint_keep=10'
# shellcheck disable=SC2086 # a word an option
{
  braid run job.yaml --servers 2 $async --set train.max_steps=120
  check "an async run" exits 0
  cut=$(result_of param_hash)
  braid run job.yaml --servers 3 $async --resume auto --set train.max_steps=120
  check "goes on from its cut on three servers" exits 0
  check "after step 120" grep -q "resumes after step-120" "$work/a/worker-0.log" "$out" "$err"
  check "with its bits" test "$(result_of param_hash)" = "$cut"
  BRAID_FAULTS=ps.checkpoint.publish=kill braid run job.yaml --servers 2 $async --resume auto --set on_server_exit=fail
  check "a kill in its next cut ends it" exits 137
  braid ckpt list --run-dir a -o json
  cp "$out" "$work/list.json"
  check "step-120 is the newest whole one" test "$(json "$work/list.json" "[k['name'] for k in j if k['state'] == 'whole'][-1]")" = step-120
  braid run job.yaml --servers 2 $async --resume auto
  check "and the run goes on" exits 0
  check "from there" grep -q "resumes after step-120" "$work/a/worker-0.log" "$out" "$err"
  check "to its end" test "$(result_of steps)" = 250
}

finish
