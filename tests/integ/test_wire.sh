#!/usr/bin/env bash
# Our codecs and protoc-generated Python read each other's bytes, for every message of braid/v1.
#   test_wire.sh BUILD [golden]   golden: writes the missing files of tests/golden/wire instead
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/python.sh"
need test_wire
command -v protoc >/dev/null || skip "protoc is not installed"
python_with google.protobuf
: >"$out" >"$err"

mkdir -p "$work/generated" "$work/samples"
check "protoc takes the files" protoc -I "$repo/proto" --python_out="$work/generated" "$repo"/proto/braid/v1/*.proto
if [ "${2:-}" = golden ]; then
  "$python" "$repo/tests/integ/wire/wire.py" golden "$work/generated" "$bin/test_wire" "$repo/tests/golden/wire"
  exit
fi
code=0
timeout 120 "$python" -B "$repo/tests/integ/wire/wire.py" check "$work/generated" "$bin/test_wire" "$work/samples" >"$out" 2>"$err" || code=$?
check "both ways, every message" exits 0
check "60 messages or more" out_says '^[6-9][0-9]+ messages|^[1-9][0-9]{2,} messages'
sed -n 1p "$out"

# The comparison sees a difference: one byte of a sample is changed behind our reader's back.
changed() {
  local f=$work/samples/braid.v1.PushReply.1.bin
  rm -rf "$work/samples" && mkdir "$work/samples"
  printf '\x08\x01' >"$f"
  "$bin/test_wire" recode "$work/samples" && grep -q '^duplicate=1$' "${f%.bin}.txt" || return 1
  printf '\x08\x00' >"$f"
  "$bin/test_wire" recode "$work/samples" && ! grep -q duplicate "${f%.bin}.txt"
}
check "a changed byte changes the text" changed
printf '\xff\xff\xff' >"$work/samples/braid.v1.LookupRequest.1.bin"
check "garbage is refused" sh -c "! '$bin/test_wire' recode '$work/samples' 2>/dev/null"
finish
