# SPDX-License-Identifier: Apache-2.0
"""What an operation costs by how many there are a second, with one caller: processor time of the server and of the mount, and
its latency. Reads are of 4 KiB, most of them of absent pages; writes are of 4 KiB in memory; creates make empty files.
"full": as many as eight callers can make.

    rates.py BUILD_DIR BUILD_DIR [--network]

compares two builds, measured in turn."""
import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time

import network
from bars import Bar, NotRun
from many_mounts import processor_seconds
from mounts import DEADLINE, Mounts, RingSwitch, end_by_signals, scratch_directory

RATES = (100, 500, 2000)
FULL = 0
CALLERS = 8  # at full rate
MOST_FILES = 800  # that one caller makes at full rate: passthrough_ll has each of them open
DATA_MIB, HOT_MIB = 1024, 32
MOST = 3.0  # times the processor time of an operation at full rate
OF_BOUND = 0.95
KINDS = ("read", "write", "create")


class Cost:
    """Of one operation, in microseconds: processor time of each process, and the median of the latencies."""

    def __init__(self, spent, latency, operations):
        self.spent, self.latency, self.operations = spent, latency, operations
        self.processor = sum(spent)


def fio(path, options, rate, seconds):
    """Operations, and the median of their latencies."""
    command = ["fio", "--name=rate", f"--filename={path}", "--output-format=json", "--group_reporting", "--bs=4k", "--direct=1",
               "--ioengine=psync", "--thread", "--time_based", f"--runtime={seconds}", "--randrepeat=0", "--norandommap", *options,
               f"--numjobs={1 if rate else CALLERS}"] + ([f"--rate_iops={rate}"] if rate else [])
    job = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE).stdout)["jobs"][0]
    done = job["write" if "--rw=randwrite" in options else "read"]
    return done["total_ios"], done["clat_ns"]["percentile"]["50.000000"] / 1e3


