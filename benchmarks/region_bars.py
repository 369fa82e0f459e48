# SPDX-License-Identifier: Apache-2.0
"""What we promise of a region larger than its memory, by term_bench: beside the machine's limit, pin and the SSD.

Every function yields (name, bound, ratios, lower_is_better). A ratio is one turn of the subject beside what was measured
in the same round.
"""
import json
import os
import statistics
import subprocess

DEADLINE = 900  # seconds of one call
IN_FLIGHT = ("--threads", "4", "--depth", "32")  # the SSD is at its best with more than a thread has under way
ROUNDS = 7


class Region:
    """Calls of term_bench on a region of one size."""

    def __init__(self, build, quick):
        self.program = os.path.join(build, "benchmarks", "term_bench")
        self.gib, self.warm_up, self.turn = (1, 15, 1) if quick else (4, 60, 2)

    def run(self, kinds, *options, warm_up=None, limit=True):
        command = [self.program, "--json", "--kind", kinds, "--region", f"{self.gib}G", "--rounds", str(ROUNDS),
                   "--seconds", str(ROUNDS * self.turn), "--warmup", str(warm_up or self.warm_up), *options]
        command += [] if limit else ["--no-limit"]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                timeout=DEADLINE).stdout
        result = json.loads(output)
        result["by_kind"] = {kind["kind"]: kind for kind in result["kinds"]}
        return result


def over_bound(result, kind):
    """Achieved / bound, round by round."""
    limit, misses = result["limit"], 1 - result["limit"]["oracle_hit_ratio"]
    writes = result["settings"]["write_share"]
    ratios = []
    for turn, rate in enumerate(result["by_kind"][kind]["turns"]):
        seconds = (1 - writes) / limit["ssd_read_turns"][turn]
        if writes:
            seconds += writes / limit["ssd_write_turns"][turn]
        bounds = [result["by_kind"]["pin"]["turns"][turn], 1 / (misses * seconds), limit["cpu_bound_per_s"]]
        ratios.append(rate / min(bounds))
    return ratios


def turn_ratios(result, subject, reference):
    return [a / b for a, b in zip(result["by_kind"][subject]["turns"], result["by_kind"][reference]["turns"])]


def reads(region):
    for size in ("4K", "256"):
        result = region.run("pin,term", "--size", size, *IN_FLIGHT)
        term = result["by_kind"]["term"]
        if size == "4K":
            yield f"misses after {region.warm_up} s / oracle's", 1.15, [term["misses_over_oracle"]], True
            depth = 4 * 32
            ssd = min(result["limit"]["ssd_reads"], key=lambda rate: abs(rate["depth"] - depth))
            yield (f"p99 of a miss / the SSD's at depth {ssd['depth']}, {depth} in flight", 2.0,
                   [term["miss_us"]["p99"] / ssd["p99_us"]], True)
        yield f"reads of {size}, rate / bound", 0.85, over_bound(result, "term"), False
    result = region.run("term", *IN_FLIGHT, warm_up=15, limit=False)
    yield "misses after 15 s / oracle's", 2.0, [result["by_kind"]["term"]["misses_over_oracle"]], True
    for name, options in (("theta 1.2", ("--theta", "1.2")), ("DRAM ratio 0.9", ("--dram-ratio", "0.9"))):
        result = region.run("pin,term", *IN_FLIGHT, *options, limit=False)
        yield f"reads of 4K, {name}, rate / pin", 0.9, turn_ratios(result, "term", "pin"), False
    result = region.run("pin,term", "--threads", "1", "--depth", "1", limit=False)
    yield ("p50 of a hit, one at a time / pin's", 1.2,
           [result["by_kind"]["term"]["hit_us"]["p50"] / result["by_kind"]["pin"]["hit_us"]["p50"]], True)


def writes(region):
    for size in ("4K", "256"):
        result = region.run("pin,term", "--writes", "1", "--size", size, "--threads", "16", "--depth", "1")
        yield f"writes of {size}, rate / bound", 0.85, over_bound(result, "term"), False


def uniform(region):
    result = region.run("term", "--theta", "0", *IN_FLIGHT, limit=False)
    term, ratio = result["by_kind"]["term"], result["settings"]["dram_ratio"]
    yield "uniform, hits / DRAM ratio", 0.98, [term["hit_ratio"] / ratio], False
    yield "uniform, SSD reads / misses", 1.02, [term["ssd_reads"] / (1 - term["hit_ratio"])], True


def busy_server(region):
    result = region.run("pin", "--server-cpu", "0", "--client-cpu", "1", "--busy", "0.9", "--threads", "1", "--depth",
                        "1", warm_up=1, limit=False)
    yield "resident reads, server's CPU 90% busy / idle", 0.95, [result["by_kind"]["pin"]["busy_over_idle"]], False


def moved(region):
    """Seconds until a moved hot set is served at 90% of the former rate, beside what the SSD needs to read its half."""
    at, before, after = region.warm_up, 5, 25
    command = ["term", "--distribution", "moving", "--move-at", str(at), *IN_FLIGHT]
    region_turn, region.turn = region.turn, (before + after) / ROUNDS
    result = region.run(*command, "--rounds", "1", warm_up=at - before, limit=True)
    region.turn = region_turn
    rates = result["by_kind"]["term"]["by_second"]
    usual = statistics.median(rates[at - before:at])
    print("moved hot set, accesses in each second: " + ", ".join(f"{rate / 1000:.0f}k" for rate in rates[at - before:]))
    back = next((second for second, rate in enumerate(rates[at:], 1) if rate >= 0.9 * usual), after)
    hot_half = region.gib * 2**30 / 4096 * result["settings"]["dram_ratio"] / 2
    allowed = max(3, 1.5 * hot_half / max(result["limit"]["ssd_read_turns"]))
    yield f"moved hot set, seconds to 90% of the rate / {allowed:.1f} s", 1.0, [back / allowed], True


GROUPS = (reads, writes, uniform, busy_server, moved)


def bars(build, quick):
    region = Region(build, quick)
    for group in GROUPS:
        for name, bound, ratios, lower_is_better in group(region):
            yield f"{region.gib} GiB: {name}", bound, ratios, lower_is_better
