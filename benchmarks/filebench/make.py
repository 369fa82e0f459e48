#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes filebench's models NAME.f from personalities.toml, beside it. With --check: says which are not as they would
be written, and exits with 1 if one is.

A model runs with real filebench: filebench -f NAME.f, after its line `set $dir=` has been given the directory.
"""
import argparse
import os
import sys
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
FLOWOPS = {
    "create": "createfile", "open": "openfile", "delete": "deletefile", "stat": "statfile", "close": "closefile",
    "sync": "fsync", "read_whole": "readwholefile", "write_whole": "writewholefile", "append_random": "appendfilerand"
}
SECONDS = 60


def size_variable(files):
    if "gamma" in files:
        return f"cvar(type=cvar-gamma,parameters=mean:{files['mean']};gamma:{files['gamma']})"
    return files["mean"]


def file_set(files):
    entries = files.get("entries", "$nfiles")
    attributes = [
        f"name={files['name']}", "path=$dir", f"size=$size_{files['name']}", f"entries={entries}",
        f"dirwidth={files['width']}"
    ]
    if files["present"]:
        attributes += [f"prealloc={files['present']}"]
    return "define fileset " + ",".join(attributes)


def flowop(operation, number):
    kind = FLOWOPS[operation["do"]]
    attributes = [f"name={kind}{number}"]
    if "files" in operation:
        attributes.append(f"filesetname={operation['files']}")
    for ours, theirs in (("source", "srcfd"), ("fd", "fd"), ("bytes", "iosize")):
        if ours in operation:
            attributes.append(f"{theirs}={operation[ours]}")
    return f"    flowop {kind} " + ",".join(attributes)


def flow(personality):
    """The operations of one turn of a thread, in order."""
    return [op for step in personality["steps"] for _ in range(step.get("times", 1)) for op in step["operations"]]


def model(name, personality):
    lines = [
        "# SPDX-License-Identifier: Apache-2.0", f"# {name}: {personality['about']}.",
        "# Made from personalities.toml by make.py; change it there.", "", "set $dir=/tmp",
        f"set $nfiles={personality['files']}", f"set $nthreads={personality['threads']}"
    ]
    lines += [f"set $size_{files['name']}={size_variable(files)}" for files in personality["file_sets"]]
    lines += ["", "set mode quit firstdone"] if personality["ends"] == "files" else []
    lines += [""] + [file_set(files) for files in personality["file_sets"]]
    lines += ["", f"define process name={name},instances=1", "{"]
    lines += [f"  thread name={name}thread,memsize=10m,instances=$nthreads", "  {"]
    lines += [flowop(operation, number) for number, operation in enumerate(flow(personality), 1)]
    lines += ["  }", "}", "", f"run {SECONDS}"]
    return "\n".join(lines) + "\n"


def content(path):
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return file.read()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    with open(os.path.join(HERE, "personalities.toml"), "rb") as file:
        models = {f"{name}.f": model(name, personality) for name, personality in tomllib.load(file).items()}
    present = [name for name in os.listdir(HERE) if name.endswith(".f")]
    wrong = [name for name in sorted({*models, *present}) if content(os.path.join(HERE, name)) != models.get(name)]
    if arguments.check:
        for name in wrong:
            print(f"benchmarks/filebench/{name} is not what make.py writes")
        print(f"{len(models)} models of filebench")
        return 1 if wrong else 0
    for name, text in models.items():
        with open(os.path.join(HERE, name), "w", encoding="utf-8") as file:
            file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
