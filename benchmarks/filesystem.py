#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a mount does under the loads of benchmarks/fio and of filebench's personalities (benchmarks/filebench): figures
to look at, without targets. Serves and mounts a volume of its own, and puts both away.

    benchmarks/filesystem.py BUILD_DIR [--filter WORD] [--seconds N] [--quick] [--json FILE]

Needs fio. The jobs of library.fio need fio's engine (benchmarks/fio/engine.c), and no mount.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib

from mounts import DEADLINE, Mounts, RingSwitch, end_by_signals, scratch_directory

HERE = os.path.dirname(os.path.abspath(__file__))
MOUNTED = ("direct-4k", "direct-1m", "mixed", "buffered", "fsync")
CAPACITY = 4  # GiB
DRAM = 4  # so many times what a job's file has
LARGER = {"mixed": 6}  # so many times that, more than memory holds
ROW = "{:<34}{:>12}{:>10}{:>12}{:>12}{:>12}"


def heading(name):
    print()
    print(ROW.format(name, "per second", "MB/s", "p50, us", "p99, us", "p99.9, us"), flush=True)


def row(name, rate, megabytes, *microseconds):
    times = [f"{value:,.1f}" for value in microseconds] or [""] * 3
    print(ROW.format(name, f"{rate:,.0f}", f"{megabytes:,.1f}", *times), flush=True)


def print_fio_job(job):
    for direction in ("read", "write", "sync"):
        side = job[direction]
        times = side["lat_ns"] if direction == "sync" else side["clat_ns"]
        if side["total_ios"] and "percentile" in times:
            percentiles = [times["percentile"][key] / 1e3 for key in ("50.000000", "99.000000", "99.900000")]
            milliseconds = max(job["read"]["runtime"], job["write"]["runtime"])
            rate = side.get("iops", side["total_ios"] * 1e3 / max(milliseconds, 1))
            row(f"{job['jobname']}, {direction}", rate, side.get("bw_bytes", 0) / 1e6, *percentiles)


def empty(directory):
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def output_of(name, command, seconds, environment=None):
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=seconds, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{name}: exit code {done.returncode}: {done.stderr[-1000:]}")
    return done.stdout


def run_fio(job_file, arguments, where, **environment):
    """Runs all jobs of a file, one after the other; their summaries."""
    mebibytes = arguments.mebibytes * LARGER.get(job_file, 1)
    command = ["fio", f"--size={mebibytes}m", f"--runtime={arguments.seconds}", "--output-format=json",
               *where, os.path.join(HERE, "fio", f"{job_file}.fio")]
    output = output_of(f"{job_file}.fio", command, DEADLINE + 20 * arguments.seconds, {**os.environ, **environment})
    # What is not JSON goes before it.
    return json.loads(output[output.index("{"):])["jobs"]


def fio_jobs(arguments, mount, volume):
    """Each job file with what it ran on."""
    for name in MOUNTED:
        if arguments.filter in name and mount:
            heading(f"{name}.fio")
            yield name, run_fio(name, arguments, [f"--directory={mount}"])
            empty(mount)
    engine = os.path.join(arguments.build, "benchmarks", "fio", "libtermfs_fio.so")
    if arguments.filter not in "library":
        return
    if not os.path.exists(engine):
        print("library.fio: skipped, fio's engine has not been built: its headers are missing")
        return
    heading("library.fio")
    environment = {"TERMFS_FIO_ENGINE": os.path.abspath(engine), "TERMFS_VOLUME": volume}
    yield "library", run_fio("library", arguments, [], **environment)


def run_personality(name, arguments, mount):
    command = [os.path.join(arguments.build, "benchmarks", "workloads"), mount, "--personality", name, "--seconds",
               str(arguments.seconds), "--files", str(arguments.files), "--json"]
    return json.loads(output_of(name, command, DEADLINE + 2 * arguments.seconds))


def print_personality(result):
    for name, operation in result["operations"].items():
        row(f"  {name}", operation["ops_per_second"], operation["mb_per_second"], operation["p50_us"],
            operation["p99_us"], operation["p999_us"])
    row("  all", result["ops_per_second"], result["mb_per_second"])


def personalities():
    with open(os.path.join(HERE, "filebench", "personalities.toml"), "rb") as file:
        return list(tomllib.load(file))


def measure(arguments, rings):
    figures = {"fio": {}, "personalities": {}}
    ratio = DRAM * arguments.mebibytes / (CAPACITY << 10)
    with scratch_directory() as scratch, Mounts(arguments.build, scratch, f"{CAPACITY}G", f"{ratio:.5f}") as mounts:
        mount = None
        if os.path.exists("/dev/fuse"):
            mount = mounts.termfs_mount("termfs", "io_uring" if rings.on else "device")
        else:
            print("nothing is mounted: there is no /dev/fuse here")
        for name, jobs in fio_jobs(arguments, mount, mounts.volume):
            for job in jobs:
                print_fio_job(job)
            figures["fio"][name] = jobs
        for name in personalities():
            if arguments.filter in name and mount:
                result = run_personality(name, arguments, mount)
                heading(f"{name}, {result['threads']} thread(s)")
                print_personality(result)
                figures["personalities"][name] = result
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", metavar="BUILD_DIR")
    parser.add_argument("--filter", default="",
                        help=f"only what has this in its name: {', '.join([*MOUNTED, 'library', *personalities()])}")
    parser.add_argument("--seconds", type=int, default=10, help="of each job and each personality")
    parser.add_argument("--files", type=int, default=1000, help="of each personality")
    parser.add_argument("--quick", action="store_true", help="a second each, on smaller files")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    arguments.mebibytes = 32 if arguments.quick else 256
    if arguments.quick:
        arguments.seconds, arguments.files = 1, min(arguments.files, 200)
    if shutil.which("fio") is None:
        sys.exit("benchmarks/filesystem.py: fio is not installed; ./dev bench installs it")
    end_by_signals()
    with RingSwitch() as rings:
        if not rings.on:
            print(f"FUSE requests come over /dev/fuse: {rings.said}")
        figures = measure(arguments, rings)
    if not any(figures.values()):
        parser.error(f"nothing has {arguments.filter!r} in its name")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump(figures, out, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
