# SPDX-License-Identifier: Apache-2.0
"""The programs that measure the TeRM paper's figures count what they do. No speed is asked for."""
import json

from volume import check, run


def check_counts(kind, where):
    """Of one that tells by a READ whether a page is there."""
    name = f"{kind['kind']}, {where}"
    check(kind["accesses"] > 0 and all(rate > 0 for rate in kind["turns"]), f"{name}: it was accessed: {kind}")
    check(0 < kind["hit_pages"] <= kind["read_pages"], f"{name}: hits are among what was read: {kind}")


def case_term_bench(site):
    kinds = ["pin", "rpc_direct", "+hotspot", "term"]  # those that need no control groups
    out = run(site.term_bench, "--kind", ",".join(kinds), "--region", "16M", "--warmup", "0.1", "--seconds", "0.3",
              "--rounds", "3", "--directory", site.scratch, "--no-limit", "--json", "--point", "--size 256",
              "--point", "--size 16K --dram-ratio 0.8 --threads 1", "--point", "--depth 1 --theta 0")
    points = json.loads(out)
    check([point["settings"]["access_bytes"] for point in points] == [256, 16384, 4096], "each point has its options")
    for point in points:
        size = point["settings"]["access_bytes"]
        check([kind["kind"] for kind in point["kinds"]] == kinds, "every kind, in order")
        for kind in point["kinds"]:
            pages = max(1, size // 4096)
            check(kind["read_pages"] == kind["accesses"] * pages, f"{size} B are {pages} page(s): {kind}")
            if kind["kind"] in ("pin", "term"):
                check_counts(kind, f"{size} B")
                absent = kind["absent_by_bitmap"] + kind["absent_by_pattern"]
                check(kind["hit_pages"] + absent == kind["read_pages"], f"a page is a hit or absent: {kind}")
    pin, term = points[2]["kinds"][0], points[2]["kinds"][3]
    check(pin["hit_ratio"] == 1 and 0 < term["hit_ratio"] < 1, f"half of term's pages are in memory: {pin}, {term}")
    check(pin["call_us"]["p50"] > 0, "at depth 1 each access is timed")


def case_term_bench_writes(site):
    out = run(site.term_bench, "--kind", "pin,term", "--region", "16M", "--warmup", "0", "--seconds", "0.3", "--rounds",
              "3", "--writes", "1", "--directory", site.scratch, "--no-limit", "--json")
    for kind in json.loads(out)[0]["kinds"]:
        check(kind["accesses"] > 0 and kind["read_pages"] == 0, f"it writes, and reads nothing: {kind}")
    run(site.term_bench, "--point", "--region 1G", code=2)  # what servers have is not a point's


def case_file_bench(site):
    volume = site.volume("64M", 0.5)
    m = volume.mount()
    place = f"term:{volume.server}:{volume.path}:{m.pid}:{m.path}"
    out = run(site.file_bench, "--place", place, "--mib", "32", "--processes", "2", "--warmup", "0.1", "--seconds",
              "0.6", "--rounds", "3", "--writes")
    points = {point["label"]: point["kinds"][0] for point in json.loads(out)}
    check(len(points) == 8, f"two ways, two sizes, reads and writes: {list(points)}")
    for label, kind in points.items():
        check(kind["accesses"] > 0 and all(rate > 0 for rate in kind["turns"]), f"{label}: {kind}")
    for label, pages in (("library, read 4K", 1), ("library, read 16K", 4)):
        kind = points[label]
        check_counts(kind, label)
        check(kind["read_pages"] == kind["accesses"] * pages, f"{label}: {pages} page(s) each: {kind}")
    check(points["mount, read 4K"]["read_pages"] == 0, "what a mount reads is not this program's library's")
