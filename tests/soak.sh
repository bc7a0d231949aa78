#!/usr/bin/env bash
# usage: tests/soak.sh BUILD_DIR   what is too long for every run: SOAK_ROUNDS (500) kills of servers in
# each consistency, and as many rounds of a bad network; the long parts of launchers and of etcd;
# images from a fresh Debian (network) and with CUDA. A failure prints the seed that repeats it.
set -euo pipefail
bin=$(cd "${1:?usage: $0 BUILD_DIR}" && pwd)/bin
rounds=${SOAK_ROUNDS:-500}
seed=${SEED:-$RANDOM}
echo "seed $seed"
for mode in sync async bounded net; do
  "$bin/test_ps_crash" "$rounds" "$seed" "$mode"
done
for script in launch store_etcd; do
  LONG=1 bash "$(dirname "$0")/integ/test_$script.sh" "${bin%/bin}"
done
BASE=debootstrap bash "$(dirname "$0")/integ/test_container.sh" "${bin%/bin}"
BASE=local CUDA=ON bash "$(dirname "$0")/integ/test_container.sh" "${bin%/bin}"
