# SPDX-License-Identifier: Apache-2.0
"""What `termfs stats` shows, of a mount and of a server: what happens now, in columns; all that is counted, as JSON."""
import json
import os
import re
import threading

from cases_posix import MIB, read_file, write_file
from volume import check, eventually, run

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def live(site, place, *flags):
    """Titles and the words of one line of the live view."""
    groups, titles, line = run(site.termfs, "stats", place, "--count", "1", "--interval", "1", *flags).splitlines()
    check(max(map(len, (groups, titles, line))) <= 100, f"too wide:\n{groups}\n{titles}\n{line}")
    check(len(titles.split()) == len(line.split()), f"a word for each column:\n{titles}\n{line}")
    for group in ("reads", "writes", "metadata"):
        check(f"- {group} -" in groups, groups)
    return titles.split(), line.split()


def value(row, title, rank=0):
    titles, words = row
    return words[[i for i, one in enumerate(titles) if one == title][rank]]


class Busy:
    """Writes, reads and looks up until it ends."""

    def __init__(self, *places):
        self.ends = threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(place,)) for place in places]

    def work(self, place):
        number = 0
        while not self.ends.is_set():
            path = os.path.join(place, f"f{number % 10}")
            write_file(path, b"x" * 20_000)
            read_file(path)
            os.unlink(path)
            number += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_):
        self.ends.set()
        for thread in self.threads:
            thread.join()


def case_stats_show_what_happens_now(site):
    volume = site.volume("64M")
    m = volume.mount()
    with Busy(m.path):
        for place in (m.path, volume.path):
            def shows_all(place=place):
                row = live(site, place)
                return all(value(row, title) not in ("0", "-") for title in ("w/s", "m/s")) and all(
                    re.fullmatch(r"[0-9.]+(us|ms|s)", value(row, title, rank))
                    for title in ("p50", "p99") for rank in (1, 2))
            eventually(shows_all, f"writes and metadata of {place}, and their percentiles")
    # Much has been counted by now; nothing of it happens any more.
    for place in (m.path, volume.path):
        def is_idle(place=place):
            row = live(site, place)
            return [value(row, title, rank) for title in ("p50", "p99") for rank in (0, 1, 2)] == ["-"] * 6 and [
                value(row, title) for title in ("r/s", "w/s", "m/s")] == ["0"] * 3
        eventually(is_idle, f"{place} is idle, and so are its percentiles")


def case_stats_of_sessions(site):
    volume = site.volume("64M")
    busy, other = volume.mount(), volume.mount()
    read_file_of_other = os.listdir(other.path)
    check(read_file_of_other == [], "an empty volume")

    def lines():
        return run(site.termfs, "stats", volume.path, "--sessions", "--count", "1", "--interval", "1").splitlines()
    with Busy(busy.path):
        eventually(lambda: any(f"mount, pid {busy.pid} " in line for line in lines()[1:]), "the busy one is shown")
        shown = lines()
        check(max(map(len, shown)) <= 100 and shown[0].split()[:2] == ["id", "session"], "\n".join(shown))
        check(not any(f"pid {other.pid} " in line for line in shown) and shown[-1].split() == ["1", "idle"], "\n".join(shown))
        by_mount = run(site.termfs, "stats", other.path, "--sessions", "--count", "1", "--interval", "1")
        check(f"pid {busy.pid} " in by_mount, "asked by any mount")
    write_file(busy / "f", b"x" * MIB)
    sample = json.loads(run(site.termfs, "stats", volume.path, "--sessions", "--json", "--count", "1"))
    of = {session["pid"]: session for session in sample["sessions"]}
    check(of.keys() == {busy.pid, other.pid}, f"all of them: {of}")
    check(of[busy.pid]["write_bytes_total"] > MIB and of[busy.pid]["writes_total"] > 1, f"writes: {of[busy.pid]}")
    check(of[busy.pid]["metadata_total"] > of[other.pid]["metadata_total"] > 0, f"metadata: {of}")
    check(of[other.pid]["writes_total"] == of[other.pid]["write_bytes_total"] == 0, f"{of[other.pid]}")
    read_file(other / "f")
    after = json.loads(run(site.termfs, "stats", volume.path, "--sessions", "--json", "--count", "1"))["sessions"]
    reader = next(session for session in after if session["pid"] == other.pid)
    check(reader["reads_total"] > 0 or reader["hit_pages_total"] > 0, f"reads: {reader}")
    check("sessions" not in json.loads(run(site.termfs, "stats", volume.path, "--json", "--count", "1")), "on demand only")


def documented():
    """Names at the start of a row of a table."""
    with open(os.path.join(ROOT, "docs", "metrics.md"), encoding="utf-8") as page:
        return {name for line in page if line.startswith("| `") for name in re.findall(r"`([a-z0-9_]+)`", line.split("|")[1])}


def case_stats_json_is_documented(site):
    """Every counter, over shared memory and over a network; and histograms have buckets that fit their counts."""
    volume = site.volume("64M")
    volume.stop()
    address = volume.listen_at("::1")
    volume.serve("--listen", address)
    m = volume.mount()
    write_file(m / "f", b"x" * MIB)
    read_file(m / "f")
    sample = json.loads(run(site.termfs, "stats", m.path, "--json", "--count", "1"))
    names = set()
    for side in ("mount", "server"):
        histograms = sample[f"{side}_histograms"]
        for name, buckets in histograms.items():
            bounds = [bound for bound, _ in buckets]
            check(bounds == sorted(set(bounds)), f"buckets in order: {name}: {buckets}")
            count = sum(number for _, number in buckets)
            check(abs(count - sample[side][f"{name}_count"]) <= 1000 and count > 0, f"{name}: {count}")
            check(sample[side][f"{name}_p50_ns"] in bounds, f"the median of {name} is a bucket's bound")
        counted = set(sample[side])
        for name in [name[:-len("_count")] for name in counted if name.endswith("_count")]:
            counted -= {f"{name}{suffix}" for suffix in ("_count", "_p50_ns", "_p99_ns", "_p999_ns")}
            counted.add(name)
        names |= counted
    check({"fs_write", "fs_metadata"} <= sample["mount_histograms"].keys() & sample["server_histograms"].keys(), "histograms")
    check(names <= documented(), f"docs/metrics.md lacks {sorted(names - documented())}")
    with_devices = {"device_magic_reads_total"}
    check(documented() - names <= with_devices, f"docs/metrics.md has {sorted(documented() - names)}")
