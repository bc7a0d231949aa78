#!/usr/bin/env python3
"""One embedding bag on a parameter server, a fully connected net on two DDP trainers: samples/s of

    braid worker   `braid run` with two workers and one server
    braid python   braid.torch.EmbeddingBag inside a DistributedDataParallel model, one braid-ps
    pytorch rpc    RemoteModule(EmbeddingBag), dist_autograd, DistributedOptimizer: PyTorch's own pattern
    pytorch one    the same model in one process, one thread, without any RPC

in turns, `--rounds` times; medians and ratios. All train with SGD, batch 2048 a trainer, bags of 26 ids
out of 1,000,000, dim 64, net 64-64-8 with cross entropy (braid-worker: 64-64-1 with binary cross
entropy, read from a CSV file). Each trainer has 16,384 samples, which come in another order every time
it has seen them all: batches that come again as they were would find the rows that they have created
side by side. All take --iters timed steps after half as many that warm up (and create the rows). Both
Braid runs are async, pool bags at the server, ask for the next batch's bags while a batch is computed,
and let a push be applied while the next step runs (one step in flight); durability is --durability
(PyTorch's tables have none).

    python3 bench/hybrid_vs_pytorch.py [--build DIR] [--iters N] [--rounds N] [--only NAME,...]
        [--durability checkpoint|journal|sync] [--json]

Where OpenBLAS does not know the processor it takes its oldest kernels. braid-worker then names better
ones, so the script does so for all (OPENBLAS_CORETYPE, when it is not set).

Needs PyTorch with RPC (Debian: python3-torch) and a build of Braid. --json prints one object with
braid_worker_samples_per_s braid_python_samples_per_s pytorch_ddp_rpc_samples_per_s
pytorch_one_process_samples_per_s.
"""

import argparse
import ctypes
import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

REPO = pathlib.Path(__file__).resolve().parent.parent
ROWS, DIM, BATCH, BAG, CLASSES, TRAINERS = 1_000_000, 64, 2048, 26, 8, 2
DISTINCT = 8  # batches of different samples that each trainer has
ORDERS = 8  # in which they come, one after another; then again
LR = 0.05
LIMIT_S = 180
CASES = ("braid_worker", "braid_python", "pytorch_ddp_rpc", "pytorch_one_process")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# ---- what the PyTorch cases share ----
def net():
    from torch import nn

    return nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def batches(rank):
    import torch

    g, n = torch.Generator().manual_seed(rank), BATCH * DISTINCT
    ids = torch.randint(0, ROWS, (n, BAG), generator=g)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    orders = [torch.randperm(n, generator=g).view(DISTINCT, BATCH) for _ in range(ORDERS)]
    return [(ids[rows], y[rows]) for order in orders for rows in order]


def timed(step, iters, barrier=lambda: None):
    """Seconds of `iters` steps after half as many that warm up."""
    warm_up = iters // 2
    for i in range(warm_up):
        step(i)
    barrier()
    start = time.perf_counter()
    for i in range(warm_up, warm_up + iters):
        step(i)
    barrier()
    return time.perf_counter() - start


def spawn(target, n, *args):
    import torch.multiprocessing as mp

    mp.spawn(target, (*args,), n)


# ---- PyTorch in one process ----
def pytorch_one_process(args):
    import torch
    from torch import nn

    torch.set_num_threads(1)
    emb, fc = nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True), net()
    loss = nn.CrossEntropyLoss()
    opt = torch.optim.SGD([*emb.parameters(), *fc.parameters()], lr=LR)
    data = batches(0)

    def step(i):
        ids, y = data[i % len(data)]
        opt.zero_grad(set_to_none=True)
        loss(fc(emb(ids)), y).backward()
        opt.step()

    print(BATCH * args.iters / timed(step, args.iters))


