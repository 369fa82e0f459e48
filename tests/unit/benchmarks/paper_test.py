# SPDX-License-Identifier: Apache-2.0
"""What the page about the TeRM paper's figures says by given numbers."""
import importlib.machinery
import os
import statistics
import sys
import types
import unittest
from unittest import mock

BENCHMARKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "benchmarks")
sys.path.insert(0, BENCHMARKS)
sys.dont_write_bytecode = True
import paper_numbers  # noqa: E402
import paper_page  # noqa: E402
import paper_why  # noqa: E402
from paper_experiments import EXPERIMENTS  # noqa: E402

BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}
MACHINE = {"cpu": "a CPU", "cpus": 2, "memory_gib": 4, "kernel": "6", "ssd_reads_per_s": 100_000}


def load_paper():
    loader = importlib.machinery.SourceFileLoader("benchmarks_paper", os.path.join(BENCHMARKS, "paper"))
    module = types.ModuleType(loader.name)
    module.__file__ = loader.path
    loader.exec_module(module)
    return module


def kind(name, turns, **other):
    return {"kind": name, "per_s": statistics.median(turns), "turns": turns, "accesses": sum(turns), "read_pages": 1,
            "hit_pages": 1, "hit_ratio": 0.9, "client_cpu_us": 1, "server_cpu_us": 1, "ssd_read_bytes": 400,
            "ssd_write_bytes": 0, "over_bound": 0, "call_us": {"p50": 1, "p99": 2}, **other}


def point(label, *kinds, limit=None, **settings):
    settings = {"region_bytes": 1 << 30, "access_bytes": 4096, "write_share": 0, "seconds": 3, "rounds": 3, "warmup_s": 1,
                "workers": 1, "blocking_workers": 8, "ssd_iops": 0, "odp_delay_us": 0, **settings}
    return {"label": label, "result": {"settings": settings, "limit": {"ssd_reads": [], **(limit or {})}, "kinds": list(kinds)}}


def figure(*points):
    return {"date": "now", "quick": False, "machine": MACHINE, "points": list(points)}


def rows_of(name, *points):
    """Of the figure's table, by their first cell."""
    experiment = BY_NAME[name]
    lines = paper_page.TABLES[experiment.draw](experiment, paper_numbers.prepared(figure(*points))).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(cells[0], row)) for row in cells[2:]}


class RatioTest(unittest.TestCase):

    def test_median_of_the_rounds(self):
        ratio = paper_numbers.paired([1, 4, 9], [1, 1, 9])
        self.assertEqual((ratio.median, ratio.least, ratio.most), (1, 1, 4))
        self.assertTrue(ratio.wide)

    def test_none_without_pairs(self):
        self.assertIsNone(paper_numbers.paired([1, 2], [1]))
        self.assertIsNone(paper_numbers.paired([1, 2], [1, 0]))
        self.assertIsNone(paper_numbers.paired([], []))

    def test_scatters(self):
        self.assertFalse(paper_numbers.scatters([75, 100, 125]))
        self.assertTrue(paper_numbers.scatters([74, 100, 100]))
        self.assertTrue(paper_numbers.scatters([100, 100, 126]))

    def test_over_bound(self):
        limit = {"bound_per_s": 100, "oracle_hit_ratio": 0.5, "ssd_read_turns": [100, 50, 200], "ssd_write_turns": [],
                 "cpu_bound_per_s": 300}
        result = {"settings": {"write_share": 0}, "limit": limit}
        pin = [150, 150, 900]
        self.assertEqual(paper_numbers.bound_turns(limit, pin, 0), [150, 100, 300])
        term = kind("term", [75, 100, 30], over_bound=0.5)
        ratio = paper_numbers.over_bound(term, result, pin)
        self.assertEqual((ratio.median, ratio.least, ratio.most), (0.5, 0.1, 1))
        other = paper_numbers.over_bound({**term, "over_bound": 0.8}, result, pin)
        self.assertEqual((other.median, other.least), (0.8, None), "the program's own bound counts")


class TableTest(unittest.TestCase):

    def test_ratios_are_those_of_the_rounds(self):
        row = rows_of("fig13a", point("2 thr.", kind("pin", [10, 10, 90]), kind("odp", [10, 10, 10]),
                                      kind("rpc", [40, 40, 41]), kind("term", [10, 40, 90])))["2 thr."]
        self.assertEqual(row["term/pin"], "1.00 (1.00..4.00)†")
        self.assertEqual(row["term, 1/s"], "40†")
        self.assertEqual(row["rpc, 1/s"], "40")

    def test_steps(self):
        kinds = [kind(name, [10 * (i + 1)] * 3) for i, name in enumerate(BY_NAME["fig10"].kinds.split(","))]
        kinds[2]["turns"] = [20, 80, 100]
        data = paper_numbers.prepared(figure(point("256B", *kinds)))
        self.assertEqual(data["256B"]["rpc_direct"]["over_before"], 4)
        self.assertIn("| rpc_direct | 30† | 4.00 (1.00..5.00)† | 8.00 (2.00..10.00)† | 1 |",
                      paper_page.step_table(BY_NAME["fig10"], data))

    def test_how_misses_were_counted(self):
        kinds = [kind(name, [10, 10, 10]) for name in ("pin", "odp", "rpc")]
        rows = rows_of("fig16", point("library, read 4K", *kinds, kind("term", [10, 10, 10])),
                       point("mount, read 4K", *kinds, kind("term", [10, 10, 10], read_pages=0)),
                       point("mount, write 4K", *kinds, kind("term", [10, 10, 10], read_pages=0), write_share=1))
        self.assertEqual([row["misses"] for row in rows.values()], ["10.0%", "10.0% of bytes", "-"])


