# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/paper measured, as pictures and one page."""
import functools
import itertools
import json
import os

import paper_plot
from paper_experiments import EXPERIMENTS, LEFT_OUT
from paper_numbers import BACK, BLOCKING, PAGE, WIDE, prepared
from paper_why import sentences

SIGN = "†"

HEAD = """# The TeRM paper's experiments

TeRM is Yang et al., "TeRM: Extending RDMA-Attached Memory with SSD", FAST '24. Its figures are repeated here on one
machine, with the software RNIC and at this machine's scale, by `./dev bench paper`, which also wrote this page
(`benchmarks/paper BUILD_DIR --render` writes it again from the `.json` files beside it). All kinds of one point were
measured in turns, by one call of `term_bench` (of files: `file_bench`). Figure 16 is of the file system; all others are
of a region, at the level of the library. Rates do not compare with the paper's, where clients, NIC, network and server
are machines of their own; ratios do, and what differs is explained by what was measured.

`pin`: all pages in memory. `odp`: an absent page is a fault. `rpc`: the server copies from an mmap of the SSD.
`bound`: the least of pin's rate, what the SSD gives with the misses of an oracle, and what the processors give with a
miss's cost; pin and the SSD in the same round, the SSD with accesses of the same size. `misses` are those of term;
`cpu` is processor time of client and server, `SSD` bytes read and written, both for an access of term. Of the paper
only such numbers are given as are certain; for the others see its figures.

Rates are medians of the rounds. A ratio is the median of those of the rounds, in each of which both were measured, with
the least and the largest of them behind it. SIGN: in some round a rate was more than WIDE away from its median; beside a
ratio, one of its two rates was. A worker of a server of odp, rpc or rpc_buffer waits for pages of the SSD in the kernel;
so these servers have eight, and those of the other kinds one, but where a figure says otherwise.
""".replace("SIGN", SIGN).replace("WIDE", f"{WIDE:.0%}")


def cell(value, form="{:.2f}"):
    return "-" if value is None else form.format(value)


def ratio_cell(ratio):
    """None: was not measured."""
    if ratio is None:
        return "-"
    spread = "" if ratio.least is None or ratio.least == ratio.most else f" ({ratio.least:.2f}..{ratio.most:.2f})"
    return f"{ratio.median:.2f}{spread}{SIGN if ratio.wide else ''}"


def rate_cell(kind):
    return paper_plot.short(kind["per_s"]) + (SIGN if kind["wide"] else "")


def misses_cell(kind, writes_only):
    """By the READs that found a page absent, or by what the SSD read where they are another program's."""
    if writes_only:
        return "-"
    return f"{kind['misses']:.1f}%" + (" of bytes" if kind["misses_by_bytes"] else "")


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
        row = [label] + [rate_cell(result[kind]) for kind in kinds]
        row += [ratio_cell(term["over"][kind]) for kind in against]
        for pair in sorted({key[1:] for key in experiment.reported}):
            row.append(cell(experiment.reported.get((label, *pair))))
        row += [ratio_cell(term["over"]["bound"]), misses_cell(term, result["settings"]["write_share"] == 1),
                cell(limit and limit["oracle_misses"], "{:.1f}%"), *costs(term)]
        rows.append(row)
    return table(head, rows)


def step_table(experiment, data):
    """Each kind beside the one before it."""
    rows = []
    for label, result in data.items():
        for name in kind_names(experiment):
            kind = result[name]
            rows.append([label, name, rate_cell(kind), ratio_cell(kind["over"]["before"]), ratio_cell(kind["over"]["rpc"]),
                         str(kind["workers"]), *costs(kind)])
    return table(["access", "kind", "1/s", "/ the step before", "/ rpc", "workers", "cpu", "SSD"], rows)


def latency_table(experiment, data):
    rows = []
    for name, (label, result) in itertools.product(kind_names(experiment), data.items()):
        call, sign = result[name]["call_us"], SIGN if result[name]["wide"] else ""
        rows.append([name, label, f"{call['p50']:.1f}{sign}", f"{call['p99']:.1f}",
                     cell(call["p50"] / max(result["pin"]["call_us"]["p50"], 0.01)),
                     cell(call["p99"] / max(result["pin"]["call_us"]["p99"], 0.01))])
    return table(["kind", "access", "median, us", "99th percentile, us", "median / pin's", "99th percentile / pin's"],
                 rows)


