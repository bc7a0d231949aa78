#!/usr/bin/env python3
"""same_statefulset.py KUSTOMIZED HELM: both render the same StatefulSet, budget, services and options.

Let differ: labels and annotations that name the tool and the content (checksum/config), and the hash in
the ConfigMap's name.
"""
import json
import re
import sys

import yaml

TOOLS = {"app.kubernetes.io/managed-by", "helm.sh/chart", "checksum/config"}


def clean(value):
    if isinstance(value, dict):
        return {k: clean(v) for k, v in value.items() if k not in TOOLS}
    if isinstance(value, list):
        return [clean(v) for v in value]
    return re.sub(r"^braid-ps-config-[a-z0-9]{8,}$", "braid-ps-config", value) if isinstance(value, str) else value


def load(path):
    with open(path, encoding="utf-8") as f:
        docs = [clean(d) for d in yaml.safe_load_all(f) if d]
    for d in docs:
        d["metadata"].pop("namespace", None)
    return {(d["kind"], d["metadata"]["name"]): d for d in docs
            if d["kind"] in ("StatefulSet", "Service", "PodDisruptionBudget", "ConfigMap", "ServiceAccount")}


def differences(a, b, at=""):
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(set(a) | set(b), key=str):
            yield from differences(a.get(key), b.get(key), f"{at}.{key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, pair in enumerate(zip(a, b)):
            yield from differences(*pair, f"{at}[{i}]")
    elif a != b:
        yield f"{at}: kustomize has {json.dumps(a)}, helm {json.dumps(b)}"


kustomized, helm = load(sys.argv[1]), load(sys.argv[2])
found = list(differences({str(k): v for k, v in kustomized.items()}, {str(k): v for k, v in helm.items()}))
print("\n".join(found) if found else f"{len(kustomized)} objects are the same")
sys.exit(1 if found or not kustomized else 0)
