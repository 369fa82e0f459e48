#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sources that are compiled in one batch (cmake/batches.cmake) share an unnamed namespace, which no other
build shows. Prints each name that two of them give to something there as file:line: reason; exit code 1 when there is one.

Told from the text: what begins in the first column of an unnamed namespace. Functions of one name are told apart by the
types they take.

usage: check_batches.py [--self-test]
"""

import glob
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tree  # noqa: E402

BUILD = os.path.join(tree.ROOT, "build", "asan")
ELSEWHERE = re.compile(r"using |template|TEST|static_assert|(?:class|struct|union) [\w:]+;")
TYPE = re.compile(r"(?:class|struct|union|enum(?: class)?)\s+(?:\w+\([^)]*\)\s+)?(\w+)\b(?=\s*(?:final\s*)?[:{])")
FUNCTION = re.compile(r"[\w:<>,&* ]+?[ &*](\w+)\((.*)$")
VARIABLE = re.compile(r"[\w:<>,&*() ]+?[ &*](\w+)(?:\[[^\]]*\])*\s*(?:=|\{|;)")


def name_of(line):
    """What a line declares, or None."""
    if ELSEWHERE.match(line):
        return None
    declared = TYPE.match(line)
    if declared:
        return declared.group(1)
    declared = FUNCTION.match(line)
    if declared:
        types = re.sub(r"\s*\b\w+(?=[,)])", "", declared.group(2))
        return f"{declared.group(1)}({types.partition(')')[0]})"
    declared = VARIABLE.match(line)
    return declared.group(1) if declared else None


def own_names(text):
    """(line number, name) of what is in unnamed namespaces."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line in ("namespace {", "}  // namespace"):
            inside = line == "namespace {"
        elif inside and re.match(r"[A-Za-z]", line):
            name = name_of(line)
            if name:
                yield number, name


def clashes(sources):
    """`sources`: path to text. Yields path:line: reason."""
    first = {}
    for path, text in sources.items():
        for number, name in own_names(text):
            other = first.setdefault(name, f"{path}:{number}")
            if not other.startswith(f"{path}:"):
                yield f"{path}:{number}: '{name}' is also in {other}, which is compiled in one batch with it"


def configure():
    """Has cmake write the batches. Returns its error output, or None."""
    for command in (["tools/configure.sh", "asan"], ["ninja", "-C", BUILD, "build.ninja"]):
        done = subprocess.run(command, cwd=tree.ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return done.stdout + done.stderr
    return None


def batches(build=BUILD):
    """The sources of each: path to text."""
    for batch in glob.glob(os.path.join(build, "**", "Unity", "unity_*.cxx"), recursive=True):
        with open(batch, encoding="utf-8") as file:
            paths = re.findall(r'^#include "([^"]+)"', file.read(), re.MULTILINE)
        sources = {}
        for path in paths:
            if path.startswith(tree.ROOT) and os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    sources[os.path.relpath(path, tree.ROOT)] = file.read()
        yield sources


def check(_):
    """What is wrong, and how many batches were looked at."""
    error = configure()
    if error is not None:
        return [f"the batches are not known, cmake failed:\n{error}"], 0
    known = list(batches())
    return sorted({clash for sources in known for clash in clashes(sources)}), sum(map(len, known))


# Declared in two sources of a batch: refused, and allowed.
CLASHING = ("constexpr int kWait = 1;", "std::atomic<int> left{0};", "class Lane {", "bool IsIt(int a) {",
            "const std::array<int, 2> kBoth = {1, 2};")
FINE = (("bool IsIt(int a) {", "bool IsIt(char a) {"), ("class Lane;", "class Lane;"), ("  int inner = 1;", "  int inner = 1;"),
        ("using A = int;", "using A = int;"))


def self_test():
    def found(one, other):
        return list(clashes({path: f"namespace {{\n{line}\n}}  // namespace\n" for path, line in (("a", one), ("b", other))}))

    wrong = [f"missed: {line}" for line in CLASHING if not found(line, line)]
    return wrong + [f"wrongly refused: {pair}" for pair in FINE if found(*pair)]


if __name__ == "__main__":
    sys.exit(tree.check_main(__doc__, check, "are compiled in batches, with names of their own", self_test,
                             f"{len(CLASHING)} clashing and {len(FINE)} other names told apart"))
