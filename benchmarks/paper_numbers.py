# SPDX-License-Identifier: Apache-2.0
"""What the figures' JSON says, made ready for the page: ratios round by round, and what was near its limit."""
import dataclasses
import statistics

PAGE = 4096
BACK = 0.9  # of the former rate
WIDE = 0.25  # a turn so far from the median is told
NEAR = 0.8  # of what there is: near its limit
BLOCKING = ("odp", "rpc", "rpc_buffer")  # a worker of their servers waits for pages of the SSD in the kernel


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The median of ratios of what was measured in the same round, and their range where it is known."""
    median: float
    least: float | None = None
    most: float | None = None
    wide: bool = False  # one of both rates scatters


def scatters(turns):
    median = statistics.median(turns)
    return any(abs(turn - median) > WIDE * median for turn in turns)


def paired(upper, lower):
    """None where one of them was not measured in every round."""
    if not upper or len(upper) != len(lower) or min(lower) <= 0:
        return None
    ratios = [a / b for a, b in zip(upper, lower)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), scatters(upper) or scatters(lower))


def bound_turns(limit, pin, write_share):
    """The bound of each round, as term_bench has it: the least of pin's rate, the SSD's, the processors'."""
    misses = 1 - limit["oracle_hit_ratio"]
    bounds = []
    for turn, rate in enumerate(pin):
        seconds = (1 - write_share) / limit["ssd_read_turns"][turn]
        if write_share > 0:
            seconds += write_share / limit["ssd_write_turns"][turn]
        known = [rate, 1 / (misses * seconds) if misses > 0 else 0, limit["cpu_bound_per_s"]]
        bounds.append(min(bound for bound in known if bound > 0))
    return bounds


def over_bound(kind, result, pin):
    """None where the bound was not measured."""
    limit = result.get("limit", {})
    if limit.get("bound_per_s", 0) <= 0:
        return None
    ratio = paired(kind["turns"], bound_turns(limit, pin, result["settings"]["write_share"])) if pin else None
    said = kind["over_bound"]
    return ratio if ratio and abs(ratio.median - said) <= 0.005 + 0.01 * said else Ratio(said)


def recovery(settings, by_second):
    """(rate before the move, least rate after it, seconds until BACK of the former; None: not in this run)."""
    move, begin = int(settings["move_at"]), int(settings["warmup_s"])
    former = statistics.mean(by_second[begin:move])
    after = by_second[move:]
    back = next((second for second, rate in enumerate(after, 1) if rate >= BACK * former), None)
    return former, min(after), back


def ssd_capacity(result, best_reads):
    """Bytes a second that the SSD reads and writes; None: not known."""
    settings, limit = result["settings"], result.get("limit", {})
    item = max(PAGE, settings["access_bytes"])
    reads, writes = (limit.get(turns) for turns in ("ssd_read_turns", "ssd_write_turns"))
    read = statistics.median(reads) * item if reads else best_reads * PAGE if best_reads else None
    if settings.get("ssd_iops"):
        read = settings["ssd_iops"] * PAGE
    return read, statistics.median(writes) * item if writes else None


def ssd_share(kind, per_second, capacity):
    """Of what the SSD gives; None: not known."""
    shares = []
    for said, most in zip(("ssd_read_bytes", "ssd_write_bytes"), capacity):
        if kind[said] > 0 and most is None:
            return None
        shares.append(kind[said] * per_second / most if most else 0)
    return sum(shares)


def workers_of(name, settings):
    """Of its server; None: not known."""
    return settings.get("blocking_workers" if name in BLOCKING else "workers")


def limits_of(kind):
    """What is near its limit, in words."""
    near = []
    if kind["busy"] >= NEAR * kind["cpus"]:
        near.append(f"the processors ({kind['busy']:.1f} of {kind['cpus']} busy)")
    if kind["workers"] == 1 and kind["kind"] not in BLOCKING and kind["server_busy"] >= NEAR:
        near.append(f"the one worker of its server ({kind['server_busy']:.2f} processors, with its other threads)")
    if kind["ssd_share"] is not None and kind["ssd_share"] >= NEAR:
        near.append(f"the SSD ({kind['ssd_share']:.0%} of what it gives)")
    if near:
        return f"{kind['kind']} is near a limit of {' and '.join(near)}"
    ssd = "" if kind["ssd_share"] is None else f", the SSD gives {kind['ssd_share']:.0%} of what it can"
    return (f"nothing is near its limit with {kind['kind']} ({kind['busy']:.1f} of {kind['cpus']} processors are busy"
            f"{ssd}): what is left is waiting, for the SSD, for one another, or for other programs")


def prepared_kind(kind, result, machine):
    settings = result["settings"]
    per_second = kind["accesses"] / settings["seconds"]
    kind = {**kind, "cpus": machine["cpus"], "workers": workers_of(kind["kind"], settings),
            "cpu_us": kind["client_cpu_us"] + kind["server_cpu_us"],
            "ssd_bytes": kind["ssd_read_bytes"] + kind["ssd_write_bytes"], "misses": 100 * (1 - kind["hit_ratio"]),
            "misses_by_bytes": kind["read_pages"] == 0, "wide": scatters(kind["turns"]),
            "server_busy": kind["server_cpu_us"] * per_second / 1e6,
            "ssd_pages_per_s": kind["ssd_read_bytes"] * per_second / PAGE,
            "ssd_share": ssd_share(kind, per_second, ssd_capacity(result, machine["ssd_reads_per_s"]))}
    kind["busy"] = kind["cpu_us"] * per_second / 1e6
    kind["limits"] = limits_of(kind)
    if settings.get("move_at"):
        former, least, back = recovery(settings, kind["by_second"])
        kind.update(former=former, least=least, least_share=least / former, back=back,
                    back_words="not in this run" if back is None else f"within {back} s")
    return kind


def prepared(stored):
    """The results of a figure for its table and sentences: {label: {kind: {...}, "limit": {...}}}. A kind's `over` has
    its Ratio to each other kind, to the one `before` it, and to the `bound`; over_pin and so on are their medians."""
    data = {}
    for point in stored["points"]:
        result = point["result"]
        kinds = {kind["kind"]: prepared_kind(kind, result, stored["machine"]) for kind in result["kinds"]}
        before, pin = None, kinds.get("pin")
        for kind in kinds.values():
            over = {name: paired(kind["turns"], other["turns"]) for name, other in kinds.items()}
            over["before"] = before and paired(kind["turns"], before["turns"])
            over["bound"] = over_bound(kind, result, pin and pin["turns"])
            kind["over"] = over
            kind.update({f"over_{name}": ratio.median for name, ratio in over.items() if ratio})
            if pin and kind["cpu_us"] > 0:
                kind["cpu_share_of_pin"] = pin["cpu_us"] / kind["cpu_us"]
            before = kind
        data[point["label"]] = {"settings": result["settings"], **kinds}
        limit = result.get("limit", {})
        if limit.get("bound_per_s", 0) > 0:
            data[point["label"]]["limit"] = {**limit, "oracle_misses": 100 * (1 - limit["oracle_hit_ratio"])}
    return data
