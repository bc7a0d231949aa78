#!/usr/bin/env bash
# braid bench allreduce: real processes over each backend; one JSON object a line with the promised keys.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid
keys='op backend ranks bytes dtype median_us min_us max_us algbw_gbps busbw_gbps'
for backend in shm tcp hier; do
  braid bench allreduce --ranks 4 --backend $backend --bytes 1KiB:256KiB --reps 1 --json
  check "$backend: exit code 0" test "$code" = 0
  check "$backend: five sizes" test "$(grep -c '"op":"allreduce"' "$out")" = 5
  for key in $keys; do
    check "$backend: key $key in every line" test "$(grep -c "\"$key\":" "$out")" = 5
  done
  check "$backend: is what was asked for" grep -q "\"backend\":\"$backend\"" "$out"
done
braid bench allreduce --buffers any --bytes 64KiB --dtype bf16 --reps 1
check "any buffers, one size, bf16" test "$code" = 0
for buffers in any ring; do
  braid bench allreduce --ranks 2 --buffers $buffers --rewrite --bytes 4KiB:1MiB --reps 1 --json
  check "$buffers buffers, rewritten: five sizes" test "$(grep -c '"rewrite":true' "$out")" = 5
done
braid bench allreduce --bytes 9:4
check "a bad range is a usage error" test "$code" = 2
check "the range is named" grep -q '"9:4"' "$err"
braid bench nothing
check "an unknown benchmark is a usage error" test "$code" = 2
finish
