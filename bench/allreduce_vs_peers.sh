#!/usr/bin/env bash
# Allreduce (f32 sum) of Braid beside Open MPI and Gloo on this machine: all in one run, interleaved,
# medians over the rounds, and the ratio per size.
#
#   bench/allreduce_vs_peers.sh [BUILD_DIR [RANKS [MIN_BYTES [MAX_BYTES [ROUNDS]]]]]
#
# Open MPI: apt install libopenmpi-dev openmpi-bin. Gloo: through PyTorch. What is absent is left out.
# ratio = time of the peer / time of Braid: above 1 Braid is faster.
#
#   WAY=rewrite   (default) every vector is written anew before each call, outside the timed part, as
#                 in training; the slowest rank counts
#   WAY=again     calls one after the other on the same vectors, as in the usual benchmarks
#   WHAT="shm tcp gloo"   which columns: shm (and Open MPI's default), tcp (and Open MPI over tcp), gloo
#   LIMIT=60      seconds one program may take in one round; sizes it did not reach are left out
#
# Open MPI is asked twice: with one vector for input and output, as Braid works (ompi), and with two,
# as most programs call it (ompi-2v).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${1:-$here/../build}
ranks=${2:-2}
min=${3:-4096}
max=${4:-268435456}
rounds=${5:-3}
way=${WAY:-rewrite}
what=" ${WHAT:-shm tcp gloo} "
limit=${LIMIT:-60}
braid=$build/bin/braid
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -x "$braid" ] || { echo "no $braid: build first" >&2; exit 2; }
flag=()
[ "$way" = again ] || flag=(--rewrite)

wants() { case "$what" in *" $1 "*) ;; *) return 1 ;; esac; }
mpi=()
if command -v mpicc >/dev/null && command -v mpirun >/dev/null; then
    mpicc -O2 -o "$work/ompi" "$here/peers/ompi_allreduce.c"
    mpi=(mpirun --oversubscribe -n "$ranks")
    [ "$(id -u)" = 0 ] && mpi+=(--allow-run-as-root)
else
    echo "Open MPI is not installed: left out" >&2
fi
gloo=0
if wants gloo; then
    python3 -c 'import torch.distributed' 2>/dev/null && gloo=1 || echo "PyTorch is not installed: Gloo left out" >&2
fi

note() { # NAME: lines "BYTES US" on stdin
    sed "s/^/$1 /" >>"$work/all"
}
ours() { # NAME BACKEND BUFFERS
    timeout "$limit" "$braid" bench allreduce --ranks "$ranks" --backend "$2" --buffers "$3" --bytes "$min:$max" \
        --reps 3 "${flag[@]}" --json | sed -E 's/.*"bytes":([0-9]+).*"median_us":([0-9.e+-]+).*/\1 \2/' | note "$1" ||
        echo "$1 did not end" >&2
}
peer() { # NAME COMMAND...
    local name=$1
    shift
    timeout "$limit" "$@" 2>/dev/null | note "$name" || echo "$name did not end" >&2
}
for _ in $(seq "$rounds"); do
    if wants shm; then
        ours shm shm ring
        [ ${#mpi[@]} -gt 0 ] && peer ompi "${mpi[@]}" "$work/ompi" "$min" "$max" 3 "$way" inplace
        ours shm-any shm any
        [ ${#mpi[@]} -gt 0 ] && peer ompi-2v "${mpi[@]}" "$work/ompi" "$min" "$max" 3 "$way" apart
    fi
    if wants tcp; then
        ours tcp tcp any
        [ ${#mpi[@]} -gt 0 ] && peer ompi-tcp "${mpi[@]}" --mca btl self,tcp "$work/ompi" "$min" "$max" 3 "$way" inplace
    fi
    [ "$gloo" = 1 ] && peer gloo python3 "$here/peers/gloo_allreduce.py" "$ranks" "$min" "$max" 3 "$way"
done

echo "allreduce f32, $ranks ranks, $(nproc) cpus, $way, medians of $rounds rounds of 3, microseconds; ratio = peer / Braid"
awk '
    { v[$1, $2, ++n[$1, $2]] = $3; sizes[$2] = 1 }
    function median(name, size,   i, j, k, t, a) {
        k = n[name, size]
        if (k == 0) return 0
        for (i = 1; i <= k; i++) a[i] = v[name, size, i]
        for (i = 2; i <= k; i++) for (j = i; j > 1 && a[j - 1] > a[j]; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
        return a[int((k + 1) / 2)]
    }
    function us(x) { return x > 0 ? sprintf("%.2f", x) : "-" }
    function ratio(peer, own) { return peer > 0 && own > 0 ? sprintf("%.2f", peer / own) : "-" }
    END {
        printf "%10s %10s %10s %10s %10s %10s %10s %10s | %8s %8s %8s %8s %8s\n", "bytes", "shm", "shm-any", "ompi", "ompi-2v",
            "tcp", "ompi-tcp", "gloo", "shm/ompi", "any/ompi", "any/2v", "any/gloo", "tcp/ompi"
        m = asorti_num(order)
        for (i = 1; i <= m; i++) {
            s = order[i]
            a = median("shm", s); b = median("shm-any", s); c = median("ompi", s); c2 = median("ompi-2v", s)
            d = median("tcp", s); e = median("ompi-tcp", s); g = median("gloo", s)
            printf "%10d %10s %10s %10s %10s %10s %10s %10s | %8s %8s %8s %8s %8s\n", s, us(a), us(b), us(c), us(c2), us(d), us(e),
                us(g), ratio(c, a), ratio(c, b), ratio(c2, b), ratio(g, b), ratio(e, d)
        }
    }
    function asorti_num(out,   s, k, j, t) {
        k = 0
        for (s in sizes) out[++k] = s + 0
        for (s = 2; s <= k; s++) for (j = s; j > 1 && out[j - 1] > out[j]; j--) { t = out[j]; out[j] = out[j - 1]; out[j - 1] = t }
        return k
    }
' "$work/all"
