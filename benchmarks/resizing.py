# SPDX-License-Identifier: Apache-2.0
"""What a change of the DRAM ratio or of the capacity costs those who read meanwhile, for benchmarks/run.

fio reads 4 KiB by Zipf through a mount while `termfs set` makes the tier and the volume larger and smaller. A change's
figure is its worst second: reads in the worst second between its beginning and a second after its end, looked for in
steps of 100 ms, as a share of those in a usual second before the change (after it, where that is less: of a smaller tier
fewer reads find their page).
"""
import glob
import os
import statistics
import subprocess
import tempfile
import time

from mounts import DEADLINE

STEP = 0.1  # seconds
CALM = 4.0  # before the first change, between two, and after the last
CAPACITY, FILE_MIB, RATIO = "2G", 1024, 0.25
CHANGES = (("dram-ratio grows", "dram-ratio=0.6"), ("dram-ratio shrinks", f"dram-ratio={RATIO}"),
           ("capacity grows", "capacity=4G"), ("capacity shrinks", f"capacity={CAPACITY}"))


def samples(directory):
    """Reads in each step since fio began, of all jobs."""
    steps = {}
    for path in glob.glob(os.path.join(directory, "reads_iops*.log")):
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                milliseconds, rate = line.split(",")[:2]
                step = round(int(milliseconds) / 1000 / STEP)
                steps[step] = steps.get(step, 0) + int(rate) * STEP
    return [steps.get(step, 0) for step in range(max(steps, default=0))]


def worst_second(reads, begin, end):
    """`begin`, `end`: of the change, in seconds since fio began."""
    window = round(1 / STEP)
    second = [sum(reads[at:at + window]) for at in range(len(reads) - window)]
    first, last = round(begin / STEP), round(end / STEP)
    usual = [statistics.median(part) for part in (second[max(0, first - 3 * window):first - window],
                                                  second[last + window:last + 3 * window]) if part]
    return min(second[first:last + window]) / min(usual)


def run(mounts, path, jobs):
    """{name of a change: its worst second}"""
    with tempfile.TemporaryDirectory(dir=mounts.scratch) as logs:
        fio = subprocess.Popen([
            "fio", "--name=reads", f"--filename={path}/data", f"--size={FILE_MIB}M", f"--numjobs={jobs}", "--thread",
            "--rw=randread", "--bs=4k", "--direct=1", "--ioengine=psync", "--random_distribution=zipf:0.99",
            "--norandommap", "--time_based", f"--runtime={DEADLINE}", "--output=/dev/null", "--write_iops_log=reads",
            f"--log_avg_msec={round(STEP * 1000)}"
        ], cwd=logs)
        try:
            began = time.monotonic()
            time.sleep(CALM)
            times = {}
            for name, setting in CHANGES:
                begin = time.monotonic() - began
                subprocess.run([mounts.termfs, "set", mounts.volume, setting], check=True, stdout=mounts.log,
                               stderr=mounts.log, timeout=DEADLINE)
                times[name] = (begin, time.monotonic() - began)
                time.sleep(CALM)
        finally:
            fio.terminate()
            fio.wait(DEADLINE)
        reads = samples(logs)
    return {name: worst_second(reads, *when) for name, when in times.items()}


def bars(mounts, path, pairs, make_bar):
    for jobs in (1, 4):
        run(mounts, path, jobs)
        runs = [run(mounts, path, jobs) for _ in range(pairs)]
        for name, _ in CHANGES:
            yield make_bar(f"{name}, {jobs} job(s), worst second / usual", 0.5, [figures[name] for figures in runs])
