#!/usr/bin/env bash
# The type hints of clients/python: mypy --strict accepts the package and the example that uses it, and sees a
# wrong use. The part over PyTorch's hints takes two minutes: only with LONG=1 (make soak).
# ctest: COST 10
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/python.sh"
python_with numpy
: >"$out" && : >"$err"
command -v mypy >/dev/null || skip "mypy is not installed (Debian: python3-mypy; tests/deploy/install-tools.sh BUILD)"

types() { # ARGS...: $code, $out
  code=0
  (cd "$work" && MYPYPATH=$repo/clients/python mypy --strict --python-executable "$(command -v "$python")" \
    --cache-dir "$work/cache" "$@") >"$out" 2>"$err" || code=$?
}
package=("$repo"/clients/python/braid/{__init__,client,errors,lib}.py)
types "${package[@]}" "$repo/examples/python/trainer.py"
check "the package and the example" exits 0
check "five files were looked at" out_says 'in 5 source files'
check "the package says that it has hints" grep -q '"py.typed"' "$repo/clients/python/pyproject.toml"

# What a user gets wrong is told: hints that are missing or Any would let it pass.
wrong() { # TEXT LINE
  printf 'import braid\nwith braid.connect("h:1") as c:\n    t = c.create_table("t", 4)\n    %s\n' "$2" >"$work/wrong.py"
  types "$work/wrong.py"
  check "$1: refused" exits 1
  check "$1: at the line" out_says '^wrong.py:4: error'
}
wrong "a number for a name" 'c.create_table(4, "t")'
wrong "text for keys" 't.lookup("a")'
wrong "a pooled row that is one, not a list" 'x: float = c.batch([braid.Feature(t, [1])]).forward()'
wrong "an option that is not there" 'c.create_table("t", 4, colour="red")'
wrong "a method that is not there" 'c.context().stop()'

if is_long && "$python" -c 'import torch' 2>/dev/null; then
  types -p braid
  check "the package with its PyTorch modules" exits 0
  check "with torch.py" out_says 'in 5 source files'
fi
finish
