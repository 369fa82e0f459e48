#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The closing table of the demonstration: one column for each phase.

usage: demo_table.py DIRECTORY PHASE...

DIRECTORY holds for each phase PHASE.before.json and PHASE.after.json (termfs stats --json), PHASE.before.ticks and
PHASE.after.ticks (the server's processor time, in clock ticks), PHASE.out (fio's JSON, when the phase was fio's), and
PHASE.client.json (counters of the client library, when there was no mount).
"""

import json
import os
import sys

# title, side, counter: how much it grew during the phase
COUNTERS = [
    ("operations", "mount", "fuse_requests_total"),
    ("pages read", "mount", "read_pages_total"),
    ("  one-sided hits", "mount", "read_hit_pages_total"),
    ("  absent by the bitmap", "mount", "absent_by_bitmap_pages_total"),
    ("  absent by the magic pattern", "mount", "absent_by_pattern_pages_total"),
    ("RPC reads", "mount", "rpc_reads_total"),
    ("promotions", "server", "promotions_total"),
    ("pages read ahead", "server", "read_ahead_pages_total"),
    ("evictions", "server", "evictions_total"),
]
PERCENTILES = [("p50", "50.000000"), ("p99", "99.000000"), ("p99.9", "99.900000")]
NOTHING = "-"


def load(path):
    """The JSON object in `path`; empty when there is no such file or it holds something else."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def number(path):
    with open(path, encoding="ascii") as file:
        return float(file.read())


class Phase:
    def __init__(self, directory, name):
        at = os.path.join(directory, name)
        self.name = name
        self.before, self.after = load(at + ".before.json"), load(at + ".after.json")
        client = load(at + ".client.json")
        if client:
            self.before["mount"], self.after["mount"] = {}, client
        self.client = client
        jobs = load(at + ".out").get("jobs", [])
        self.fio = jobs[0] if jobs else {}
        ticks = number(at + ".after.ticks") - number(at + ".before.ticks")
        self.server_seconds = ticks / os.sysconf("SC_CLK_TCK")

    def grown(self, side, counter):
        """None when the phase has no such counter."""
        now = self.after.get(side, {}).get(counter)
        return None if now is None else now - self.before.get(side, {}).get(counter, 0)

    def ssd_reads_per_thousand(self):
        reads, ssd = self.grown("mount", "reads_total"), self.grown("server", "ssd_reads_total")
        return None if not reads or ssd is None else 1000 * ssd / reads

    def rate(self, direction):
        side = self.fio.get(direction, {})
        return side["iops"] if side.get("total_ios") else None

    def latency(self, direction, percentile):
        """Microseconds."""
        side = self.fio.get(direction, {})
        value = side.get("clat_ns", {}).get("percentile", {}).get(percentile) if side.get("total_ios") else None
        return None if value is None else value / 1000

    def library_latency(self, name):
        value = self.client.get(name)
        return None if not value else value / 1000


def count(value):
    return NOTHING if value is None else f"{value:,.0f}"


def tenths(value):
    return NOTHING if value is None else f"{value:,.1f}"


def rows(phases):
    yield "", [phase.name for phase in phases]
    for title, side, counter in COUNTERS:
        yield title, [count(phase.grown(side, counter)) for phase in phases]
    yield "SSD reads per 1000 reads", [tenths(phase.ssd_reads_per_thousand()) for phase in phases]
    yield "server's processor time, s", [f"{phase.server_seconds:.2f}" for phase in phases]
    for direction in ("read", "write"):
        yield f"{direction}s per second", [count(phase.rate(direction)) for phase in phases]
        for title, key in PERCENTILES:
            yield f"  {direction} latency {title}, us", [tenths(phase.latency(direction, key)) for phase in phases]
    for histogram in ("read_hit", "read_miss"):
        for title, key in (("p50", "p50_ns"), ("p99", "p99_ns"), ("p99.9", "p999_ns")):
            values = [phase.library_latency(f"{histogram}_{key}") for phase in phases]
            yield f"  {histogram.replace('_', ' ')} {title}, us", [tenths(value) for value in values]


def main():
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    phases = [Phase(sys.argv[1], name) for name in sys.argv[2:]]
    shown = [(title, cells) for title, cells in rows(phases) if any(cell != NOTHING for cell in cells)]
    width = max(12, *(len(phase.name) for phase in phases)) + 2
    print()
    for title, cells in shown:
        print(f"{title:32}" + "".join(f"{cell:>{width}}" for cell in cells))
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
