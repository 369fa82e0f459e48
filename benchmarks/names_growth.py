# SPDX-License-Identifier: Apache-2.0
"""What names cost in volumes of more and more files: a real server of each, asked through the client library, in turns."""
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time

from mounts import DEADLINE, scratch_directory

ROUNDS = 7
FEWEST = 1000  # files
MOST_TIMES = 1.5  # processor time of an operation, of most files beside fewest
MOST_COLD_BYTES = 64 << 10  # of the store's files, read by a look-up of which nothing is cached
MOST_START = 10  # seconds, after SIGKILL
KINDS = ("look-up", "list", "create", "unlink")
FILL_DEADLINE = 7200  # seconds; ten million are some minutes on a machine that does nothing else
SETTLE_DEADLINE = 600
MIB = 2**20


def seconds_of(pid):
    """Processor time of a process, all of its threads, to the nanosecond."""
    return time.clock_gettime((~pid << 3) | 2)  # as clock_getcpuclockid(3)


def anonymous_bytes(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


class Volume:
    def __init__(self, build, scratch, files, memory):
        self.termfs = os.path.join(build, "mount", "termfs")
        self.bench = os.path.join(build, "benchmarks", "names_bench")
        self.path = os.path.join(scratch, f"files-{files}")
        self.files = files
        self.memory = memory
        self.pid = None

    def run(self, *command, deadline=DEADLINE):
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=deadline, text=True)
        return done.stdout

    def make(self):
        self.run(self.termfs, "format", self.path, "--capacity", "64M", "--metadata-memory", self.memory)
        began = time.monotonic()
        self.run(self.bench, "fill", self.path, str(self.files), deadline=FILL_DEADLINE)
        return time.monotonic() - began

    def serve(self):
        """The server in the background; how long it took until clients could connect, and its processor time."""
        began = time.monotonic()
        self.run(self.termfs, "serve", self.path)
        seconds = time.monotonic() - began
        self.pid = self.status()["pid"]
        return {"seconds": seconds, "processor_seconds": seconds_of(self.pid)}

    def status(self):
        return json.loads(self.run(self.termfs, "status", self.path, "--json"))

    def settle(self):
        """Until the store has merged what was written before: it reads for that, too."""
        limit = time.monotonic() + SETTLE_DEADLINE
        quiet = 0
        while quiet < 4 and time.monotonic() < limit:
            stats = json.loads(self.run(self.termfs, "stats", self.path, "--json", "--count", "1"))
            quiet = quiet + 1 if stats["server"]["metadata_compactions"] == 0 else 0
            time.sleep(0.5)

    def load(self, turn, quick):
        options = ["--turn", str(turn)] + (["--operations", "1000", "--lists", "20"] if quick else [])
        options += ["--walk"] if turn == 0 else ["--cold", "0"]  # later than that nothing is cold
        return json.loads(self.run(self.bench, "load", self.path, str(self.files), *options, deadline=FILL_DEADLINE))

    def end(self, signal_number):
        if self.pid is None:
            return
        try:
            os.kill(self.pid, signal_number)
            limit = time.monotonic() + DEADLINE
            while os.path.exists(f"/proc/{self.pid}") and time.monotonic() < limit:
                time.sleep(0.05)
        except ProcessLookupError:
            pass
        self.pid = None


def measure(build, counts, memory, quick, rounds=ROUNDS):
    """Of each count what its operations cost, what its server holds in memory, and its start after SIGKILL."""
    with scratch_directory() as scratch, contextlib.ExitStack() as stack:
        volumes = [Volume(build, scratch, files, memory) for files in counts]
        results = []
        for volume in volumes:
            print(f"{volume.files} files are made", file=sys.stderr, flush=True)
            results.append({"files": volume.files, "fill_seconds": volume.make(), "rounds": []})
            stack.callback(volume.end, signal.SIGTERM)  # which gives back what it has in /run/termfs
            volume.serve()
            volume.settle()
            volume.end(signal.SIGTERM)
        for volume in volumes:  # nothing of the files is cached
            volume.serve()
            volume.settle()
        for turn in range(rounds):
            for volume, result in zip(volumes, results):
                result["rounds"].append({cost["name"]: cost for cost in volume.load(turn, quick)})
        for volume, result in zip(volumes, results):
            status = volume.status()
            result["anonymous_bytes"] = anonymous_bytes(volume.pid)
            for key in ("metadata_memory_bytes", "metadata_used_bytes", "metadata_table_bytes"):
                result[key] = status[key]
            volume.end(signal.SIGKILL)
            result["killed"] = volume.serve()
    return {"memory": memory, "volumes": results}


def median(volume, kind, key):
    return statistics.median(costs[kind][key] for costs in volume["rounds"])


def bars(result, bar):
    """Of most files, beside fewest where two are compared."""
    few, many = result["volumes"][0], result["volumes"][-1]
    name = f"{many['files']:,} files: "
    for kind in KINDS:
        ratios = [b[kind]["server_us"] / a[kind]["server_us"] for a, b in zip(few["rounds"], many["rounds"])]
        yield bar(f"{name}{kind}, processor time / {few['files']:,}", MOST_TIMES, ratios, lower_is_better=True)
    yield bar(f"{name}read by one cold look-up, KiB at most", MOST_COLD_BYTES / 1024,
              [many["rounds"][0]["cold look-up"]["most_read_bytes"] / 1024], lower_is_better=True)
    yield bar(f"{name}memory of the store / what is set", 1,
              [many["metadata_used_bytes"] / many["metadata_memory_bytes"]], lower_is_better=True)
    yield bar(f"{name}start after SIGKILL, s", MOST_START, [many["killed"]["seconds"]], lower_is_better=True)
