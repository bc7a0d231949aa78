#!/usr/bin/env bash
# The demo's claim: 0.99 of the best AUC that anyone can reach, which a linear model cannot.
# ctest: COST 30
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
LIMIT_S=180
braid run "$repo/examples/demo.yaml" --workers 2 --servers 2
check "ends well" exits 0
auc=$(result auc) bayes=$(result bayes_auc)
check "planted AUC in [0.75, 0.85]: $bayes" at_least "$bayes" 0.75
check "planted AUC in [0.75, 0.85]: $bayes" at_most "$bayes" 0.85
check "AUC $auc of $bayes" at_least "$auc" "$(awk -v b="$bayes" 'BEGIN { print 0.99 * b }')"
for field in logloss samples_per_s steps workers servers param_hash wall_s; do
  check "the result has $field" test -n "$(result $field)"
done
# Without hidden layers wide_deep is linear: logistic regression over all ids and counts.
braid run "$repo/examples/demo.yaml" --workers 2 --servers 2 --set model.kind=wide_deep --set model.top= --set embedding.learning_rate=0.1
check "a linear model ends well" exits 0
check "and stays below 0.97: $(result auc)" at_most "$(result auc)" "$(awk -v b="$bayes" 'BEGIN { print 0.97 * b }')"
check "the second run took the same data" test "$(result bayes_auc)" = "$bayes"
finish
