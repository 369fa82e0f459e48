#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds and runs every test, tier by tier; prints a line for each tier and the sums at the end.

The sums count test cases: of the GoogleTest programs, of fuzzers (one each) and of the end-to-end run. A case that runs
under a sanitizer as well counts again. A build, a check or a program that fails without a failed case counts as one
failure. What a tier printed is in build/test-logs/TIER.log.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_counts  # noqa: E402
import tree  # noqa: E402
from test_counts import Counts  # noqa: E402

BUILD = os.path.join(tree.ROOT, "build")
LOGS = os.path.join(BUILD, "test-logs")
SEED = "20240227"  # of property tests and simulations, unless RC_PARAMS says otherwise
PATIENCE = 2.5  # times its budget: then a tier is ended. One that is merely over it says so
GRACE = 20  # seconds between SIGTERM and SIGKILL, for a test to unmount in
SHOWN = 60  # lines of a failed tier's log

TELLING = re.compile(
    r"error:|FAILED|CMake Error|Error: |: Failure$|runtime error|WARNING: ThreadSanitizer|check failed|Falsifiable|^not ok|^FAIL|^UNSTEADY"
)

NAMING = re.compile(r"^(?:not ok|FAIL) .*|^\[  FAILED  \] \S+\.\S+|^\s+\d+ - \S+ \(.*")  # who failed
NAMED = 10  # of a tier, at the end


class TimeIsUp(Exception):
    """A tier has used up its budget, and all patience."""


class Failed(Exception):
    """A build or a check failed."""


class Tier:
    """Runs commands within a budget of seconds, their output in a log of the tier's own."""

    def __init__(self, name, title, budget, body, deadline, second_chance):
        self.name, self.title, self.budget, self._body = name, title, budget, body
        self._start = time.monotonic()
        self._deadline = min(self._start + PATIENCE * budget, deadline)
        self.log_path = os.path.join(LOGS, name + ".log")
        self.note = ""
        self.second_chance = second_chance
        self.unsteady = []  # what failed and then passed

    def left(self):
        return self._deadline - time.monotonic()

    def command(self, *command, env=None):
        """Runs it to its end, or to the end of all patience. Returns the exit code and what it printed."""
        if self.left() <= 0:
            raise TimeIsUp
        with open(self.log_path, "a+", encoding="utf-8", errors="replace") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            before = log.tell()
            process = subprocess.Popen(command, cwd=tree.ROOT, stdout=log, stderr=subprocess.STDOUT,
                                       stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})},
                                       start_new_session=True)
            try:
                process.wait(timeout=self.left())
            except subprocess.TimeoutExpired:
                raise TimeIsUp from None
            finally:
                end_group(process)
            log.seek(before)
            return process.returncode, log.read()

    def must(self, *command, what, env=None):
        code, _ = self.command(*command, env=env)
        if code != 0:
            raise Failed(what)

    def run(self):
        """Counts of this tier; prints its line."""
        with open(self.log_path, "w", encoding="utf-8"):
            pass
        counts = Counts()
        try:
            counts = self._body(self)
        except TimeIsUp:
            self.note = "time is up"
            counts.failed += 1
        except OSError as error:
            self.note = f"cannot be run: {error}"
            counts.failed += 1
        except Failed as failure:
            self.note = str(failure)
            counts.failed += 1
        self._print(counts)
        return counts

    def _print(self, counts):
        verdict = "FAILED" if counts.failed else "skipped" if not counts.passed and counts.skipped else "ok"
        parts = [str(counts)] if counts.total() else []
        parts += [self.note] if self.note else []
        seconds = time.monotonic() - self._start
        parts += [f"over its budget of {self.budget} s"] if seconds > self.budget else []
        parts += [f"UNSTEADY, failed at first: {', '.join(self.unsteady)}"] if self.unsteady else []
        print(f"{self.name:8} {verdict:7} {self.title}: {'; '.join(parts) or 'clean'} ({seconds:.0f} s)", flush=True)
        if counts.failed or self.unsteady:
            with open(self.log_path, encoding="utf-8", errors="replace") as log:
                shown = telling_lines(log.read().splitlines())
            print("\n".join("    | " + line for line in shown))
            print(f"    all of it: {os.path.relpath(self.log_path, tree.ROOT)}", flush=True)


    def names_of_failed(self):
        """A line each, for the end of the whole run."""
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            found = [match[0] for match in map(NAMING.match, log) if match]
        return [f"{self.name}: {line.strip()}" for line in list(dict.fromkeys(found))[:NAMED] or [self.note or "see its log"]]


