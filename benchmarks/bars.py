# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/run promises: bars, their verdicts, and what was not measured."""
import dataclasses
import statistics

NOISE = 0.05
MET, NEAR, MISSED = "met", "noise", "MISSED"


class Bar:
    """One promise: `ratio` is better when larger, unless lower_is_better."""

    def __init__(self, name, bound, ratios, lower_is_better=False, note=""):
        self.name, self.bound, self.ratios, self.note = name, bound, ratios, note
        self.lower_is_better = lower_is_better
        self.median = statistics.median(ratios)

    def verdict(self):
        if not self.median > 0:
            return MISSED  # nothing was done, or nothing measured
        slack = self.median / self.bound if self.lower_is_better else self.bound / self.median
        if slack <= 1:
            return MET
        return NEAR if slack <= 1 + NOISE else MISSED

    def row(self):
        sign = "<=" if self.lower_is_better else ">="
        spread = f"{min(self.ratios):.2f}..{max(self.ratios):.2f}"
        return f"{self.name:<58} {sign} {self.bound:<5} {self.median:6.2f}  ({spread}, n={len(self.ratios)})  {self.verdict()}"


@dataclasses.dataclass(frozen=True)
class NotRun:
    """A group, or a part of one, that cannot be measured here."""
    name: str
    why: str

    def row(self):
        return f"{self.name}: skipped, {self.why}"


def summary(bars, not_run):
    verdicts = [bar.verdict() for bar in bars]
    counts = ", ".join(f"{verdicts.count(verdict)} {words}"
                       for verdict, words in ((MET, "hold"), (NEAR, "within noise"), (MISSED, "missed")))
    return counts + (f"; not run: {', '.join(part.name for part in not_run)}" if not_run else "")


def fails(bars):
    """Whether --check does: a bar is missed, or there is none."""
    return not bars or any(bar.verdict() == MISSED for bar in bars)


def groups_of(groups, word):
    """Those whose names hold the word, in order."""
    return {name: run for name, run in groups.items() if word in name}
