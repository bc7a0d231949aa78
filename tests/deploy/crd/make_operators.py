#!/usr/bin/env python3
"""Makes operators.json from the models of PyPI's cloudcoil-models-cert-manager and -prometheus-operator, which are
generated from the CRDs of those projects: make_operators.py CERT_MANAGER_WHEEL PROMETHEUS_WHEEL >operators.json

As make_schema.py: only fields, types, allowed texts, patterns and what is required are taken; no text. Besides its
types: ["enum", TEXT...], ["pattern", REGEX], "scalar" (an int or a str). What LEFT_OUT names is not taken: to use such a
field is an error until it is.
"""
import ast
import json
import re
import sys
import zipfile

ROOTS = {"cert_manager": ["CertificateSpec", "IssuerSpec"],
         "prometheus_operator": ["ServiceMonitorSpec", "PodMonitorSpec", "PrometheusRuleSpec"]}
LEFT_OUT = {"cert_manager": {"IssuerSpec.acme", "IssuerSpec.vault", "IssuerSpec.venafi", "CertificateSpec.keystores"},
            "prometheus_operator": set()}
SCALARS = {"str", "int", "bool", "float"}


def literal(node):
    items = node.elts if isinstance(node, ast.Tuple) else [node]
    return ["enum"] + [item.value for item in items]


def type_of(node, prefix, models):
    if isinstance(node, ast.Attribute):  # apimachinery.X: Kubernetes' own
        return "any"
    if isinstance(node, ast.Name):
        if node.id in SCALARS:
            return node.id
        return prefix + node.id if node.id in models else "any"
    outer, inner = node.value.id, node.slice
    if outer == "Optional":
        return type_of(inner, prefix, models)
    if outer == "Annotated":
        return type_of(inner.elts[0], prefix, models)
    if outer == "List":
        return ["list", type_of(inner, prefix, models)]
    if outer == "Dict":
        return ["map", type_of(inner.elts[1], prefix, models)]
    if outer == "Literal":
        return literal(inner)
    if outer == "Union":
        names = {n.id for n in inner.elts if isinstance(n, ast.Name)}
        return "scalar" if names == {"int", "str"} else "any"
    raise ValueError(ast.dump(node))


def usable(pattern):
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def field_of(node, prefix, models):
    """name with "!" if required, type."""
    name, pattern = node.target.id, None
    if isinstance(node.annotation, ast.Subscript) and node.annotation.value.id == "Annotated":
        said = {k.arg: ast.literal_eval(k.value) for k in node.annotation.slice.elts[1].keywords}
        name, pattern = said.get("alias", name), said.get("pattern")
    kind = type_of(node.annotation, prefix, models)
    if pattern is not None and kind == "str" and usable(pattern):
        kind = ["pattern", pattern]
    return ("!" if node.value is None else "") + name, kind


def names_in(kind):
    if isinstance(kind, list):
        return names_in(kind[1]) if kind[0] in ("list", "map") else []
    return [kind] if kind[0].isupper() else []


def models_of(path, which):
    tree = ast.parse(zipfile.ZipFile(path).read(f"cloudcoil/models/{which}/v1.py").decode())
    every = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef) and
             any(isinstance(b, ast.Name) and b.id == "BaseModel" for b in n.bases)}
    prefix = "".join(word.capitalize() for word in which.split("_"))
    models, todo = {}, [prefix + root for root in ROOTS[which]]
    while todo:
        name = todo.pop()
        if name in models:
            continue
        plain = name[len(prefix):]
        fields = [field_of(n, prefix, every) for n in every[plain].body if isinstance(n, ast.AnnAssign)]
        models[name] = {f: kind for f, kind in fields if f"{plain}.{f.lstrip('!')}" not in LEFT_OUT[which]}
        todo += [m for kind in models[name].values() for m in names_in(kind)]
    return models


def main():
    models = {**models_of(sys.argv[1], "cert_manager"), **models_of(sys.argv[2], "prometheus_operator")}
    doc = {"source": [p.rpartition("/")[2] for p in sys.argv[1:3]], "licence": "Apache-2.0", "models": models}
    json.dump(doc, sys.stdout, indent=1, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