# ---- PyTorch DDP + RPC ----
def _rpc_rank(rank, iters, ports):
    import torch
    import torch.distributed as dist
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc
    from torch import nn
    from torch.distributed.nn import RemoteModule
    from torch.distributed.optim import DistributedOptimizer
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    trains = rank < TRAINERS
    if trains:
        dist.init_process_group(
            "gloo", rank=rank, world_size=TRAINERS, init_method=f"tcp://127.0.0.1:{ports[0]}"
        )
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{ports[1]}", num_worker_threads=4
    )
    rpc.init_rpc(
        f"trainer{rank}" if trains else "ps", rank=rank, world_size=TRAINERS + 1, rpc_backend_options=options
    )
    if trains:
        emb = RemoteModule(
            "ps", nn.EmbeddingBag, args=(ROWS, DIM), kwargs={"mode": "sum", "sparse": True}
        )
        fc = DistributedDataParallel(net())
        params = emb.remote_parameters() + [rpc.RRef(p) for p in fc.parameters()]
        opt = DistributedOptimizer(torch.optim.SGD, params, lr=LR)
        loss = nn.CrossEntropyLoss()
        offsets = torch.arange(0, BATCH * BAG, BAG)
        data = [(ids.reshape(-1), y) for ids, y in batches(rank)]

        def step(i):
            ids, y = data[i % len(data)]
            with dist_autograd.context() as context:
                dist_autograd.backward(context, [loss(fc(emb.forward(ids, offsets)), y)])
                opt.step(context)

        seconds = timed(step, iters, dist.barrier)
        if rank == 0:
            print(TRAINERS * BATCH * iters / seconds, flush=True)
    rpc.shutdown()


def pytorch_ddp_rpc(args):
    os.environ.update(GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    spawn(_rpc_rank, TRAINERS + 1, args.iters, (free_port(), free_port()))


# ---- Braid from Python ----
def _braid_rank(rank, iters, port, coordinator, durability):
    import braid
    import braid.torch
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", rank=rank, world_size=TRAINERS, init_method=f"tcp://127.0.0.1:{port}"
    )
    client = braid.torch.connect(coordinator, consistency="async", steps_in_flight=1)
    emb = braid.torch.EmbeddingBag(
        client,
        "bag",
        DIM,
        mode="sum",
        initializer=braid.normal(0.0, 1.0),
        optimizer=braid.sgd(LR),
        durability=durability,
    )
    fc = DistributedDataParallel(net())
    opt, loss, data = torch.optim.SGD(fc.parameters(), lr=LR), nn.CrossEntropyLoss(), batches(rank)

    ahead = [emb.prefetch(data[0][0])]

    def step(i):
        now, y = ahead.pop(), data[i % len(data)][1]
        ahead.append(emb.prefetch(data[(i + 1) % len(data)][0]))
        with braid.torch.context(client) as context:
            opt.zero_grad(set_to_none=True)
            loss(fc(emb(now)), y).backward()
            opt.step()
            context.step()

    def all_applied():
        client.wait()
        dist.barrier()

    seconds = timed(step, iters, all_applied)
    if rank == 0:
        print(TRAINERS * BATCH * iters / seconds, flush=True)
    dist.barrier()
    client.close()


def braid_python(args):
    os.environ.update(GLOO_SOCKET_IFNAME="lo")
    with tempfile.TemporaryDirectory() as work:
        read, write = os.pipe()
        server = subprocess.Popen(
            [args.build / "bin/braid-ps", "--data-dir", f"{work}/ps", "--log-level", "error"]
            + ["--listen", "127.0.0.1:0", "--ready-fd", str(write)],
            pass_fds=[write],
        )
        try:
            os.close(write)
            with os.fdopen(read) as ready:
                coordinator = ready.readline().split()[1]
            spawn(_braid_rank, TRAINERS, args.iters, free_port(), coordinator, args.durability)
        finally:
            server.terminate()
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()


# ---- braid-worker ----
JOB = """
name: hybrid
workers: {workers}
servers: 1
consistency: async
durability: {durability}
run_dir: {work}/run
model: {{kind: mlp, dim: 64, top: [64]}}
data:
  format: csv
  train: {work}/train.csv
  schema: ["label:label(value)", "ids:multi(|)"]
train:
  batch: {batch}
  epochs: 1000000
  max_steps: {steps}
  optimizer: sgd
  learning_rate: {lr}
  checkpoint_at_end: false
  log_every: {warm_up}
"""


