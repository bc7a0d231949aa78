#!/usr/bin/env bash
# usage: overlap.sh BUILD   how much of the dense communication hides behind compute
#
# Two workers of the bench DLRM job, with the top layers of MLPerf's DLRM (1024-1024-512-256-1), in a
# network namespace of their own. First compute alone (no rate limit) and what a step costs besides both
# (a batch of 2 samples, no limit); then the rate at which a step of 2 samples takes RATIO of compute:
# communication alone; then both together. Printed: the step times (medians over the steps, in ms) and
# step / max(comm, compute); no overlap would be about 2. The goal is 1.2 while comm is 0.8 to 1.25 of
# compute. In sync mode nothing of a step can leave before its forward is done and nothing of the next
# one can begin before all of it has arrived: step >= forward + first gradient + communication.
#
# BATCH, STEPS, RATIO: the size of the run. BUCKET, FIRST: of the gradients; the default of 25 MiB would
# send most of this model after backward. TRACE=DIR keeps the runs with a timeline of each step there.
# All of loopback is limited, the rows of the tables too: tables of two ids keep those small.
set -euo pipefail
build=$(cd "${1:?usage: overlap.sh BUILD}" && pwd)
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
batch=${BATCH:-2048} steps=${STEPS:-50} ratio=${RATIO:-0.85}
if [ "$(id -u)" != 0 ] || ! command -v tc >/dev/null || ! ip netns add "braid-overlap-$$" 2>/dev/null; then
  echo "SKIP: needs root, iproute2 and network namespaces"
  exit 0
fi
ns=braid-overlap-$$
work=$(mktemp -d)
trap 'ip netns del "$ns"; rm -rf "$work"' EXIT
ip -n "$ns" link set lo up
cd "$repo"

number() { grep -oE "\"$1\": *[-+0-9.eE]+" | head -1 | sed 's/.*: *//'; }
calc() { awk "BEGIN { printf \"%.6g\", $1 }"; }
limit() { # bits per second
  tc -n "$ns" qdisc replace dev lo root tbf rate "$1bit" burst 512kb latency 400ms
}
run() { # NAME batch: sets step_ms, bytes (sent by rank 0 a step)
  local line
  if ! line=$(ip netns exec "$ns" "$build/bin/braid" run examples/bench_dlrm.yaml --workers 2 --servers 1 \
    --run-dir "$work/$1" --set trace="$steps" --set ring.backend=tcp --set ring.bucket="${BUCKET:-512KiB}" \
    --set ring.first_bucket="${FIRST:-256KiB}" --set train.max_steps="$steps" --set train.batch="$2" \
    --set data.generate.cardinality=2 --set model.top=1024,1024,512,256 2>"$work/log" | sed -n 's/^RESULT //p') ||
    [ -z "$line" ]; then
    cat "$work/log" >&2
    exit 1
  fi
  # from the begin of one step to that of the next; the first third warms up
  step_ms=$(tr '{' '\n' <"$work/$1/trace-rank0.json" | sed -nE 's/^"name": *"lookup".*"ts": *([0-9.]+).*/\1/p' | sort -g |
    awk -v skip=$((steps / 3)) 'NR > skip + 1 { print ($1 - last) / 1000 } { last = $1 }' | sort -g |
    awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }')
  bytes=$(calc "4 * $(number dense_params <<<"$line")")
}

echo "machine: $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg), $(uname -sr)"
run compute "$batch"
compute=$step_ms
run fixed 2
fixed=$step_ms
rate=$(calc "int(2 * 8 * $bytes / (($ratio * $compute - $fixed) / 1000))") # both ranks send over one loopback
limit "$rate"
run comm 2
comm=$step_ms
run both "$batch"
[ -z "${TRACE:-}" ] || cp -r "$work" "$TRACE"
awk -v a="$compute" -v b="$comm" -v c="$step_ms" -v n="$bytes" -v r="$rate" -v f="$fixed" 'BEGIN {
  printf "dense gradients %.2f MB, rate %.0f Mbit/s, a step without either %.2f ms\n", n / 1e6, r / 1e6, f
  printf "compute alone %.2f ms, communication alone %.2f ms (%.2f of it), both %.2f ms\n", a, b, b / a, c
  printf "step / max(comm, compute) = %.2f, step / (comm + compute) = %.2f\n", c / (a > b ? a : b), c / (a + b) }'
