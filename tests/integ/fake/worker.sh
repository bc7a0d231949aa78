#!/usr/bin/env bash
# Stands in for braid-worker: prints FAKE_CONFIG, or runs FAKE_WORKER_<rank> (rank 0 ends with a
# RESULT unless it exits before).
hold() { while :; do sleep 0.05; done; }                        # until a signal ends it
until_file() { until [ -e "$1" ]; do sleep 0.05; done; }
args="$*"
extra=
while [ $# -gt 0 ]; do
  case $1 in
  --rank) rank=$2 ;;
  --run-dir) run_dir=$2 ;;
  --print-config)
    [ -z "${FAKE_CONFIG_ERROR:-}" ] || { echo "error: $FAKE_CONFIG_ERROR" >&2; exit 2; }
    echo "${FAKE_CONFIG:-{\}}"
    exit 0
    ;;
  esac
  shift
done
echo "$args" >"$run_dir/worker-$rank.args"
echo $$ >"$run_dir/worker-$rank.pid"
trap 'exit 143' TERM
plan=FAKE_WORKER_$rank
eval "${!plan:-}"
[ "$rank" != 0 ] || echo 'RESULT {"auc": 0.5, "steps": 1}'
