# SPDX-License-Identifier: Apache-2.0
"""rates.py BUILD_DIR [BUILD_DIR]: what an operation costs by how many there are a second, with one caller: processor time of
the server and of the mount, and its latency. Reads are of 4 KiB, most of them of absent pages; writes are of 4 KiB in memory;
creates make empty files. "full": as many as eight callers can make. With two build directories, each in turn, the ratios of
the second to the first."""
import json
import os
import statistics
import subprocess
import sys
import threading
import time

from bars import Bar
from many_mounts import processor_seconds
from mounts import DEADLINE, Mounts, RingSwitch, end_by_signals, scratch_directory

RATES = (100, 500, 2000)
FULL = 0
CALLERS = 8  # at full rate
DATA_MIB, HOT_MIB = 1024, 32
MOST = 3.0  # times the processor time of an operation at full rate


class Cost:
    """Of one operation, in microseconds: processor time, and the median of its latency."""

    def __init__(self, server, mount, latency, operations):
        self.server, self.mount, self.latency, self.operations = server, mount, latency, operations

    @property
    def processor(self):
        return self.server + self.mount


def fio(path, options, rate, seconds):
    """Operations, and the median of their latencies."""
    command = ["fio", "--name=rate", f"--filename={path}", "--output-format=json", "--group_reporting", "--bs=4k", "--direct=1",
               "--ioengine=psync", "--thread", "--time_based", f"--runtime={seconds}", "--randrepeat=0", "--norandommap", *options,
               f"--numjobs={1 if rate else CALLERS}"] + ([f"--rate_iops={rate}"] if rate else [])
    job = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE).stdout)["jobs"][0]
    done = job["write" if "--rw=randwrite" in options else "read"]
    return done["total_ios"], done["clat_ns"]["percentile"]["50.000000"] / 1e3


def create(directory, rate, seconds):
    """The same of files, which are removed afterwards."""
    latencies = []

    def make(caller):
        began = time.perf_counter()
        number = 0
        while (now := time.perf_counter()) < began + seconds:
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
    """A served volume with one mount, and the files that are read and written."""

    def __init__(self, build, scratch, fuse):
        os.mkdir(scratch)
        self.mounts = Mounts(build, scratch, capacity="2G", ratio="0.1")
        self.path = self.mounts.termfs_mount("mount", fuse)
        self.rounds = 0
        for name, mebibytes in (("data", DATA_MIB), ("hot", HOT_MIB)):
            subprocess.run(["dd", "if=/dev/urandom", f"of={self.path}/{name}", "bs=1M", f"count={mebibytes}", "conv=fsync"],
                           check=True, stderr=subprocess.DEVNULL, timeout=DEADLINE)

    def run(self, kind, rate, seconds):
        if kind == "read":
            return fio(os.path.join(self.path, "data"), ["--rw=randread", f"--size={DATA_MIB}M"], rate, seconds)
        if kind == "write":
            return fio(os.path.join(self.path, "hot"), ["--rw=randwrite", f"--size={HOT_MIB}M"], rate, seconds)
        self.rounds += 1
        directory = os.path.join(self.path, f"made{self.rounds}")
        os.mkdir(directory)
        return create(directory, rate, seconds)

    def cost(self, kind, rate, seconds):
        pids = (self.mounts.server.pid, self.mounts.daemons["mount"].pid)
        before = [processor_seconds(pid) for pid in pids]
        operations, latency = self.run(kind, rate, seconds)
        spent = [(processor_seconds(pid) - began) * 1e6 / operations for pid, began in zip(pids, before)]
        return Cost(*spent, latency, operations)

    def end(self):
        self.mounts.__exit__(None)


def costs(subjects, kind, rate, seconds, rounds):
    """Of each subject, the medians of interleaved rounds."""
    measured = [[subject.cost(kind, rate, seconds) for subject in subjects] for _ in range(rounds)]
    return [[round_[i] for round_ in measured] for i in range(len(subjects))]


def median(of, costs_):
    return statistics.median(getattr(cost, of) for cost in costs_)


def row(kind, rate, subjects):
    line = f"{kind:6} {rate if rate else 'full':>5}"
    for of in subjects:
        line += (f" | server {median('server', of):7.1f} us, mount {median('mount', of):7.1f} us, "
                 f"p50 {median('latency', of):7.1f} us")
    if len(subjects) == 2:
        before, after = subjects
        ratio = lambda name: statistics.median(getattr(b, name) / getattr(a, name) for a, b in zip(before, after))
        line += f" | processor {ratio('processor'):.2f}, p50 {ratio('latency'):.2f}"
        line += f", rate {ratio('operations'):.2f}" if rate == FULL else ""
    return line


def bench(arguments):
    """Yields bars, and prints the curve."""
    fuse = "io_uring" if arguments.rings else "device"
    seconds, rounds = (2, 3) if arguments.quick else (4, 7)
    with scratch_directory() as scratch:
        subject = Subject(arguments.build, os.path.join(scratch, "volume"), fuse)
        try:
            for kind in ("read", "write", "create"):
                full = costs([subject], kind, FULL, seconds, rounds)[0]
                print(row(kind, FULL, [full]), flush=True)
                for rate in RATES:
                    at_rate = costs([subject], kind, rate, seconds, rounds)[0]
                    print(row(kind, rate, [at_rate]), flush=True)
                    ratios = [cost.processor / median("processor", full) for cost in at_rate]
                    yield Bar(f"processor time of a {kind}, {rate} a second / full", MOST, ratios, lower_is_better=True)
        finally:
            subject.end()


def main():
    builds = sys.argv[1:]
    if not 1 <= len(builds) <= 2:
        sys.exit(__doc__)
    end_by_signals()
    with RingSwitch() as rings, scratch_directory() as scratch:
        fuse = "io_uring" if rings.on else "device"
        subjects = []
        try:
            for number, build in enumerate(builds):
                subjects.append(Subject(build, os.path.join(scratch, str(number)), fuse))
            for kind in ("read", "write", "create"):
                for rate in (*RATES, FULL):
                    print(row(kind, rate, costs(subjects, kind, rate, 3, 3)), flush=True)
        finally:
            for subject in subjects:
                subject.end()


if __name__ == "__main__":
    main()
