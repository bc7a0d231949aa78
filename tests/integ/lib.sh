# Shared by the scripts here. Each test works in its own folder under /tmp, starts real processes on
# the loopback, waits with a bound, and ends only what it started.
#
#   braid ARGS...           runs build/bin/braid in $work; $code, $out and $err (files) tell how it went
#   check TEXT COMMAND...   counts; on failure prints TEXT and what braid said
#   free_port               a port of 127.0.0.1 for a server that must know it beforehand
#   is_long                 LONG=1 is set (make soak): parts of a script that are too slow for every run
#   finish                  the script's last line

build=$(cd "${1:?usage: $0 BUILD_DIR}" && pwd)
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=$build/bin
work=$(mktemp -d "${TMPDIR:-/tmp}/braid-integ-XXXXXX")
out=$work/out.txt err=$work/err.txt
n_checks=0 n_failed=0
started=()

cleanup() {
  local pid
  for pid in "${started[@]}"; do
    kill -9 "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  [ "${KEEP:-0}" = 1 ] || rm -rf "$work"
}
trap cleanup EXIT

skip() {
  echo "SKIP: $1"
  exit 0
}

need() { # programs in build/bin
  local p
  for p in "$@"; do
    [ -x "$bin/$p" ] || skip "$bin/$p is not built"
  done
}

braid() {
  local from=$SECONDS
  code=0
  (cd "$work" && exec timeout -k 5 "${LIMIT_S:-120}" "$bin/braid" "$@") >"$out" 2>"$err" || code=$?
  took=$((SECONDS - from))
}

# Starts braid in the background; $pid is braid itself.
braid_start() {
  (cd "$work" && exec "$bin/braid" "$@") >"$out" 2>"$err" &
  pid=$!
  started+=("$pid")
}

# Waits for the background braid: $code.
braid_wait() {
  code=0
  wait "$pid" 2>/dev/null || code=$?
}

# until_true SECONDS COMMAND...   polls
until_true() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.05
  done
}

# One that nobody listens on, below those that the kernel hands out: no connection or server of a test
# that runs meanwhile is given it before it is used.
free_port() {
  local port
  while port=$((10000 + SRANDOM % 20000)) && (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
  echo "$port"
}

is_long() { [ "${LONG:-0}" = 1 ]; }
is_gone() { ! kill -0 "$1" 2>/dev/null; }

check() {
  local text=$1
  shift
  n_checks=$((n_checks + 1))
  if "$@" >"$work/check.txt" 2>&1; then
    return 0
  fi
  n_failed=$((n_failed + 1))
  echo "FAILED: $text" >&2
  sed 's/^/    check: /' "$work/check.txt" | tail -5 >&2
  sed 's/^/    stdout: /' "$out" | tail -5 >&2
  sed 's/^/    stderr: /' "$err" | tail -25 >&2
}

exits() { [ "$code" = "$1" ] || { echo "exit code $code, expected $1"; return 1; }; }
err_says() { grep -qE -- "$1" "$err"; }
out_says() { grep -qE -- "$1" "$out"; }
within() { [ "$took" -le "$1" ] || { echo "took $took s"; return 1; }; }
# The field of the RESULT line: result auc
result() { tail -1 "$out" | sed -n 's/^RESULT //p' | grep -oE "\"$1\": *(\"[^\"]*\"|[-+.0-9eE]+)" | head -1 | sed 's/^[^:]*: *//; s/"//g'; }
at_least() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && a + 0 >= b + 0) }' || { echo "$1 < $2"; return 1; }; }
at_most() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && a + 0 <= b + 0) }' || { echo "$1 > $2"; return 1; }; }

# Of programs that are handed out: an entry of their own says where the loader looks, or an empty one the working
# directory.
no_runpath() { # FILE...
  local file
  for file in "$@"; do
    if readelf -d "$file" | grep -E '\((RPATH|RUNPATH)\)'; then
      echo "$file"
      return 1
    fi
  done
}

finish() {
  echo "$(basename "$0"): $((n_checks - n_failed)) of $n_checks checks passed"
  [ "$n_failed" = 0 ]
}
