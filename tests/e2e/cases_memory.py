# SPDX-License-Identifier: Apache-2.0
"""The host's memory: what does not fit is refused before any is taken, and a server that did not serve leaves none."""
import contextlib
import os
import re
import signal
import socket
import subprocess
import time

from cases_input import refused
from cases_posix import MIB, read_file, write_file
from volume import Skip, check, ended, eventually, run


class MemoryGroup:
    """A memory cgroup in which programs can be started: `*group.inside` goes before a command."""

    def __init__(self, limit):
        version1 = os.path.isdir("/sys/fs/cgroup/memory")
        root = "/sys/fs/cgroup/memory" if version1 else "/sys/fs/cgroup"
        self.path = f"{root}/termfs_memory_{os.getpid()}"
        try:
            os.mkdir(self.path)
        except OSError as error:
            raise Skip(f"no memory cgroup: {error}") from None
        most = os.path.join(self.path, "memory.limit_in_bytes" if version1 else "memory.max")
        if not os.path.exists(most):
            os.rmdir(self.path)
            raise Skip("cgroups do not limit memory here")
        with open(most, "w", encoding="ascii") as file:
            file.write(str(limit))
        self.events = os.path.join(self.path, "memory.oom_control" if version1 else "memory.events")
        self.inside = ["sh", "-c", f"echo $$ > {self.path}/cgroup.procs; exec \"$@\"", "sh"]

    def kills(self):
        with open(self.events, encoding="ascii") as lines:
            return [line for line in lines if line.startswith("oom_kill ")]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        def removed():
            with open(os.path.join(self.path, "cgroup.procs"), encoding="ascii") as lines:
                left = lines.read().split()
            for pid in left:  # after a case that has failed
                with contextlib.suppress(OSError), open(f"{os.path.dirname(self.path)}/cgroup.procs", "w", encoding="ascii") as file:
                    file.write(pid)
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
            return not os.path.exists(self.path)
        eventually(removed, "the memory cgroup is empty")


