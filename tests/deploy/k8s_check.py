#!/usr/bin/env python3
"""Checks rendered manifests strictly: k8s_check.py [--bin DIR] [--self-test] FILE...

Fields and types by the Kubernetes schemas (PyPI kubernetes-validate, where it is installed) and by
k8s_crd.py; then the conventions that make a stateful service survive its upgrades, each of which
somebody's cluster has paid for. With --bin, variables are checked against the options of the
binaries there. --self-test plants a mistake for each rule and expects it to be found.
"""
import argparse
import copy
import os
import re
import subprocess
import sys

import yaml

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import k8s_crd  # noqa: E402

try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None

KUBERNETES = "1.30"
PREFIX = "app.kubernetes.io/"
SELECTOR_LABELS = {PREFIX + "name", PREFIX + "instance", PREFIX + "component"}
EXIT_CODES_NO_RETRY = [2, 3, 5]


class StrictLoader(yaml.SafeLoader):
    """A key twice in one mapping is an error, not the last one."""


def _mapping(loader, node):
    seen = set()
    for key, _ in node.value:
        name = loader.construct_object(key)
        if name in seen and name != "<<":
            raise yaml.YAMLError(f"line {key.start_mark.line + 1}: key {name!r} twice")
        seen.add(name)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load(path):
    with open(path, encoding="utf-8") as f:
        return [d for d in yaml.load_all(f, StrictLoader) if d is not None]


def name_of(doc):
    return f"{doc.get('kind')}/{doc.get('metadata', {}).get('name')}"


# ---- fields and types ----

