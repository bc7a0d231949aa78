#!/usr/bin/env bash
# usage: includes.sh [ROOT]   who may include what, and which outside library stays in which folder
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"
root=$(cd "${1:-$here/../..}" && pwd)

# Folder: the folders whose headers it may include. tests, bench and examples may include anything.
declare -A may=(
  [base]="base"
  [tape]="base tape"
  [proto]="base proto"
  [rpc]="base proto rpc"
  [ring]="base ring"
  [client]="base proto rpc client"
  [ps_server]="base proto rpc ps_server"
  [worker]="base tape proto rpc ring client worker"
  [cli]="base proto rpc ring client cli"
)
# Header pattern (extended regular expression): the folders that may include it.
libraries=(
  '^grpc/|^grpc(pp)?\.h|rpc'
  '^openssl/|rpc'
  '^protobuf-c/|proto'
  '^uv\.h|ps_server worker cli'
  '^rocksdb/|ps_server'
  '^(cblas|openblas.*)\.h|tape'
  '^(yaml|jansson.*|microhttpd|zlib|zstd.*|lz4.*|xxhash)\.h|base'
  '^(cuda|cublas|curand).*|base tape ring'
  '^nccl.*|ring'
  '^cmocka\.h|'
  '^jemalloc/|'
)

has_word() {
  [[ " $1 " == *" $2 "* ]]
}

# The folder that owns a header included by "path".
owner() {
  case $1 in
  braid/v1/*.pb-c.h | grpc/*/v1/*.pb-c.h | etcd/*.pb-c.h) echo proto ;; # generated from proto/
  */*) echo "${1%%/*}" ;;
  *) echo "" ;;
  esac
}

bad=0
complain() {
  echo "includes: $1" >&2
  bad=1
}

check_own() { # file:line folder header
  local to
  to=$(owner "$3")
  if [ -z "$to" ]; then
    complain "$1: \"$3\" must be written with its folder"
  elif ! has_word "${may[$2]}" "$to"; then
    complain "$1: $2/ may not include $to/ (\"$3\")"
  fi
}

check_library() { # file:line folder header
  local row
  for row in "${libraries[@]}"; do
    if [[ $3 =~ ${row%|*} ]] && ! has_word "${row##*|}" "$2"; then
      complain "$1: <$3> belongs to: ${row##*|}"
    fi
  done
}

cd "$root"
mapfile -t files < <(own_files "$root" '*.c' '*.h' '*.cu')
n=0
while IFS=: read -r file line text; do
  folder=${file%%/*}
  [ -n "${may[$folder]:-}" ] || continue
  n=$((n + 1))
  [[ $text =~ include[[:space:]]*[\<\"]([^\>\"]+) ]] && header=${BASH_REMATCH[1]}
  if [[ $text == *\"* ]]; then
    check_own "$file:$line" "$folder" "$header"
  else
    check_library "$file:$line" "$folder" "$header"
  fi
done < <(grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]' "${files[@]}" /dev/null || true)
[ $n -gt 0 ] || complain "no includes found under $root"
[ $bad -eq 0 ] || exit 1
echo "includes: $n ok"
