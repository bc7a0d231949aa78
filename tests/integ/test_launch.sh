#!/usr/bin/env bash
# `braid launch`: ranks of one host, of two launchers on the loopback, and of two network namespaces;
# failures, lost launchers, restarts, what a former job has left.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
need braid
command -v python3 >/dev/null || skip "python3 is not installed"

cat >"$work/env.py" <<'P'
import os, sys
keys = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME",
        "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "OMP_NUM_THREADS")
print(" ".join("%s=%s" % (k, os.environ.get(k)) for k in keys), sys.argv[1:])
P
# Writes its rank and process, then waits for a file: name of the file, exit code.
cat >"$work/wait.py" <<'P'
import os, sys, time
here = "%s/r%s.%s" % (os.environ["WHERE"], os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"])
with open(here + ".tmp", "w") as f:
    f.write("%d %s:%s %s\n" % (os.getpid(), os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], os.environ["WORLD_SIZE"]))
os.rename(here + ".tmp", here)
while not os.path.exists(os.environ["WHERE"] + "/" + sys.argv[1]):
    time.sleep(0.02)
P

# ---- one host ----
braid launch --standalone --nproc-per-node 2 --rdzv-id one --max-restarts 3 env.py --nnodes x --help
check "one host" exits 0
for r in 0 1; do
  check "rank $r's variables and arguments" out_says "^RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 GROUP_WORLD_SIZE=1 ROLE_NAME=default TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_MAX_RESTARTS=3 TORCHELASTIC_RUN_ID=one OMP_NUM_THREADS=1 \['--nnodes', 'x', '--help'\]$"
done
PET_NPROC_PER_NODE=3 PET_RDZV_ID=pet braid launch -m site --user-base
check "PET_ variables, -m" exits 0
check "three ranks by PET_NPROC_PER_NODE" test "$(wc -l <"$out")" = 3
PET_NPROC_PER_NODE=3 braid launch --nproc_per_node=1 sh -c 'echo "${RANK}of$WORLD_SIZE"'
check "flags win over PET_" out_says '^0of1$'
braid launch --nproc-per-node 2 --redirects 1:3 --tee 0:1 --log-dir logs sh -c 'echo out$RANK; echo err$RANK >&2'
check "redirects and tee" exits 0
check "tee is behind its rank" out_says '^\[rank 0\]: out0$'
check "stderr that is not kept is ours" err_says '^err0$'
check "what is redirected is not here" sh -c "! grep -q out1 '$out' && ! grep -q err1 '$err'"
check "it is in its file" grep -qx err1 "$work/logs/none/attempt_0/1/stderr.log"
check "and what is teed too" grep -qx out0 "$work/logs/none/attempt_0/0/stdout.log"
braid launch --nproc-per-node 3 --local-ranks-filter 2 sh -c 'echo only $RANK'
check "a filter of ranks" test "$(cat "$out")" = "only 2"
braid launch --nnodes 2 --node-rank 1 --master-addr h0 --master-port 77 --nproc-per-node 2 sh -c 'echo $RANK/$WORLD_SIZE $MASTER_ADDR $MASTER_PORT'
check "static: ranks by node_rank" out_says '^2/4 h0 77$'
braid launch --nnodes 1 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint localhost:0 --monitor-interval 5 \
  --rdzv-conf timeout=60,last_call_timeout=1 --start-method spawn --event-log-handler null --max-restarts 0 sh -c 'echo $RANK/$WORLD_SIZE'
check "torchrun's own forms" test "$(sort "$out" | tr '\n' ' ')" = "0/2 1/2 "
braid launch -m --nproc-per-node 1 site --user-base
check "-m as a flag" exits 0

