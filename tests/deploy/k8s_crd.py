"""Fields of the custom resources that deploy/k8s uses, for a strict check: a field that is not here is
an error, a value of another type too. They are the projects' own (crd/README.md).

A schema is a type (str, int, bool), a set of texts, [schema] for a list, a dict of fields, a compiled pattern, or
one of the words below. A field name that begins with "!" is required. "#" in a dict: text -> that schema.
"""
import json
import os
import re

METADATA = {"!name": str, "namespace": str, "labels": {"#": str}, "annotations": {"#": str}}
TEMPLATE_METADATA = {"labels": {"#": str}, "annotations": {"#": str}}

# Checked as a batch/v1 Job by the Kubernetes schemas.
JOB_SPEC = "job spec"
DURATION = "duration"
SCALAR = "a number or a text"
ANY = "anything"

# Texts that a field may hold, by model and field: the vendored models say no more than str.
VALUES = {
    "JobsetV1alpha2DependsOn.status": {"Ready", "Complete"},
    "JobsetV1alpha2FailurePolicy.restartStrategy": {"Recreate", "BlockingRecreate", "InPlaceRestart"},
    "JobsetV1alpha2FailurePolicyRule.action": {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts",
                                               "RestartJob", "RestartJobAndIgnoreMaxRestarts"},
    "JobsetV1alpha2FailurePolicyRule.onJobFailureReasons": [
        {"BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy"}],
    "JobsetV1alpha2StartupPolicy.startupPolicyOrder": {"AnyOrder", "InOrder"},
    "JobsetV1alpha2SuccessPolicy.operator": {"All", "Any"},
    "CertManagerCertificateSpec.duration": DURATION,
    "CertManagerCertificateSpec.renewBefore": DURATION,
    "CertManagerIssuerRef.group": {"cert-manager.io"},
    "CertManagerIssuerRef.kind": {"Issuer", "ClusterIssuer"},
    "TrainerV1alpha1RuntimeRef.apiGroup": {"trainer.kubeflow.org"},
    "TrainerV1alpha1RuntimeRef.kind": {"ClusterTrainingRuntime", "TrainingRuntime"},
}


class Vendored:
    """Schemas, in the form of this file, of the models in crd/*.json."""

    def __init__(self):
        self.models = {}
        for name in ("kubeflow_trainer", "operators"):
            path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "crd", f"{name}.json")
            with open(path, encoding="utf-8") as f:
                self.models.update(json.load(f)["models"])
        unknown = [name for name in VALUES if not self.has(*name.split("."))]
        if unknown:
            raise KeyError(f"VALUES names fields that crd/*.json have not: {unknown}")

    def has(self, model, field):
        return not {field, "!" + field}.isdisjoint(self.models.get(model, {}))

    def of(self, t):
        if isinstance(t, list):
            return {"list": lambda: [self.of(t[1])], "map": lambda: {"#": self.of(t[1])}, "enum": lambda: set(t[1:]),
                    "pattern": lambda: re.compile(t[1])}[t[0]]()
        if t == "scalar":
            return SCALAR
        if t in ("str", "int", "bool"):
            return {"str": str, "int": int, "bool": bool}[t]
        if t == "IoK8sApiBatchV1JobTemplateSpec":
            return {"metadata": TEMPLATE_METADATA, "!spec": JOB_SPEC}
        if t == "IoK8sApimachineryPkgApisMetaV1ObjectMeta":
            return TEMPLATE_METADATA
        model = self.models[t] if t not in ("any", "float") else "any"
        if model == "any":
            return ANY
        return {name: VALUES.get(f"{t}.{name.lstrip('!')}") or self.of(of) for name, of in model.items()}

    def spec(self, root):
        return self.of(self.models[root]["spec"])


VENDORED = Vendored()

SPECS = {
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): VENDORED.spec("JobsetV1alpha2JobSet"),
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"):
        VENDORED.spec("TrainerV1alpha1ClusterTrainingRuntime"),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): VENDORED.spec("TrainerV1alpha1TrainJob"),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): VENDORED.of("PrometheusOperatorServiceMonitorSpec"),
    ("monitoring.coreos.com/v1", "PodMonitor"): VENDORED.of("PrometheusOperatorPodMonitorSpec"),
    ("monitoring.coreos.com/v1", "PrometheusRule"): VENDORED.of("PrometheusOperatorPrometheusRuleSpec"),
    ("cert-manager.io/v1", "Certificate"): VENDORED.of("CertManagerCertificateSpec"),
    ("cert-manager.io/v1", "Issuer"): VENDORED.of("CertManagerIssuerSpec"),
}


def check(value, schema, at, problems, job_specs):
    """Adds "path: what is wrong" to problems, and every Job spec that is met to job_specs."""
    if schema == JOB_SPEC:
        job_specs.append((at, value))
    elif schema == ANY:
        pass
    elif schema == DURATION:
        if not isinstance(value, str) or not re.fullmatch(r"(\d+(ms|s|m|h|d))+", value):
            problems.append(f"{at}: {value!r} is not a duration")
    elif schema == SCALAR:
        if not isinstance(value, (int, str)) or isinstance(value, bool):
            problems.append(f"{at}: {value!r} is neither a number nor a text")
    elif isinstance(schema, re.Pattern):
        if not isinstance(value, str) or not schema.search(value):
            problems.append(f"{at}: {value!r} is not of the form {schema.pattern}")
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
