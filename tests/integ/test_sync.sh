#!/usr/bin/env bash
# The promise of `sync`: the number of servers changes no bit, the number of workers changes the
# per-step loss only by rounding.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
job=$repo/tests/integ/small.yaml

run_it() { # NAME options...
  local name=$1
  shift
  braid run "$job" --run-dir "$name" "$@"
  check "$name ends well" exits 0
  check "$name says its hash" test -n "$(result param_hash)"
}

run_it s1 --workers 1 --servers 1
hash=$(result param_hash)
check "250 steps" test "$(result steps)" = 250
check "the model learns" at_least "$(result auc)" 0.6
check "nobody beats the planted model by more than luck" at_most "$(result auc)" 0.84
for how in "again 1" "s2 2" "s4 4"; do
  read -r name servers <<<"$how"
  run_it "$name" --workers 1 --servers "$servers"
  check "$name: the same parameters, bit for bit" test "$(result param_hash)" = "$hash"
done
run_it w2 --workers 2 --servers 2
run_it w4 --workers 4 --servers 2

# step loss, one a line
losses() { grep '"type":"train"' "$work/$1/metrics.jsonl" | sed 's/.*"step":\([0-9]*\).*"loss":\([-+0-9.eE]*\).*/\1 \2/'; }
agree() { # RUN: within 1e-5 relative for 50 steps, 1e-3 for 200
  join <(losses s1 | sort) <(losses "$1" | sort) | awk '
    { n++; d = $2 - $3; d = d < 0 ? -d : d; r = d / ($2 < 0 ? -$2 : $2)
      limit = $1 <= 50 ? 1e-5 : $1 <= 200 ? 1e-3 : 1
      if (r > limit) { printf "step %d: %s and %s differ by %g\n", $1, $2, $3, r; bad = 1 } }
    END { if (n != 250) { printf "%d steps of 250\n", n; bad = 1 }; exit bad }'
}
check "2 workers: the same losses" agree w2
check "4 workers: the same losses" agree w4
finish
