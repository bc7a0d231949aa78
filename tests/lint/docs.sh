#!/usr/bin/env bash
# usage: docs.sh [ROOT]   every folder explains itself in a README of at most 40 lines; files keep
# their size (a longer one says "longer than" and why in its head)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"
root=$(cd "${1:-$here/../..}" && pwd)
cd "$root"

bad=0
complain() {
  echo "docs: $1" >&2
  bad=1
}
for folder in base tape proto rpc ring client ps_server worker cli tests; do
  [ -d "$folder" ] || continue
  if [ ! -s "$folder/README.md" ]; then
    complain "$folder/README.md is missing"
  elif [ "$(wc -l <"$folder/README.md")" -gt 40 ]; then
    complain "$folder/README.md is longer than 40 lines"
  fi
done
mapfile -t files < <(own_files "$root" '*.c' '*.h' '*.cu')
for file in "${files[@]}"; do
  cap=800
  [[ $file == *.h ]] && cap=250
  [[ $file == tests/*.c ]] && cap=1000 # a scenario is better read in one piece
  n=$(wc -l <"$file")
  if [ "$n" -gt "$cap" ] && ! head -15 "$file" | grep -q 'longer than'; then
    complain "$file: $n lines, cap $cap"
  fi
done
[ $bad -eq 0 ] || exit 1
echo "docs: ok"
