# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/paper measured, as pictures and one page."""
import functools
import itertools
import json
import os
import statistics

import paper_plot
from paper_experiments import EXPERIMENTS, LEFT_OUT

BACK = 0.9  # of the former rate

HEAD = """# The TeRM paper's experiments

TeRM is Yang et al., "TeRM: Extending RDMA-Attached Memory with SSD", FAST '24. Its figures are repeated here on one
machine, with the software RNIC and at this machine's scale, by `./dev bench paper`, which also wrote this page
(`benchmarks/paper BUILD_DIR --render` writes it again from the `.json` files beside it). All kinds of one point were
measured in turns, by one call of `term_bench` (of files: `file_bench`). Figure 16 is of the file system; all others are
of a region, at the level of the library. Rates do not compare with the paper's, where clients, NIC, network and server
are machines of their own; ratios do, and each difference is explained by what was measured.

`pin`: all pages in memory. `odp`: an absent page is a fault. `rpc`: the server copies from an mmap of the SSD.
`bound`: the least of pin's rate, what the SSD gives with the misses of an oracle, and what the processors give with a
miss's cost; pin and the SSD in the same round, the SSD with accesses of the same size. `misses` are those of term;
`cpu` is processor time of client and server, `SSD` bytes read and written, both for an access of term. Of the paper
only such numbers are given as are certain; for the others see its figures.
"""


def prepared(stored):
    """The results of a figure for its table and sentences: {label: {kind: {...}, "limit": {...}}}."""
    data = {}
    for point in stored["points"]:
        result = point["result"]
        kinds = {kind["kind"]: dict(kind) for kind in result["kinds"]}
        for kind in kinds.values():
            kind["cpu_us"] = kind["client_cpu_us"] + kind["server_cpu_us"]
            kind["ssd_bytes"] = kind["ssd_read_bytes"] + kind["ssd_write_bytes"]
            kind["misses"] = 100 * (1 - kind["hit_ratio"])
            if "pin" in kinds and kind["cpu_us"] > 0:
                pin = kinds["pin"]
                kind["cpu_share_of_pin"] = (pin["client_cpu_us"] + pin["server_cpu_us"]) / kind["cpu_us"]
                kind["over_pin"] = kind["per_s"] / max(pin["per_s"], 1)
        data[point["label"]] = {"settings": result["settings"], **kinds}
        limit = result.get("limit", {})
        if limit.get("bound_per_s", 0) > 0:
            data[point["label"]]["limit"] = {**limit, "oracle_misses": 100 * (1 - limit["oracle_hit_ratio"])}
    return data


def sentences(experiment, data):
    for sentence in experiment.why:
        try:
            yield sentence.format(d=data)
        except KeyError:
            pass  # a point that this run does not have


def ratio(data, label, upper, lower):
    """None where one of them was not measured."""
    kinds = data[label]
    if upper not in kinds or lower not in kinds or kinds[lower]["per_s"] == 0:
        return None
    return kinds[upper]["per_s"] / kinds[lower]["per_s"]


def cell(value, form="{:.2f}"):
    return "-" if value is None else form.format(value)


def costs(kind):
    return [f"{kind['cpu_us']:.2f} us", f"{kind['ssd_bytes']:.0f} B"]


def table(head, rows):
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def kind_names(experiment):
    return experiment.kinds.split(",")


def rate_table(experiment, data):
    kinds = kind_names(experiment)
    against = [kind for kind in ("odp", "rpc", "pin") if kind in kinds]
    head = [experiment.x_title] + [f"{kind}, 1/s" for kind in kinds] + [f"term/{kind}" for kind in against]
    for (upper, lower) in sorted({key[1:] for key in experiment.reported}):
        head.append(f"{upper}/{lower}, paper")
    head += ["term/bound", "misses", "of an oracle", "cpu", "SSD"]
    rows = []
    for label, result in data.items():
        limit, term = result.get("limit"), result["term"]
        reads = result["settings"]["write_share"] < 1
        row = [label] + [paper_plot.short(result[kind]["per_s"]) for kind in kinds]
        row += [cell(ratio(data, label, "term", kind)) for kind in against]
        for pair in sorted({key[1:] for key in experiment.reported}):
            row.append(cell(experiment.reported.get((label, *pair))))
        row += [cell(limit and term["per_s"] / limit["bound_per_s"]),
                cell(term["misses"] if reads else None, "{:.1f}%"), cell(limit and limit["oracle_misses"], "{:.1f}%"),
                *costs(term)]
        rows.append(row)
    return table(head, rows)


def step_table(experiment, data):
    """Each kind beside the one before it."""
    rows = []
    for label, result in data.items():
        before = None
        for name in kind_names(experiment):
            kind = result[name]
            rows.append([label, name, paper_plot.short(kind["per_s"]), cell(before and kind["per_s"] / before),
                         cell(ratio(data, label, name, "rpc")), *costs(kind)])
            before = kind["per_s"]
    return table(["access", "kind", "1/s", "/ the step before", "/ rpc", "cpu", "SSD"], rows)


