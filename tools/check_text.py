#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What no file of this tree may contain: paths of one machine, package registries, notes to self, files without licence.

Prints each find as file:line: reason; exit code 1 when there is one. usage: check_text.py [--self-test]
"""

import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tree  # noqa: E402


def _spelled(*parts):
    """A pattern that does not match its own source line."""
    return "".join(parts)


RULES = [
    (_spelled(r"(?<![\w.$}])/wo", r"rk/"), "an absolute path of one machine"),
    (_spelled(r"\.\./sha", r"red\b"), "a path outside of the tree"),
    (_spelled(r"(?i)\b(pypi", r"\.org|pythonhosted", r"\.org|npmjs", r"\.(org|com)|crates", r"\.io|rubygems", r"\.org|",
              r"proxy\.golang", r"\.org|docker", r"\.(io|com)|quay", r"\.io|ghcr", r"\.io|conan", r"\.io|",
              r"maven\.apache", r"\.org|deb", r"\.debian\.org|snapshot", r"\.debian\.org)\b"), "a package registry's host"),
    (_spelled(r"\b(TO", r"DO|FIX", r"ME|XX", r"X)\b"), "a note to self"),
    (_spelled(r"(?i)\bissues?\s+(#\s*)", r"?\d+\b"), "a reference to a tracker"),
    (_spelled(r"^\s*#\s*if\s+", r"0\b"), "code that is switched off"),
    (_spelled(r"[ \t]", r"+$"), "white space at the end of a line"),
]
RULES = [(re.compile(pattern), reason) for pattern, reason in RULES]

LICENSED = (".h", ".cc", ".c", ".py", ".sh", ".cmake", ".fbs", "CMakeLists.txt", "dev", ".ci/run", "/run")
SPDX = _spelled("SPDX-License", "-Identifier: ")
BINARY = b"\0"
UNCHECKED = ("LICENSE",)  # not our words


def check(root):
    finds = []
    seen = 0
    for path in tree.files(root):
        with open(os.path.join(root, path), "rb") as file:
            raw = file.read()
        if path in UNCHECKED or "/corpus/" in path or path.endswith(".pcap"):
            continue
        if BINARY in raw:
            finds.append(f"{path}:1: a binary file")
            continue
        seen += 1
        lines = raw.decode("utf-8", "replace").splitlines()
        for number, line in enumerate(lines, 1):
            if line == " " and path.endswith(".patch"):
                continue  # an empty line that the patch leaves alone
            finds += [f"{path}:{number}: {reason}" for pattern, reason in RULES if pattern.search(line)]
        if path.endswith(LICENSED) and lines and not any(SPDX in line for line in lines[:3]):
            finds.append(f"{path}:1: no SPDX line")
        if raw and not raw.endswith(b"\n"):
            finds.append(f"{path}:{len(lines)}: no newline at the end")
    return finds, seen


BAD = [
    "see /wo" + "rk/x\n",
    "see ../sha" + "red/x\n",
    "curl https://pypi" + ".org/simple\n",
    "// TO" + "DO: later\n",
    "see issue" + " 7\n",
    "#if" + " 0\n",
    "x = 1; " + "\n",
    "no newline",
]
GOOD = ["$dir/wo" + "rk/x, frame/work, a network/\n", "an issue with 2 sides\n", "x = 1;\n"]


def self_test():
    failures = []
    for expected, texts in ((True, BAD), (False, GOOD)):
        for text in texts:
            with tempfile.TemporaryDirectory() as root:
                with open(os.path.join(root, "a.md"), "w", encoding="utf-8") as file:
                    file.write(text)
                if bool(check(root)[0]) != expected:
                    failures.append(f"{text!r}: {'missed' if expected else 'wrongly refused'}")
    return failures


if __name__ == "__main__":
    sys.exit(tree.check_main(__doc__, check, "are clean", self_test,
                             f"{len(BAD)} bad and {len(GOOD)} good texts told apart"))
