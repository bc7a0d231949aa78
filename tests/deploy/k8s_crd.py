"""Fields of the custom resources that deploy/k8s uses, for a strict check: a field that is not here is
an error, a value of another type too. Written from the projects' API documents; only what Braid's
manifests may use is in it.

A schema is a type (str, int, bool), a set of texts, [schema] for a list, a dict of fields, or one of
the words below. A field name that begins with "!" is required. "#" in a dict: text -> that schema.
"""

METADATA = {"!name": str, "namespace": str, "labels": {"#": str}, "annotations": {"#": str}}
SELECTOR = {"matchLabels": {"#": str},
            "matchExpressions": [{"!key": str, "!operator": {"In", "NotIn", "Exists", "DoesNotExist"}, "values": [str]}]}

# Checked as a batch/v1 Job by the Kubernetes schemas.
JOB_SPEC = "job spec"
DURATION = "duration"

JOBSET_SPEC = {
    "!replicatedJobs": [{
        "!name": str, "replicas": int, "groupName": str,
        "dependsOn": [{"!name": str, "!status": {"Ready", "Complete"}}],
        "!template": {"metadata": {"labels": {"#": str}, "annotations": {"#": str}}, "!spec": JOB_SPEC},
    }],
    "network": {"enableDNSHostnames": bool, "publishNotReadyAddresses": bool, "subdomain": str},
    "successPolicy": {"!operator": {"All", "Any"}, "targetReplicatedJobs": [str]},
    "failurePolicy": {
        "maxRestarts": int, "restartStrategy": {"Recreate", "BlockingRecreate", "InPlaceRestart"},
        "rules": [{"!name": str,
                   "!action": {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"},
                   "onJobFailureReasons": [{"BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes",
                                            "MaxFailedIndexesExceeded", "PodFailurePolicy"}],
                   "onJobFailureMessagePatterns": [str], "targetReplicatedJobs": [str]}],
    },
    "suspend": bool, "ttlSecondsAfterFinished": int,
    "coordinator": {"!replicatedJob": str, "jobIndex": int, "podIndex": int},
}

ENDPOINT = {"!port": str, "path": str, "scheme": {"http", "https"}, "interval": DURATION, "scrapeTimeout": DURATION,
            "honorLabels": bool}

SPECS = {
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): JOBSET_SPEC,
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"): {
        "!mlPolicy": {"numNodes": int, "torch": {}},
        "!template": {"metadata": {"labels": {"#": str}}, "!spec": JOBSET_SPEC},
    },
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): {
        "!runtimeRef": {"apiGroup": {"trainer.kubeflow.org"}, "kind": {"ClusterTrainingRuntime", "TrainingRuntime"},
                        "!name": str},
        "trainer": {"numNodes": int, "image": str, "command": [str], "args": [str]},
        "suspend": bool,
    },
    ("monitoring.coreos.com/v1", "ServiceMonitor"): {
        "!selector": SELECTOR, "!endpoints": [ENDPOINT], "jobLabel": str, "namespaceSelector": {"matchNames": [str]},
    },
    ("monitoring.coreos.com/v1", "PodMonitor"): {
        "!selector": SELECTOR, "!podMetricsEndpoints": [ENDPOINT], "jobLabel": str,
        "namespaceSelector": {"matchNames": [str]},
    },
    ("monitoring.coreos.com/v1", "PrometheusRule"): {
        "!groups": [{"!name": str, "interval": DURATION,
                     "!rules": [{"alert": str, "record": str, "!expr": str, "for": DURATION,
                                 "labels": {"#": str}, "annotations": {"#": str}}]}],
    },
    ("cert-manager.io/v1", "Certificate"): {
        "!secretName": str, "commonName": str, "dnsNames": [str], "duration": DURATION, "renewBefore": DURATION,
        "isCA": bool, "usages": [{"server auth", "client auth", "cert sign", "digital signature", "key encipherment"}],
        "privateKey": {"algorithm": {"RSA", "ECDSA", "Ed25519"}, "size": int, "rotationPolicy": {"Never", "Always"}},
        "!issuerRef": {"!name": str, "kind": {"Issuer", "ClusterIssuer"}, "group": {"cert-manager.io"}},
    },
    ("cert-manager.io/v1", "Issuer"): {"selfSigned": {}, "ca": {"!secretName": str}},
}


def check(value, schema, at, problems, job_specs):
    """Adds "path: what is wrong" to problems, and every Job spec that is met to job_specs."""
    if schema == JOB_SPEC:
        job_specs.append((at, value))
    elif schema == DURATION:
        import re
        if not isinstance(value, str) or not re.fullmatch(r"(\d+(ms|s|m|h|d))+", value):
            problems.append(f"{at}: {value!r} is not a duration")
    elif isinstance(schema, type):
        if not isinstance(value, schema) or (schema is int and isinstance(value, bool)):
            problems.append(f"{at}: {value!r} is not {schema.__name__}")
    elif isinstance(schema, set):
        if value not in schema:
            problems.append(f"{at}: {value!r} is none of {', '.join(sorted(schema))}")
    elif isinstance(schema, list):
        if not isinstance(value, list):
            problems.append(f"{at}: is not a list")
            return
        for i, item in enumerate(value):
            check(item, schema[0], f"{at}[{i}]", problems, job_specs)
    else:
        check_fields(value, schema, at, problems, job_specs)


def check_fields(value, schema, at, problems, job_specs):
    if not isinstance(value, dict):
        problems.append(f"{at}: is not a mapping")
        return
    if "#" in schema:
        for key, item in value.items():
            check(item, schema["#"], f"{at}.{key}", problems, job_specs)
        return
    fields = {name.lstrip("!"): s for name, s in schema.items()}
    for key, item in value.items():
        if key not in fields:
            problems.append(f"{at}.{key}: unknown field")
        else:
            check(item, fields[key], f"{at}.{key}", problems, job_specs)
    for name in schema:
        if name.startswith("!") and name[1:] not in value:
            problems.append(f"{at}.{name[1:]}: is missing")
