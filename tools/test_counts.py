# SPDX-License-Identifier: Apache-2.0
"""How many test cases passed, failed and were skipped, from what ctest, GoogleTest and the end-to-end run leave."""

import os
import re
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __iadd__(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        return self

    def total(self):
        return self.passed + self.failed + self.skipped

    def __str__(self):
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


def clear(folder):
    """Makes `folder` exist and empty, so that no result of an earlier run is counted."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)


def of_gtest(path):
    """Cases in one GoogleTest XML file; None when there is none or it is cut short."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    counts = Counts()
    for case in root.iter("testcase"):
        if case.find("failure") is not None:
            counts.failed += 1
        elif case.get("status") == "notrun" or case.get("result") == "skipped":
            counts.skipped += 1
        else:
            counts.passed += 1
    return counts


def programs_of(junit, results):
    """Name and cases of each program of a ctest run, by its own XML in `results`; one without XML is one case. None when
    ctest itself has failed."""
    try:
        programs = list(ElementTree.parse(junit).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return None
    cases = {}
    for program in programs:
        good = program.get("status") == "run"
        counts = of_gtest(os.path.join(results, program.get("name") + ".xml"))
        if counts is None:
            counts = Counts(passed=1) if good else Counts(failed=1)
        elif not good and not counts.failed:
            counts.failed = 1  # died after its last case, or a sanitizer spoke at its end
        cases[program.get("name")] = counts
    return cases


def sum_of(programs):
    """Cases of what programs_of returned."""
    if programs is None:
        return Counts(failed=1)
    sums = Counts()
    for counts in programs.values():
        sums += counts
    return sums


def of_closing_line(output, code):
    """Cases by the last line 'N passed, N failed[, N skipped]' of `output`, of a program that ended with `code`."""
    found = re.findall(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", output, re.MULTILINE)
    if not found:
        return Counts(failed=1)
    counts = Counts(*(int(number or 0) for number in found[-1]))
    if code != 0 and not counts.failed:
        counts.failed = 1
    return counts
