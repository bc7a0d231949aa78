#!/usr/bin/env python3
"""docs/OPERATIONS.md against the programs: operations.py BIN OPERATIONS.md [OTHER.md ...]

Prints what is not true in the first, and which commands and names in all: an option that a program has not, or has with another default or text; a metric that is in no
program; a command or an option of one that `braid help` does not know; a name of an error that no program prints.
"""
import os
import re
import subprocess
import sys

HELP = re.compile(r"^  --(\S+) <([^>]*)>\n        (.*)$", re.M)


def run(*argv):
    p = subprocess.run(argv, capture_output=True, text=True, check=False)
    return p.stdout + p.stderr


def options_of(text):
    """name -> (default, meaning) of a help text; default None: required."""
    found = {}
    for name, _, meaning in HELP.findall(text):
        tail = re.search(r' \((?:required|default "([^"]*)"[^()]*(?:\([^)]*\))?)[^)]*\)$', meaning)
        found[name] = (tail.group(1) if tail else "", meaning[:tail.start()] if tail else meaning)
    return found


def table_after(doc, heading):
    """rows (cells) of the first table below a heading."""
    part = doc.split("\n" + heading + "\n", 1)[1].split("\n## ")[0]
    rows = []
    for line in part.splitlines():
        if line.startswith("| "):
            rows.append([c.strip().replace("\\|", "|") for c in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows[1:]


def names_in(cell):
    return re.findall(r"`([^`]+)`", cell)


def check_options(doc, heading, known, all_of_them):
    seen = set()
    for cells in table_after(doc, heading):
        names = names_in(cells[0])
        seen |= set(names)
        for name in names:
            if name not in known:
                yield f"{heading}: no option {name}"
                continue
            default, meaning = known[name]
            said = "".join(names_in(cells[1]))
            if len(names) == 1 and cells[1] != "(required)" and said != (default or ""):
                yield f"{heading}: {name}: default `{said}`, the program has `{default}`"
            if len(names) == 1 and cells[2] != meaning:
                yield f"{heading}: {name}: \"{cells[2]}\", the program says \"{meaning}\""
    for name in sorted(set(known) - seen) if all_of_them else []:
        yield f"{heading}: option {name} is not in it"


def commands_in(doc):
    """`braid ...` in code, and lines of blocks; continued lines joined."""
    code = re.findall(r"`(braid[^`]*)`", re.sub(r"^```.*?^```", "", doc, flags=re.M | re.S))
    for block in re.findall(r"^```[^\n]*\n(.*?)^```", doc, re.M | re.S):
        code += [line for line in block.replace("\\\n", " ").splitlines() if re.match(r"(build/bin/)?braid\b", line)]
    return [" ".join(re.sub(r"\s# .*", "", c).split()) for c in code]


def check_commands(doc, helps, known):
    for command in commands_in(doc):
        words = command.replace("\\|", "|").replace("[", " ").replace("]", " ").split()
        program = words[0].rpartition("/")[2]
        if program != "braid" or len(words) < 2:
            if program in known:
                wanted = known[program]
            else:
                continue
        else:
            if words[1].startswith("-"):
                continue
            if words[1] not in helps:
                yield f"`{command}`: no command {words[1]}"
                continue
            wanted = options_of(helps[words[1]])
            verbs = re.findall(rf"^(?:usage:)? *braid {words[1]} ([a-z|-]+)", helps[words[1]], re.M)
            verbs = {v for group in verbs for v in group.split("|")}
            if verbs and len(words) > 2 and re.fullmatch(r"[a-z|]+", words[2]):
                for verb in set(words[2].split("|")) - verbs:
                    yield f"`{command}`: no {words[1]} {verb}"
        passes_on = program == "braid" and words[1] == "launch"
        for i, word in enumerate(words):
            if passes_on and i > 1 and (word.endswith(".py") or word == "braid-worker"):
                break
            name = word[2:].split("=")[0].replace("-", "_") if word.startswith("--") else None
            if name and name not in wanted and name not in ("set", "help", "offline", "version"):
                yield f"`{command}`: no option {word}"


FOREIGN = {"set", "build_arg"}  # a job's key; podman's
VARIABLE = re.compile(r"^(?:BRAID|PET|MASTER|LOCAL|GROUP|ROLE|TORCHELASTIC|JOB|OMP|WORLD)_[A-Z0-9_]+$")


def is_torchruns(braid, word):
    """What `braid launch` takes or refuses as torchrun's, without an option of its own."""
    return "unknown key" not in run(braid, "launch", word, "x")


def check_names(doc, helps, known, code, repo, braid):
    """Options, variables, units, samples and folders that the text names outside of commands."""
    prose = re.sub(r"^```.*?^```", "", doc, flags=re.M | re.S)
    options = {o for h in helps.values() for o in options_of(h)} | {o for k in known.values() for o in k}
    for text in re.findall(r"`([^`\n]+)`", prose):
        word = text.split()[0].split("=")[0]
        if re.fullmatch(r"--[a-z-]+", word) and word[2:].replace("-", "_") not in options | FOREIGN:
            if not is_torchruns(braid, word):
                yield f"`{text}`: no program has this option"
        if VARIABLE.match(word):
            option = word.partition("_")[2].lower()
            known_as = (word.startswith("BRAID_") and option in {o.replace(".", "_") for o in options}) or (
                word.startswith("PET_") and option in options_of(helps["launch"]))
            if not known_as and word.encode() not in code:
                yield f"`{word}`: no program reads or sets it"
    for unit in set(re.findall(r"\b(braid[a-z-]*@)\.service", doc)) | set(re.findall(r"systemctl [^`\n]*?(braid-[a-z]+@)", doc)):
        if not os.path.exists(f"{repo}/deploy/systemd/{unit}.service"):
            yield f"no unit {unit}"
    with open(f"{repo}/deploy/cmake/BraidPackage.cmake", encoding="utf-8") as f:
        installed = f.read()
    for sample in set(re.findall(r"/usr/share/braid/samples/([a-z.]+)", doc)):
        if f"deploy/samples/{sample}" not in installed:
            yield f"no sample {sample} is installed"
    for path in set(re.findall(r"/etc/braid/([a-z0-9.-]+\.(?:env|sample))\b", doc)):
        path = re.sub(r"-[a-z0-9]+\.env$", "-%i.env", path)
        units = "".join(open(f"{repo}/deploy/systemd/{u}", encoding="utf-8").read()
                        for u in os.listdir(f"{repo}/deploy/systemd"))
        if f"/etc/braid/{path}" not in units:
            yield f"no unit reads /etc/braid/{path}"
    if "7000\ngRPC, 7001 health" in doc:
        for name in ("k8s/base/ps.env", "samples/ps.env"):
            with open(f"{repo}/deploy/{name}", encoding="utf-8") as f:
                ports = dict(re.findall(r"^BRAID_(\w*LISTEN)=.*:(\d+)$", f.read(), re.M))
            if ports != {"LISTEN": "7000", "HEALTH_LISTEN": "7001", "METRICS_LISTEN": "9100"}:
                yield f"deploy/{name} has other ports than the text: {ports}"


def main():
    bin_dir, path = sys.argv[1], sys.argv[2]
    with open(path, encoding="utf-8") as f:
        doc = f.read()
    braid = os.path.join(bin_dir, "braid")
    helps = {c: run(braid, "help", c) for c in re.findall(r"^  (?:braid )?([a-z]+) ", run(braid, "help"), re.M)}
    known = {p: options_of(run(os.path.join(bin_dir, p), "--help")) for p in ("braid-ps", "braid-worker")}
    problems = list(check_options(doc, "## Options of braid-ps", known["braid-ps"], True))
    problems += check_options(doc, "## Options of a braid-worker process", known["braid-worker"], False)
    code = b""
    for program in ("braid", "braid-ps", "braid-worker"):
        with open(os.path.join(bin_dir, program), "rb") as f:
            code += f.read()
    for name in sorted(set(re.findall(r"`((?:braid_(?:ps|rpc|client|worker|build)|process)_[a-z_]+)`", doc))):
        if name.encode() not in code:
            problems.append(f"no program has a metric {name}")
    for text in [doc] + [open(p, encoding="utf-8").read() for p in sys.argv[3:]]:
        problems += check_commands(text, helps, known)
        problems += check_names(text, helps, known, code, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."), braid)
    for p in problems:
        print(p)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