# ---- failures on one host ----
braid launch --nproc-per-node 2 sh -c '[ $RANK = 0 ] && exec sleep 60; echo "error: no luck" >&2; exit 7'
check "the exit code is that of the first failure" exits 7
check "its rank is named" err_says '^error: rank 1 \(local rank 1, process [0-9]+ on .*\): exit code 7: no luck$'
check "the others do not wait" within 20
braid launch --nproc-per-node 2 sh -c '[ $RANK = 0 ] && exec sleep 60; kill -9 $$'
check "a rank killed by a signal" exits 137
check "is named" err_says '^error: rank 1 .*ended by signal 9'
braid launch --max-restarts 2 sh -c 'echo try $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 2 ]'
check "well at the last try" exits 0
check "three tries" test "$(grep -c '^try' "$out")" = 3
check "restarts are told" err_says 'all ranks are started again \(restart 2 of at most 2\)'
for bad in "--nnodes 2:1" "--nproc-per-node many" "--tee 4" "--nnodes 2" "--rdzv-backend etcd" "--max-restarts 1 --nnodes 2 --node-rank 0 --master-addr x" "--rdzv-endpoint a:b" "--run-path" "--start-method thread" "--rdzv-conf is_host=1" "--nnodes 2 --rdzv-endpoint localhost:0" "--nproc-per-node xpu"; do
  # shellcheck disable=SC2086
  braid launch $bad true
  check "$bad is wrong usage" exits 2
done
braid launch no-such-program-here
check "no such program" exits 2
braid launch
check "no program" exits 2

# Signals are handed on, whole trees end.
mkdir "$work/sig"
WHERE=$work/sig braid_start launch --nproc-per-node 2 sh -c 'python3 wait.py never & trap "echo got TERM; exit 0" TERM; wait'
until_true 10 test -e "$work/sig/r0.1" -a -e "$work/sig/r0.0"
kill -TERM "$pid"
braid_wait
check "SIGTERM ends it with 143" exits 143
check "and reached the ranks" test "$(grep -c 'got TERM' "$out")" = 2
for r in 0 1; do
  check "no process is left of rank $r" until_true 5 is_gone "$(cut -d' ' -f1 "$work/sig/r0.$r")"
done

# ---- two launchers ----
# launch_two NAME FLAGS... -- PROGRAM...: starts launchers A and B; $pid_a, $pid_b, $work/NAME.{a,b}.
start_one() { # NAME FLAGS...
  local name=$1
  shift
  (cd "$work" && exec timeout -k 5 60 "$bin/braid" launch "$@") >"$work/$name.out" 2>"$work/$name.err" &
  pid=$!
  started+=("$pid")
}
launch_two() {
  local name=$1
  shift
  start_one "$name.a" "$@"
  pid_a=$pid
  start_one "$name.b" "$@"
  pid_b=$pid
}
wait_two() {
  code_a=0 code_b=0
  wait "$pid_a" || code_a=$?
  wait "$pid_b" || code_b=$?
  cat "$work/$1.a.out" "$work/$1.b.out" >"$out"
  cat "$work/$1.a.err" "$work/$1.b.err" >"$err"
}
both() { [ "$code_a $code_b" = "$1 $2" ] || { echo "exit codes $code_a $code_b, expected $1 $2"; return 1; }; }
there() { test -e "$work/$1"; }
word() { cut -d' ' -f"$2" "$work/$1"; }
two() { echo --nnodes 2 --nproc-per-node 2 --monitor-interval 400ms --rdzv-endpoint "127.0.0.1:$port"; }
# The process of launcher A or B itself: timeout's child.
launcher_of() { pgrep -P "$1" -x braid; }

port=$(free_port)
# shellcheck disable=SC2046
launch_two plain $(two) sh -c 'echo rank $RANK local $LOCAL_RANK of $WORLD_SIZE'
wait_two plain
check "two launchers" both 0 0
check "ranks 0 to 3, each once" test "$(sort "$out" | tr '\n' ,)" = "rank 0 local 0 of 4,rank 1 local 1 of 4,rank 2 local 0 of 4,rank 3 local 1 of 4,"