def create(directory, rate, seconds):
    """The same of new files."""
    latencies = []

    def make(caller):
        began = time.perf_counter()
        number = 0
        while (now := time.perf_counter()) < began + seconds and (rate or number < MOST_FILES):
            due = began + number / rate if rate else now
            if now < due:
                time.sleep(due - now)
            start = time.perf_counter()
            os.close(os.open(os.path.join(directory, f"{caller}.{number}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            latencies.append(time.perf_counter() - start)
            number += 1

    callers = [threading.Thread(target=make, args=(caller,)) for caller in range(1 if rate else CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return len(latencies), statistics.median(latencies) * 1e6


class Subject:
    """Files that are read and written, a directory for new ones, and the processes that serve both."""

    def __init__(self, path, processes):
        self.path, self.processes = path, processes
        self.sizes = {}  # of the files, in MiB
        self.made = os.path.join(path, "made")

    def fill(self, sizes):
        """A file of so many MiB for each name; the names are those of the kinds of operation."""
        self.sizes = sizes
        for name, mebibytes in sizes.items():
            subprocess.run(["dd", "if=/dev/urandom", f"of={self.path}/{name}", "bs=1M", f"count={mebibytes}", "conv=fsync"],
                           check=True, stderr=subprocess.DEVNULL, timeout=DEADLINE)
        return self

    def run(self, kind, rate, seconds):
        if kind != "create":
            name = kind if kind in self.sizes else "data"
            return fio(os.path.join(self.path, name), [f"--rw=rand{kind}", f"--size={self.sizes[name]}M"], rate, seconds)
        os.mkdir(self.made)
        return create(self.made, rate, seconds)

    def cost(self, kind, rate, seconds):
        before = [processor_seconds(process.pid) for process in self.processes]
        operations, latency = self.run(kind, rate, seconds)
        spent = [(processor_seconds(process.pid) - began) * 1e6 / operations
                 for process, began in zip(self.processes, before)]
        shutil.rmtree(self.made, ignore_errors=True)
        return Cost(spent, latency, operations)


def termfs(stack, build, fuse, hosts=None):
    """A served volume with one mount, on one host or two."""
    scratch = stack.enter_context(scratch_directory())
    place = f"[{hosts.IPV6[0]}]:{network.PORT}" if hosts else ""
    mounts = stack.enter_context(Mounts(build, scratch, capacity="2G", ratio="0.1", before=hosts.server if hosts else (),
                                        serve_options=("--listen", place) if hosts else ()))
    if hosts:
        path = mounts.mount("mount", *hosts.client, mounts.termfs, "mount", place, "--secret",
                            os.path.join(mounts.volume, "secret"), "MOUNTPOINT", "--foreground", "-o", f"fuse={fuse}")
    else:
        path = mounts.termfs_mount("mount", fuse)
    return Subject(path, (mounts.server, mounts.daemons["mount"])).fill({"read": DATA_MIB, "write": HOT_MIB})


def costs(subjects, kind, rate, seconds, rounds):
    """Of each subject, of interleaved rounds."""
    measured = [[subject.cost(kind, rate, seconds) for subject in subjects] for _ in range(rounds)]
    return [[round_[i] for round_ in measured] for i in range(len(subjects))]


def median(of, costs_):
    return statistics.median(getattr(cost, of) for cost in costs_)


def described(kind, rate, measured):
    """A row of the curve: the costs of each of what was measured, {name: costs}."""
    line = f"{kind:6} {rate if rate else 'full':>5}"
    for name, of in measured.items():
        spent = " + ".join(f"{statistics.median(cost.spent[i] for cost in of):5.1f}" for i in range(len(of[0].spent)))
        line += f" | {name}: {spent} us of a processor, {median('latency', of):6.1f} us"
    return line


def compared(rate, before, after):
    ratio = lambda of: statistics.median(getattr(b, of) / getattr(a, of) for a, b in zip(before, after))
    return (f" | processor {ratio('processor'):.2f}, latency {ratio('latency'):.2f}" +
            (f", rate {ratio('operations'):.2f}" if rate == FULL else ""))


def bars(subject, bounds, where, quick):
    """Yields bars, and prints the curve. `bounds`: for each kind what does the same without a server, whose processor time
    says what a rate costs on this machine. Where that is more than the bar, it is the bar."""
    seconds, rounds = (2, 3) if quick else (3, 7)
    for kind in KINDS:
        full, least = costs((subject, bounds[kind]), kind, FULL, seconds, rounds)
        print(described(kind, FULL, {f"termfs, {where}": full, "without a server": least}), flush=True)
        for rate in RATES:
            at_rate, least_at_rate = costs((subject, bounds[kind]), kind, rate, seconds, rounds)
            print(described(kind, rate, {f"termfs, {where}": at_rate, "without a server": least_at_rate}), flush=True)
            machine = median("processor", least_at_rate) / median("processor", least)
            yield Bar(f"{kind}, {where}, {rate} a second, processor time / full", round(max(MOST, machine / OF_BOUND), 2),
                      [cost.processor / median("processor", full) for cost in at_rate], lower_is_better=True)


def bench(build, rings, quick, loop_ext4, passthrough):
    """Bars of one host and two. `loop_ext4`: makes a journalled ext4 in a directory; `passthrough`: its program."""
    fuse = "io_uring" if rings else "device"
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(loop_ext4(stack.enter_context(scratch_directory())))
        others = stack.enter_context(Mounts(build, stack.enter_context(scratch_directory()), capacity="64M"))
        memory = Subject(others.ceiling("ceiling", fuse, HOT_MIB), (others.daemons["ceiling"],)).fill({"data": HOT_MIB})
        names = Subject(others.mount("passthrough", passthrough, "-f", "-o", f"source={source}", "MOUNTPOINT"),
                        (others.daemons["passthrough"],))
        bounds = {"read": memory, "write": memory, "create": names}
        with contextlib.ExitStack() as one_host:
            yield from bars(termfs(one_host, build, fuse), bounds, "one host", quick)
        if shutil.which("ip") is None:
            yield NotRun("rates over a network", "ip is not installed")
            return
        hosts = network.Hosts(stack, 9000)
        yield from bars(termfs(stack, build, fuse, hosts), bounds, "over a network", quick)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", metavar="BUILD_DIR")
    parser.add_argument("after", metavar="BUILD_DIR")
    parser.add_argument("--network", action="store_true", help="over a network")
    arguments = parser.parse_args()
    end_by_signals()
    with RingSwitch() as rings, contextlib.ExitStack() as stack:
        fuse = "io_uring" if rings.on else "device"
        hosts = network.Hosts(stack, 9000) if arguments.network else None
        subjects = [termfs(stack, arguments.before, fuse, hosts)]
        if hosts:
            hosts = network.Hosts(stack, 9000)
        subjects.append(termfs(stack, arguments.after, fuse, hosts))
        for kind in KINDS:
            for rate in (*RATES, FULL):
                before, after = costs(subjects, kind, rate, 3, 5)
                print(described(kind, rate, {"before": before, "after": after}) + compared(rate, before, after), flush=True)


if __name__ == "__main__":
    main()
