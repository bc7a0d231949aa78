#!/usr/bin/env bash
# braid doctor: fine hosts pass, what is missing is named with a hint.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
ulimit -n 8192 2>/dev/null || ulimit -n "$(ulimit -Hn)"
braid doctor
for what in build host braid-ps braid-worker memory 'open files' /dev/shm network GPUs clock; do
  check "it tells of $what" out_says "^(ok|BAD) +$what "
done
check "the build's commit" out_says 'commit [0-9a-f]{7}|commit unknown'
(cd "$work" && ulimit -n 256 && exec "$bin/braid" doctor) >"$out" 2>"$err" && code=0 || code=$?
check "few open files: exit code 1" exits 1
check "and a hint" out_says 'LimitNOFILE'
mkdir "$work/alone" && cp "$bin/braid" "$work/alone/"
"$work/alone/braid" doctor >"$out" 2>"$err" && code=0 || code=$?
check "programs that are not beside it: exit code 1" exits 1
check "are named" out_says '^BAD  braid-worker'
braid doctor please
check "it takes no word" exits 2
finish