# A killed rank: all four start again, with new processes and the same place to meet; then well.
mkdir "$work/kill"
export WHERE=$work/kill
# shellcheck disable=SC2046
launch_two kill $(two) --max-restarts 1 wait.py go
for r in 0 1 2 3; do until_true 15 there "kill/r0.$r"; done
check "all meet at one place" test "$(cat "$work"/kill/r0.* | cut -d' ' -f2 | sort -u | wc -l)" = 1
kill -9 "$(word kill/r0.3 1)"
for r in 0 1 2 3; do until_true 15 there "kill/r1.$r"; done
for r in 0 1 2 3; do check "rank $r of the first round is gone" is_gone "$(word kill/r0.$r 1)"; done
touch "$work/kill/go"
wait_two kill
check "a killed rank, and all start again" both 0 0
check "both launchers name the rank" test "$(grep -c '^warning: rank 3 .*ended by signal 9' "$err")" = 2

# The same without restarts: both launchers end with the first failure's code and name it.
mkdir "$work/fail"
export WHERE=$work/fail
# shellcheck disable=SC2046
launch_two fail $(two) sh -c 'python3 wait.py go; [ $RANK = 1 ] && exit 9; exec sleep 60'
for r in 0 1 2 3; do until_true 15 there "fail/r0.$r"; done
touch "$work/fail/go"
wait_two fail
check "both launchers have the first failure's code" both 9 9
check "and its rank" test "$(grep -c '^error: rank 1 .*exit code 9' "$err")" = 2

# A launcher is killed: the other one notices, and goes on when another comes.
mkdir "$work/lost"
export WHERE=$work/lost
# shellcheck disable=SC2046
start_one lost.a $(two) --max-restarts 1 wait.py go
pid_a=$pid
until_true 10 bash -c "exec 3<>/dev/tcp/127.0.0.1/$port" # A serves the store
# shellcheck disable=SC2046
start_one lost.x $(two) --max-restarts 1 wait.py go
for r in 0 1 2 3; do until_true 15 there "lost/r0.$r"; done
kill -9 "$(launcher_of "$pid")"
until_true 15 grep -q 'the launcher on .* is lost' "$work/lost.a.err"
check "a lost launcher is noticed" grep -q 'the launcher on .* is lost' "$work/lost.a.err"
# shellcheck disable=SC2046
start_one lost.b $(two) --max-restarts 1 wait.py go
pid_b=$pid
for r in 0 1 2 3; do until_true 15 there "lost/r1.$r"; done
touch "$work/lost/go"
wait_two lost
check "another launcher takes its place" both 0 0

# ---- braid-worker: two hosts, servers elsewhere, a worker killed in the middle ----
if [ -x "$bin/braid-ps" ] && [ -x "$bin/braid-worker" ]; then
  . "$(dirname "$0")/servers.sh"
  braid datagen --rows 32000 --test-rows 2000 --cardinality 200 --out train.tsv --test-out test.tsv
  # One thread each: with more, the sums of a matrix product, and so its bits, may be others.
  job=("$repo/tests/integ/small.yaml" --threads 1 --set data.generate.rows=0 --set data.train=train.tsv --set data.test=test.tsv)
  braid run "${job[@]}" --workers 2 --servers 2 --run-dir calm
  check "an undisturbed run" exits 0
  calm=$(result param_hash)
  servers_start 2
  port=$(free_port)
  worker=(--nnodes 2 --monitor-interval 400ms --rdzv-endpoint "127.0.0.1:$port" --max-restarts 1 --coordinator "$coordinator"
    braid-worker "${job[@]}" --set train.checkpoint_every=40 --resume auto --run-dir wk)
  launch_two wk "${worker[@]}"
  step_of() { tail -1 "$work/wk/metrics.jsonl" | grep -oE '"step":[0-9]+' | head -1 | cut -d: -f2; }
  trains() { [ "$(step_of)" -gt "$1" ]; }
  until_true 30 trains 60
  kill -9 "$(pgrep -P "$(launcher_of "$pid_b")")"
  wait_two wk
  check "a killed worker, and all go on from the newest checkpoint" both 0 0
  check "from a checkpoint indeed" out_says 'resumes after step-'
  hash=$(grep -h '^RESULT' "$out" | grep -oE '"param_hash":"[0-9a-f]*"' | cut -d'"' -f4)
  check "to the undisturbed run's model: $calm, $hash" test -n "$hash" -a "$hash" = "$calm"
