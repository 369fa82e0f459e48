# SPDX-License-Identifier: Apache-2.0
"""What we promise of a region larger than its memory, by term_bench: beside the machine's limit, pin and the SSD.

Every function yields (name, bound, ratios, lower_is_better). A ratio is one turn of the subject beside what was measured
in the same round.
"""
import json
import os
import statistics
import subprocess

import counting
import paper_numbers

DEADLINE = 900  # seconds of one call
IN_FLIGHT = {"threads": 4, "depth": 32}  # a thread has no more than 32 absent pages under way
IN_FLIGHT_IN_ALL = 128  # one of the depths at which the SSD is measured
ROUNDS = 7


class Region:
    """Calls of term_bench on a region of one size."""

    def __init__(self, build, quick):
        self.program = os.path.join(build, "benchmarks", "term_bench")
        self.gib, self.warm_up, self.turn = (1, 15, 1) if quick else (4, 60, 2)

    def run(self, kinds, points, **options):
        """What is measured at each point, of all kinds; a point is options of term_bench."""
        options = {"kind": kinds, "region": f"{self.gib}G", "rounds": ROUNDS, "seconds": ROUNDS * self.turn,
                   "warmup": self.warm_up, **IN_FLIGHT, **options}
        command = [self.program, "--json"]
        for name, value in options.items():
            command += ["--" + name.replace("_", "-"), str(value)]
        for point in points:
            command += ["--point", point]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                timeout=DEADLINE).stdout
        results = json.loads(output)
        for result in results:
            result["by_kind"] = {kind["kind"]: kind for kind in result["kinds"]}
        return results


def over_bound(result, kind):
    """Achieved / bound, round by round."""
    turns = {name: measured["turns"] for name, measured in result["by_kind"].items()}
    bounds = paper_numbers.bound_turns(result["limit"], turns["pin"], result["settings"]["write_share"])
    return [rate / bound for rate, bound in zip(turns[kind], bounds)]


def turn_ratios(subject, reference):
    return [a / b for a, b in zip(subject["turns"], reference["turns"])]


def print_bound(name, result):
    limit = result["limit"]
    print(f"{name}: the machine's bound is {limit['bound_per_s'] / limit['pin_per_s']:.2f} of pin, of which term has "
          f"{statistics.median(over_bound(result, 'term')):.2f}")


def reads(region):
    counted = ROUNDS * region.turn
    rest = max(1, region.warm_up - 15 - counted)  # of the warm-up: what is counted after 15 s warms up, too
    first, pages, parts, skewed, roomy, single = region.run(
        "pin,term", ["--warmup 15 --no-limit", f"--warmup {rest}", "--size 256",
                     "--theta 1.2", "--dram-ratio 0.9", "--threads 1 --depth 1 --no-limit"])
    oracle = 1 - pages["limit"]["oracle_hit_ratio"]
    term = pages["by_kind"]["term"]
    for seconds, bound, kind in ((15, 2.0, first["by_kind"]["term"]), (15 + counted + rest, 1.15, term)):
        yield f"misses after {seconds} s / oracle's", bound, [(1 - hits) / oracle for hits in kind["hit_ratios"]], True
    ssd = next(rate for rate in pages["limit"]["ssd_reads"] if rate["depth"] == IN_FLIGHT_IN_ALL)
    yield (f"p99 of a miss / the SSD's, {IN_FLIGHT_IN_ALL} in flight", 2.0, [term["miss_us"]["p99"] / ssd["p99_us"]],
           True)
    yield "reads of 4 KiB, rate / bound", 0.85, over_bound(pages, "term"), False
    yield "reads of 256 B, rate / bound", 0.85, over_bound(parts, "term"), False
    for name, result in (("theta 1.2", skewed), ("DRAM ratio 0.9", roomy)):
        yield (f"reads of 4 KiB, {name}, rate / pin", 0.9,
               turn_ratios(result["by_kind"]["term"], result["by_kind"]["pin"]), False)
        print_bound(name, result)
    yield ("p50 of a hit, one at a time / pin's", 1.2,
           [single["by_kind"]["term"]["hit_us"]["p50"] / single["by_kind"]["pin"]["hit_us"]["p50"]], True)
    yield from hits_at_the_same_pace(region, single["by_kind"]["term"])


def hits_at_the_same_pace(region, term):
    """A thread that sleeps at every miss finds colder caches than one that reads on and on: pin's sleeps as well."""
    every, pause = round(1 / max(1 - term["hit_ratio"], 1e-6)), round(term["miss_us"]["p50"])
    paced = region.run("pin", [f"--threads 1 --depth 1 --no-limit --pause-every {every} --pause {pause} --warmup 5"])[0]
    yield (f"p50 of a hit, one at a time / pin's that sleeps {pause} us at every {every}th", 1.2,
           [term["hit_us"]["p50"] / paced["by_kind"]["pin"]["hit_us"]["p50"]], True)


