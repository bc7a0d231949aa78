#!/usr/bin/env bash
# usage: ps_vs_peers.sh [BUILD [KEYS,KEYS,... [ROUNDS [SECONDS]]]]   (default build 4096,16384,65536 5 2)
# Lookups and pushes of rows: `braid bench ps` beside Redis (MGET and MSET pipelined through hiredis) and a plain
# TCP connection that moves the same bytes, taking turns; medians and ratios. Each is one client process and one
# server process on the loopback. DIM (64), ROWS (1000000), DEPTH (2: batches in flight) and OPS ("lookup push")
# change the run. What is not installed is left out.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${1:-$here/../build} sizes=${2:-4096,16384,65536} rounds=${3:-5} seconds=${4:-2}
dim=${DIM:-64} rows=${ROWS:-1000000} depth=${DEPTH:-2} ops=${OPS:-lookup push}
braid=$(cd "$build" && pwd)/bin/braid
row_bytes=$((dim * 4))
work=$(mktemp -d)
redis_pid=''
clean() {
    for pid in $redis_pid; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap clean EXIT

cc -O2 -pthread -o "$work/socket_rows" "$here/peers/socket_rows.c"
port=$((20000 + $$ % 20000))
if command -v redis-server >/dev/null && cc -O2 -o "$work/redis_rows" "$here/peers/redis_rows.c" -lhiredis 2>/dev/null; then
    redis-server --port "$port" --bind 127.0.0.1 --save '' --appendonly no --dir "$work" >"$work/redis.log" 2>&1 &
    redis_pid=$!
    for _ in $(seq 100); do
        redis-cli -p "$port" ping >/dev/null 2>&1 && break
        sleep 0.1
    done
    "$work/redis_rows" "$port" fill 0 "$row_bytes" "$rows" 0 0
else
    echo "redis-server or hiredis is not installed: left out" >&2
fi
ours() { # OP SIZE DEPTH
    "$braid" bench ps --op "$1" --keys "$2" --depth "$3" --dim "$dim" --rows "$rows" --seconds "$seconds" \
        --data-dir "$work" --json |
        sed -E 's/.*"rows_per_s":([0-9.e+]+).*"p50_us":([0-9.e+]+),"p99_us":([0-9.e+]+).*/\1 \2 \3/' |
        sed "s/^/braid $1 $2 /" >>"$work/all"
}
for _ in $(seq "$rounds"); do
    for op in $ops; do
        for n in ${sizes//,/ }; do
            [ -n "$redis_pid" ] && "$work/redis_rows" "$port" "$op" "$n" "$row_bytes" "$rows" "$depth" "$seconds" |
                sed "s/^/redis $op $n /" >>"$work/all"
            ours "$op" "$n" "$depth"
            "$work/socket_rows" "$op" "$n" "$row_bytes" "$rows" "$depth" "$seconds" |
                sed "s/^/socket $op $n /" >>"$work/all"
        done
    done
done

echo "rows of $row_bytes bytes, $rows rows, uniform keys, $depth batches in flight, $(nproc) cpus, medians of $rounds rounds"
awk '
    function median(who, op, size, col,   i, j, k, t, a) {
        k = n[who, op, size]
        if (k == 0) return 0
        for (i = 1; i <= k; i++) a[i] = v[who, op, size, i, col]
        for (i = 2; i <= k; i++) for (j = i; j > 1 && a[j - 1] > a[j]; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
        return a[int((k + 1) / 2)]
    }
    function ratio(a, b) { return b > 0 ? sprintf("%.2f", a / b) : "-" }
    {
        k = ++n[$1, $2, $3]
        for (c = 4; c <= 6; c++) v[$1, $2, $3, k, c] = $c + 0
        if (!(($2, $3) in seen)) { seen[$2, $3] = 1; op[++m] = $2; size[m] = $3 }
    }
    END {
        printf "%-7s %8s | %12s %12s %12s | %9s %9s | %9s %9s %7s\n", "op", "keys", "braid rows/s", "redis", "socket", "x redis",
            "x socket", "p50 us", "p99 us", "p99/p50"
        for (i = 1; i <= m; i++) {
            b = median("braid", op[i], size[i], 4); r = median("redis", op[i], size[i], 4); s = median("socket", op[i], size[i], 4)
            p = median("braid", op[i], size[i], 5); q = median("braid", op[i], size[i], 6)
            printf "%-7s %8d | %12.0f %12.0f %12.0f | %9s %9s | %9.0f %9.0f %7s\n", op[i], size[i], b, r, s, ratio(b, r), ratio(b, s),
                p, q, ratio(q, p)
        }
    }
' "$work/all"
