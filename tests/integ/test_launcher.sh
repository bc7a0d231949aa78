#!/usr/bin/env bash
# The launcher against stand-ins for its children: order, restarts, root causes, signals, orphans. A stand-in
# waits for what it needs (a file, a signal), never for time; one that should be stopped runs `hold` for good, so
# that a launcher that does not stop it is ended by LIMIT_S and has another exit code.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid

export BRAID_PS_BIN=$repo/tests/integ/fake/ps.sh BRAID_WORKER_BIN=$repo/tests/integ/fake/worker.sh
export FAKE_CONFIG='{"name":"t","workers":2,"servers":2,"run_dir":"runs/t","on_server_exit":"restart"}'
export LIMIT_S=20
run=$work/runs/t/latest
fresh() { rm -rf "$work/runs"; }
pid_in() { cat "$run/$1" 2>/dev/null; }
gone_file() { is_gone "$(cat "$1")"; }
started_twice() { [ "$(wc -l <"$1")" = 2 ]; }

# A good run: the result is the last line of stdout, logs are there, and everybody has the
# coordinator's address.
braid run job.yaml
check "a good run ends with 0" exits 0
check "the result is all of stdout" test "$(cat "$out")" = 'RESULT {"auc": 0.5, "steps": 1}'
check "server 1 knows the coordinator" grep -q "127.0.0.1:0 127.0.0.1:40000" "$run/ps-1/started"
check "workers get rank, world, threads" grep -qE -- "--rank 1 --world 2 --threads [0-9]+ --run-dir runs/t/[^ ]+ --coordinator 127.0.0.1:40000" "$run/worker-1.args"
check "lines carry their author" err_says '^\[ps-1\] serving on 127.0.0.1:40001'
check "the log has them too" grep -q "serving on" "$run/ps-0.log"
check "servers were asked to stop" test -f "$run/ps-0/stopped"
fresh
braid run job.yaml -o json
check "-o json: the object is all of stdout" test "$(cat "$out")" = '{"auc": 0.5, "steps": 1}'
FAKE_WORKER_0='exit 3' braid run job.yaml -o json
check "and nothing is, when it fails" test ! -s "$out"
fresh
braid run job.yaml

# Flags reach the job; the latest run is resumed in its own folder.
first=$(readlink "$run")
braid run job.yaml --workers 3 --set train.batch=7 --set=a.b=c --resume auto
check "flags become keys" grep -q -- "--set train.batch=7 --set a.b=c --set workers=3 --set servers=2" "$run/worker-0.args"
check "the worker is told to resume" grep -q -- "--resume auto" "$run/worker-0.args"
check "in the same folder" test "$(readlink "$run")" = "$first"
braid run job.yaml --resume auto --servers 3
check "another number of servers goes on" exits 0
check "with a third one" test -f "$run/ps-2/started"
check "and is told where the parts of checkpoints are" grep -q -- "--restore-from runs/t/$first" "$run/ps-2/args"
braid run job.yaml --resume auto --servers 0
check "rows on servers cannot go to the workers" exits 2
check "and that is said" err_says "^error: --servers 0: the rows of .* are on 3 servers"
braid run job.yaml --run-dir "runs/t/$first"
check "a used folder is not overwritten" err_says "^error: .*: holds a run already; go on with --resume auto"
fresh
braid run job.yaml --resume best
check "no run to resume" exits 3
check "says so" err_says "^error: runs/t: no run to resume"

# A worker that fails: one block, its code, everybody stopped.
fresh
FAKE_WORKER_1='echo "error: x.tsv:3:5: not a number: \"a\"" >&2; exit 3' FAKE_WORKER_0=hold braid run job.yaml
check "the code is the worker's" exits 3
check "the first line says it all" err_says '^error: worker-1 exit code 3 \(bad input data\): x.tsv:3:5: not a number: "a"'
check "role, rank, host" err_says "^  role     worker, rank 1, process [0-9]+ on ."
check "log" err_says "^  log      runs/t/.*/worker-1.log"
check "no result on stdout" test ! -s "$out"
check "servers stopped in order" test -f "$run/ps-0/stopped"

# The echo of a lost peer is not the cause. Worker 1 dies when the launcher asks it to stop, so after the launcher
# has seen worker 0 end.
fresh
FAKE_WORKER_0='until_file "$run_dir/armed"; echo "error: rank 1 lost" >&2; exit 4' \
  FAKE_WORKER_1='trap "kill -9 $$" TERM; touch "$run_dir/armed"; hold' braid run job.yaml
