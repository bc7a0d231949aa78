#!/usr/bin/env bash
# Installs what Braid needs to build and test on Debian 12 or Ubuntu 24.04, and nothing that is there
# already. Says what it does; uses sudo only when not root and something is missing.
#   deploy/install-deps.sh [--list|--names]   --list only prints what is missing, --names all of them
set -euo pipefail

packages=(
  build-essential cmake ninja-build pkg-config ccache git
  clang-format clang-tidy
  libgrpc-dev libssl-dev libprotobuf-c-dev protobuf-c-compiler protobuf-compiler
  libuv1-dev librocksdb-dev libopenblas-dev libxxhash-dev libyaml-dev libjansson-dev
  libmicrohttpd-dev zlib1g-dev libzstd-dev liblz4-dev libjemalloc-dev libcmocka-dev
  python3-numpy python3-protobuf # tests of the Python client and of the wire format
)

if [ "${1:-}" = --names ]; then
  printf '%s\n' "${packages[@]}"
  exit 0
fi
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "error: install-deps.sh knows Debian and Ubuntu (apt) only; the libraries are listed in it and in deploy/README.md" >&2
  exit 2
fi

missing=()
for p in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$p")
done
if [ "${1:-}" = --list ]; then
  [ ${#missing[@]} -eq 0 ] || printf '%s\n' "${missing[@]}"
  exit 0
fi
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "error: as root: apt-get install ${missing[*]}" >&2; exit 2; }
  as_root=(sudo)
fi
echo "install-deps: apt-get installs ${#missing[@]} missing packages: ${missing[*]}"
"${as_root[@]}" apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -q -y --no-install-recommends "${missing[@]}"
