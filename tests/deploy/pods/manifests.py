"""Pods of rendered manifests: what Kubernetes makes of a template before a container starts.

A StatefulSet's or a JobSet's pod template becomes a list of Pod: name, command, environment (ConfigMaps,
field references, $(VAR)), volumes, probes, limits, grace period. Where something is used that is not known
here, Unsupported is raised: a test of pods must not leave a field out silently.
"""
import re

import yaml


class Unsupported(Exception):
    pass


UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "K": 10**3, "M": 10**6, "G": 10**9}


def quantity(text):
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]*)", str(text)).groups()
    return int(number) * UNITS[unit]


class Pod:
    """name, namespace, labels; container (dict of the template), spec (of the pod); volumes {name: dict}."""

    def __init__(self, name, namespace, template, configs, volumes, labels=None, variables=None):
        self.name, self.namespace = name, namespace
        self.spec, self.configs, self.volumes = template["spec"], configs, volumes
        self.labels = dict(template["metadata"].get("labels", {}), **(labels or {}))
        self.variables = variables or {}
        if len(self.spec["containers"]) != 1 or self.spec.get("initContainers"):
            raise Unsupported(f"{name}: more than one container")
        self.container = self.spec["containers"][0]

    def argv(self):
        return list(self.container["command"]) + list(self.container.get("args", []))

    def env(self, address):
        """address: the pod's, which its start decides."""
        env = {"PATH": "/usr/bin", "HOSTNAME": self.name, **self.variables}
        for source in self.container.get("envFrom", []):
            env.update(self.configs[source["configMapRef"]["name"]])
        for e in self.container.get("env", []):
            if "value" in e:
                value = re.sub(r"\$\((\w+)\)", lambda m: env[m.group(1)], e["value"])
            else:
                value = self.field(e["valueFrom"]["fieldRef"]["fieldPath"], address)
            env[e["name"]] = value
        return env

    def field(self, path, address):
        label = re.fullmatch(r"metadata\.labels\['(.+)'\]", path)
        if label:
            return self.labels[label.group(1)]
        try:
            return {"metadata.name": self.name, "metadata.namespace": self.namespace, "status.podIP": address}[path]
        except KeyError:
            raise Unsupported(f"{self.name}: field {path}") from None

    def mounts(self):
        """[(volume dict with its name, path, read only)], outer paths first"""
        out = [(dict(self.volumes[m["name"]], name=m["name"]), m["mountPath"], m.get("readOnly", False))
               for m in self.container.get("volumeMounts", [])]
        return sorted(out, key=lambda m: m[1])

    @property
    def user(self):
        security = self.spec["securityContext"]
        return security["runAsUser"], security["runAsGroup"]

    @property
    def memory_bytes(self):
        return quantity(self.container["resources"]["limits"]["memory"])

    @property
    def grace_s(self):
        return self.spec.get("terminationGracePeriodSeconds", 30)

    @property
    def pre_stop_s(self):
        hook = self.container.get("lifecycle", {}).get("preStop")
        if hook is None:
            return 0
        if list(hook) != ["sleep"]:
            raise Unsupported(f"{self.name}: preStop {list(hook)}")
        return hook["sleep"]["seconds"]

    def probe(self, name):
        """(port, service) of a gRPC probe"""
        grpc = self.container[name]["grpc"]
        return grpc["port"], grpc["service"]

    def port(self, name):
        return next(p["containerPort"] for p in self.container["ports"] if p["name"] == name)


def load(path):
    with open(path, encoding="utf-8") as f:
        return [d for d in yaml.safe_load_all(f) if d]


def one(docs, kind):
    found = [d for d in docs if d["kind"] == kind]
    if len(found) != 1:
        raise Unsupported(f"{len(found)} objects of kind {kind}")
    return found[0]


def configs_of(docs):
    return {d["metadata"]["name"]: d["data"] for d in docs if d["kind"] == "ConfigMap"}


def statefulset_pods(docs):
    s = one(docs, "StatefulSet")
    spec, name = s["spec"], s["metadata"]["name"]
    volumes = {v["name"]: v for v in spec["template"]["spec"].get("volumes", [])}
    pods = []
    for i in range(spec["replicas"]):
        claims = {c["metadata"]["name"]: {"claim": f"{c['metadata']['name']}-{name}-{i}"}
                  for c in spec.get("volumeClaimTemplates", [])}
        pods.append(Pod(f"{name}-{i}", s["metadata"]["namespace"], spec["template"], configs_of(docs),
                        {**volumes, **claims},
                        {"apps.kubernetes.io/pod-index": str(i), "statefulset.kubernetes.io/pod-name": f"{name}-{i}"}))
    return pods


def jobset_pods(docs, namespace):
    s = one(docs, "JobSet")
    pods = []
    for job in s["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        volumes = {v["name"]: v for v in spec["template"]["spec"].get("volumes", [])}
        for i in range(spec["completions"]):
            pods.append(Pod(f"{s['metadata']['name']}-{job['name']}-0-{i}", namespace, spec["template"],
                            configs_of(docs), volumes, variables={"JOB_COMPLETION_INDEX": str(i)}))
    return pods


def names_of(docs, pod):
    """The names under which cluster DNS finds a pod: pod.service and service, for each Service and JobSet."""
    names = []
    for d in docs:
        if d["kind"] == "Service" and d["spec"]["selector"].items() <= pod.labels.items():
            service = d["metadata"]["name"]
            if d["spec"].get("clusterIP") == "None":
                names.append(f"{pod.name}.{service}.{pod.namespace}.svc")
            names.append(f"{service}.{pod.namespace}.svc")
        elif d["kind"] == "JobSet" and pod.name.startswith(d["metadata"]["name"] + "-"):
            names.append(f"{pod.name}.{d['metadata']['name']}.{pod.namespace}.svc")
    return names
