# Shared by the gates: the list of own source files. Source it.

# own_files ROOT PATTERN...: paths relative to ROOT, tracked ones where there is a git tree (so that
# build folders do not count), else all.
own_files() {
  local root=$1
  shift
  if git -C "$root" rev-parse --is-inside-work-tree >/dev/null 2>&1 &&
    [ "$(git -C "$root" rev-parse --show-toplevel)" = "$(cd "$root" && pwd -P)" ]; then
    git -C "$root" ls-files -- "$@"
  else
    local names=() p
    for p in "$@"; do names+=(-o -name "$p"); done
    (cd "$root" && find . -type f \( "${names[@]:1}" \) ! -path './build*' | sed 's,^\./,,' | sort)
  fi
}

# llvm_tool NAME: the version 14 of a clang tool, which the rules are written for, or nothing.
llvm_tool() {
  local t
  for t in "$1-14" "$1"; do
    if command -v "$t" >/dev/null && "$t" --version | grep 'version 14\.' >/dev/null; then
      echo "$t"
      return
    fi
  done
}
