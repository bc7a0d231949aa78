#!/usr/bin/env bash
# docs/OPERATIONS.md and docs/LAUNCH.md against the programs: options with their defaults and texts, metrics, commands,
# variables, units, samples, ports (tests/deploy/operations.py); /metrics itself: test_promtool_metrics.sh. And the
# version that programs say of themselves: the same for the same commit, however it was cloned.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
: >"$out" && : >"$err"
command -v python3 >/dev/null || skip "no python3"
others=("$repo/docs/LAUNCH.md" "$repo/docs/KUBERNETES.md" "$repo/README.md")
is_true() { python3 "$repo/tests/deploy/operations.py" "$bin" "$1" "${others[@]}"; }
check "what docs/OPERATIONS.md and the others name is there" is_true "$repo/docs/OPERATIONS.md"

planted() { # SED SCRIPT, WHAT MUST BE SAID
  sed "$1" "$repo/docs/OPERATIONS.md" >"$work/planted.md"
  ! cmp -s "$work/planted.md" "$repo/docs/OPERATIONS.md" || { echo "nothing was planted"; return 1; }
  if is_true "$work/planted.md" >"$work/said.txt"; then return 1; fi
  grep -qF -- "$2" "$work/said.txt" || { cat "$work/said.txt"; return 1; }
}
check "a wrong default is seen" planted 's/^| `register_wait` | `60s`/| `register_wait` | `50s`/' "register_wait: default"
check "a wrong text" planted 's/Which server this is, counted from 0/Which server this is, counted from 1/' "index: "
check "an option that is not there" planted 's/^| `bound_wait`/| `bound_weight`/' "no option bound_weight"
check "one that is left out" planted '/^| `bound_wait`/d' "option bound_wait is not in it"
check "a metric that is not there" planted 's/`braid_ps_rows`/`braid_ps_rowz`/' "braid_ps_rowz"
check "a verb that is not there" planted 's/`braid ps undrain`/`braid ps refill`/' "no ps refill"
check "an option of a command" planted 's/braid ckpt prune --keep N/braid ckpt prune --retain N/' "no option --retain"
check "a variable" planted 's/`PET_NODE_RANK`/`PET_NODE_RANKS`/' "PET_NODE_RANKS"
check "a unit" planted 's/`braid-ps@.service`/`braid-server@.service`/' "no unit braid-server@"
check "a sample" planted 's,samples/ps.env,samples/server.env,' "no sample server.env"
check "a file that no unit reads" planted 's,/etc/braid/ps-0.env,/etc/braid/server-0.env,' "/etc/braid/server"

# The version: the script of every build, in clones of two depths and in a folder that is no clone but lies in one.
if command -v git >/dev/null && command -v cmake >/dev/null && git -C "$repo" rev-parse -q --verify HEAD >/dev/null 2>&1; then
  header() { cmake "-DSOURCE=$1" "-DOUT=$work/$2.h" -DFEATURES=f -P "$repo/deploy/cmake/BraidBuildInfo.cmake"; }
  g() { git -C "$work/origin" -c user.name=x -c user.email=x@x -c commit.gpgsign=false "$@"; }
  make_clones() {
    git init -q "$work/origin" && echo 1 >"$work/origin/f" && g add f && g commit -qm one && echo 2 >"$work/origin/f" &&
      g commit -qam two && git clone -q "file://$work/origin" "$work/whole" &&
      git clone -q --depth 1 "file://$work/origin" "$work/shallow" && mkdir -p "$work/whole/sub/tree"
  }
  check "two clones" make_clones
  git -C "$work/whole" config core.abbrev 5
  check "a version of each" header "$work/whole" whole
  check "of the shallow one too" header "$work/shallow" shallow
  check "they are the same" cmp "$work/whole.h" "$work/shallow.h"
  check "and say the commit" grep -qF "\"$(g rev-parse HEAD | cut -c 1-12)\"" "$work/whole.h"
  echo 3 >"$work/whole/f"
  check "a changed tree" header "$work/whole" dirty
  check "says so" grep -qE 'COMMIT "[0-9a-f]{12}-dirty"' "$work/dirty.h"
  check "a tree inside another project's clone" header "$work/whole/sub/tree" inside
  check "does not take its commit" grep -qF 'COMMIT "unknown"' "$work/inside.h"
else
  echo "NOTICE: no git, no cmake or no clone: the version string is not checked"
fi
finish