def telling_lines(lines):
    """What says most about a failure: the surroundings of the first error messages, and the end."""
    chosen = set(range(max(0, len(lines) - SHOWN // 4), len(lines)))
    for number, line in enumerate(lines):
        if len(chosen) >= SHOWN:
            break
        if TELLING.search(line):
            chosen.update(range(number, min(number + 6, len(lines))))
    return [lines[number] for number in sorted(chosen)]


def end_group(process):
    """Ends what `process` has left running, and itself, by its process group."""
    for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        until = time.monotonic() + patience
        while time.monotonic() < until:
            process.poll()
            try:
                os.killpg(process.pid, 0)
            except ProcessLookupError:
                break
            time.sleep(0.05)
    process.wait()


def build(tier, preset, *targets):
    """Builds targets, all by default, that exist in the preset's folder. Returns the folder."""
    beside = {"default": BUILD, "debian-libfuse": BUILD + "-debian-libfuse"}  # as tools/configure.sh has it
    folder = beside.get(preset, os.path.join(BUILD, preset))
    tier.must("tools/configure.sh", preset, what="cmake failed")
    tier.must("ninja", "-C", folder, "build.ninja", what="cmake failed")
    if targets:
        listed = subprocess.run(["ninja", "-C", folder, "-t", "targets", "all"], capture_output=True, text=True,
                                check=False)
        known = {line.split(":")[0] for line in listed.stdout.splitlines()}
        targets = [t for t in targets if t in known]
        if not targets:
            return folder
    tier.must("ninja", "-C", folder, "-k", "0", *targets, what="the build failed")
    return folder


class Ahead:
    """Does what later tiers will need while earlier ones wait more than they compute: with CPU time that nobody else
    wants, and in steps that the later tier takes up wherever this has come to."""

    # Below everything else, also below other groups of processes where each has an equal share.
    IDLE = "echo 19 > /proc/self/autogroup 2> /dev/null; exec nice -n 19 chrt --idle 0 \"$@\""

    def __init__(self, commands):
        self._process = None
        script = "; ".join(commands)
        if script:
            # pylint: disable=consider-using-with
            self._process = subprocess.Popen(["sh", "-c", self.IDLE, "sh", "sh", "-c", script], cwd=tree.ROOT,
                                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                             stderr=subprocess.DEVNULL, start_new_session=True)

    def end(self):
        if self._process is not None:
            end_group(self._process)
            self._process = None


def ctest(tier, folder, labels, env=None, prefix=(), only="."):
    """Runs the tests of these labels whose names match `only`. Counts cases."""

    def run(results, names, jobs):
        test_counts.clear(results)
        junit = os.path.join(results, "ctest.xml")
        tier.command(*prefix, "ctest", "--test-dir", folder, "-L", f"^({labels})$", "-R", names, "-j", str(jobs),
                     "--no-tests=ignore", "--output-on-failure", "--output-junit", junit,
                     env={"GTEST_OUTPUT": f"xml:{results}/", "GTEST_COLOR": "no", **(env or {})})
        return test_counts.programs_of(junit, results)

    results = os.path.join(folder, "test-results", tier.name)
    programs = run(results, only, os.cpu_count())
    failed = [name for name, counts in (programs or {}).items() if counts.failed]
    if failed and tier.second_chance:
        again = run(results + "-again", f"^({'|'.join(failed)})$", 1) or {}
        programs.update(again)
        tier.unsteady = [name for name in failed if name in again and not again[name].failed]
    return test_counts.sum_of(programs)


def seeded():
    return {"RC_PARAMS": os.environ.get("RC_PARAMS", f"seed={SEED}")}


def without_address_randomisation():
    """The shadow memory of clang 14's sanitizers may collide with a randomised layout."""
    prefix = ("setarch", os.uname().machine, "--addr-no-randomize")
    allowed = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    return prefix if allowed else ()


def or_none(tier, counts):
    if not counts.total():
        tier.note = "there are none"
    return counts


def gcc(tier):
    return ctest(tier, build(tier, "default"), "unit", seeded())


def sanitized(preset, options):
    def body(tier):
        folder = build(tier, preset, "tests_unit")
        return ctest(tier, folder, "unit", {**seeded(), **options}, without_address_randomisation())

    return body


def lint(*arguments):
    def body(tier):
        seconds = str(max(1, int(min(tier.budget, tier.left()) - 30)))
        code, _ = tier.command(sys.executable, "tools/lint.py", "--seconds", seconds, *arguments)
        if code == 75:
            tier.note = "clean so far; clang-tidy ran out of time, another run goes on from there"
            return Counts(skipped=1)
        if code != 0:
            raise Failed("see below")
        return Counts()

    return body


def properties(tier):
    folder = build(tier, "default")
    tier.note = seeded()["RC_PARAMS"]
    return or_none(tier, ctest(tier, folder, "property|simulation", seeded()))


def fuzz(tier):
    folder = build(tier, "asan", "tests_fuzz")
    return or_none(tier, ctest(tier, folder, "fuzz", prefix=without_address_randomisation()))


def second(tier):
    return ["--second-chance"] if tier.second_chance else []


def unsteady_cases(output):
    return re.findall(r"^UNSTEADY\? (\S+): once more$", output, re.MULTILINE)


def end_to_end(*arguments):
    def body(tier):
        if not os.path.exists("/dev/fuse"):
            tier.note = "there is no /dev/fuse here, so nothing can be mounted"
            return Counts(skipped=1)
        code, output = tier.command("tests/e2e/run", build(tier, "default"), *arguments, *second(tier))
        if code == 77:
            tier.note = output.strip().splitlines()[-1] if output.strip() else "it gave no reason"
            return Counts(skipped=1)
        tier.unsteady = unsteady_cases(output)
        return test_counts.of_closing_line(output, code)

    return body


def virtual_machines(tier):
    """The kernel's RNIC driver, and what needs an RDMA device."""
    folder = build(tier, "default", "termfs", "driver_test", "siw_test")
    code, output = tier.command("tests/vm/run", folder, *second(tier))
    if code == 77:
        tier.note = output.strip().splitlines()[-1] if output.strip() else "it gave no reason"
        return Counts(skipped=1)
    tier.unsteady = unsteady_cases(output)
    return test_counts.of_closing_line(output, code)


def fallback(tier):
    """Debian's own libfuse, and requests over /dev/fuse: what a machine without newer ones gets."""
    folder = build(tier, "debian-libfuse", "termfs", "mount_front_end_test", "mount_text_test")
    counts = ctest(tier, folder, "unit", only="^mount_(front_end|text)_test$")
    if not os.path.exists("/dev/fuse"):
        return counts
    code, output = tier.command("tests/e2e/run", folder, "--quick", "--fuse", "device", "--filter", "command_", *second(tier))
    tier.unsteady += unsteady_cases(output)
    counts += test_counts.of_closing_line(output, code)
    return counts


ASAN = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=0:strict_string_checks=1:check_initialization_order=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
TSAN = {"TSAN_OPTIONS": f"suppressions={tree.ROOT}/tools/tsan.supp:second_deadlock_stack=1:history_size=4"}

# Cases that touch each promise of a mount, in a minute.
SHORT = [
    part
    for text in ("posix_", "two_mounts_", "fio_verify", "sqlite", "git", "command_", "enospc", "killed_server_keeps")
    for part in ("--filter", text)
]

FULL_BUDGET = 1800  # seconds
QUICK_BUDGET = 300

# name, title, budget in seconds, body. The budgets are for a machine with two cores and an empty compiler cache.
FULL = [
    ("gcc", "gcc build, unit tests", 900, gcc),
    ("e2e", "end to end on a real mount", 720, end_to_end()),
    ("property", "property tests and simulations, fixed seeds", 240, properties),
    ("vm", "kernel driver and RDMA devices, in virtual machines", 600, virtual_machines),
    ("asan", "unit tests, address and undefined-behaviour sanitizers", 840, sanitized("asan", ASAN)),
    ("tsan", "unit tests, thread sanitizer", 840, sanitized("tsan", TSAN)),
    ("fuzz", "fuzzers, a short while each", 120, fuzz),
    ("fallback", "Debian's libfuse over /dev/fuse: front end, end to end in short", 240, fallback),
    ("lint", "form, layers, batches, words, clang-tidy with clang's warnings and lock annotations", 600, lint()),
]
# Tiers that leave CPUs idle, and what can be done meanwhile for which others. Virtual machines leave none: they are
# emulated.
WAITING = ("e2e", "property")
MEANWHILE = {
    "asan": "tools/configure.sh asan && ninja -C build/asan tests_unit tests_fuzz",
    "tsan": "tools/configure.sh tsan && ninja -C build/tsan tests_unit",
    "lint": f"{sys.executable} tools/lint.py --only tidy",
}
QUICK = [
    ("gcc", "gcc build, unit tests", 240, gcc),
    ("lint", "lint of what changed", 90, lint("--changed")),
    ("e2e", "end to end on a real mount, the short form", 120, end_to_end("--quick", *SHORT)),
]


def main():
    names = [name for name, *_ in FULL]
    parser = argparse.ArgumentParser(prog="./dev test", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="unit tests, lint of what changed, a short mount test")
    parser.add_argument("--vm", action="append_const", dest="tier", const="vm", help="the virtual machines alone")
    parser.add_argument("--tier", action="append", choices=names, help="this tier only; may be repeated")
    parser.add_argument("--second-chance", action="store_true",
                        help="what fails is run once more, alone, and passes if it passes then; it is named UNSTEADY")
    arguments = parser.parse_args()

    os.makedirs(LOGS, exist_ok=True)
    start = time.monotonic()
    whole = QUICK_BUDGET if arguments.quick else FULL_BUDGET
    deadline = start + PATIENCE * whole
    sums = Counts()
    failures = []
    tiers = [tier for tier in (QUICK if arguments.quick else FULL)
             if not arguments.tier or tier[0] in arguments.tier]
    ahead = None
    try:
        for i, (name, title, budget, body) in enumerate(tiers):
            if name not in WAITING and ahead is not None:
                ahead.end()
                ahead = None
            elif name in WAITING and ahead is None and not arguments.quick:
                ahead = Ahead([MEANWHILE[later] for later, *_ in tiers[i:] if later in MEANWHILE])
            tier = Tier(name, title, budget, body, deadline, arguments.second_chance)
            counts = tier.run()
            sums += counts
            failures += tier.names_of_failed() if counts.failed or tier.unsteady else []
    finally:
        if ahead is not None:
            ahead.end()
    print()
    if time.monotonic() - start > whole:
        print(f"This took {time.monotonic() - start:.0f} s; it should take {whole} s at most.")
    print("\n".join([*(["Failed, also if it passed the second time:"] if failures else []), *failures, str(sums)]))
    return 1 if sums.failed or not sums.passed and not arguments.tier else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)
