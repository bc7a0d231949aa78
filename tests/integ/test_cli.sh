#!/usr/bin/env bash
# What users of the command line lean on: manual pages and completion that are made of the option
# tables, exit codes, help of every command.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
: >"$out" && : >"$err"

# ---- manual pages ----
"$bin/braid" __man >"$work/braid.1"
"$bin/braid-worker" --print-options man >"$work/braid-worker.1"
"$bin/braid-ps" --print-options man >"$work/braid-ps.8"
for page in braid.1 braid-worker.1 braid-ps.8; do
  check "docs/man/$page is fresh (make docs)" diff "$repo/docs/man/$page" "$work/$page"
  if command -v mandoc >/dev/null; then
    mandoc -Tlint -Wwarning "$work/$page" >"$work/lint.txt" 2>&1
    check "mandoc finds nothing in $page" test ! -s "$work/lint.txt"
  fi
  if command -v man >/dev/null && command -v groff >/dev/null; then
    LC_ALL=C.UTF-8 MANWIDTH=80 man --warnings -l "$work/$page" >/dev/null 2>"$work/man.txt"
    check "man has no warning about $page" test ! -s "$work/man.txt"
  fi
done
printf '.TH X 1\n.XX\n' >"$work/bad.1"
if command -v mandoc >/dev/null; then
  check "mandoc sees a bad page" sh -c "! mandoc -Tlint -Wwarning '$work/bad.1' >/dev/null 2>&1"
fi
for command in $("$bin/braid" help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
  check "braid help $command" "$bin/braid" help "$command"
  check "braid(1) has $command" grep -q "^\.SS braid $command$" "$work/braid.1"
done
for option in $("$bin/braid" help launch | grep -oE '^  --[a-z_]+' | tr -d ' -'); do
  check "braid(1) has launch's $option" grep -qF "\\fB\\-\\-${option//_/\\-}\\fR" "$work/braid.1"
done

# ---- kernels ----
# A BLAS that does not know the CPU must not leave the worker with kernels of 2004: OpenBLAS says
# what it takes each time it is loaded, and the last time counts.
last_kernels() { OPENBLAS_VERBOSE=2 "$@" 2>&1 | sed -n 's/^Core: *//p' | tail -1; }
if grep -qw avx2 /proc/cpuinfo && [ -n "$(last_kernels "$bin/braid-worker" --version)" ]; then
  check "matrix kernels use AVX2" sh -c "! echo '$(last_kernels "$bin/braid-worker" --version)' |
    grep -qiE '^(prescott|core2|penryn|dunnington|nehalem|atom|nano|opteron.*|athlon|barcelona|bobcat|generic|sandybridge|bulldozer)\$'"
  check "the user's choice stays" test "$(OPENBLAS_CORETYPE=Haswell last_kernels "$bin/braid-worker" --version)" = Haswell
fi

# ---- completion ----
for pair in bash:braid.bash zsh:_braid fish:braid.fish; do
  "$bin/braid" completion "${pair%%:*}" >"$work/${pair#*:}"
  check "deploy/completion/${pair#*:} is fresh (make docs)" diff "$repo/deploy/completion/${pair#*:}" "$work/${pair#*:}"
done
# complete WORD...: what bash offers for the last word.
complete_words() {
  bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _braid; printf "%s\n" "${COMPREPLY[@]}"' \
    bash "$work/braid.bash" "$@" | tr '\n' ' '
}
offers() { # EXPECTED WORD...
  local want=$1 got
  shift
  got=$(complete_words "$@")
  [ "$got" = "$want " ] || { echo "\"$got\", expected \"$want\""; return 1; }
}
check "a command" offers "datagen doctor" braid d
check "bench's kinds" offers "allreduce ps" braid bench ""
check "a verb of ps, and of its own commands" offers "drain" braid ps dr
check "a flag" offers "--rdzv-backend" braid launch --rdzv-b
check "the values of a flag" offers "table json" braid table list --format ""
check "a value after =" offers "json" braid ckpt list --format = j
check "-o" offers "json" braid ckpt list -o j
check "help's commands" offers "launch" braid help la
cd "$work" && touch job.yaml
check "files where a job is" offers "job.yaml" braid run jo
check "nothing where a number is" offers "" braid run --port ""
if command -v zsh >/dev/null; then
  check "zsh reads its script" zsh -n "$work/_braid"
fi
if command -v fish >/dev/null; then
  fish_offers() { [ "$(fish --no-config -c "source $work/braid.fish; complete -C '$1'" | cut -f1 | tr '\n' ' ')" = "$2 " ]; }
  check "fish: a command" fish_offers "braid dat" "datagen"
  check "fish: a flag" fish_offers "braid launch --rdzv-b" "--rdzv-backend"
  check "fish: a value" fish_offers "braid ckpt list --format js" "json"
fi

# ---- exit codes (base/exit_code.h) ----
code_is() { # CODE ARGS...
  local want=$1
  shift
  LIMIT_S=20 braid "$@"
  check "braid $* ends with $want" exits "$want"
}
code_is 0 version
code_is 2
code_is 2 no-such-command
code_is 2 run --no-such-flag
code_is 2 run no-such-job.yaml
code_is 2 completion csh
code_is 2 table list
code_is 3 table list --run-dir no-such-run
code_is 4 ps status --coordinator 127.0.0.1:1 --timeout 500ms
code_is 4 table list --coordinator etcd://127.0.0.1:1 --timeout 500ms
code_is 5 launch sh -c 'exit 5'
code_is 1 launch sh -c 'exit 1'
code_is 137 launch sh -c 'kill -9 $$'
for code in 0 1 2 3 4 5; do
  check "docs/OPERATIONS.md says what $code is" grep -qE "^\| $code \|" "$repo/docs/OPERATIONS.md"
done
check "and 128+n" grep -qF '| 128+n |' "$repo/docs/OPERATIONS.md"
# -o json is one JSON document, wherever there is a table.
if command -v python3 >/dev/null; then
  mkdir -p "$work/empty/ps-0"
  is_json() { python3 -c 'import json, sys; [json.loads(l) for l in open(sys.argv[1]).read().splitlines() or ["x"]]' "$1"; }
  braid doctor -o json
  check "doctor -o json" is_json "$out"
  braid ckpt list --run-dir empty -o json
  check "ckpt list -o json" is_json "$out"
  braid version -o json
  check "version -o json" is_json "$out"
  braid datagen --rows 100 --out few.tsv -o json
  check "datagen -o json" is_json "$out"
  check "is the object of its RESULT line" out_says '^\{"bayes_auc":.*"rows":100,.*"out":"few.tsv".*\}$'
  braid datagen --rows 100 --out few.tsv
  check "datagen without it" out_says '^RESULT \{"bayes_auc":'
  braid datagen --rows 100 --out few.tsv -o yaml
  check "another format is refused" exits 2
fi
finish
