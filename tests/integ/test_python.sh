#!/usr/bin/env bash
# clients/python with numpy only, against one server and against three.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/servers.sh"
. "$(dirname "$0")/python.sh"
need braid-ps
[ -e "$build/lib/libbraid.so" ] || skip "$build/lib/libbraid.so is not built"
python_with numpy

for n in 1 3; do
  servers_start "$n"
  BRAID_TEST_COORDINATOR=$coordinator run_python "$repo/clients/python/tests/test_numpy.py"
  check "the numpy client, $n servers" exits 0
  check "tests have run" err_says 'Ran (1[4-9]|2[0-9]) tests'
  run_python "$repo/examples/python/trainer.py" "$coordinator"
  check "the example ends well, $n servers" exits 0
  first=$(sed -n 's/^step 1 loss //p' "$out") last=$(sed -n 's/^step 400 loss //p' "$out")
  check "the example learns: $first to $last" at_most "$(awk -v l="$last" -v f="$first" 'BEGIN { print l / f }')" 0.3
  for ((i = 0; i < n; i++)); do
    check "server $i stops in good order" server_stop "$i"
  done
  rm -rf "$work"/ps-*
done

# A server that is killed and comes back: steps wait for it, and none is lost or applied twice.
servers_start 2
for consistency in async sync; do
  BRAID_TEST_COORDINATOR=$coordinator PYTHONPATH=$repo/clients/python BRAID_LIBRARY=$build/lib/libbraid.so \
    timeout 120 "$python" -B "$repo/clients/python/tests/survive.py" "$consistency" >"$out" 2>"$err" &
  pid=$!
  started+=("$pid")
  for at in 60 120; do
    check "$consistency: step $at is reached" until_true 60 out_says "^$at\$"
    kill -9 "${server_pids[1]}"
    wait "${server_pids[1]}" 2>/dev/null || true
    check "server 1 starts again" server_start 1 2
  done
  braid_wait
  check "$consistency: every step is in the rows once" exits 0
  check "$consistency: all steps were done" out_says '^300$'
done
server_stop 1
server_stop 0
rm -rf "$work"/ps-*

# A library that is not there, or is none: an ImportError that says where it was looked for.
code=0
PYTHONPATH=$repo/clients/python BRAID_LIBRARY=$work/none.so "$python" -B -c 'import braid
try:
    braid.connect("127.0.0.1:1")
except ImportError as e:
    print(e)' >"$out" 2>"$err" || code=$?
check "a missing library is an ImportError" exits 0
check "that names the place" out_says "none.so"

# numpy only: importing braid does not import torch.
run_python -c 'import sys, braid; sys.exit("torch" in sys.modules)'
check "torch stays out" exits 0

# pip takes it, where pip can build without the network.
if "$python" -c 'import pip, setuptools, wheel' 2>/dev/null; then
  cp -r "$repo/clients/python" "$work/package" # a build writes beside its sources
  "$python" -m pip install -q --no-build-isolation --no-deps --no-index --target "$work/site" "$work/package" >"$out" 2>"$err" && code=0 || code=$?
  check "pip installs it" exits 0
  (cd "$work" && PYTHONPATH=$work/site BRAID_LIBRARY=$build/lib/libbraid.so "$python" -c 'import braid; print(braid.__file__, braid.library_version())') >"$out" 2>"$err" && code=0 || code=$?
  check "the installed package finds the library" exits 0
  check "and is the installed one" out_says "$work/site/braid.* 0\.1\.0"
fi
finish