def writes(region):
    """Beside what pin and the SSD allow; the processor time of a miss is in the bound that is printed."""
    one_by_one = f"--writes 1 --threads 16 --depth 1 --warmup {region.warm_up} "
    for name, result in zip(("4 KiB", "256 B"), region.run("pin,term", [one_by_one, one_by_one + "--size 256"])):
        without = {**result, "limit": {**result["limit"], "cpu_bound_per_s": 0}}
        yield f"writes of {name}, rate / bound", 0.85, over_bound(without, "term"), False
        print_bound(f"writes of {name}", result)


def uniform(region):
    result = region.run("term", ["--theta 0 --warmup 10 --no-limit"])[0]
    term, ratio = result["by_kind"]["term"], result["settings"]["dram_ratio"]
    yield "uniform, hits / DRAM ratio", 0.98, [hits / ratio for hits in term["hit_ratios"]], False
    yield "uniform, SSD reads / misses", 1.02, [term["ssd_reads"] / (1 - term["hit_ratio"])], True


def told(region):
    """What it costs that clients pull bitmaps and say what they read: all in memory, so nothing is gained by it.

    Of what is read all the time: how much of it is counted is decided by the periods before."""
    with_it, without = "--bitmap pulled --no-limit", "--bitmap off --no-heat --no-limit"
    turns = region.run("term", [with_it, without] * (ROUNDS + 1), processes=8, threads=1, region="256M", dram_ratio=1,
                       warmup=3, seconds=region.turn, rounds=1)
    rates = [turn["by_kind"]["term"]["per_s"] for turn in turns[2:]]
    yield "8 clients that pull bitmaps and tell heat / that do neither", 0.99, [
        a / b for a, b in zip(rates[::2], rates[1::2])
    ], False


def busy_server(region):
    """Reads of what is in memory, one-sided and, beside them, by RPC, while something else takes the server's CPU."""
    result = region.run("pin,rpc_tiering", ["--threads 1 --depth 1 --no-limit"], server_cpu=0, client_cpu=1, busy=0.9,
                        region="1G", dram_ratio=1)[0]
    one_sided, by_rpc = (result["by_kind"][kind]["busy_over_idle"] for kind in ("pin", "rpc_tiering"))
    print(f"server's CPU 90% busy, the same reads by RPC: {statistics.median(by_rpc):.2f} of their rate")
    yield "resident reads, server's CPU 90% busy / idle", 0.95, one_sided, False


def moved(region):
    """Seconds until a moved hot set is served at 90% of the former rate, beside what the SSD needs to read its half."""
    at, before, after = region.warm_up, 5, 25
    result = region.run("term", [f"--distribution moving --move-at {at} --warmup {at - before} "
                                 f"--seconds {before + after} --rounds 1"])[0]
    rates = result["by_kind"]["term"]["by_second"]
    print("moved hot set, accesses in each second: " + ", ".join(f"{rate / 1000:.0f}k" for rate in rates[at - before:]))
    usual = statistics.median(rates[at - before:at])
    back = next((second for second, rate in enumerate(rates[at:], 1) if rate >= 0.9 * usual), after)
    hot_half = region.gib * 2**30 / 4096 * result["settings"]["dram_ratio"] / 2
    allowed = max(3, 1.5 * hot_half / max(result["limit"]["ssd_read_turns"]))
    print_what_counting_allows(result["settings"], usual, at, allowed)
    yield f"moved hot set, seconds to 90% of the rate / {allowed:.1f} s", 1.0, [back / allowed], True


def print_what_counting_allows(settings, usual, before, allowed):
    """At the usual rate, so many seconds after the beginning and after the move."""
    pages, share, theta = settings["region_bytes"] // 4096, settings["dram_ratio"], settings["theta"]
    had, has = (counting.counted_misses(pages, share, theta, seconds * usual / pages) for seconds in (before, allowed))
    print(f"moved hot set: who counts perfectly misses {had:.2f} times what the oracle does before the move, and {has:.2f} "
          f"times {allowed:.1f} s after it; where the SSD limits the rate, that is {had / has:.2f} of it")


GROUPS = (reads, writes, uniform, told, busy_server, moved)


def bars(build, quick):
    region = Region(build, quick)
    for group in GROUPS:
        for name, bound, ratios, lower_is_better in group(region):
            yield f"{region.gib} GiB: {name}", bound, ratios, lower_is_better
