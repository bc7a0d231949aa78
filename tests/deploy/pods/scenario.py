#!/usr/bin/env python3
"""Three servers and two workers as their manifests say, on links of 1 Gbit/s: a calm run, then one with a rolling
restart of all servers, a killed server and one that is cut off for 10 s. Both end with the same model, bit for bit,
and the pages of /metrics tell what happened.

scenario.py --servers RENDERED.yaml --workers RENDERED.yaml --image ROOT --work DIR --data DIR [--runner podman]
            [--lost-names]   name service loses packets while servers move
"""
import argparse
import json
import os
import re
import shutil
import signal
import sys
import time

import manifests
import network
import runner

PARTITION_S = 10
WAITS = 0.02  # of preStop and minReadySeconds, during which nothing happens but steps
n_checks = n_failed = 0


def check(text, good, seen=""):
    global n_checks, n_failed
    n_checks += 1
    if not good:
        n_failed += 1
        print(f"FAILED: {text}{': ' if seen != '' else ''}{seen}", flush=True)
    return good


def until(text, condition, limit_s=60):
    """Polls; what the condition gave. A time-out ends the test: nothing after it would mean anything."""
    end = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s} s: {text}")
        time.sleep(0.05)


def page_of(run):
    return until(f"a page of {run.pod.name}", run.metrics)


class Cluster:
    def __init__(self, options, pods, label):
        self.options, self.pods, self.label = options, pods, label
        self.servers, self.workers = manifests.load(options.servers), manifests.load(options.workers)
        self.ps = [None] * len(manifests.statefulset_pods(self.servers))
        self.rank = []

    def server_pod(self, i):
        return manifests.statefulset_pods(self.servers)[i]

    def start_server(self, i, before=None):
        self.ps[i] = self.pods.start(self.servers, self.server_pod(i), before)

    def ready(self, i):
        """As a kubelet finds out: alive (startup), then ready."""
        run = self.ps[i]

        def probes():
            if not run.alive():
                raise AssertionError(f"{run.pod.name} ended with {run.process.returncode}")
            return run.probe("startupProbe") and run.probe("readinessProbe")
        until(f"{run.pod.name} is ready", probes)

    def start(self):
        for i in range(len(self.ps)):  # podManagementPolicy: Parallel
            self.start_server(i)
        for i in range(len(self.ps)):
            self.ready(i)
        for pod in manifests.jobset_pods(self.workers, self.ps[0].pod.namespace):
            self.rank.append(self.pods.start(self.workers, pod))

    def steps(self):
        for run in self.rank:
            if not run.alive():
                raise AssertionError(f"{run.pod.name} has ended, with {run.process.returncode}, before the test was over")
        return page_of(self.rank[0]).get("braid_worker_steps_total", 0)

    def step_on(self, n):
        start = self.steps()
        until(f"the job does {n} steps", lambda: self.steps() >= start + n)

    def result(self):
        codes = [until("a worker's end", lambda r=r: not r.alive(), 180) and r.process.returncode for r in self.rank]
        check(f"{self.label}: both workers end with 0", codes == [0, 0], codes)
        line = re.findall(r"^RESULT (\{.*\})$", self.rank[0].text(), re.M)
        check(f"{self.label}: rank 0 tells its result", len(line) == 1)
        return json.loads(line[0]) if line else {}

    def stop_server(self, i, pre_stop_s=0):
        code = self.ps[i].stop(pre_stop_s)
        check(f"{self.label}: server {i} ends with 0 on SIGTERM", code == 0, code)
        self.pods.end(self.ps[i])

    def end(self):
        for i in range(len(self.ps)):
            self.stop_server(i)
        for run in self.rank:
            self.pods.end(run)


def status_of(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)


def check_isolation(run):
    """The process is what its security context says."""
    status = status_of(run.pid)
    uid, gid = run.pod.user
    check(f"{run.pod.name} is user {uid}", status["Uid"].split() == [str(uid)] * 4, status["Uid"])
    check(f"{run.pod.name} is group {gid}", status["Gid"].split() == [str(gid)] * 4, status["Gid"])
    check(f"{run.pod.name} has no capability", int(status["CapEff"], 16) == 0, status["CapEff"])
    check(f"{run.pod.name} gains no privilege", status["NoNewPrivs"] == "1")


def outages(c, server):
    """[(outages, their seconds)] of one server, as each worker has counted them. A worker that waits for the other
    one while a server is away may ask nothing of it meanwhile, and count nothing."""
    pages = [page_of(r) for r in c.rank]
    return [(p.get(f'braid_client_outages_total{{server="ps-{server}"}}', 0),
             p.get(f'braid_client_outage_seconds_total{{server="ps-{server}"}}', 0)) for p in pages]


def more(before, after):
    """What each worker has counted meanwhile; the one that counted most first."""
    return sorted(((b[0] - a[0], b[1] - a[1]) for a, b in zip(before, after)), reverse=True)


def retries(c):
    return sum(v for r in c.rank for k, v in page_of(r).items() if k.startswith("braid_client_retries_total{"))


