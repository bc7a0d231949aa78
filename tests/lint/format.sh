#!/usr/bin/env bash
# usage: format.sh [ROOT]   every .c, .h and .cu file is as clang-format 14 writes it
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"
root=$(cd "${1:-$here/../..}" && pwd)

tool=$(llvm_tool clang-format)
if [ -z "$tool" ]; then
  echo "SKIP: clang-format 14 is not installed"
  exit 0
fi
mapfile -t files < <(own_files "$root" '*.c' '*.h' '*.cu')
if [ ${#files[@]} -eq 0 ]; then
  echo "format: no files under $root" >&2
  exit 1
fi
cd "$root"
if ! "$tool" --dry-run -Werror "${files[@]}" >"${TMPDIR:-/tmp}/braid_format.$$" 2>&1; then
  grep -E ': error:' "${TMPDIR:-/tmp}/braid_format.$$" | cut -d: -f1 | sort | uniq -c |
    awk '{print "format: " $2 ": " $1 " places; run make format"}' >&2
  rm -f "${TMPDIR:-/tmp}/braid_format.$$"
  exit 1
fi
rm -f "${TMPDIR:-/tmp}/braid_format.$$"
echo "format: ${#files[@]} files ok"
