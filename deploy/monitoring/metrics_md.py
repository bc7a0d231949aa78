#!/usr/bin/env python3
"""Renews the metric tables of docs/OPERATIONS.md from pages that running processes show:
metrics_md.py PAGE... < OPERATIONS.md > NEW    A row that is there already keeps its place and text.
"""
import re
import sys

families = {}
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as f:
        for line in f:
            word = line.split(None, 3)
            if line.startswith("# HELP"):
                families.setdefault(word[2], [None, None])[1] = word[3].strip()
            elif line.startswith("# TYPE"):
                families.setdefault(word[2], [None, None])[0] = word[3].strip()

text = sys.stdin.read()
last = {}  # prefix -> its last row in the text
for row in re.findall(r"^\| `(?:braid|process)_.*$", text, re.M):
    name = row.split("`")[1]
    prefix = "process" if name == "braid_build_info" else "_".join(name.split("_")[:2])
    last["process" if name.startswith("process") else prefix] = row
for name, (kind, help_text) in families.items():
    if f"`{name}`" not in text:
        prefix = "_".join(name.split("_")[:2])
        after = last.get("process" if name.startswith("process") else prefix)
        row = f"| `{name}` | {kind} | {help_text} |"
        text = text.replace(after, after + "\n" + row, 1)
        last[prefix] = row
sys.stdout.write(text)
