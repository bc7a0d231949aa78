#!/usr/bin/env bash
# The tidy gate passes a good file and fails on a bad one, and does not remember the bad one as good.
# (The whole tree goes through the gate in make check.)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

mkdir "$dir/build"
cp "$here/../../.clang-tidy" "$dir/"
echo "CMAKE_HOME_DIRECTORY:INTERNAL=$dir" >"$dir/build/CMakeCache.txt"
printf 'int good(int x);\n\nint good(int x)\n{\n    return x + 1;\n}\n' >"$dir/good.c"
printf 'int Bad(int x);\n\nint Bad(int x)\n{\n    if (x)\n        return 1;\n    return 2;\n}\n' >"$dir/bad.c"
database() {
  local sep='' f
  echo '['
  for f in "$@"; do
    printf '%s{\n  "directory": "%s",\n  "command": "cc -c %s",\n  "file": "%s"\n}\n' \
      "$sep" "$dir" "$dir/$f" "$dir/$f"
    sep=','
  done
  echo ']'
}

database good.c >"$dir/build/compile_commands.json"
out=$(bash "$here/tidy.sh" "$dir/build")
echo "$out"
if [[ $out == SKIP:* ]]; then exit 0; fi

database good.c bad.c >"$dir/build/compile_commands.json"
for try in 1 2; do
  if bash "$here/tidy.sh" "$dir/build" >"$dir/out" 2>&1; then
    echo "try $try: the gate let bad.c pass" >&2
    exit 1
  fi
  grep -q 'bad.c:1:5: error: invalid case style' "$dir/out"
  grep -q 'bad.c:5:11: error: statement should be inside braces' "$dir/out"
done