def second_table(experiment, data):
    rows = []
    for name, (_, result) in itertools.product(kind_names(experiment), data.items()):
        kind = result[name]
        rows.append([name, paper_plot.short(kind["former"]), paper_plot.short(kind["least"]), cell(kind["least_share"]),
                     kind["back_words"]])
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


def workers_line(experiment, data):
    """How many workers servers have; they are not the same for all kinds, or for all points."""
    names = kind_names(experiment)
    blocking, others = ([name for name in names if (name in BLOCKING) == blocks] for blocks in (True, False))
    counts = {(result[blocking[0]]["workers"], result[others[0]]["workers"]) for result in data.values()}
    if len(counts) > 1:
        return ("**Workers.** Servers of both kinds have as many as the row says, where other figures compare eight of rpc "
                "with one of term.")
    ((waiting, other),) = counts
    return (f"**Workers.** Servers of {' and '.join(blocking)}, whose workers wait for pages of the SSD, have {waiting} each; "
            f"servers of {', '.join(others)} have {other}. So a step from the former to the latter is one of workers, too.")


def bounds_of(values):
    low, high = (paper_plot.short(value) for value in (min(values), max(values)))
    return low if low == high else f"{low}..{high}"


def ssd_line(data):
    """What the SSD gave in the rounds of each point; empty: it was not measured."""
    parts = []
    for label, result in data.items():
        limit = result.get("limit", {})
        said = [f"{bounds_of(limit[turns])} {what}" for turns, what in
                (("ssd_read_turns", "reads"), ("ssd_write_turns", "writes")) if limit.get(turns)]
        if said:
            parts.append(f"{label} {' and '.join(said)}")
    return f"The SSD alone in the same rounds, a second: {'; '.join(parts)}." if parts else ""


def load_words(points):
    """Of the machine before each batch; empty: not known."""
    loads = [point["load_before"] for point in points if "load_before" in point]
    if not loads:
        return ""
    return "; load average " + " to ".join(dict.fromkeys(f"{load:.1f}" for load in (min(loads), max(loads)))) + " before"


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
              f"{settings['rounds']} x {turn:.1f} s after {warmup} s of warming up{load_words(stored['points'])}).",
              TABLES[experiment.draw](experiment, data)]
    if experiment.tells_workers:
        parts.append(workers_line(experiment, data))
    if ssd_line(data):
        parts.append(ssd_line(data))
    if experiment.draw == "seconds":
        parts.append(by_seconds(experiment, data))
    parts.append(f"![{experiment.title}]({experiment.name}.svg)")
    why = " ".join(sentences(experiment.name, data))
    return parts + ([f"**Why.** {why}"] if why else [])


def ssd_turns(figure):
    """Rates of reads of 4 KiB in the rounds."""
    for point in figure.get("points", []):
        if point["result"]["settings"]["access_bytes"] <= PAGE:
            yield from point["result"].get("limit", {}).get("ssd_read_turns", [])


def machine_lines(figures):
    """Once for each different machine, as one page may show figures of several runs."""
    turns = {}
    for figure in figures:
        machine = figure["machine"]
        ssd = machine["ssd_reads_per_s"]
        line = (f"- {machine['cpu']}, {machine['cpus']} CPUs, {machine['memory_gib']} GiB, Linux {machine['kernel']}; " +
                (f"SSD: {ssd} reads of 4 KiB a second before the rounds" if ssd else "its SSD was not measured alone"))
        turns.setdefault(line, []).extend(ssd_turns(figure))
    return "\n".join(line + (f", {bounds_of(rates)} in them" if rates else "") for line, rates in turns.items())


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
    parts = [HEAD.strip(), machine_lines([figure for figure in stored.values() if figure]) or "Nothing has been measured yet."]
    for experiment, figure in stored.items():
        if figure and "points" in figure:
            write(os.path.join(directory, f"{experiment.name}.svg"), picture(experiment, prepared(figure)))
        parts += section(experiment, figure)
    for name, reason in LEFT_OUT.items():
        parts += [f"## {name}", reason]
    write(os.path.join(directory, "README.md"), "\n\n".join(parts) + "\n")
