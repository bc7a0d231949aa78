#!/usr/bin/env bash
# Allreduce over a rate-limited link beside iperf3: two network namespaces joined by a veth pair, tc
# htb on both ends, iperf3 and `braid bench allreduce` in turns, and the ratio.
#
#   bench/ring_netns.sh [BUILD_DIR [MBIT [BYTES [ROUNDS]]]]     default 1000 Mbit/s, 100 MiB, 3
#
# Two ranks send and receive at the same time, as many bytes each way as the vector has. So the peer
# is iperf3 --bidir, and bus bandwidth is compared with the mean of its two directions; the figure of
# iperf3 in one direction stands beside it. CONNECTIONS: of the ring. SKIP without root, namespaces or iperf3.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${1:-$here/../build}
mbit=${2:-1000}
bytes=${3:-104857600}
rounds=${4:-3}
braid=$build/bin/braid
a=braid-link-a-$$ b=braid-link-b-$$
[ -x "$braid" ] || { echo "no $braid: build first" >&2; exit 2; }
for tool in ip tc iperf3 python3; do
  command -v "$tool" >/dev/null || { echo "SKIP: no $tool"; exit 0; }
done
[ "$(id -u)" = 0 ] && ip netns add "$a" 2>/dev/null || { echo "SKIP: needs root and network namespaces"; exit 0; }
work=$(mktemp -d)
server=
cleanup() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  ip netns del "$a" 2>/dev/null || true
  ip netns del "$b" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
ip netns add "$b"
ip -n "$a" link add veth0 type veth peer name veth0 netns "$b"
address=1
for ns in "$a" "$b"; do
  ip -n "$ns" link set lo up
  ip -n "$ns" addr add "10.77.0.$address/24" dev veth0
  ip -n "$ns" link set veth0 up
  tc -n "$ns" qdisc add dev veth0 root handle 1: htb default 1
  tc -n "$ns" class add dev veth0 parent 1: classid 1:1 htb rate "${mbit}mbit" burst 256kb cburst 256kb quantum 60000
  address=$((address + 1))
done

ip netns exec "$b" iperf3 -s -B 10.77.0.2 >"$work/server" 2>&1 &
server=$!
listens() { ip netns exec "$b" ss -ltn | grep -c ':5201 ' >/dev/null; }
for _ in $(seq 100); do
  listens && break
  sleep 0.05
done

measure() { # iperf3 arguments: GB/s received, mean of the directions
  ip netns exec "$a" iperf3 -c 10.77.0.2 -t 2 -O 1 -J "$@" | python3 -c '
import json, sys
end = json.load(sys.stdin)["end"]
sums = [end[k]["bits_per_second"] for k in ("sum_received", "sum_received_bidir_reverse") if k in end]
print("%.5f" % (sum(sums) / len(sums) / 8e9))'
}
ours() {
  "$braid" bench allreduce --ranks 2 --backend tcp --buffers any --netns "$a,$b" --interface 10.77.0.0/24 \
    --connections "${CONNECTIONS:-1}" --bytes "$bytes:$bytes" --reps 3 --json |
    sed -E 's/.*"busbw_gbps":([0-9.e+-]+).*/\1/'
}
for _ in $(seq "$rounds"); do
  measure >>"$work/one"
  measure --bidir >>"$work/both"
  ours >>"$work/ours"
done
median() { sort -g "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
awk -v one="$(median "$work/one")" -v both="$(median "$work/both")" -v ours="$(median "$work/ours")" \
  -v mbit="$mbit" -v bytes="$bytes" -v n="$rounds" 'BEGIN {
  printf "link of %d Mbit/s, allreduce of %d bytes, 2 ranks, medians of %d rounds, GB/s\n", mbit, bytes, n
  printf "iperf3 one way %.4f, both ways %.4f (each), allreduce bus bandwidth %.4f\n", one, both, ours
  printf "allreduce / iperf3: %.3f of both ways, %.3f of one way\n", ours / both, ours / one }'
