#!/usr/bin/env bash
# The ring between hosts: four network namespaces on a bridge, IPv4 and IPv6, and the conformance
# matrix, worlds 1 to 8, over tcp and over shared memory + tcp (build/bin/test_ring_hosts). A link that
# drops everything, for good or for a while. The namespaces are made and removed here.
# ctest: COST 15
set -uo pipefail
. "$(dirname "$0")/lib.sh"
need test_ring_hosts
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
for tool in ip nft; do
  command -v "$tool" >/dev/null || skip "$tool is not installed"
done

tag=brt$$
n_hosts=4

remove() {
  local i
  for ((i = 0; i < n_hosts; i++)); do
    ip netns del "$tag-$i" 2>/dev/null || true
  done
  ip link del "${tag}br" 2>/dev/null || true
  cleanup
}
trap remove EXIT

ip netns add "$tag-0" 2>/dev/null || skip "this machine makes no network namespaces"
ip link add "${tag}br" type bridge 2>/dev/null || skip "this machine makes no bridges"
ip link set "${tag}br" up
hosts=
for ((i = 0; i < n_hosts; i++)); do
  ns=$tag-$i
  [ "$i" = 0 ] || ip netns add "$ns"
  ip link add "${tag}v$i" type veth peer name eth0 netns "$ns" 2>/dev/null ||
    skip "this machine makes no virtual links"
  ip link set "${tag}v$i" master "${tag}br" up
  ip -n "$ns" addr add "10.77.0.$((10 + i))/24" dev eth0
  ip -n "$ns" -6 addr add "fd77::$((10 + i))/64" dev eth0 nodad || skip "no IPv6"
  ip -n "$ns" link set eth0 up
  ip -n "$ns" link set lo up
  hosts+="$ns,10.77.0.$((10 + i)),fd77::$((10 + i)) "
done
ip netns exec "$tag-0" nft list ruleset >/dev/null 2>&1 || skip "this machine has no nftables"

BRAID_TEST_HOSTS=$hosts timeout 250 "$bin/test_ring_hosts" >"$out" 2>"$err"
code=$?
cat "$out" "$err"
check "the ring between namespaces" [ "$code" = 0 ]
finish