def says_no(*command):
    """What a command that fails says."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, check=False)
    check(done.returncode == 1, f"{command}: exit code {done.returncode}: {done.stderr}")
    return done.stderr


def largest_ratio(text):
    found = re.search(r"the largest dram-ratio that fits is ([0-9.]+)", text)
    check(found is not None and 0.01 <= float(found[1]) < 1, text)
    return found[1]


def total_memory():
    with open("/proc/meminfo", encoding="ascii") as lines:
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemTotal:"))


def held_by(path):
    """Bytes on the tmpfs there, also of files that have no names; 0: it is none."""
    if not os.path.ismount(path):
        return 0
    space = os.statvfs(path)
    return (space.f_blocks - space.f_bfree) * space.f_frsize


def case_memory_format_refuses(site):
    path = os.path.join(site.scratch, "large")
    capacity = f"{total_memory() * 4 // MIB}M"
    said = says_no(site.termfs, "format", path, "--capacity", capacity, "--dram-ratio", "0.5")
    check(largest_ratio(said) in ("0.22", "0.23", "0.24"), said)
    check(not os.path.exists(path), "nothing was made")


def case_memory_of_a_cgroup(site):
    """serve and set ask before they take: nothing is killed, what is said to fit does, and what a killed server left
    counts once."""
    volume = site.volume("512M", 0.1)
    volume.stop()
    with MemoryGroup(480 * MIB) as group:
        said = says_no(*group.inside, site.termfs, "serve", volume.path, "--dram-ratio", "1")
        check("memory cgroup /termfs_memory_" in said, said)
        check(volume.tier() is None, "no memory was taken")
        ratio = f"{float(largest_ratio(said)) - 0.02:.2f}"  # what a start takes besides varies by some megabytes
        volume.serve("--dram-ratio", ratio, at=group.inside)
        m = volume.mount()
        data = os.urandom(100 * MIB)
        write_file(m / "f", data)
        said = says_no(site.termfs, "set", volume.path, "dram-ratio=1")
        check(float(largest_ratio(said)) >= float(ratio), said)
        says_no(site.termfs, "set", volume.path, "capacity=8G")
        check(volume.status()["capacity_bytes"] == 512 * MIB, "the capacity is as before")
        run(site.termfs, "set", volume.path, "dram-ratio=0.1")
        run(site.termfs, "set", volume.path, f"dram-ratio={float(ratio) - 0.1}")
        volume.kill()
        volume.serve("--dram-ratio", ratio, at=group.inside)
        check(read_file(m / "f") == data, "what the killed server had")
        volume.umount(m)
        volume.stop()
        check(group.kills() in ([], ["oom_kill 0\n"]), f"the kernel has killed: {group.kills()}")


def case_memory_killed_before_it_serves(site):
    """SIGKILL while it takes its memory, again and again."""
    volume = site.volume("1G", 0.1)
    place = volume.tier()
    volume.stop()
    most = 0
    for goal in (1, 64, 256, 512):
        server = site.start(site.termfs, "serve", volume.path, "--foreground", "--dram-ratio", "1")
        while held_by(place) < goal * MIB and server.poll() is None and not os.path.exists(f"{volume.path}/socket"):
            time.sleep(0.0005)
        most = max(most, held_by(place))
        server.send_signal(signal.SIGKILL)
        server.wait(60)
        if volume.tier() is None:
            eventually(lambda: held_by(place) < MIB, f"{held_by(place)} bytes stay", 30)
        else:  # it had become a server
            volume.serve()
            volume.stop()
    check(most > 0, "it was killed too late, always")
    volume.serve()
    check(volume.tier() == place, "it serves")


def case_memory_of_a_start_that_fails(site):
    """Somebody has its TCP port. What is taken over only loses what huge pages had beyond the end of tables."""
    volume = site.volume("128M", 0.5)
    place = volume.tier()
    m = volume.mount()
    data = os.urandom(20 * MIB)
    write_file(m / "f", data)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        volume.kill()
        volume.abandon(m)
        before = held_by(place)
        refused(site, 1, "in use", "serve", volume.path, "--listen", listen)
        check(before - 4 * MIB < held_by(place) <= before, f"the killed server left {before} bytes, there are {held_by(place)}")
        volume.serve()
        m = volume.mount()
        check(read_file(m / "f") == data, "and taken over")
        volume.umount(m)
        volume.stop()
        refused(site, 1, "in use", "serve", volume.path, "--listen", listen)
        check(not os.path.exists(place), "a start that fails leaves no memory behind")


def case_memory_taken_over_in_a_full_tmpfs(site):
    """A tier that is there needs no room for another."""
    place = os.path.join(site.scratch, "mem")
    os.mkdir(place)
    run("mount", "-t", "tmpfs", "-o", "size=85m,mode=700", "tmpfs", place)
    try:
        volume = site.volume("128M", 0.5)
        volume.stop()
        volume.serve("--memory-directory", place)
        m = volume.mount()
        data = os.urandom(20 * MIB)
        write_file(m / "f", data)
        volume.kill()
        with contextlib.suppress(OSError), open(os.path.join(place, "others"), "wb") as file:
            while True:
                file.write(bytes(MIB))
                file.flush()
        with contextlib.suppress(OSError), open(os.path.join(place, "rest"), "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        check(os.statvfs(place).f_bavail == 0, "it is full")
        volume.serve("--memory-directory", place)
        check(read_file(m / "f") == data, "what the killed server had")
        says = says_no(site.termfs, "set", volume.path, "dram-ratio=1")
        check(f"the tmpfs of {place}" in says and largest_ratio(says) == "0.5", says)
        volume.umount(m)
        volume.stop()
    finally:
        run("umount", "-l", place)


def case_memory_ratio_of_one(site):
    """All of a small volume in memory, by each way to say so."""
    for mebibytes in (16, 17, 130):
        volume = site.volume(f"{mebibytes}M", 0.5)
        run(site.termfs, "set", volume.path, "dram-ratio=1")
        run(site.termfs, "set", volume.path, f"capacity={mebibytes + 3}M")
        check(volume.status()["tier_bytes"] == (mebibytes + 3) * MIB, f"{mebibytes} MiB: all of it")
        m = volume.mount()
        data = os.urandom((mebibytes - 3) * MIB)
        write_file(m / "f", data)
        check(read_file(m / "f") == data, "its bytes")
        pid = volume.server
        volume.umount(m)
        volume.stop()
        check(ended(pid), "it has ended")
        volume.serve("--dram-ratio", "1")