class PageTest(unittest.TestCase):

    def test_workers(self):
        names = BY_NAME["fig10"].kinds.split(",")
        data = paper_numbers.prepared(figure(point("256B", *(kind(name, [10] * 3) for name in names))))
        self.assertIn("Servers of rpc and rpc_buffer, whose workers wait for pages of the SSD, have 8 each",
                      paper_page.workers_line(BY_NAME["fig10"], data))
        swept = [point(f"{n} thr.", kind("rpc", [10] * 3), kind("term", [10] * 3), workers=n, blocking_workers=n)
                 for n in (1, 4)]
        self.assertIn("as many as the row says",
                      paper_page.workers_line(BY_NAME["fig13b"], paper_numbers.prepared(figure(*swept))))

    def test_ranges(self):
        def measured(label, turns, size):
            limit = {"ssd_read_turns": turns, "bound_per_s": 1, "oracle_hit_ratio": 0.5}
            return point(label, kind("term", [10] * 3), limit=limit, access_bytes=size)

        points = [measured("a", [90_000, 120_000], 256), measured("b", [70_000], 4096), measured("c", [1000], 65536)]
        self.assertIn("100000 reads of 4 KiB a second before the rounds, 70k..120k in them",
                      paper_page.machine_lines([figure(*points)]))
        self.assertIn("a 90k..120k reads; b 70k reads", paper_page.ssd_line(paper_numbers.prepared(figure(*points))))

    def test_load(self):
        self.assertEqual(paper_page.load_words([{}, {}]), "")
        self.assertEqual(paper_page.load_words([{"load_before": 0.25}]), "; load average 0.2 before")
        self.assertEqual(paper_page.load_words([{"load_before": 4}, {"load_before": 0}]),
                         "; load average 0.0 to 4.0 before")


class WhyTest(unittest.TestCase):

    def said(self, name, *points):
        return " ".join(paper_why.sentences(name, paper_numbers.prepared(figure(*points))))

    def threads(self, rpc_with_four):
        return [point(f"{n} thr.", kind("rpc", [rate] * 3), kind("term", [900] * 3), workers=n, blocking_workers=n)
                for n, rate in ((1, 100), (4, rpc_with_four))]

    def test_server_threads(self):
        self.assertIn("rpc has about 1.10 times", self.said("fig13b", *self.threads(110)))
        self.assertIn("rpc has no less than 3.00 times", self.said("fig13b", *self.threads(300)))
        self.assertIn("rpc has only 0.50 times", self.said("fig13b", *self.threads(50)))

    def test_slower_ssd(self):
        def at(label, term, odp):
            return point(label, kind("odp", [odp] * 3), kind("rpc", [50] * 3), kind("term", [term] * 3))

        self.assertIn("falls from 5.00 to 1.00", self.said("fig15", at("20k/s", 500, 100), at("5k/s", 100, 100)))
        self.assertIn("grows from 5.00 to 10.00", self.said("fig15", at("20k/s", 500, 100), at("5k/s", 100, 10)))

    def test_most_in_memory(self):
        kinds = [kind("rpc", [10] * 3, client_cpu_us=9), kind("odp", [10] * 3, client_cpu_us=9)]
        self.assertIn("term has less processor time.", self.said(
            "fig14a", point("80%", *kinds, kind("term", [10] * 3, hit_ratio=0.5))))
        self.assertIn("term has fewer misses and less processor time.", self.said(
            "fig14a", point("80%", *kinds, kind("term", [10] * 3, hit_ratio=0.95))))

    def test_limits(self):
        def limits(**other):
            kinds = point("a", kind("term", [100_000] * 3, **other))
            return paper_numbers.prepared(figure(kinds))["a"]["term"]["limits"]

        self.assertIn("nothing is near its limit", limits())
        self.assertIn("the processors (1.9 of 2 busy)", limits(client_cpu_us=18, server_cpu_us=1))
        self.assertIn("the one worker of its server (0.90 ", limits(server_cpu_us=9))
        self.assertIn("the SSD (90% of what it gives)", limits(ssd_read_bytes=3686.4))

    def test_every_figure_has_sentences(self):
        self.assertEqual(set(paper_why.WHY), set(BY_NAME))
        for experiment in EXPERIMENTS:
            self.assertEqual(list(paper_why.sentences(experiment.name, {})), [s for s in paper_why.WHY[experiment.name]
                                                                            if isinstance(s, str) and "{" not in s])


class BenchTest(unittest.TestCase):

    def test_load_of_each_batch_is_kept(self):
        paper = load_paper()
        bench = paper.Bench("term_bench", None)
        jobs = list(paper.jobs_of(BY_NAME["fig13b"], True))
        results = [point("", kind("rpc", [10] * 3), kind("term", [10] * 3))["result"] for _ in jobs]
        for job, result, load in zip(jobs, results, (1.0, 7.0)):
            with mock.patch.object(bench, "_call", return_value=[result]), \
                    mock.patch.object(paper.os, "getloadavg", return_value=(load, 0, 0)):
                bench.run([job], 1)
        with mock.patch("builtins.print"):
            kept = paper.stored(BY_NAME["fig13b"], bench, True)
        self.assertEqual([point["load_before"] for point in kept["points"]], [1.0, 7.0])
        self.assertEqual([point["result"] for point in kept["points"]], results)


if __name__ == "__main__":
    unittest.main()
