#!/usr/bin/env bash
# Jester and MovieTweetings: factors beat biases where the data allows it, biases and genres do not
# over-fit where it does not.
# ctest: COST 20
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
shared=$repo/../shared/data
[ -f "$shared/jester5k/jester5k.tsv.gz" ] || skip "$shared is not there"
mkdir -p "$work/here"
ln -s "$(cd "$repo/../shared" && pwd)" "$work/shared" # the jobs say ../shared/data
LIMIT_S=90

ratings() { # JOB OPTION...
  local job=$1
  shift
  code=0
  (cd "$work/here" && exec timeout "$LIMIT_S" "$bin/braid" run "$repo/examples/$job.yaml" --workers 2 --servers 2 "$@") >"$out" 2>"$err" || code=$?
  check "$job ends well" exits 0
}

ratings jester
jester=$(result auc)
check "jester: AUC >= 0.805: $jester" at_least "$jester" 0.805
ratings jester --set model.dim=0 --workers 1 --servers 1
check "its factors are worth 0.02 over biases: $(result auc)" at_least "$(awk -v a="$jester" -v b="$(result auc)" 'BEGIN { print a - b }')" 0.02
ratings movietweetings
check "movietweetings: AUC >= 0.803: $(result auc)" at_least "$(result auc)" 0.803
finish
