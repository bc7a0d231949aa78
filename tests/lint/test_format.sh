#!/usr/bin/env bash
# The format gate passes on the tree and fails on a badly formatted file.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

out=$(bash "$here/format.sh")
echo "$out"
if [[ $out == SKIP:* ]]; then exit 0; fi

cp "$here/../../.clang-format" "$dir/"
printf 'int f(void);\n' >"$dir/good.h"
bash "$here/format.sh" "$dir" >/dev/null
printf 'int   g( void ) {return 1;}\n' >"$dir/bad.c"
if bash "$here/format.sh" "$dir" >/dev/null 2>"$dir/err"; then
  echo "the gate let bad.c pass" >&2
  exit 1
fi
grep -q 'bad.c' "$dir/err"
rm "$dir"/*.c "$dir"/*.h
if bash "$here/format.sh" "$dir" >/dev/null 2>&1; then
  echo "the gate let an empty tree pass" >&2
  exit 1
fi
