#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Form (clang-format), clang-tidy, layers, batches, words, filebench's models, and shellcheck. One line for each; details of
what is wrong.

Exit code 1: something is wrong; 75: nothing was found, but clang-tidy ran out of time (--seconds). clang-tidy says
what clang's own warnings and lock annotations find, too. It leaves out tests/ and benchmarks/, which are half of its work:
tests are compiled by both compilers in `./dev test`, benchmarks by gcc, and warnings are errors. So that a test that only
gcc compiles is not found as late as there, --changed lets clang compile the tests and benchmarks that a change of theirs
reaches.

clang-tidy's verdict on a source is cached by the content of everything that it depends on: the source, the headers of
ours that it includes, the compile command, .clang-tidy and the tool's version. So a second run takes seconds, also in
another clone: like the compiler's, the cache is the user's (~/.cache/termfs-tidy, or $XDG_CACHE_HOME), one empty file
for each clean source, forgotten after a month without use.

Most of the work on a source is its headers; so where several sources of a batch (cmake/batches.cmake) are new, they are
looked at as one, in a sixth of the time, and one by one only where that finds something. What clang says of a main file
only, as of a function that is not used, is not found so; gcc finds it in every build.
"""

import argparse
import concurrent.futures
import contextlib
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_batches  # noqa: E402
import tree  # noqa: E402

CLANG_BUILD = os.path.join(tree.ROOT, "build", "clang")
NOT_TIDIED = ("tests/", "benchmarks/")
UNFINISHED = 75  # EX_TEMPFAIL
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "termfs-tidy")
BATCHES = os.path.join(CLANG_BUILD, "batches")
LEAST_BATCH = 3  # sources; fewer are faster one by one
# Of included sources, too, and it is meant.
AS_BATCH = ("--header-filter=" + os.path.join(tree.ROOT, "(base|driver|tlib|metadata|fs|mount)/[a-z_/0-9]*[.](h|cc)$"),
            "--checks=-bugprone-suspicious-include")
MONTH = 30 * 86400  # seconds
INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def run(*command, cwd=tree.ROOT):
    return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def check_format(paths, fix):
    sources = [p for p in paths if p.endswith(tree.CXX)]
    if not sources:
        return True, "no sources", ""
    mode = ["-i"] if fix else ["--dry-run", "-Werror"]
    done = run("clang-format-14", *mode, *sources)
    places = [line.split(": error:")[0] for line in done.stdout.splitlines() if ": error:" in line]
    details = "\n".join(places or [done.stdout]) + "\n./dev lint --fix puts it right"
    return done.returncode == 0, f"{len(sources)} files", details


def check_scripts(paths, _):
    scripts = []
    for path in paths:
        with open(os.path.join(tree.ROOT, path), "rb") as file:
            if re.match(rb"#!.*\b(ba)?sh\b", file.readline()):
                scripts.append(path)
    if not scripts:
        return True, "no scripts", ""
    done = run("shellcheck", "-x", "-S", "warning", *scripts)
    return done.returncode == 0, f"{len(scripts)} scripts", done.stdout


def check_own(script):
    def check(*_):
        tool = os.path.join(tree.ROOT, "tools", script)
        for arguments in (["--self-test"], []):
            done = run(sys.executable, tool, *arguments)
            if done.returncode != 0:
                break
        return done.returncode == 0, done.stdout.strip().splitlines()[-1], done.stdout

    return check


def check_models(*_):
    done = run(sys.executable, "benchmarks/filebench/make.py", "--check")
    return done.returncode == 0, (done.stdout.strip().splitlines() or ["said nothing"])[-1], done.stdout


class Tidy:
    """clang-tidy over the sources of the clang build, with the cache."""

    def __init__(self):
        self._contents = {}
        self._base = hashlib.sha256(run("clang-tidy-14", "--version").stdout.encode())
        for name in (".clang-tidy",):
            with open(os.path.join(tree.ROOT, name), "rb") as file:
                self._base.update(file.read())

    @staticmethod
    def prepare():
        """Configures the clang build and makes the generated headers. Returns its error output, or None."""
        done = run("tools/configure.sh", "clang")
        if done.returncode != 0:
            return done.stdout
        ninja = ["ninja", "-C", CLANG_BUILD]
        done = run(*ninja, "build.ninja")  # sees a CMakeLists.txt that has changed
        if done.returncode != 0:
            return done.stdout
        targets = run(*ninja, "-t", "targets", "all").stdout
        generated = re.findall(r"^(\S+_generated\.h): CUSTOM_COMMAND", targets, re.MULTILINE)
        done = run(*ninja, *generated) if generated else done
        return done.stdout if done.returncode != 0 else None

    def _read(self, path):
        """Content of `path` and the files of ours that it includes. Empty when there is no such file."""
        if path not in self._contents:
            content = b""
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    content = file.read()
            self._contents[path] = (content, [name.decode() for name in INCLUDE.findall(content)])
        return self._contents[path]

    def closure(self, file):
        """The files of ours that `file` consists of, each with its content, in a fixed order."""
        todo, contents = [file], {}
        while todo:
            path = todo.pop()
            if path not in contents:
                contents[path], included = self._read(path)
                todo += [os.path.join(root, name) for name in included for root in (tree.ROOT, CLANG_BUILD)]
        return contents

    def key(self, entry):
        digest = self._base.copy()
        digest.update(entry["command"].replace(tree.ROOT, "").encode())
        for content in self.closure(entry["file"]).values():
            digest.update(hashlib.sha256(content).digest())
        return digest.hexdigest()

    @staticmethod
    def check_one(entry):
        done = run("clang-tidy-14", "--quiet", "-p", CLANG_BUILD, entry["file"])
        return done.returncode, done.stdout

    @staticmethod
    def batch_is_clean(name, entries):
        """Whether nothing is found in the sources of these entries when they are one. They are of one target."""
        folder = os.path.join(BATCHES, name)
        os.makedirs(folder, exist_ok=True)
        batch = os.path.join(folder, "batch.cc")
        with open(batch, "w", encoding="utf-8") as file:
            file.write("".join(f'#include "{entry["file"]}"\n' for entry in entries))
        command = entries[0]["command"].replace(entries[0]["file"], batch)
        with open(os.path.join(folder, "compile_commands.json"), "w", encoding="utf-8") as file:
            json.dump([{**entries[0], "command": command, "file": batch}], file)
        return run("clang-tidy-14", "--quiet", "-p", folder, *AS_BATCH, batch).returncode == 0


def known_clean(key):
    """Whether the cache has it; its month begins anew."""
    try:
        os.utime(os.path.join(CACHE, key))
    except OSError:
        return False
    return True


def forget_old():
    for file in os.scandir(CACHE):
        with contextlib.suppress(FileNotFoundError):  # another run forgets at the same time
            if file.stat().st_mtime < time.time() - MONTH:
                os.unlink(file.path)


def batches_of(files):
    """Which of them are compiled together, as lists."""
    if len(files) < LEAST_BATCH or check_batches.configure() is not None:
        return []
    wanted = set(files)
    together = ([os.path.join(tree.ROOT, path) for path in batch] for batch in check_batches.batches())
    together = ([file for file in batch if file in wanted] for batch in together)
    return [batch for batch in together if len(batch) >= LEAST_BATCH]


def load_entries():
    with open(os.path.join(CLANG_BUILD, "compile_commands.json"), encoding="utf-8") as file:
        return json.load(file)


def check_clang(paths, _):
    """Whether clang compiles the tests and benchmarks that are among `paths` or include one of them that is."""
    changed = {os.path.join(tree.ROOT, p) for p in paths if p.startswith(NOT_TIDIED) and p.endswith(tree.CXX)}
    if not changed:
        return True, "no tests", ""
    tidy = Tidy()
    error = tidy.prepare()
    if error:
        return False, "the clang build cannot be prepared", error
    entries = [entry for entry in load_entries() if changed & tidy.closure(entry["file"]).keys()]

    def compile_one(entry):
        return run(*shlex.split(entry["command"]), "-fsyntax-only", cwd=CLANG_BUILD)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        bad = [done.stdout for done in pool.map(compile_one, entries) if done.returncode != 0]
    return not bad, f"{len(entries)} tests and benchmarks", "".join(bad)


def check_tidy(paths, _, deadline=None):
    tidy = Tidy()
    error = tidy.prepare()
    if error:
        return False, "the clang build cannot be prepared", error
    entries = load_entries()
    wanted = {os.path.join(tree.ROOT, p) for p in paths if not p.startswith(NOT_TIDIED)}
    # A header is checked with the source of its name.
    stems = {os.path.splitext(p)[0] for p in wanted}
    entries = {e["file"]: e for e in entries if e["file"] in wanted or os.path.splitext(e["file"])[0] in stems}
    os.makedirs(CACHE, exist_ok=True)
    forget_old()
    keys = {file: tidy.key(entry) for file, entry in entries.items()}
    new = [f for f in entries if not known_clean(keys[f])]
    bad, late, clean = [], [], set()

    def note_clean(file):
        open(os.path.join(CACHE, keys[file]), "w", encoding="utf-8").close()

    def check_batch(numbered):
        number, files = numbered
        if not (deadline and time.monotonic() > deadline) and tidy.batch_is_clean(str(number), [entries[f] for f in files]):
            clean.update(files)
            for file in files:
                note_clean(file)

    def check(file):
        if deadline and time.monotonic() > deadline:
            late.append(file)
            return
        code, output = tidy.check_one(entries[file])
        if code == 0:
            note_clean(file)
        else:
            bad.extend(re.split(r"^(?=/\S+:\d+:\d+: (?:error|warning): )", output, flags=re.MULTILINE))

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(check_batch, enumerate(batches_of(new))))
        list(pool.map(check, [file for file in new if file not in clean]))
    summary = f"{len(entries)} sources, {len(new)} of them new"
    if late:
        summary += f"; time is up with {len(late)} left, another run goes on from here"
    unique = dict.fromkeys(find for find in bad if ": error: " in find)  # a header's are found with every source
    good = False if bad else None if late else True
    return good, summary, "".join(unique or bad)


CHECKS = {
    "format": check_format,
    "layers": check_own("check_layers.py"),
    "batches": check_own("check_batches.py"),
    "words": check_own("check_text.py"),
    "models": check_models,
    "scripts": check_scripts,
    "tidy": check_tidy,
    "clang": check_clang,
}


def main():
    parser = argparse.ArgumentParser(prog="./dev lint", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changed", action="store_true", help="form, clang-tidy and clang of changed files only")
    parser.add_argument("--fix", action="store_true", help="rewrite the files in the right form")
    parser.add_argument("--only", action="append", choices=CHECKS, help="this check only; may be repeated")
    parser.add_argument("--seconds", type=float, help="give up clang-tidy after that many seconds")
    arguments = parser.parse_args()

    paths = tree.changed_files() if arguments.changed else tree.files()
    deadline = time.monotonic() + arguments.seconds if arguments.seconds else None
    verdicts = set()
    every = [name for name in CHECKS if arguments.changed or name != "clang"]  # in the whole, the sanitizers' builds
    for name in arguments.only or every:
        start = time.monotonic()
        options = {"deadline": deadline} if name == "tidy" else {}
        good, summary, details = CHECKS[name](paths, arguments.fix, **options)
        verdict = {True: "ok", None: "partly", False: "FAILED"}[good]
        print(f"lint {name:8} {verdict:7} {summary} ({time.monotonic() - start:.1f} s)", flush=True)
        verdicts.add(good)
        if good is False:
            print(details)
    return 1 if False in verdicts else UNFINISHED if None in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