def roll(c, lost_names):
    """kubectl rollout restart: highest number first, each ready before the next; a new pod has a new address."""
    spec = manifests.one(c.servers, "StatefulSet")["spec"]
    retries_before = retries(c)
    check("rolled: no outage before", all(n == 0 for i in range(len(c.ps)) for n, _ in outages(c, i)))
    for i in reversed(range(len(c.ps))):
        old = page_of(c.ps[i])
        c.stop_server(i, c.ps[i].pod.pre_stop_s * WAITS)
        c.pods.network.deaf = lost_names and i > 0  # the workers look for the new address, and hear nothing
        c.start_server(i)
        until(f"server {i} is alive", lambda i=i: c.ps[i].probe("startupProbe"))
        c.pods.network.deaf = False
        c.ready(i)
        new = page_of(c.ps[i])
        check(f"rolled: server {i} is a new process",
              new["process_start_time_seconds"] > old["process_start_time_seconds"])
        check(f"rolled: server {i} has started twice on its volume", new["braid_ps_generation"] == 2)
        check(f"rolled: server {i} has its rows", new["braid_ps_rows"] > 0)
        c.step_on(20)
        time.sleep(spec["minReadySeconds"] * WAITS)  # the roll-out's own wait
    for i in range(len(c.ps)):
        check(f"rolled: a worker counts an outage of server {i}", max(outages(c, i))[0] >= 1, outages(c, i))
    check("rolled: requests were sent again", retries(c) > retries_before, retries(c))


def kill(c, victim):
    """Kernel or machine end the process: its container is started again in the same pod."""
    before, at = outages(c, victim), page_of(c.ps[victim])
    c.ps[victim].kill()
    c.start_server(victim, before=c.ps[victim])
    c.ready(victim)
    page = page_of(c.ps[victim])
    check("killed: one more start on its volume", page["braid_ps_generation"] == at["braid_ps_generation"] + 1)
    check("killed: it has replayed its journal", page["braid_ps_replayed_records"] > 0)
    check("killed: and says how long it took", page["braid_ps_recovery_seconds"] > 0)
    c.step_on(20)
    counted = more(before, outages(c, victim))
    check("killed: a worker counts its outage", counted[0][0] >= 1, counted)


def cut_off(c, victim):
    """The machine of one server hears nobody for a while, and goes on."""
    run, page = c.ps[victim], page_of(c.ps[victim])
    before = outages(c, victim)
    start = time.monotonic()
    c.pods.network.set_link(run.ns, "down")
    check("cut off: the kubelet hears nothing of it", not run.probe("livenessProbe"))
    until("cut off: a worker says that it waits for the server",
          lambda: any(page_of(r).get(f'braid_client_server_down{{server="ps-{victim}"}}') == 1 for r in c.rank), PARTITION_S)
    stood = c.steps()
    time.sleep(max(0.0, start + PARTITION_S - time.monotonic()))
    check("cut off: the job stands still meanwhile", c.steps() == stood)
    c.pods.network.set_link(run.ns, "up")
    until("cut off: it is ready again", lambda: run.probe("readinessProbe"))
    c.step_on(20)
    counted, now = more(before, outages(c, victim)), page_of(run)
    check("cut off: one outage more", counted[0][0] == 1, counted)
    check("cut off: as long as the link was down", counted[0][1] >= PARTITION_S - 1, counted)
    check("cut off: no new process", now["process_start_time_seconds"] == page["process_start_time_seconds"])
    check("cut off: no start on its volume", now["braid_ps_generation"] == page["braid_ps_generation"])


def run(options, pods):
    calm = Cluster(options, pods, "calm")
    calm.start()
    until("the job runs", lambda: calm.steps() > 0)
    for pod in calm.ps + calm.rank:
        check_isolation(pod)
    want = calm.result()
    check("calm: AUC >= 0.917", want.get("auc", 0) >= 0.917, want.get("auc"))
    calm.end()
    shutil.rmtree(f"{pods.work}/claims")
    fill(options)

    rough = Cluster(options, pods, "rough")
    rough.start()
    until("the job runs", lambda: rough.steps() > 50)
    roll(rough, options.lost_names)
    kill(rough, 1)
    cut_off(rough, 2)
    got = rough.result()
    check("rough: AUC >= 0.917", got.get("auc", 0) >= 0.917, got.get("auc"))
    check("rough: the same model, bit for bit", got.get("param_hash") == want.get("param_hash") is not None,
          (got.get("param_hash"), want.get("param_hash")))
    check("rough: the same steps", got.get("steps") == want.get("steps"))
    rough.end()
    print(f"AUC {got.get('auc'):.4f}, {got.get('steps')} steps, param_hash {got.get('param_hash')}; "
          f"calm {want.get('train_s'):.1f} s, rough {got.get('train_s'):.1f} s")


def fill(options):
    """The claim with the training data."""
    path = f"{options.work}/claims/adult"
    os.makedirs(path)
    for name in ("adult.data.gz", "adult.test.gz"):
        shutil.copy(f"{options.data}/{name}", path)


def main():
    parser = argparse.ArgumentParser()
    for name in ("servers", "workers", "image", "work", "data", "repo"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--runner", choices=["process", "podman"], default="process")
    parser.add_argument("--lost-names", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves nothing behind
    net = network.Network()
    pods = None
    try:
        pods = (runner.PodmanRunner(net, options.image, options.work, options.repo) if options.runner == "podman"
                else runner.ProcessRunner(net, options.image, options.work))
        fill(options)
        run(options, pods)
    except (AssertionError, KeyError) as e:
        check(f"{type(e).__name__}: {e}", False)
    finally:
        if pods is not None:
            if n_failed:
                pods.show_logs()
            pods.close()
        net.close()
    print(f"scenario: {n_checks - n_failed} of {n_checks} checks passed")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
