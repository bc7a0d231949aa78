"""The peer of `braid bench allreduce`: torch.distributed with Gloo. Prints "BYTES MEDIAN_US" a line.

usage: gloo_allreduce.py RANKS MIN_BYTES MAX_BYTES REPS [again|rewrite]

rewrite: the vector is written anew before each call, outside the timed part; the slowest rank counts.
"""
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def time_calls(v, calls):
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(v)
    return time.perf_counter() - start


def time_rewritten(v, calls):
    took = 0.0
    for _ in range(calls):
        v.fill_(1.0)
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(v)
        took += time.perf_counter() - start
    slowest = torch.tensor([took], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest[0])


def run(rank, world, low, high, reps, rewrite, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)
    x = torch.zeros(high // 4)
    n = low
    while n <= high:
        v = x[: n // 4]
        calls = max(1, min(200, (64 << 20) // (n + (1 << 18))))
        us = []
        for rep in range(-1, reps):
            took = time_rewritten(v, calls) if rewrite else time_calls(v, calls)
            if rep >= 0:
                us.append(took * 1e6 / calls)
        if rank == 0:
            print(n, "%.3f" % statistics.median(us), flush=True)
        n *= 4
    dist.destroy_process_group()


if __name__ == "__main__":
    world, low, high, reps = (int(a) for a in sys.argv[1:5])
    rewrite = len(sys.argv) > 5 and sys.argv[5] == "rewrite"
    with tempfile.TemporaryDirectory() as d:
        mp.spawn(run, args=(world, low, high, reps, rewrite, d + "/store"), nprocs=world)