def latency_table(experiment, data):
    rows = []
    for name, (label, result) in itertools.product(kind_names(experiment), data.items()):
        call = result[name]["call_us"]
        rows.append([name, label, f"{call['p50']:.1f}", f"{call['p99']:.1f}",
                     cell(call["p50"] / max(result["pin"]["call_us"]["p50"], 0.01)),
                     cell(call["p99"] / max(result["pin"]["call_us"]["p99"], 0.01))])
    return table(["kind", "access", "median, us", "99th percentile, us", "median / pin's", "99th percentile / pin's"],
                 rows)


def recovery(settings, by_second):
    """(rate before the move, least rate after it, seconds until BACK of the former; None: not in this run)."""
    move, begin = int(settings["move_at"]), int(settings["warmup_s"])
    former = statistics.mean(by_second[begin:move])
    after = by_second[move:]
    back = next((second for second, rate in enumerate(after, 1) if rate >= BACK * former), None)
    return former, min(after), back


def second_table(experiment, data):
    rows = []
    for name, (_, result) in itertools.product(kind_names(experiment), data.items()):
        former, least, back = recovery(result["settings"], result[name]["by_second"])
        took = "not in this run" if back is None else f"within {back} s"
        rows.append([name, paper_plot.short(former), paper_plot.short(least), cell(least / former), took])
    return table(["kind", "before, 1/s", "least second after", "/ before", f"back at {BACK:.0%} of it"], rows)


def by_seconds(experiment, data):
    """The series as text, for who wants the numbers."""
    rows = []
    for name, (_, result) in itertools.product(kind_names(experiment), data.items()):
        begin = int(result["settings"]["warmup_s"])
        rows.append(f"{name}, from second {begin} on: " +
                    " ".join(paper_plot.short(rate) for rate in result[name]["by_second"][begin:]))
    return "\n".join(f"    {row}" for row in rows)


TABLES = {"lines": rate_table, "marks": rate_table, "bars": step_table, "latencies": latency_table,
          "seconds": second_table}


def picture(experiment, data):
    names = kind_names(experiment)
    if experiment.draw == "seconds":
        (result,) = data.values()
        series = {name: result[name]["by_second"] for name in names}
        settings = result["settings"]
        return paper_plot.seconds(experiment.title, "accesses/s", series, int(settings["warmup_s"]),
                                  settings["move_at"])
    if experiment.draw == "latencies":
        series = {part: [result[name]["call_us"][part] for result in data.values() for name in names]
                  for part in ("p50", "p99")}
        return paper_plot.lines(experiment.title, "kind", "us", names, series, joined=False)
    draw = {"lines": paper_plot.lines, "bars": paper_plot.bars,
            "marks": functools.partial(paper_plot.lines, joined=False)}[experiment.draw]
    series = {name: [result[name]["per_s"] for result in data.values()] for name in names}
    return draw(experiment.title, experiment.x_title, "accesses/s", list(data), series)


def section(experiment, stored):
    parts = [f"## {experiment.title}", f"**In the paper.** {experiment.shows}"]
    if stored is None:
        return parts + ["**Here.** Not measured."]
    if "left_out" in stored:
        return parts + [f"**Here.** Left out: {stored['left_out']}."]
    data = prepared(stored)
    settings = stored["points"][0]["result"]["settings"]
    quick = ", a quick run" if stored["quick"] else ""
    turn = settings["seconds"] / settings["rounds"]
    warmups = sorted({point["result"]["settings"]["warmup_s"] for point in stored["points"]})
    warmup = " to ".join(f"{seconds:g}" for seconds in dict.fromkeys((warmups[0], warmups[-1])))
    parts += [f"**Here** ({stored['date']}{quick}; region {settings['region_bytes'] >> 20} MiB; each kind "
              f"{settings['rounds']} x {turn:.1f} s after {warmup} s of warming up).",
              TABLES[experiment.draw](experiment, data)]
    if experiment.draw == "seconds":
        parts.append(by_seconds(experiment, data))
    parts.append(f"![{experiment.title}]({experiment.name}.svg)")
    why = " ".join(sentences(experiment, data))
    return parts + ([f"**Why.** {why}"] if why else [])


def machine_lines(machines):
    """Once for each different machine, as one page may show figures of several runs."""
    lines = []
    for machine in machines:
        ssd = machine["ssd_reads_per_s"]
        lines.append(f"- {machine['cpu']}, {machine['cpus']} CPUs, {machine['memory_gib']} GiB, Linux "
                     f"{machine['kernel']}; " +
                     (f"SSD: {ssd} reads of 4 KiB a second as measured" if ssd else "its SSD was not measured alone"))
    return "\n".join(dict.fromkeys(lines))


def load(directory, experiment):
    try:
        with open(os.path.join(directory, f"{experiment.name}.json"), encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def write(path, words):
    with open(path, "w", encoding="utf-8") as out:
        out.write(words)


def render(directory):
    """Every picture and the page, from the JSON files in `directory`."""
    stored = {experiment: load(directory, experiment) for experiment in EXPERIMENTS}
    machines = [figure["machine"] for figure in stored.values() if figure]
    parts = [HEAD.strip(), machine_lines(machines) or "Nothing has been measured yet."]
    for experiment, figure in stored.items():
        if figure and "points" in figure:
            write(os.path.join(directory, f"{experiment.name}.svg"), picture(experiment, prepared(figure)))
        parts += section(experiment, figure)
    for name, reason in LEFT_OUT.items():
        parts += [f"## {name}", reason]
    write(os.path.join(directory, "README.md"), "\n\n".join(parts) + "\n")