def braid_worker(args):
    import random

    with tempfile.TemporaryDirectory() as work:
        random.seed(0)
        with open(f"{work}/train.csv", "w", encoding="ascii") as f:
            for _ in range(TRAINERS * BATCH * DISTINCT):
                ids = "|".join(str(random.randrange(ROWS)) for _ in range(BAG))
                f.write(f"{random.randrange(2)},{ids}\n")
        job = pathlib.Path(work, "job.yaml")
        job.write_text(
            JOB.format(
                workers=TRAINERS,
                durability=args.durability,
                work=work,
                batch=TRAINERS * BATCH,
                warm_up=args.iters // 2,
                steps=args.iters // 2 * 3,
                lr=LR,
            )
        )
        run = subprocess.run(
            [args.build / "bin/braid", "run", job], capture_output=True, text=True, cwd=REPO
        )
        if run.returncode != 0:
            sys.exit(f"braid run: exit code {run.returncode}\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
        lines = pathlib.Path(work, "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
        # A line for the warm-up, and two for as many steps each.
        rates = [m["samples_per_s"] for m in map(json.loads, lines) if m["type"] == "train"]
        print(statistics.harmonic_mean(rates[1:]))


# ---- all in turns ----
def kernels():
    """OPENBLAS_CORETYPE as braid-worker would set it (tape/cpu_blas.c)."""
    try:
        blas = ctypes.CDLL("libopenblas.so.0")
        blas.openblas_get_corename.restype = ctypes.c_char_p
        is_old = blas.openblas_get_corename() in (b"Prescott", b"Core2", b"Nehalem", b"Barcelona")
        flags = re.search(r"^flags.*", pathlib.Path("/proc/cpuinfo").read_text(), re.M).group().split()
    except (AttributeError, OSError):
        return {}
    if not is_old or "avx2" not in flags:
        return {}
    return {"OPENBLAS_CORETYPE": "SkylakeX" if "avx512vl" in flags else "Haswell"}


def once(case, args):
    command = [sys.executable, __file__, "--case", case, "--build", args.build, "--iters", str(args.iters)]
    command += ["--durability", args.durability]
    env = {
        **kernels(),
        **os.environ,
        "PYTHONPATH": str(REPO / "clients/python"),
        "BRAID_LIBRARY": str(args.build / "lib/libbraid.so"),
        "OMP_NUM_THREADS": "1",
    }
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    if run.returncode != 0:
        sys.exit(f"{case}: exit code {run.returncode}\n{run.stdout[-2000:]}{run.stderr[-4000:]}")
    return float(run.stdout.split()[-1])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=pathlib.Path, default=REPO / "build")
    parser.add_argument("--iters", type=int, default=200, help="timed steps a case and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--durability", choices=("checkpoint", "journal", "sync"), default="journal")
    parser.add_argument("--only", default=",".join(CASES), help="cases, separated by commas")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.build = args.build.resolve()
    if args.case:
        globals()[args.case](args)
        return
    cases = args.only.split(",")
    unknown = set(cases) - set(CASES)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: cases are {', '.join(CASES)}")
    figures = {case: [] for case in cases}
    for _ in range(args.rounds):
        for case in cases:
            figures[case].append(once(case, args))
    median = {case: statistics.median(v) for case, v in figures.items()}
    if args.json:
        print(json.dumps({f"{case}_samples_per_s": round(v) for case, v in median.items()}))
        return
    rpc = median.get("pytorch_ddp_rpc")
    print(f"{'':20} {'samples/s':>10} {'least':>10} {'most':>10} {'x pytorch rpc':>14}")
    for case in cases:
        ratio = f"{median[case] / rpc:14.2f}" if rpc else f"{'-':>14}"
        print(f"{case:20} {median[case]:10.0f} {min(figures[case]):10.0f} {max(figures[case]):10.0f} {ratio}")


if __name__ == "__main__":
    main()
