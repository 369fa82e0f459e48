# SPDX-License-Identifier: Apache-2.0
"""What a mount's kernel keeps of files that are read, and that nobody is shown it after it has changed."""
import os
import random
import signal
import threading
import time

from cases_posix import MIB, read_file, write_file
from volume import check, eventually, stop


def reads(mount):
    """READs that have come to the mount's process."""
    return int(mount.describe()["fs_reads_total"])


def case_pages_are_read_once(site):
    mount = site.volume().mount()
    data = random.Random(1).randbytes(3 * MIB + 123)
    write_file(mount / "f", data)
    before = reads(mount)
    check(read_file(mount / "f") == data, "what was written")
    check(reads(mount) > before, "nothing was read of the mount, though its kernel could not know the file")
    # A kernel that is short of memory drops clean pages when it likes, but not each time.
    asked = []
    while 0 not in asked and len(asked) < 8:
        before = reads(mount)
        check(read_file(mount / "f") == data, "what was written, again")
        asked.append(reads(mount) - before)
    check(0 in asked, f"READs for what the kernel has: {asked}")
    # A writer of this mount changes it: no more and no less than the new contents is read.
    with open(mount / "f", "r+b") as file:
        file.seek(5000)
        file.write(b"changed")
    check(read_file(mount / "f") == data[:5000] + b"changed" + data[5007:], "what was written through another handle")


def case_pages_go_before_others_write(site):
    volume = site.volume()
    a, b = volume.mount(), volume.mount()
    write_file(a / "f", b"0" * 10_000)
    times = os.stat(a / "f")
    reader = os.open(b / "f", os.O_RDONLY)
    writer = os.open(a / "f", os.O_RDWR)
    for i in range(1, 60):
        check(os.pread(reader, 6, 4090) == f"{(i - 1) * 37 % 10}".encode() * 6, f"cached, turn {i}")
        text = f"{i * 37 % 10}".encode()
        os.pwrite(writer, text * 10_000, 0)
        if i % 3 == 0:  # as those do who copy with times
            os.utime(a / "f", ns=(times.st_atime_ns, times.st_mtime_ns))
        check(os.pread(reader, 6, 4090) == text * 6, f"turn {i}: what another mount wrote before")
        check(read_file(b / "f") == text * 10_000, f"turn {i}: opened anew")
    os.ftruncate(writer, 3)
    check(os.pread(reader, 100, 0) == text * 3, "cut")
    os.pwrite(writer, b"tail", 3)
    check(os.pread(reader, 100, 0) == text * 3 + b"tail", "longer again")
    os.close(reader)
    os.pwrite(writer, b"closed", 0)
    check(read_file(b / "f").startswith(b"closed"), "what was written while it was closed there")
    os.close(writer)


def case_pages_beside_a_writer_here(site):
    """A log that grows, and is read on the same mount by others who keep it open."""
    mount = site.volume().mount()
    write_file(mount / "log", b"")
    log = os.open(mount / "log", os.O_WRONLY | os.O_APPEND)
    reader = os.open(mount / "log", os.O_RDONLY)
    stop = threading.Event()
    wrong = []

    def read_on():
        with open(mount / "log", "rb", buffering=0) as file:
            while not stop.is_set():
                data = os.pread(file.fileno(), 100_000, 0)
                lines = data.split(b"\n")
                if lines[:-1] != [b"%06d" % n for n in range(len(lines) - 1)]:
                    wrong.append(data[-100:])
                    return

    readers = [threading.Thread(target=read_on) for _ in range(3)]
    for thread in readers:
        thread.start()
    for i in range(600):
        os.write(log, b"%06d\n" % i)
        check(os.pread(reader, 7, 7 * i) == b"%06d\n" % i, f"line {i} right after it was written")
    stop.set()
    for thread in readers:
        thread.join()
    check(not wrong, f"a reader saw {wrong}")
    os.close(log)
    os.close(reader)


def case_pages_never_go_back(site):
    """Who reads by his kernel's cache sees nothing older than what another mount has shown him before."""
    volume = site.volume()
    a, b, c = volume.mount(), volume.mount(), volume.mount()
    write_file(a / "f", b"%08d" % 0)
    done, enough = threading.Event(), threading.Event()
    written = 0

    def write_on():
        nonlocal written
        file = os.open(a / "f", os.O_RDWR)
        limit = time.monotonic() + 60  # a thousand times the usual
        while (written < 1500 or not enough.is_set()) and time.monotonic() < limit:
            written += 1
            os.pwrite(file, b"%08d" % written, 0)
        os.close(file)
        done.set()

    writer = threading.Thread(target=write_on)
    writer.start()
    cached = os.open(b / "f", os.O_RDONLY)
    direct = os.open(c / "f", os.O_RDWR)
    last = 0
    turns = 0
    while not done.is_set():
        for file in (direct, cached, cached):
            seen = int(os.pread(file, 8, 0))
            check(seen >= last, f"{seen} after {last} had been read")
            last = seen
        turns += 1
        if turns > 20:
            enough.set()
    writer.join()
    check(turns > 20, f"only {turns} turns")
    check(os.pread(cached, 8, 0) == b"%08d" % written, "the last")
    os.close(cached)
    os.close(direct)


def case_pages_after_the_server_was_killed(site):
    volume = site.volume()
    a, b = volume.mount(), volume.mount()
    write_file(a / "f", b"old" * 5000)
    reader = os.open(b / "f", os.O_RDONLY)
    check(os.pread(reader, 3, 9000) == b"old", "cached")
    volume.kill()
    volume.serve()
    write_file(a / "f", b"new" * 5000)
    check(os.pread(reader, 3, 9000) == b"new", "what was written after the restart")
    check(read_file(b / "f") == b"new" * 5000, "opened anew")
    os.close(reader)


def case_pages_of_a_stopped_mount(site):
    """A mount that does not answer delays a writer, and shows nothing old once the write has returned."""
    volume = site.volume()
    a, b = volume.mount(), volume.mount()
    write_file(a / "f", b"old")
    reader = os.open(b / "f", os.O_RDONLY)
    check(os.pread(reader, 3, 0) == b"old", "cached")
    stop(b.pid)
    try:
        write_file(a / "f", b"new")
    finally:
        os.kill(b.pid, signal.SIGCONT)
    eventually(lambda: os.pread(reader, 3, 0) == b"new", "the mount that was stopped is back")
    os.close(reader)
