#!/usr/bin/env python3
"""Makes kubeflow_trainer.json from the models of PyPI's kubeflow-trainer-api, which the Kubeflow project
generates from the OpenAPI document of its CRDs and of JobSet's: make_schema.py WHEEL >kubeflow_trainer.json

Only fields, types and what is required are taken; no text. A model is a mapping of field to type: "str", "int",
"bool", "float", "any", a model's name, ["list", TYPE], ["map", TYPE]; a required field's name begins with "!".
"""
import ast
import json
import re
import sys
import zipfile

ROOTS = ["JobsetV1alpha2JobSet", "TrainerV1alpha1ClusterTrainingRuntime", "TrainerV1alpha1TrainingRuntime",
         "TrainerV1alpha1TrainJob"]
# Checked with the schemas of Kubernetes itself (k8s_check.py), so not followed.
OF_KUBERNETES = {"IoK8sApiBatchV1JobTemplateSpec"}
SCALARS = {"StrictStr": "str", "StrictInt": "int", "StrictBool": "bool", "StrictFloat": "float", "str": "str",
           "int": "int", "bool": "bool", "float": "float", "Any": "any", "object": "any", "datetime": "str"}


def type_of(node):
    if isinstance(node, ast.Name):
        return SCALARS.get(node.id, node.id)
    if isinstance(node, ast.Subscript):
        outer, inner = node.value.id, node.slice
        if outer in ("Optional", "Annotated"):
            return type_of(inner.elts[0] if isinstance(inner, ast.Tuple) else inner)
        if outer == "List":
            return ["list", type_of(inner)]
        if outer == "Dict":
            return ["map", type_of(inner.elts[1])]
        if outer == "Union":  # an int or float
            return "float"
    raise ValueError(ast.dump(node))


def model_of(source):
    """name, fields: of the one class of a file."""
    body = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and
                any(isinstance(b, ast.Name) and b.id == "BaseModel" for b in n.bases))
    fields = {}
    for n in body.body:
        if not isinstance(n, ast.AnnAssign) or n.target.id.startswith("_"):
            continue
        if n.target.id == "model_config":
            continue
        name, required = n.target.id, True
        if isinstance(n.value, ast.Call):
            for k in n.value.keywords:
                required = required and k.arg != "default"
                name = k.value.value if k.arg == "alias" else name
        elif n.value is not None:
            required = False
        if name in ("any_of_schemas", "one_of_schemas"):  # IntOrString and its like
            return body.name, "any"
        fields[("!" if required else "") + name] = type_of(n.annotation)
    return body.name, fields


def names_in(t):
    if isinstance(t, list):
        return names_in(t[1])
    return [t] if t[0].isupper() else []


def main():
    wheel = zipfile.ZipFile(sys.argv[1])
    every = {}
    for path in wheel.namelist():
        if re.fullmatch(r"kubeflow_trainer_api/models/(?!__init__)\w+\.py", path):
            source = wheel.read(path).decode()
            if "(BaseModel)" in source:
                name, fields = model_of(source)
                every[name] = fields
    models, todo = {}, list(ROOTS)
    while todo:
        name = todo.pop()
        if name in models or name in OF_KUBERNETES or name not in every:
            continue
        models[name] = every[name]
        if isinstance(every[name], dict):
            todo += [m for t in every[name].values() for m in names_in(t)]
    doc = {"source": sys.argv[1].rpartition("/")[2], "licence": "Apache-2.0, (c) The Kubeflow Authors", "models": models}
    json.dump(doc, sys.stdout, indent=1, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
