#!/usr/bin/env bash
# usage: dlrm.sh BUILD [braid run options...]   samples/s of the DLRM job and where its time goes
# WORKERS, SERVERS, STEPS, REPEAT: the size of the run.
set -euo pipefail
build=$(cd "${1:?usage: dlrm.sh BUILD}" && pwd)
shift
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
workers=${WORKERS:-1} servers=${SERVERS:-1} steps=${STEPS:-100} repeat=${REPEAT:-3}
cd "$repo"

cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)
echo "machine: $(nproc) cores, ${cpu:-unknown}, $(uname -sr); build $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
echo "job: DLRM, 26 tables x 100,000 ids x 16, batch 2048, $workers workers, $servers servers, $steps steps"

log=$(mktemp) lines=$(mktemp)
trap 'rm -f "$log" "$lines"' EXIT
number() { grep -oE "\"$1\": *[-+0-9.eE]+" | head -1 | sed 's/.*: *//'; }

for ((i = 1; i <= repeat; i++)); do
  if ! line=$("$build/bin/braid" run examples/bench_dlrm.yaml --workers "$workers" --servers "$servers" \
    --set train.max_steps="$steps" "$@" 2>"$log" | sed -n 's/^RESULT //p') || [ -z "$line" ]; then
    cat "$log" >&2
    exit 1
  fi
  echo "run $i: $(number samples_per_s <<<"$line") samples/s"
  echo "$(number samples_per_s <<<"$line") $line" >>"$lines"
done

# The table is that of the median run: milliseconds a step of rank 0, and the share of its time.
median=$(sort -g "$lines" | sed -n "$(((repeat + 1) / 2))p")
echo "median: ${median%% *} samples/s"
took=$(number train_s <<<"$median") ran=$(number steps <<<"$median")
sed 's/.*"phase_s": *{\([^}]*\)}.*/\1/; s/"//g; s/: */ /g; s/,/\n/g' <<<"$median" |
  awk -v took="$took" -v steps="$ran" '
    BEGIN { printf "%-16s %10s %7s\n", "where time goes", "ms/step", "share" }
    NF == 2 { printf "%-16s %10.3f %6.1f%%\n", $1, $2 * 1000 / steps, 100 * $2 / took; sum += $2 }
    END { printf "%-16s %10.3f %6.1f%%\n", "other", (took - sum) * 1000 / steps, 100 * (took - sum) / took
          printf "%-16s %10.3f %6.1f%%\n", "step", took * 1000 / steps, 100 }'
