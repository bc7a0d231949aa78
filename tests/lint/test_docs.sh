#!/usr/bin/env bash
# The docs gate passes on the tree and fails on a missing or long README and on an oversized file.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

bash "$here/docs.sh"

refused() {
  if bash "$here/docs.sh" "$dir" >/dev/null 2>"$dir/err"; then
    echo "the gate let pass: $1" >&2
    exit 1
  fi
  grep -qF -- "$1" "$dir/err" || { cat "$dir/err" >&2; exit 1; }
}
mkdir "$dir/base"
printf 'int x;\n' >"$dir/base/x.c"
refused 'base/README.md is missing'
seq 41 >"$dir/base/README.md"
refused 'longer than 40 lines'
echo 'base' >"$dir/base/README.md"
bash "$here/docs.sh" "$dir" >/dev/null
seq 801 | sed 's,.*,/* & */,' >"$dir/base/x.c"
refused 'base/x.c: 801 lines, cap 800'
sed -i '1i/* This file is longer than most, because. */' "$dir/base/x.c"
bash "$here/docs.sh" "$dir" >/dev/null
