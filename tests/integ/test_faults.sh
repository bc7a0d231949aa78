#!/usr/bin/env bash
# Kill -9 of servers, and of everything: the model in the end is the one of an undisturbed run.
# ctest: COST 25
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
job=$repo/tests/integ/small.yaml
opts=(--workers 2 --servers 2 --set train.epochs=4 --set train.checkpoint_every=200) # 1000 steps

braid run "$job" --run-dir calm "${opts[@]}"
check "the calm run ends well" exits 0
hash=$(result param_hash)
check "it has a hash" test -n "$hash"

step_of() { tail -1 "$work/$1/metrics.jsonl" 2>/dev/null | sed -n 's/.*"step":\([0-9]*\).*/\1/p'; }
reached() { [ "$(step_of "$1")" -ge "$2" ]; } # RUN STEP
server_pid() { sed -n 's/^\[braid\] started as process //p' "$work/$1/ps-$2.log" | tail -1; }

# One server, at three moments that another seed of the shell's RANDOM moves.
RANDOM=${SEED:-$$}
echo "seed ${SEED:-$$}"
at=(0 $((50 + RANDOM % 200)) $((300 + RANDOM % 200)) $((550 + RANDOM % 200)))
braid_start run "$job" --run-dir killed "${opts[@]}"
for i in 1 2 3; do
  who=$((RANDOM % 2))
  check "step ${at[i]} comes" until_true 40 reached killed "${at[i]}"
  kill -9 "$(server_pid killed $who)" || true
done
braid_wait
check "killed servers do not end the run" exits 0
check "each was started again" test "$(grep -c "starting it again" "$err")" = 3
check "and the model is the same, bit for bit" test "$(result param_hash)" = "$hash"

# Both servers die while they write a checkpoint, after they have answered its cut: the second of each
# start, so steps 200 and 600. Those checkpoints are lost, and no more than that.
BRAID_FAULTS=ps.checkpoint.publish=kill:1 braid run "$job" --run-dir writing "${opts[@]}" --set train.max_steps=650
check "servers killed while they write a checkpoint do not end the run" exits 0
check "the checkpoints are lost, and the log says so" test "$(grep -c "checkpoint lost.*step-[26]00" "$work/writing/worker-0.log")" = 2
check "nothing of them is left" test "$(cd "$work/writing/checkpoints" && echo *)" = "step-0 step-400 step-650"

# Everything at once: the launcher is killed, its children die with it.
braid_start run "$job" --run-dir gone "${opts[@]}"
check "step 500 comes" until_true 40 reached gone 500
kill -9 "$pid"
braid_wait
check "the launcher was killed" exits 137
before=$(server_pid gone 0)
check "its children died with it" until_true 5 is_gone "$before"
braid run "$job" --run-dir gone "${opts[@]}" --resume auto
check "it can be resumed" exits 0
check "from a checkpoint" test "$(sed -n 's/.*"step":\([0-9]*\).*/\1/p' "$work/gone/metrics.jsonl" | tail -1)" = 1000
check "and gives the same model, bit for bit" test "$(result param_hash)" = "$hash"
finish
