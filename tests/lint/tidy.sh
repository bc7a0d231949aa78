#!/usr/bin/env bash
# usage: tidy.sh BUILD [FILE...]   clang-tidy 14 over the files of BUILD/compile_commands.json (or the
# given ones)
#
# Any finding fails. A file's result is remembered in BUILD/tidy-cache until it, one of its headers,
# a rule or its command changes. JOBS: how many at once.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"
[ $# -ge 1 ] || { echo "usage: tidy.sh BUILD [FILE...]" >&2; exit 2; }
build=$(cd "$1" && pwd)
shift
db=$build/compile_commands.json
[ -s "$db" ] || { echo "tidy: $db is missing: build first" >&2; exit 2; }
root=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$build/CMakeCache.txt")

tool=$(llvm_tool clang-tidy)
if [ -z "$tool" ]; then
  echo "SKIP: clang-tidy 14 is not installed"
  exit 0
fi

files=("$@")
if [ ${#files[@]} -eq 0 ]; then
  mapfile -t files < <(sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' "$db" | grep -v "^$build/" | sort -u)
fi
[ ${#files[@]} -gt 0 ] || { echo "tidy: no files in $db" >&2; exit 1; }

cache=$build/tidy-cache
mkdir -p "$cache"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root"
rules=$({
  "$tool" --version
  cat .clang-tidy tests/.clang-tidy 2>/dev/null || true
} | sha256sum | cut -c1-16)

# `source header` for each own header, as ninja has seen them; all headers for a file it has not.
ninja -C "$build" -t deps 2>/dev/null | awk -v root="$root/" '
  /^[^ ].*: #deps/ {source = ""; next}
  NF == 1 {
    if (source == "") source = $1
    else if (index($1, root) == 1) print source, $1
  }' >"$work/deps" || true
own_files "$root" '*.h' | sed "s,^,$root/," >"$work/headers"

# The findings of one file, from the cache or made now, into a file of $work.
one() {
  local file=$1 key log rc=0
  key=$({
    echo "$rules $file"
    grep -F "$file" "$db"
    cat "$file"
    { awk -v f="$file" '$1 == f {print $2; n++} END {exit n == 0}' "$work/deps" || cat "$work/headers"; } |
      sort -u | xargs -r cat
  } 2>/dev/null | sha256sum | cut -c1-32)
  if [ ! -e "$cache/$key" ]; then
    log=$(mktemp -p "$work" run.XXXXXX)
    # A tool that fell over (no memory, say) has said nothing of the file: once more, and not remembered.
    for try in 1 2; do
      rc=0
      # gcc's own warning flags stand in the commands
      "$tool" -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option "$file" >"$log" 2>"$log.err" || rc=$?
      [ $rc -eq 0 ] || grep -q ' error: ' "$log" || [ "$try" -eq 2 ] || continue
      break
    done
    if [ $rc -ne 0 ] && ! grep -q ' error: ' "$log"; then
      echo "$file:1:1: error: clang-tidy failed: $(tail -1 "$log.err") [tool]" >"$work/out.$key"
      return 0
    fi
    mv "$log" "$cache/$key"
  fi
  cp "$cache/$key" "$work/out.$key"
}
export -f one
export rules db cache tool build work
printf '%s\0' "${files[@]}" | xargs -0 -P "${JOBS:-$(nproc)}" -I{} bash -c 'one "$1"' _ {}

# file:line:column check, each once although many files include a header
cat "$work"/out.* | grep -E '^/.*: error: .*\[[a-zA-Z0-9.,-]+\]$' | sed "s,^$root/,," | sort -u >"$work/all" || true
if [ -s "$work/all" ]; then
  cat "$work/all" >&2
  echo "tidy: $(wc -l <"$work/all") findings, above" >&2
  exit 1
fi
echo "tidy: ${#files[@]} files ok"
