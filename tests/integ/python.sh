# Sourced after lib.sh: a Python interpreter that can import what a test needs.
#   python_with MODULE...   sets $python, or skips the test
python_with() {
  local candidate
  for candidate in ${BRAID_PYTHON:+"$BRAID_PYTHON"} python3 /usr/bin/python3; do
    if "$candidate" -c "import $(IFS=, && echo "$*")" >/dev/null 2>&1; then
      python=$candidate
      return 0
    fi
  done
  skip "no python3 that can import $* (BRAID_PYTHON names an interpreter)"
}

# run_python SCRIPT ARGS...: $code, $out, $err
run_python() {
  code=0
  PYTHONPATH=$repo/clients/python BRAID_LIBRARY=$build/lib/libbraid.so PYTHONDONTWRITEBYTECODE=1 \
    timeout -k 5 "${LIMIT_S:-120}" "$python" "$@" >"$out" 2>"$err" || code=$?
}
