# SPDX-License-Identifier: Apache-2.0
"""What mounts cost that have little to do: the server's processor time and memory, and a mount's own memory."""
import concurrent.futures
import contextlib
import os
import re
import shutil
import subprocess
import time

import network
from bars import NotRun
from mounts import DEADLINE, Mounts, scratch_directory, unmount, wait_for

SETTLE = 8  # seconds until a mount that is not used any more has come to rest
IDLE = 20  # seconds in which processor time is counted
SERVER_KIB = 256  # of an idle mount on the server's host
MOUNT_MIB = 8
PERCENT = 1.0  # of a processor, for 200 idle mounts


def processor_seconds(pid):
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as times:
            total += int(times.read().split()[0])
    return total / 1e9


def own_bytes(pid):
    """Its proportional share of memory, but for what is mapped of a volume's memory and of files."""
    total = 0
    counts = False
    with open(f"/proc/{pid}/smaps", encoding="ascii") as lines:
        for line in lines:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                path = line.split(None, 5)[5].strip() if len(line.split(None, 5)) == 6 else ""
                counts = not path.startswith("/") or path.startswith("/memfd:")
            elif counts and line.startswith("Pss:"):
                total += int(line.split()[1]) << 10
    return total


class ManyMounts:
    """Mounts of one volume, which end when this ends."""

    def __init__(self, stack, mounts, command, fuse):
        self.mounts, self.command, self.fuse = mounts, command, fuse
        self.paths = []
        stack.callback(self.end)

    def add(self, count):
        for number in range(count):
            path = os.path.join(self.mounts.scratch, f"mount{len(self.paths)}")
            os.mkdir(path)
            self.paths.append(path)
            if subprocess.run([*self.command, path, "-o", f"fuse={self.fuse}", "--log",
                               os.path.join(self.mounts.scratch, "mounts.log")], check=False,
                              timeout=DEADLINE).returncode != 0:
                raise RuntimeError(f"mount {number + 1} of {count} failed")

    def use(self):
        """Each does something, several at a time: writes a file in a directory of its own, reads it, and lists. The files
        stay the same ones, as the metadata of more of them would be counted as memory of the mounts."""

        def one(path):
            directory = os.path.join(path, os.path.basename(path))
            os.makedirs(directory, exist_ok=True)
            own = os.path.join(directory, "file")
            for _ in range(4):
                with open(os.open(own, os.O_WRONLY | os.O_CREAT), "wb") as file:
                    file.write(os.urandom(64 << 10))
                with open(own, "rb") as file:
                    file.read()
            os.listdir(directory)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(one, self.paths))

    def pids(self):
        status = subprocess.run([self.mounts.termfs, "status", self.mounts.volume], check=True, capture_output=True,
                                text=True, timeout=DEADLINE).stdout
        return [int(pid) for pid in re.findall(r"mount \(pid (\d+)", status)]

    def end(self):
        """Returns when the server has heard of it."""
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(unmount, self.paths))
        if self.paths and self.mounts.server.poll() is None:
            wait_for(lambda: not self.pids(), "the mounts end", self.mounts.server)
        self.paths = []


class Cost:
    """Of `count` mounts to the server, each used and then left alone."""

    def __init__(self, server, many, count):
        before, first = own_bytes(server), len(many.paths)
        many.add(count - first)
        for _ in range(3):
            many.use()
        time.sleep(SETTLE)
        began = processor_seconds(server)
        time.sleep(IDLE)
        self.percent = 100 * (processor_seconds(server) - began) / IDLE
        self.kib = (own_bytes(server) - before) / 1024 / (count - first)


def one_host(build, fuse, counts, bar):
    for count in counts:
        with scratch_directory() as scratch, Mounts(build, scratch, "256M", "0.5") as mounts, contextlib.ExitStack() as stack:
            server = mounts.server.pid
            many = ManyMounts(stack, mounts, [mounts.termfs, "mount", mounts.volume], fuse)
            many.add(8)  # what the first few need, and what several at a time need, is there
            many.use()
            empty = own_bytes(server)
            cost = Cost(server, many, count)
            sizes = sorted(own_bytes(pid) / 2**20 for pid in many.pids())
            many.end()
            time.sleep(2 * SETTLE)
            kept = (own_bytes(server) - empty) / 1024 / count
        where = f"{count} idle mounts by {fuse}"
        yield bar(f"{where}: server's processor time, % of one for each 200", PERCENT, [cost.percent * 200 / count],
                  lower_is_better=True)
        yield bar(f"{where}: server's memory for each, KiB", SERVER_KIB, [cost.kib], lower_is_better=True)
        yield bar(f"{where}: memory of a mount, MiB", MOUNT_MIB, sizes, lower_is_better=True)
        print(f"no bar: {where}: of the server's memory {kept:.1f} KiB for each stayed when they had ended")


def over_network(build, fuse, count):
    with contextlib.ExitStack() as stack:
        hosts = network.Hosts(stack, 1500)
        place = f"[{hosts.IPV6[0]}]:{network.PORT}"
        scratch = stack.enter_context(scratch_directory())
        mounts = stack.enter_context(Mounts(build, scratch, "256M", "0.5", before=hosts.server,
                                            serve_options=("--listen", place)))
        many = ManyMounts(stack, mounts, [*hosts.client, mounts.termfs, "mount", place, "--secret",
                                          os.path.join(mounts.volume, "secret")], fuse)
        many.add(8)
        many.use()
        cost = Cost(mounts.server.pid, many, count)
        print(f"no bar: {count} idle mounts over a network: {cost.percent * 200 / count:.2f} % of a processor for each 200, "
              f"{cost.kib:.0f} KiB of the server's memory for each")


def bars(build, quick, rings, bar):
    """`bar` makes one; NotRun for what cannot be measured."""
    counts, hosts = ((60,), 30) if quick else ((200, 500), 300)
    fuse = "io_uring" if rings else "device"
    yield from one_host(build, fuse, counts, bar)
    if rings:
        yield from one_host(build, "device", counts[:1], bar)
    if shutil.which("ip") is None:
        yield NotRun("mounts over a network", "ip is not installed")
    else:
        over_network(build, fuse, hosts)
