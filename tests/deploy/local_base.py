#!/usr/bin/env python3
"""A root like a freshly installed Debian's, without network: local_base.py ROOT PACKAGE...

Copies the files of those packages, of the required ones and of all that they depend on, as they are installed on this
machine, with the package manager's books about them, so that it stands for a base image in which
deploy/install-deps.sh finds nothing to do. Documentation is left out. Says which packages are not here.
"""
import os
import re
import shutil
import subprocess
import sys

BOOKS = "/var/lib/dpkg"
LEFT_OUT = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/info/", "/usr/share/lintian/")


def paragraphs():
    with open(f"{BOOKS}/status", encoding="utf-8") as f:
        for text in f.read().split("\n\n"):
            fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", text, re.M))
            if fields.get("Status", "").endswith(" installed"):
                yield fields, text


def names_in(relation):
    """[[alternative, ...], ...]"""
    return [[re.sub(r"\(.*?\)|:\w+", "", a).strip() for a in group.split("|")] for group in relation.split(",") if group.strip()]


def closure(wanted, installed):
    provides = {}
    for name, (fields, _) in installed.items():
        for group in names_in(fields.get("Provides", "")):
            provides.setdefault(group[0], name)
    todo = list(wanted) + [n for n, (f, _) in installed.items() if f.get("Essential") == "yes" or f.get("Priority") == "required"]
    found, missing = set(), set()
    while todo:
        name = todo.pop()
        name = name if name in installed else provides.get(name, name)
        if name in found or name in missing:
            continue
        if name not in installed:
            missing.add(name)
            continue
        found.add(name)
        fields = installed[name][0]
        for group in names_in(fields.get("Depends", "")) + names_in(fields.get("Pre-Depends", "")):
            todo.append(next((a for a in group if a in installed or a in provides), group[0]))
    return found, missing & set(wanted)


def put(root, path):
    """Copies one file, link or (empty) folder to the same place below root."""
    to = root + path
    if os.path.lexists(to) or path.startswith(LEFT_OUT) or not os.path.lexists(path):
        return
    os.makedirs(os.path.dirname(to), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), to)
    elif os.path.isdir(path):
        os.makedirs(to)
        shutil.copymode(path, to)
    elif os.path.isfile(path):
        shutil.copy2(path, to)


def put_alternatives(root):
    """The links that maintainer scripts made, where what they choose is there."""
    for name in os.listdir(f"{BOOKS}/alternatives"):
        with open(f"{BOOKS}/alternatives/{name}", encoding="utf-8") as f:
            lines = f.read().split("\n\n")[0].split("\n")
        links = [(name, lines[1])] + list(zip(lines[2::2], lines[3::2]))
        for alternative, link in links:
            middle = f"/etc/alternatives/{alternative}"
            if os.path.islink(middle) and os.path.lexists(root + os.readlink(middle)):
                put(root, middle)
                put(root, link)


def main():
    root, wanted = os.path.abspath(sys.argv[1]), sys.argv[2:]
    installed = {fields["Package"]: (fields, text) for fields, text in paragraphs()}
    packages, missing = closure(wanted, installed)
    if missing:
        print(f"not installed here: {' '.join(sorted(missing))}")
        return 1
    for top in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink(f"/{top}"):
            os.makedirs(f"{root}/{os.readlink('/' + top)}", exist_ok=True)
            os.symlink(os.readlink(f"/{top}"), f"{root}/{top}")
    for folder in ("dev", "proc", "sys", "run", "root", "tmp", "var/tmp", "var/lib/apt/lists", f"{BOOKS[1:]}/info", f"{BOOKS[1:]}/updates"):
        os.makedirs(f"{root}/{folder}", exist_ok=True)
    for name in sorted(packages):
        for owner in (name, f"{name}:{installed[name][0].get('Architecture')}"):
            books = f"{BOOKS}/info/{owner}.list"
            if os.path.exists(books):
                with open(books, encoding="utf-8") as f:
                    for path in f.read().split("\n"):
                        if path not in ("", "/."):
                            put(root, path)
                put(root, books)
    put_alternatives(root)
    with open(f"{root}{BOOKS}/status", "w", encoding="utf-8") as f:
        for name in sorted(packages):
            f.write(installed[name][1].strip("\n") + "\n\n")
    for name in ("passwd", "group"):
        shutil.copy(f"/usr/share/base-passwd/{name}.master", f"{root}/etc/{name}")
    os.chmod(f"{root}/tmp", 0o1777)
    subprocess.run(["ldconfig", "-r", root], check=True)
    print(f"{len(packages)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
