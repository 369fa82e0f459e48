# SPDX-License-Identifier: Apache-2.0
"""Many mounts of one volume: what they cost the server when they are left alone, and what it says when it has no room."""
import concurrent.futures
import contextlib
import os
import re
import resource
import subprocess
import time

from cases_posix import read_file, write_file
from volume import alone, check, eventually, run

SETTLE = 6  # seconds until mounts that are not used any more have come to rest
WATCHED = 5  # seconds in which wake-ups are counted


def wake_ups(pid):
    """How many times its threads have gone to sleep."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/status", encoding="ascii") as status:
            total += int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status.read(), re.MULTILINE).group(1))
    return total


def memory(pid):
    """KiB that are its own: its share of what is not a file's."""
    with open(f"/proc/{pid}/smaps", encoding="ascii") as lines:
        total, counts = 0, False
        for line in lines:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                words = line.split(None, 5)
                counts = len(words) < 6 or not words[5].startswith("/") or words[5].startswith("/memfd:")
            elif counts and line.startswith("Pss:"):
                total += int(line.split()[1])
        return total


def refused(site, *command):
    done = subprocess.run([site.termfs, *command], capture_output=True, text=True, timeout=120, check=False)
    check(done.returncode == 1, f"termfs {' '.join(command)}: {done.returncode}: {done.stderr}")
    return done.stderr


def log_of(volume):
    return read_file(os.path.join(volume.path, "log")).decode()


def counts_are_taken_again(volume, path):
    """Of a mount that has not read for a while, as soon as it does."""
    reads = volume.metrics()["heat_reads_total"]
    for _ in range(3):
        run("dd", f"if={path}", "of=/dev/null", "bs=4k", "iflag=direct", "status=none")
        time.sleep(0.3)
    eventually(lambda: volume.metrics()["heat_reads_total"] > reads, "access counts are taken again", 30)


@alone
def case_many_mounts_cost_little_when_idle(site):
    count = site.size(100, 60)
    volume = site.volume("64M")
    first = [volume.mount() for _ in range(2)]  # what the first few need is there from now on
    for mount in first:
        write_file(mount / "warm", b"up")
    before = memory(volume.server)
    mounts = [volume.mount() for _ in range(count)]

    def use(number):
        mine = mounts[number] / f"file{number}"
        for size in (10, 5000, 100_000):
            write_file(mine, bytes([number % 251]) * size)
            check(read_file(mounts[(number + 1) % count] / f"file{number}") == bytes([number % 251]) * size, mine)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(count)))
    time.sleep(SETTLE)
    began = wake_ups(volume.server)
    time.sleep(WATCHED)
    woken = wake_ups(volume.server) - began
    each = (memory(volume.server) - before) / count
    print(f"     {woken} wake-ups of the server in {WATCHED} s with {count} idle mounts; {each:.0f} KiB of its memory each")
    if site.network is None:  # else each says once in a second that it is there
        check(woken < 500, f"{count} idle mounts woke the server {woken} times in {WATCHED} s")
    check(each < 600, f"an idle mount costs the server {each:.0f} KiB of memory")
    counts_are_taken_again(volume, mounts[0] / "file0")
    for mount in mounts:
        volume.umount(mount)
    eventually(lambda: len(volume.status()["sessions"]) == len(first), "the sessions end")
    eventually(lambda: memory(volume.server) - before < each * count / 2, "the memory of ended mounts comes back")


def case_sessions_are_limited_by_a_setting(site):
    volume = site.volume("64M")
    volume.stop()
    with open(os.path.join(volume.path, "termfs.toml"), "a", encoding="ascii") as settings:
        settings.write("max-sessions = 2\n")
    volume.serve()
    one, _ = volume.mount(), volume.mount()
    place = os.path.join(site.scratch, "third")
    os.mkdir(place)
    said = refused(site, "mount", *volume.address, place)
    check("max-sessions is 2" in said, f"a mount too many is told: {said}")
    check(len(volume.status()["sessions"]) >= 2, "an administrator gets in all the same")
    volume.umount(one)
    eventually(lambda: subprocess.run([site.termfs, "mount", *volume.address, place], capture_output=True, timeout=120,
                                      check=False).returncode == 0, "there is room again")
    volume.mounted(place)


def case_server_short_of_descriptors_says_so(site):
    volume = site.volume("64M")
    volume.mount()
    used = len(os.listdir(f"/proc/{volume.server}/fd"))
    former = resource.prlimit(volume.server, resource.RLIMIT_NOFILE)
    resource.prlimit(volume.server, resource.RLIMIT_NOFILE, (used + 20, former[1]))
    place = os.path.join(site.scratch, "refused")
    os.mkdir(place)
    said = refused(site, "mount", *volume.address, place)
    check("the server is short of file descriptors" in said and str(used + 20) in said, f"a mount is told: {said}")
    check("is short of file descriptors" in log_of(volume), "the server's log says so, too")
    # None at all: also who asks is told, not left to wait.
    resource.prlimit(volume.server, resource.RLIMIT_NOFILE, (used, former[1]))
    lines = log_of(volume).count("short of file descriptors")
    for _ in range(3):
        check("the server is short of file descriptors" in refused(site, "mount", *volume.address, place), "told again")
    check(log_of(volume).count("short of file descriptors") <= lines + 4, "the log does not fill")
    resource.prlimit(volume.server, resource.RLIMIT_NOFILE, former)
    eventually(lambda: subprocess.run([site.termfs, "mount", *volume.address, place], capture_output=True, timeout=120,
                                      check=False).returncode == 0, "it serves again")
    volume.mounted(place)
    run("stat", place)
