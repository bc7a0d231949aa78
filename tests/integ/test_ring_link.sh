#!/usr/bin/env bash
# The ring over a chosen interface: two network namespaces with two links; ranks in both meet over the link
# that --interface names, by name or by address prefix, IPv4 or IPv6, and only that one carries the bytes.
# SKIP without root or network namespaces.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid
a=braid-ring-a-$$ b=braid-ring-b-$$
if [ "$(id -u)" != 0 ] || ! command -v ip >/dev/null || ! ip netns add "$a" 2>/dev/null; then
  echo "SKIP: needs root and network namespaces"
  exit 77
fi
trap 'ip netns del "$a" 2>/dev/null; ip netns del "$b" 2>/dev/null; cleanup' EXIT
ip netns add "$b"
for link in 1 2; do
  ip -n "$a" link add "fast$link" type veth peer name "fast$link" netns "$b"
done
side=1
for ns in "$a" "$b"; do
  ip -n "$ns" link set lo up
  for link in 1 2; do
    ip -n "$ns" addr add "10.78.$link.$side/24" dev "fast$link"
    ip -n "$ns" addr add "fd78:$link::$side/64" dev "fast$link" nodad
    ip -n "$ns" link set "fast$link" up
  done
  side=$((side + 1))
done
received() { # LINK
  ip netns exec "$a" cat "/sys/class/net/fast$1/statistics/rx_bytes"
}
try() { # INTERFACE LINK: carries at least the vectors, the other link next to nothing
  local before other
  before=$(received "$2") other=$(received $((3 - $2)))
  braid bench allreduce --ranks 4 --backend tcp --netns "$a,$b" --interface "$1" --connections 2 --bytes 1MiB --reps 1 --json
  check "$1: exit code 0" test "$code" = 0
  check "$1: went over fast$2" test "$(($(received "$2") - before))" -gt 1048576
  check "$1: not over the other link" test "$(($(received $((3 - $2))) - other))" -lt 65536
}
try fast1 1
try 10.78.2.0/24 2
try fd78:1::/64 1
braid bench allreduce --ranks 2 --backend tcp --netns "$a,$b" --interface fast9 --bytes 1KiB --reps 1
check "an unknown interface fails" test "$code" != 0
check "it is named, with those that exist" grep -q "no interface fast9 .*fast1 10.78.1" "$err"
finish
