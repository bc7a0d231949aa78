#!/usr/bin/env python3
"""A server in a pod with a memory limit, and a job whose tables are larger: it trains to its end, and the server is
never killed for memory.

memory.py --servers RENDERED.yaml --workers RENDERED.yaml --image ROOT --work DIR --data DIR --table-bytes N
"""
import argparse
import os
import shutil
import signal
import sys
import time

import manifests
import network
import runner
from scenario import check, page_of, until
import scenario


def peak_bytes(pid):
    """Peak of the process's resident memory."""
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return next(1024 * int(line.split()[1]) for line in f if line.startswith("VmHWM:"))


def kills(group):
    """Processes that the kernel has killed for the group's memory limit; None where it does not say."""
    for name in ("memory.events", "memory.oom_control"):
        if os.path.exists(f"{group}/{name}"):
            with open(f"{group}/{name}", encoding="ascii") as f:
                words = dict(line.split() for line in f)
            return int(words["oom_kill"]) if "oom_kill" in words else None
    return None


def run(options, pods):
    servers, workers = manifests.load(options.servers), manifests.load(options.workers)
    pod, = manifests.statefulset_pods(servers)
    limit = pod.memory_bytes
    server = pods.start(servers, pod)
    until("the server is ready", lambda: server.probe("startupProbe") and server.probe("readinessProbe"))
    start = page_of(server)
    check("the budget is the pod's limit, less a fifth", 0.79 * limit < start["braid_ps_memory_budget_bytes"] < 0.81 * limit,
          start["braid_ps_memory_budget_bytes"])
    begin = time.monotonic()
    ranks = [pods.start(workers, p) for p in manifests.jobset_pods(workers, pod.namespace)]
    until("the workers end", lambda: not server.alive() or not any(r.alive() for r in ranks), options.limit_s)
    took = time.monotonic() - begin
    if not check("the server lives", server.alive(), server.process.returncode):
        return
    codes = [r.process.poll() for r in ranks]
    check("the workers end with 0", all(c == 0 for c in codes), codes)
    check("rank 0 tells its result", "RESULT {" in ranks[0].text())
    page, peak = page_of(server), peak_bytes(server.pid)
    table = page["braid_ps_rows"] * options.row_bytes
    check("the table is larger than the limit", table >= options.table_bytes > limit, table)
    check("so not all rows are in memory", page["braid_ps_rows_away"] * options.row_bytes > table - limit,
          page["braid_ps_rows_away"])
    check("the process was never larger than the limit", peak <= limit, peak)
    check("it is the first one", page["braid_ps_generation"] == 1)
    check("the kernel has killed nothing in its group", not kills(pods.group(pod)), kills(pods.group(pod)))
    check("SIGTERM: it ends with 0", server.stop(0) == 0)
    print(f"limit {limit >> 20} MiB, table {int(table) >> 20} MiB, peak {peak >> 20} MiB, {took:.0f} s")


def main():
    parser = argparse.ArgumentParser()
    for name in ("servers", "workers", "image", "work", "data"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--table-bytes", type=int, required=True)
    parser.add_argument("--row-bytes", type=int, default=1024)
    parser.add_argument("--limit-s", type=int, default=280)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves nothing behind
    net = network.Network("10gbit")
    pods = runner.ProcessRunner(net, options.image, options.work)
    try:
        os.makedirs(f"{options.work}/claims")
        shutil.copytree(options.data, f"{options.work}/claims/data")
        run(options, pods)
    except (AssertionError, KeyError) as e:
        check(f"{type(e).__name__}: {e}", False)
    finally:
        if scenario.n_failed:
            pods.show_logs()
        pods.close()
        net.close()
    print(f"memory: {scenario.n_checks - scenario.n_failed} of {scenario.n_checks} checks passed")
    return 1 if scenario.n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
