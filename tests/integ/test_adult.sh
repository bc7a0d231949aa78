#!/usr/bin/env bash
# Real data end to end: UCI Adult, two workers, two servers, the published numbers.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
data=$repo/../shared/data/adult
[ -f "$data/adult.data.gz" ] || skip "$data is not there"

braid run "$repo/examples/adult.yaml" --workers 2 --servers 2 --run-dir adult \
  --set data.train="$data/adult.data.gz" --set data.test="$data/adult.test.gz"
check "ends well" exits 0
check "all rows are scored" grep -q '"rows":16281' "$work/adult/metrics.jsonl"
check "AUC >= 0.917: $(result auc)" at_least "$(result auc)" 0.917
check "log loss <= 0.296: $(result logloss)" at_most "$(result logloss)" 0.296

# The checkpoint scores a file as training did: as many probabilities as rows, and a better one for
# the rich than for the poor on average.
braid predict "$repo/examples/adult.yaml" --run-dir adult --input "$data/adult.test.gz" --output scores.txt
check "predict ends well" exits 0
check "a probability for each row" test "$(wc -l <"$work/scores.txt")" = 16281
zcat "$data/adult.test.gz" | grep -v '^|' | grep . | paste -d' ' - "$work/scores.txt" >"$work/scored.txt"
auc() { # of "... label score" lines, by the rank sum (ties are rare)
  sed 's/.*\(>50K\|<=50K\)\. */\1 /' "$1" | sort -k2,2g |
    awk '{ if ($1 == ">50K") { p++; s += NR } else n++ } END { printf "%.6f\n", (s - p * (p + 1) / 2) / (p * n) }'
}
check "its AUC is the evaluation's: $(auc "$work/scored.txt")" at_least "$(auc "$work/scored.txt")" 0.916
finish