check "the killed worker is the cause" exits 137
check "with its signal" err_says "^error: worker-1 ended by signal 9"

# A server that dies is started again where it was (workers run when all servers are ready, so its pid is there); a run with on_server_exit: fail ends.
fresh
FAKE_WORKER_0='kill -9 $(cat "$run_dir/ps-1/pid"); until [ "$(wc -l <"$run_dir/ps-1/started")" = 2 ]; do sleep 0.05; done' braid run job.yaml
check "the run goes on" exits 0
check "the restart is told" err_says "^\[braid\] ps-1 ended unasked; starting it again in 200 ms"
check "the port is the same" test "$(tail -1 "$run/ps-1/started")" = "127.0.0.1:40001 127.0.0.1:40000"
fresh
FAKE_CONFIG=${FAKE_CONFIG/restart/fail} FAKE_WORKER_0='kill -9 $(cat "$run_dir/ps-1/pid"); hold' braid run job.yaml
check "policy fail ends the run" exits 137
check "with the server as the cause" err_says "^error: ps-1 ended by signal 9"
fresh
FAKE_WORKER_0=hold FAKE_PS_1='[ "$(wc -l <"$data/started")" = 1 ] || exit 1; (until_file "$data/../worker-0.pid"; kill -9 $$) &' braid run job.yaml --max-restarts 2
check "restarts are bounded" err_says "^error: ps-1 exit code 1"
check "and counted" err_says "^  restarts 2, ended again after the last allowed restart"

# A server that never comes up, in both ways; programs that do not exist.
fresh
FAKE_PS_0='echo "error: listen 127.0.0.1:1: address already in use" >&2; exit 1' braid run job.yaml
check "its own error is passed on" err_says "^error: ps-0 exit code 1 \(failure\): listen 127.0.0.1:1: address already in use"
FAKE_PS_1=hold braid run job.yaml --ready-timeout 2500ms
check "no READY is a lost peer" exits 4
check "named" err_says "^error: ps-1 did not become ready within 2.5 s"
braid run job.yaml --worker-bin /no/such/program
check "a missing program is a usage error" exits 2
check "named too" err_says "^error: program /no/such/program: No such file"
FAKE_CONFIG_ERROR='job.yaml:3: unknown key "train.bach"; did you mean "train.batch"?' braid run job.yaml
check "a wrong job is the worker's own line" test "$(cat "$err")" = 'error: job.yaml:3: unknown key "train.bach"; did you mean "train.batch"?'
check "with its code" exits 2
braid run
check "no job" err_says "^error: run: JOB.yaml is missing"
braid run job.yaml --wrokers 2
check "a wrong flag names the right one" err_says 'workers'

# Ctrl-C stops all in order; the second one kills.
fresh
FAKE_WORKER_0=hold FAKE_WORKER_1=hold braid_start run job.yaml
check "starts" until_true 10 test -f "$run/worker-1.pid"
kill -INT "$pid"
braid_wait
check "Ctrl-C gives 130" exits 130
check "the servers stopped in order" test -f "$run/ps-1/stopped"
fresh
FAKE_WORKER_0='trap "" TERM; touch "$run_dir/deaf"; hold' braid_start run job.yaml
check "starts" until_true 10 test -f "$run/deaf"
kill -INT "$pid"
check "the first is heard" until_true 5 grep -q "signal 2: stopping" "$err"
kill -INT "$pid"
braid_wait
check "the second one kills" exits 130
check "the stubborn worker is gone" until_true 5 gone_file "$run/worker-0.pid"

# No orphans, even when the launcher itself is killed; and nobody else may use its folder meanwhile.
fresh
FAKE_WORKER_0=hold FAKE_WORKER_1=hold braid_start run job.yaml --run-dir kept
run=$work/kept
check "starts" until_true 10 test -f "$run/worker-1.pid"
second=$work/second.txt
(cd "$work" && "$bin/braid" run job.yaml --run-dir kept --resume auto) 2>"$second" && true
check "the folder is locked" grep -q "^error: kept: in use by another braid" "$second"
kill -9 "$pid"
braid_wait
for f in ps-0/pid ps-1/pid worker-0.pid worker-1.pid; do
  check "$f is gone" until_true 5 gone_file "$run/$f"
done
finish
