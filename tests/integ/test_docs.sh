#!/usr/bin/env bash
# docs/JOBS.md is what the worker's option table says; every example is a job the worker accepts.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-worker
: >"$out"
"$bin/braid-worker" --print-options markdown >"$work/options.md" 2>"$err"
check "every option is printed" grep -q 'train.batch' "$work/options.md"
sed -n '/^<!-- options -->$/,$p' "$repo/docs/JOBS.md" | tail -n +2 >"$work/docs.md"
check "docs/JOBS.md is fresh (make docs)" diff "$work/docs.md" "$work/options.md"
# file:function and paths that the documents name.
named() { grep -ohE '`[a-z_./*]+\.(c|h|sh|yaml|proto)(:[a-z0-9_]+)?`' "$repo"/docs/ARCHITECTURE.md "$repo"/docs/CONFORMANCE.md "$repo"/README.md | tr -d '`' | sort -u; }
exists() { # file[:function]
  local file=${1%%:*} function=
  [ "$file" = "$1" ] || function=${1#*:}
  compgen -G "$repo/$file" >/dev/null || compgen -G "$repo/*/$file" >/dev/null || { echo "no file $file"; return 1; }
  [ -z "$function" ] || grep -qE "(^|[ *])$function\(" "$repo/$file" || { echo "no $function in $file"; return 1; }
  case $file:$function in # a test that nobody runs is none
  tests/*:main | *:) ;;
  tests/*) [ "$(grep -cE "\b$function\b" "$repo/$file")" -ge 2 ] || grep -rqE "\b$function\b" --include='*.[ch]' --exclude="${file##*/}" "$repo/tests" || { echo "$file does not run $function"; return 1; } ;;
  esac
}
check "the documents name something" test "$(named | wc -l)" -gt 30
for name in $(named); do
  check "$name exists" exists "$name"
done
check "this test sees a missing function" test "$(exists cli/cli_sup.c:no_such_function || echo missing)" != ""
for f in "$repo"/examples/*.yaml; do
  check "$(basename "$f") is a job" "$bin/braid-worker" "$f" --set data.train=given --print-config json
done
finish
