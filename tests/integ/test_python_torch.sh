#!/usr/bin/env bash
# The PyTorch modules: equal to nn.EmbeddingBag, loss for loss, alone and under DistributedDataParallel.
# ctest: COST 30
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/servers.sh"
. "$(dirname "$0")/python.sh"
need braid-ps
[ -e "$build/lib/libbraid.so" ] || skip "$build/lib/libbraid.so is not built"
python_with torch numpy
adult=$repo/../shared/data/adult
[ -e "$adult/adult.data.gz" ] || skip "$adult is not there"

servers_start 2
export BRAID_TEST_COORDINATOR=$coordinator BRAID_TEST_ADULT=$adult
LIMIT_S=280 run_python "$repo/clients/python/tests/test_torch.py"
check "the modules, one process and two" exits 0
check "tests have run" err_says 'Ran 10 tests'
check "nothing was skipped" sh -c "! grep -q skipped '$err'"
sed -n '/^auc/p' "$out"
check "server 0 stops in good order" server_stop 0
finish
