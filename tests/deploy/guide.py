#!/usr/bin/env python3
"""What a guide tells its reader to type: guide.py commands FILE.md, or guide.py target RENDERED.yaml -- kubectl ARGS

commands: every command line of the ```sh blocks (continued lines joined, here-documents whole, comments off), and
every `kubectl|helm|podman|make ...` in the text; each ends in a NUL.
target: the command's namespace, objects, labels, container and program are in the rendered manifests.
"""
import re
import shlex
import sys

import yaml

INLINE = re.compile(r"`((?:kubectl|helm|podman|buildah|docker|make|kustomize)\s[^`]+)`")


def commands_of(text):
    blocks = re.findall(r"^```(sh|bash|shell|console)?[^\n]*\n(.*?)^```", text, re.M | re.S)
    found = []
    for language, block in blocks:
        if not language:
            continue
        lines = iter(block.splitlines())
        for line in lines:
            while line.endswith("\\"):
                line = line[:-1].rstrip() + " " + next(lines).strip()
            word = re.search(r"<<-?'?(\w+)'?", line)
            if word:
                for more in lines:
                    line += "\n" + more
                    if more == word.group(1):
                        break
            line = re.sub(r"\s+# .*$", "", line) if not word else line
            if line.strip() and not line.startswith("#"):
                found.append(line.strip() if not word else line)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return found + [" ".join(c.split()) for c in INLINE.findall(prose)]


def pods(docs):
    """(object, pod template) of everything that makes pods."""
    def walk(doc, node):
        if isinstance(node, dict):
            if "containers" in node.get("spec", {}) if isinstance(node.get("spec"), dict) else False:
                yield doc, node
            for item in node.values():
                yield from walk(doc, item)
        elif isinstance(node, list):
            for item in node:
                yield from walk(doc, item)
    for doc in docs:
        yield from walk(doc, doc)


def has_labels(labels, wanted):
    return all(labels.get(k) == v for k, v in (pair.split("=", 1) for pair in wanted.split(",")))


SHORT = {"pvc": "persistentvolumeclaim", "sts": "statefulset"}


def problems_of(docs, argv):
    options = {"-n": None, "-l": None, "-c": None}
    words, program, rest = [], [], iter(argv)
    for arg in rest:
        if arg == "--":
            program = list(rest)
        elif arg in options:
            options[arg] = next(rest)
        elif not arg.startswith("-"):
            words.append(arg)
    text = yaml.safe_dump(docs)
    namespaces = {d["metadata"]["name"] for d in docs if d["kind"] == "Namespace"}
    namespaces |= set(re.findall(r"kubernetes.io/metadata.name: (\S+)", text))
    if options["-n"] and options["-n"] not in namespaces:
        yield f"no namespace {options['-n']}"
    targets = [w.split("/", 1) for w in words if re.fullmatch(r"[a-z]+/[a-z0-9-]+", w)]
    if words[0] == "label":
        targets.append(words[1:3])
    named = []
    for kind, name in targets:
        kind = SHORT.get(kind, kind)
        match = [d for d in docs if d["kind"].lower() == kind and d["metadata"]["name"] == name]
        named += match
        if not match:
            yield f"no {kind} {name}"
        elif match[0]["metadata"].get("namespace", options["-n"]) != options["-n"]:
            yield f"{kind} {name} is not in namespace {options['-n']}"
    found = [(d, t) for d, t in pods(docs) if (not named or d in named) and (
        not options["-l"] or has_labels(t.get("metadata", {}).get("labels", {}), options["-l"]))]
    if options["-l"] and words[:2] == ["delete", "pvc"]:
        claims = [c for d in docs if d["kind"] == "StatefulSet" for c in d["spec"].get("volumeClaimTemplates", [])]
        if not any(has_labels(c["metadata"].get("labels", {}), options["-l"]) for c in claims):
            yield f"no claim has the labels {options['-l']}"
    elif options["-l"] and not found:
        yield f"no pod has the labels {options['-l']}"
    containers = [c for _, t in found for c in t["spec"]["containers"]]
    if options["-c"] and options["-c"] not in [c["name"] for c in containers]:
        yield f"no container {options['-c']}"
    if program and program[0] not in ("/usr/bin/braid", "/usr/bin/braid-ps", "/usr/bin/braid-worker"):
        yield f"no {program[0]} in the image"
    services = [d["metadata"]["name"] for d in docs if d["kind"] == "Service"]
    for host in (a.split(":")[0] for a in program if re.fullmatch(r"[a-z-]+:\d+", a)):
        if host not in services:
            yield f"no service {host}"


def main():
    if sys.argv[1] == "commands":
        with open(sys.argv[2], encoding="utf-8") as f:
            for command in commands_of(f.read()):
                sys.stdout.write(command + "\0")
        return 0
    with open(sys.argv[2], encoding="utf-8") as f:
        docs = [d for d in yaml.safe_load_all(f) if d]
    found = list(problems_of(docs, shlex.split(sys.argv[4])[1:]))
    for problem in found:
        print(f"{sys.argv[4]}: {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
