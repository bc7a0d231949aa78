#!/usr/bin/env bash
# The include gate passes on the tree and fails on each kind of forbidden include.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

bash "$here/includes.sh"

refused() { # folder, include, what the complaint must say
  rm -rf "${dir:?}"/*
  mkdir -p "$dir/$1"
  printf '#include %s\n' "$2" >"$dir/$1/x.c"
  if bash "$here/includes.sh" "$dir" >/dev/null 2>"$dir/err"; then
    echo "the gate let $1/x.c include $2" >&2
    exit 1
  fi
  grep -qF -- "$3" "$dir/err" || { cat "$dir/err" >&2; exit 1; }
}
allowed() { # folder, include
  rm -rf "${dir:?}"/*
  mkdir -p "$dir/$1"
  printf '#include %s\n' "$2" >"$dir/$1/x.c"
  bash "$here/includes.sh" "$dir" >/dev/null
}

refused base '"rpc/rpc.h"' 'x.c:1: base/ may not include rpc/'
refused worker '"ps_server/ps_table.h"' 'worker/ may not include ps_server/'
refused ring '"braid/v1/coordinator.pb-c.h"' 'ring/ may not include proto/'
refused cli '"worker/wk_job.h"' 'cli/ may not include worker/'
refused base '"err.h"' 'must be written with its folder'
refused ring '<grpc/grpc.h>' '<grpc/grpc.h> belongs to: rpc'
refused rpc '<uv.h>' '<uv.h> belongs to'
refused worker '<rocksdb/c.h>' 'belongs to: ps_server'
refused worker '<yaml.h>' 'belongs to: base'
refused base '<cmocka.h>' '<cmocka.h> belongs to'
allowed rpc '"grpc/health/v1/health.pb-c.h"'
allowed worker '"client/client.h"'
allowed base '<stdio.h>'
refused ring '<uv.h>' '<uv.h> belongs to'
allowed worker '<uv.h>'