def check_builtin(doc, at, problems):
    if kubernetes_validate is None:
        return
    try:
        kubernetes_validate.validate(doc, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as e:
        problems.append(f"{at}: {'.'.join(str(p) for p in e.path)}: {e.message}")
    except kubernetes_validate.SchemaNotFoundError:
        problems.append(f"{at}: unknown kind {doc.get('apiVersion')} {doc.get('kind')}")


def check_types(doc, problems):
    at = name_of(doc)
    spec = k8s_crd.SPECS.get((doc.get("apiVersion"), doc.get("kind")))
    if spec is None:
        check_builtin(doc, at, problems)
        return
    jobs = []
    k8s_crd.check(doc, {"!apiVersion": str, "!kind": str, "!metadata": k8s_crd.METADATA, "!spec": spec}, at, problems,
                  jobs)
    for where, job in jobs:
        body = copy.deepcopy(job)
        body.setdefault("template", {})
        check_builtin({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": body}, where,
                      problems)


# ---- rules ----

class Rules:
    def __init__(self, docs, options):
        self.docs, self.options, self.problems = docs, options, []

    def say(self, doc, text):
        self.problems.append(f"{name_of(doc)}: {text}")

    def of(self, kind):
        return [d for d in self.docs if d.get("kind") == kind]

    def find(self, kind, name):
        return next((d for d in self.of(kind) if d["metadata"]["name"] == name), None)

    def run(self):
        for doc in self.of("StatefulSet"):
            self.statefulset(doc)
        for doc in self.of("JobSet"):
            self.jobs(doc, doc["spec"])
        for doc in self.of("ClusterTrainingRuntime"):
            self.jobs(doc, doc["spec"]["template"]["spec"])
        for doc in self.of("HorizontalPodAutoscaler"):
            self.say(doc, "servers are not scaled by load: their number is a fact of the data")
        for doc in self.of("PodDisruptionBudget"):
            if doc["spec"].get("maxUnavailable") != 1 or "minAvailable" in doc["spec"]:
                self.say(doc, "maxUnavailable: 1 alone lets nodes be drained and keeps the others up")
            if doc["spec"].get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
                self.say(doc, "unhealthyPodEvictionPolicy: AlwaysAllow, else a broken pod blocks its node")
        return self.problems

    # -- the servers --
    def statefulset(self, doc):
        spec = doc["spec"]
        template = spec["template"]
        pod = template["spec"]
        say = lambda text: self.say(doc, text)  # noqa: E731
        if spec.get("podManagementPolicy") != "Parallel":
            say("podManagementPolicy is not Parallel: servers wait for each other and dead-lock")
        service = self.find("Service", spec.get("serviceName"))
        if service is None or service["spec"].get("clusterIP") != "None":
            say("serviceName names no headless Service")
        elif not service["spec"].get("publishNotReadyAddresses"):
            say("the headless Service hides servers that are not ready: they cannot register")
        selector = spec["selector"]["matchLabels"]
        if not set(selector) <= SELECTOR_LABELS:
            say(f"selector has labels that change: {sorted(set(selector) - SELECTOR_LABELS)}")
        labels = template["metadata"]["labels"]
        if any(labels.get(k) != v for k, v in selector.items()):
            say("selector does not match the template's labels")
        for claim in spec.get("volumeClaimTemplates", []):
            extra = set(claim["metadata"].get("labels", {})) - SELECTOR_LABELS
            if extra:
                say(f"volumeClaimTemplates cannot be updated, and has labels that change: {sorted(extra)}")
        if spec.get("volumeClaimTemplates") and set(
                (spec.get("persistentVolumeClaimRetentionPolicy") or {}).values()) != {"Retain"}:
            say("persistentVolumeClaimRetentionPolicy: Retain for both, else scaling down deletes rows")
        grace = pod.get("terminationGracePeriodSeconds", 30)
        sleep = pod["containers"][0].get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        if grace < 60 or sleep >= grace / 2:
            say(f"terminationGracePeriodSeconds {grace} (preStop {sleep}) is too short to write rows back")
        if pod["containers"][0].get("lifecycle", {}).get("preStop", {}).keys() - {"sleep"}:
            say("preStop runs a program; the server drains by itself on SIGTERM")
        self.pod(doc, pod, template)
        container = pod["containers"][0]
        self.probes(doc, container)
        env = self.env(doc, container)
        self.option_names(doc, env, "braid-ps")
        if env.get("BRAID_SERVERS") != str(spec["replicas"]):
            say(f"BRAID_SERVERS is {env.get('BRAID_SERVERS')}, replicas {spec['replicas']}")
        for option, port in (("LISTEN", "grpc"), ("HEALTH_LISTEN", "health"), ("METRICS_LISTEN", "metrics")):
            if self.port(container, port) != env.get("BRAID_" + option, "").rpartition(":")[2]:
                say(f"port {port} is not the one of BRAID_{option}")
        for variable in ("BRAID_ADVERTISE", "BRAID_COORDINATOR"):
            if f".{spec.get('serviceName')}." not in env.get(variable, ""):
                say(f"{variable} is not a name of the headless Service")

    def probes(self, doc, container):
        for probe, service in (("startupProbe", "liveness"), ("livenessProbe", "liveness"),
                               ("readinessProbe", "readiness")):
            grpc = container.get(probe, {}).get("grpc", {})
            if grpc.get("service") != service or str(grpc.get("port")) != self.port(container, "health"):
                self.say(doc, f"{probe} does not ask the health port for {service}")
        start = container.get("startupProbe", {})
        if start.get("periodSeconds", 10) * start.get("failureThreshold", 3) < 300:
            self.say(doc, "startupProbe gives less than 300 s: a long replay is killed and starts over")

    # -- the workers --
    def jobs(self, doc, spec):
        for job in spec["replicatedJobs"]:
            self.job(doc, job["template"]["spec"])
        rules = spec.get("failurePolicy", {}).get("rules", [])
        if not any(r["action"] == "FailJobSet" for r in rules):
            self.say(doc, "a job file that is wrong would be tried again and again: no FailJobSet rule")
        if not any(r["action"] == "RestartJobSetAndIgnoreMaxRestarts" for r in rules):
            self.say(doc, "evictions use up maxRestarts")
        for rule in rules:
            for pattern in rule.get("onJobFailureMessagePatterns", []):
                re.compile(pattern)

    def job(self, doc, job):
        template = job["template"]
        pod = template["spec"]
        say = lambda text: self.say(doc, text)  # noqa: E731
        if job.get("backoffLimit") != 0 or pod.get("restartPolicy") != "Never":
            say("backoffLimit 0 and restartPolicy Never: a rank cannot come back alone")
        codes = [c for r in job.get("podFailurePolicy", {}).get("rules", []) for c in
                 r.get("onExitCodes", {}).get("values", [])]
        if codes != EXIT_CODES_NO_RETRY:
            say(f"podFailurePolicy ends the job for exit codes {codes}, not for {EXIT_CODES_NO_RETRY}")
        names = [c["name"] for c in pod["containers"]]
        for r in job.get("podFailurePolicy", {}).get("rules", []):
            if "onExitCodes" in r and r["onExitCodes"].get("containerName") not in names:
                say("podFailurePolicy names no container of the pod")
        self.pod(doc, pod, template)
        env = self.env(doc, pod["containers"][0])
        self.option_names(doc, env, "braid-worker")
        if doc["kind"] == "JobSet":
            if job.get("completionMode") != "Indexed":
                say("completionMode is not Indexed: a pod would not know its rank")
            world = {job.get("parallelism"), job.get("completions"), int(env.get("BRAID_WORLD", "0"))}
            if len(world) != 1:
                say("parallelism, completions and BRAID_WORLD differ: ranks would wait for ever")
        if env.get("BRAID_BIND_HOST") != "{status.podIP}":
            say("BRAID_BIND_HOST is not the pod's address: other hosts cannot reach the ring")

    # -- every pod --
    def pod(self, doc, pod, template):
        say = lambda text: self.say(doc, text)  # noqa: E731
        security = pod.get("securityContext", {})
        if not security.get("runAsNonRoot") or security.get("runAsUser") != 10001:
            say("does not run as user 10001")
        if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            say("no seccomp profile")
        if security.get("fsGroupChangePolicy") != "OnRootMismatch":
            say("fsGroupChangePolicy: else every start walks over all files of the volume")
        if pod.get("automountServiceAccountToken") is not False:
            say("automountServiceAccountToken is not false")
        if pod.get("enableServiceLinks") is not False:
            say("enableServiceLinks is not false: a Service braid-x sets variables that look like options")
        volumes = {v["name"]: v for v in pod.get("volumes", [])}
        claims = {c["metadata"]["name"] for c in doc["spec"].get("volumeClaimTemplates", [])}
        for c in pod.get("initContainers", []) + pod["containers"]:
            self.container(doc, c, set(volumes) | claims)
        for v in volumes.values():
            self.reference(doc, "ConfigMap", v.get("configMap", {}).get("name"))
            self.reference(doc, "PersistentVolumeClaim", v.get("persistentVolumeClaim", {}).get("claimName"))
        self.reference(doc, "ServiceAccount", pod.get("serviceAccountName"))

    def container(self, doc, c, volumes):
        say = lambda text: self.say(doc, f"container {c['name']}: {text}")  # noqa: E731
        security = c.get("securityContext", {})
        if security.get("allowPrivilegeEscalation") is not False or not security.get("readOnlyRootFilesystem") \
                or security.get("capabilities", {}).get("drop") != ["ALL"]:
            say("securityContext: no escalation, read-only root, no capability")
        if ":" not in c["image"].rpartition("/")[2] or c["image"].endswith(":latest"):
            say(f"image {c['image']} has no fixed tag")
        resources = c.get("resources", {})
        limits, requests = resources.get("limits", {}), resources.get("requests", {})
        if not limits.get("memory") or limits.get("memory") != requests.get("memory"):
            say("memory: limit and request differ, so it may be killed while it keeps to its request")
        if "cpu" in limits:
            say("a CPU limit throttles the network threads")
        for m in c.get("volumeMounts", []):
            if m["name"] not in volumes:
                say(f"mounts {m['name']}, which is no volume")
            if "subPath" in m:
                say(f"mounts {m['name']} by subPath, which never sees a rotated secret")
        if c.get("command", ["/"])[0].endswith("/sh"):
            say("needs a shell")

    def reference(self, doc, kind, name):
        if name is not None and self.find(kind, name) is None:
            self.say(doc, f"names {kind} {name}, which is not here")

    def env(self, doc, container):
        env = {}
        for source in container.get("envFrom", []):
            name = source.get("configMapRef", {}).get("name")
            config = self.find("ConfigMap", name)
            if config is None:
                self.say(doc, f"names ConfigMap {name}, which is not here")
            else:
                env.update(config.get("data", {}))
        for e in container.get("env", []):
            if e["name"] in env:
                self.say(doc, f"{e['name']} is set twice")
            field = e.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            env[e["name"]] = e.get("value") if field is None else "{" + field + "}"
            for used in re.findall(r"\$\((\w+)\)", e.get("value") or ""):
                if used not in env:
                    self.say(doc, f"{e['name']} uses $({used}), which is not set before it")
        return env

    def option_names(self, doc, env, program):
        known = self.options.get(program)
        if known is None:
            return
        for name in env:
            if name.startswith("BRAID_") and name not in known:
                self.say(doc, f"{name} is no option of {program}")

    @staticmethod
    def port(container, name):
        return next((str(p["containerPort"]) for p in container.get("ports", []) if p.get("name") == name), "")


def options_of(bin_dir, program):
    path = os.path.join(bin_dir, program)
    if not os.access(path, os.X_OK):
        return None
    text = subprocess.run([path, "--help"], capture_output=True, text=True, check=True).stdout
    return {"BRAID_" + key.upper().replace(".", "_") for key in re.findall(r"^  --([a-z0-9_.]+) ", text, re.M)}


def check(docs, options):
    problems = []
    for doc in docs:
        check_types(doc, problems)
    try:
        return problems + Rules(docs, options).run()
    except (KeyError, TypeError, IndexError) as e:
        return problems + [f"a field that every manifest here has is missing: {e!r}"]


# ---- the self-test ----

def _sts(docs):
    return next(d for d in docs if d["kind"] == "StatefulSet")


def _job(docs):
    return next(d for d in docs if d["kind"] == "JobSet")["spec"]["replicatedJobs"][0]["template"]["spec"]


def _ps(docs):
    return _sts(docs)["spec"]["template"]["spec"]["containers"][0]


def _any(docs, kind):
    return next(d for d in docs if d["kind"] == kind)


def _set(target, key, value):
    target[key] = value


# kind that must be there, what is done to it, what must be said
MISTAKES = [
    ("StatefulSet", lambda d: _set(_sts(d)["spec"], "strategy", {"type": "Recreate"}), "strategy"),
    ("StatefulSet", lambda d: _set(_sts(d)["spec"], "replicas", "3"), "replicas"),
    ("StatefulSet", lambda d: _set(_ps(d)["readinessProbe"]["grpc"], "port", "health"), "port"),
    ("StatefulSet", lambda d: _set(_sts(d)["spec"]["template"]["spec"]["securityContext"], "fsGroupChangePolicyX", "y"),
     "fsGroupChangePolicyX"),
    ("StatefulSet", lambda d: _set(_sts(d)["spec"], "podManagementPolicy", "OrderedReady"), "Parallel"),
    ("StatefulSet", lambda d: _set(_sts(d)["spec"], "serviceName", "nobody"), "no headless Service"),
    ("StatefulSet", lambda d: _any(d, "StatefulSet")["spec"]["selector"]["matchLabels"].update(
        {PREFIX + "version": "1"}), "labels that change"),
    ("StatefulSet", lambda d: _sts(d)["spec"].update(volumeClaimTemplates=[
        {"metadata": {"name": "data", "labels": {PREFIX + "version": "1"}}, "spec": {}}]), "volumeClaimTemplates"),
    ("StatefulSet", lambda d: _set(_sts(d)["spec"]["template"]["spec"], "terminationGracePeriodSeconds", 30),
     "too short"),
    ("StatefulSet", lambda d: _set(_ps(d)["lifecycle"], "preStop", {"exec": {"command": ["/bin/sh"]}}), "preStop"),
    ("StatefulSet", lambda d: _set(_ps(d)["startupProbe"], "failureThreshold", 3), "startupProbe gives"),
    ("StatefulSet", lambda d: _set(_ps(d)["livenessProbe"]["grpc"], "service", "readiness"), "livenessProbe"),
    ("StatefulSet", lambda d: _set(_ps(d)["livenessProbe"]["grpc"], "port", 7000), "livenessProbe"),
    ("StatefulSet", lambda d: _set(_sts(d)["spec"], "replicas", 5), "BRAID_SERVERS"),
    ("StatefulSet", lambda d: _any(d, "ConfigMap")["data"].update(BRAID_LISTN="x"), "BRAID_LISTN is no option"),
    ("StatefulSet", lambda d: _any(d, "ConfigMap")["data"].update(BRAID_LISTEN="0.0.0.0:7777"), "port grpc"),
    ("StatefulSet", lambda d: _ps(d)["env"].insert(0, {"name": "BRAID_X", "value": "$(LATER)"}), "$(LATER)"),
    ("StatefulSet", lambda d: _set(_ps(d), "image", "braid"), "no fixed tag"),
    ("StatefulSet", lambda d: _set(_ps(d)["resources"]["limits"], "memory", "1Gi"), "memory"),
    ("StatefulSet", lambda d: _set(_ps(d)["resources"]["limits"], "cpu", "1"), "CPU limit"),
    ("StatefulSet", lambda d: _set(_ps(d)["securityContext"], "readOnlyRootFilesystem", False), "read-only root"),
    ("StatefulSet", lambda d: _sts(d)["spec"]["template"]["spec"]["securityContext"].pop("fsGroupChangePolicy"),
     "walks over"),
    ("StatefulSet", lambda d: _sts(d)["spec"]["template"]["spec"].pop("enableServiceLinks"), "enableServiceLinks"),
    ("StatefulSet", lambda d: _set(_ps(d)["volumeMounts"][0], "name", "dta"), "dta"),
    ("StatefulSet", lambda d: _set(_ps(d)["envFrom"][0]["configMapRef"], "name", "gone"), "gone"),
    ("PodDisruptionBudget", lambda d: _set(_any(d, "PodDisruptionBudget")["spec"], "maxUnavailable", 0),
     "maxUnavailable"),
    ("PodDisruptionBudget", lambda d: _any(d, "PodDisruptionBudget")["spec"].pop("unhealthyPodEvictionPolicy"),
     "AlwaysAllow"),
    ("NetworkPolicy", lambda d: _set(_any(d, "NetworkPolicy")["spec"], "ingres", []), "ingres"),
    ("ServiceMonitor", lambda d: _set(_any(d, "ServiceMonitor")["spec"]["endpoints"][0], "intervall", "15s"),
     "intervall"),
    ("ServiceMonitor", lambda d: _set(_any(d, "ServiceMonitor")["spec"]["endpoints"][0], "interval", "15"),
     "is not of the form"),
    ("ServiceMonitor", lambda d: _any(d, "ServiceMonitor")["spec"].pop("selector"), "selector: is missing"),
    ("ServiceMonitor", lambda d: _set(_any(d, "ServiceMonitor")["spec"]["endpoints"][0], "scheme", "ftp"), "none of"),
    ("PodMonitor", lambda d: _set(_any(d, "PodMonitor")["spec"]["podMetricsEndpoints"][0], "targetPort", True),
     "neither a number nor a text"),
    ("Certificate", lambda d: _set(_any(d, "Certificate")["spec"], "dnsName", ["x"]), "dnsName: unknown field"),
    ("Certificate", lambda d: _set(_any(d, "Certificate")["spec"], "usages", ["server"]), "none of"),
    ("Certificate", lambda d: _set(_any(d, "Certificate")["spec"], "duration", "a year"), "is not a duration"),
    ("Certificate", lambda d: _any(d, "Certificate")["spec"].pop("secretName"), "secretName: is missing"),
    ("Issuer", lambda d: _set(_any(d, "Issuer")["spec"], "selfsigned", {}), "selfsigned: unknown field"),
    ("JobSet", lambda d: _set(_any(d, "JobSet")["spec"], "replicatedJob", []), "unknown field"),
    ("JobSet", lambda d: _set(_any(d, "JobSet")["spec"]["failurePolicy"]["rules"][0], "action", "Restart"), "none of"),
    ("JobSet", lambda d: _job(d)["template"]["spec"]["containers"][0].update(imagePullPolice="x"), "imagePullPolice"),
    ("JobSet", lambda d: _set(_job(d), "completions", 3), "differ"),
    ("JobSet", lambda d: _job(d).pop("completionMode"), "Indexed"),
    ("JobSet", lambda d: _set(_job(d), "backoffLimit", 6), "backoffLimit"),
    ("JobSet", lambda d: _set(_job(d)["podFailurePolicy"]["rules"][0]["onExitCodes"], "values", [1]), "exit codes"),
    ("JobSet", lambda d: _set(_job(d)["podFailurePolicy"]["rules"][0]["onExitCodes"], "containerName", "x"),
     "no container"),
    ("JobSet", lambda d: _job(d)["template"]["spec"]["containers"][0]["env"].append(
        {"name": "BRAID_RESUM", "value": "auto"}), "BRAID_RESUM is no option"),
    ("JobSet", lambda d: _any(d, "JobSet")["spec"]["replicatedJobs"][0].pop("name"), "name: is missing"),
    ("JobSet", lambda d: _set(_any(d, "JobSet")["spec"]["replicatedJobs"][0], "replicas", "1"), "is not int"),
    ("JobSet", lambda d: _set(_any(d, "JobSet")["spec"]["network"], "enableDNSHostname", True), "unknown field"),
    ("ClusterTrainingRuntime", lambda d: _set(_any(d, "ClusterTrainingRuntime")["spec"]["mlPolicy"]["torch"],
                                              "numProcPerNodes", 2), "unknown field"),
    ("TrainJob", lambda d: _set(_any(d, "TrainJob")["spec"], "runtime", {}), "unknown field"),
    ("TrainJob", lambda d: _set(_any(d, "TrainJob")["spec"]["runtimeRef"], "kind", "Runtime"), "none of"),
    ("TrainJob", lambda d: _set(_any(d, "TrainJob")["spec"]["trainer"], "env", [{"nam": "X"}]), "nam: unknown field"),
    ("TrainJob", lambda d: _set(_any(d, "TrainJob")["spec"]["trainer"], "numNodes", "2"), "is not int"),
]
BY_KUBERNETES_SCHEMA = {"strategy", "replicas", "fsGroupChangePolicyX", "imagePullPolice", "ingres"}


def self_test(docs, options):
    kinds = {d["kind"] for d in docs}
    missed, tried = [], 0
    for i, (kind, spoil, says) in enumerate(MISTAKES):
        if kind not in kinds or (kubernetes_validate is None and says in BY_KUBERNETES_SCHEMA) or (
                not options and "is no option" in says):
            continue
        tried += 1
        spoiled = copy.deepcopy(docs)
        spoil(spoiled)
        if not any(says in p for p in check(spoiled, options)):
            missed.append(f"mistake {i} ({says}) was not found")
    print(f"self-test: {tried - len(missed)} of {tried} planted mistakes found")
    return missed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default="")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    options = {}
    for program in ("braid-ps", "braid-worker"):
        known = options_of(args.bin, program) if args.bin else None
        if known is not None:
            options[program] = known
    if kubernetes_validate is None:
        print("NOTICE: kubernetes-validate is not installed: fields of Kubernetes' own kinds are not checked")
    n_problems = 0
    for path in args.files:
        docs = load(path)
        problems = self_test(docs, options) if args.self_test else check(docs, options)
        for p in problems:
            print(f"{path}: {p}")
        n_problems += len(problems)
        if not args.self_test:
            print(f"{path}: {len(docs)} objects, {len(problems)} problems")
        if not docs:
            n_problems += 1
            print(f"{path}: nothing in it")
    return 1 if n_problems else 0


if __name__ == "__main__":
    sys.exit(main())
