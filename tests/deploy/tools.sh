# Finds the tools of the deploy tests: in BUILD/tools first (install-tools.sh), then in PATH.
# Sourced after tests/integ/lib.sh.

tool() { # NAME -> its path, or nothing
  if [ -x "$build/tools/bin/$1" ]; then
    echo "$build/tools/bin/$1"
  else
    command -v "$1" || true
  fi
}

tool_or_skip() { # NAME, sets $NAME
  local path
  path=$(tool "$1")
  [ -n "$path" ] || skip "$1 is not installed (tests/deploy/install-tools.sh BUILD)"
  printf -v "$1" %s "$path"
}

python_with_yaml_or_skip() { # sets $python
  for python in "$build/tools/bin/python" python3; do
    "$python" -c 'import yaml' 2>/dev/null && return 0
  done
  skip "no python3 with PyYAML (tests/deploy/install-tools.sh BUILD)"
}