else
  echo "braid-ps or braid-worker is not built: training under braid launch was not tested"
fi

if is_long; then # ---- the rest needs another half minute: make soak ----
# The store goes with the launcher that serves it: the other one ends, and says why.
mkdir "$work/store"
export WHERE=$work/store
port=$(free_port)
# shellcheck disable=SC2046
start_one store.a $(two) --node-rank 0 wait.py go
serving=$pid
until_true 10 bash -c "exec 3<>/dev/tcp/127.0.0.1/$port"
# shellcheck disable=SC2046
start_one store.b $(two) --node-rank 1 wait.py go
for r in 0 1 2 3; do until_true 15 there "store/r0.$r"; done
kill -9 "$(launcher_of "$serving")"
code=0
wait "$pid" || code=$?
cp "$work/store.b.err" "$err"
check "the store is lost" exits 4
check "it is named" err_says "coordinator \(127.0.0.1:$port\): waited"

# Elastic: begins with one host, takes in the second.
mkdir "$work/grow"
export WHERE=$work/grow
port=$(free_port)
grow=(--nnodes 1:2 --nproc-per-node 1 --monitor-interval 400ms --last-call 200ms --rdzv-endpoint "127.0.0.1:$port")
start_one grow.a "${grow[@]}" wait.py go
pid_a=$pid
until_true 15 there grow/r0.0
check "one host begins" test "$(word grow/r0.0 3)" = 1
rm "$work/grow/r0.0"
start_one grow.b "${grow[@]}" wait.py go
pid_b=$pid
until_true 15 there grow/r0.1 && until_true 15 there grow/r0.0
check "with the second the world is two, no restart counted" test "$(word grow/r0.1 3)" = 2
touch "$work/grow/go"
wait_two grow
check "an elastic job" both 0 0

# ---- what a former job of the same name has left, in etcd ----
if command -v etcd >/dev/null; then
  client=$(free_port) peer=$(free_port)
  etcd --data-dir "$work/etcd" --name one --initial-cluster one=http://127.0.0.1:"$peer" \
    --listen-client-urls http://127.0.0.1:"$client" --advertise-client-urls http://127.0.0.1:"$client" \
    --listen-peer-urls http://127.0.0.1:"$peer" --initial-advertise-peer-urls http://127.0.0.1:"$peer" \
    --heartbeat-interval 10 --election-timeout 100 >"$work/etcd.log" 2>&1 &
  started+=($!)
  etcd=(--rdzv-backend etcd --rdzv-endpoint "127.0.0.1:$client" --nnodes 2 --monitor-interval 400ms)
  mkdir "$work/stale"
  export WHERE=$work/stale
  launch_two stale1 "${etcd[@]}" wait.py go
  for r in 0 1; do until_true 15 there "stale/r0.$r"; done
  kill -9 "$(launcher_of "$pid_a")" "$(launcher_of "$pid_b")"
  wait "$pid_a" "$pid_b" 2>/dev/null
  rm "$work"/stale/r0.*
  touch "$work/stale/go"
  launch_two stale2 "${etcd[@]}" wait.py go
  wait_two stale2
  check "killed launchers' state in etcd does not disturb the next ones" both 0 0
  check "which start from the beginning" there stale/r0.1
  launch_two stale3 "${etcd[@]}" wait.py go
  wait_two stale3
  check "nor does that of a job that ended well" both 0 0
else
  echo "etcd (etcd-server) is not installed: the rounds in etcd were not tested"
fi
fi
finish
