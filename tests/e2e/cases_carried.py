# SPDX-License-Identifier: Apache-2.0
"""Many programs that read what is not in memory at once, through one mount: some of its threads wait for all of them.
And what may happen to them meanwhile."""
import mmap
import os
import random
import signal
import sys
import threading
import time

from cases_sessions import Stopped, end_by_signal
from volume import check, ended, eventually

PAGE = 4096
MEBIBYTES = 96  # far more than is in memory
JOBS = 16

# Reads pages at random, past the kernel's cache, until it is killed or has read enough; page N says N.
READER = """
import mmap, os, random, sys
path, pages, seed, reads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
chosen = random.Random(seed)
fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
buffer = mmap.mmap(-1, 8 * 4096)
print("ready", flush=True)
done = 0
while done < reads or not reads:
    count = chosen.choice((1, 1, 1, 2, 8))
    first = chosen.randrange(pages - count + 1)
    got = os.preadv(fd, [memoryview(buffer)[:count * 4096]], first * 4096)
    assert got == count * 4096, (first, got)
    for i in range(count):
        said = int(buffer[i * 4096:i * 4096 + 16]), int(buffer[i * 4096 + 4080:(i + 1) * 4096])
        assert said == (first + i, first + i), (first + i, said)
    done += 1
print("done", done, flush=True)
"""


def page_of(number):
    word = b"%016d" % number
    return word + bytes(PAGE - 2 * len(word)) + word


def numbered(path, mebibytes):
    with open(path, "wb") as file:
        for first in range(0, mebibytes * 256, 256):
            file.write(b"".join(page_of(number) for number in range(first, first + 256)))
        file.flush()
        os.fsync(file.fileno())


def start_readers(site, path, jobs, reads):
    """Half of them on each of two CPUs, so that they share the kernel's queues."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    readers = []
    for seed in range(jobs):
        readers.append(site.start("taskset", "-c", cpus[seed % len(cpus)], sys.executable, "-c", READER, path,
                                  MEBIBYTES * 256, seed, reads))
    for reader in readers:
        check(reader.stdout.readline() == "ready\n", "a reader begins")
    return readers


def check_done(readers):
    for reader in readers:
        reader.wait(600)
        said = reader.stdout.read()  # little: it has not blocked the reader
        check(reader.returncode == 0 and said.startswith("done"), f"a reader ended with {reader.returncode}: {said}")


def carried(mount):
    return int(mount.describe()["fuse_carried_reads_total"])


def needs_rings(site):
    return site.fuse == "io_uring"


def case_carried_reads_beside_everything(site):
    """With programs that make, write and remove files beside, for which the same commands of the kernel are used."""
    m = site.mounted("256M", 0.05)
    numbered(m / "f", MEBIBYTES)
    stop = threading.Event()
    made = []

    def make_files(index):
        rounds = 0
        while not stop.is_set():
            name = m / f"made{index}"
            with open(name, "wb") as file:
                file.write(b"%d" % rounds * 1000)
            with open(name, "rb") as file:
                check(file.read() == b"%d" % rounds * 1000, "what was written")
            os.rename(name, name + ".r")
            os.unlink(name + ".r")
            rounds += 1
        made.append(rounds)

    before = carried(m)
    makers = [threading.Thread(target=make_files, args=(i,)) for i in range(3)]
    readers = start_readers(site, m / "f", JOBS, site.size(6000, 1500))
    for maker in makers:
        maker.start()
    try:
        check_done(readers)
    finally:
        stop.set()
        for maker in makers:
            maker.join()
    check(len(made) == len(makers) and min(made) > 0, f"files were made beside: {made}")
    if needs_rings(site):
        check(carried(m) - before > JOBS * 100, f"only {carried(m) - before} reads were carried, or it shows nothing")


def case_carried_reads_of_what_is_written(site):
    """A page has a number that only grows; whoever reads it sees none that is older than one he knows of."""
    volume = site.volume("256M", 0.05)
    m, other = volume.mount(), volume.mount()
    numbered(m / "f", MEBIBYTES)
    pages = 64
    written = [0] * pages
    stop = threading.Event()
    wrong = []

    def write_on():
        file = os.open(other / "f", os.O_RDWR)
        chosen = random.Random(5)
        number = 10**9  # more than was there
        while not stop.is_set():
            number += 1
            page = chosen.randrange(pages)
            os.pwrite(file, page_of(number), page * 300 * PAGE)
            written[page] = number
        os.close(file)

    def read_on(seed):
        chosen = random.Random(seed)
        file = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)
        buffer = mmap.mmap(-1, PAGE)
        for _ in range(site.size(3000, 1000)):
            page = chosen.randrange(pages)
            least = written[page]
            os.preadv(file, [buffer], page * 300 * PAGE)
            seen = int(buffer[:16])
            if int(buffer[4080:]) != seen or (least and seen < least):
                wrong.append((page, least, seen, buffer[4080:]))
        os.close(file)

    writer = threading.Thread(target=write_on)
    readers = [threading.Thread(target=read_on, args=(seed,)) for seed in range(JOBS)]
    for thread in [writer, *readers]:
        thread.start()
    for thread in readers:
        thread.join()
    stop.set()
    writer.join()
    check(not wrong, f"read what was too old, or two pages in one: {wrong[:3]}")


def case_carried_reads_server_killed(site):
    volume = site.volume("256M", 0.05)
    m = volume.mount()
    numbered(m / "f", MEBIBYTES)
    readers = start_readers(site, m / "f", JOBS, site.size(6000, 2500))
    for _ in range(site.size(4, 2)):
        time.sleep(0.7)
        volume.kill()
        volume.serve()
    check_done(readers)
    before = carried(m)
    check_done(start_readers(site, m / "f", JOBS, 500))
    if needs_rings(site):
        check(carried(m) - before > JOBS * 20, "they are carried again, over the session that is new")


def case_carried_reads_interrupted(site):
    """With a server that answers nobody, each of those who wait can be killed, and the others wait on."""
    volume = site.volume("256M", 0.05)
    m = volume.mount()
    numbered(m / "f", MEBIBYTES)
    readers = start_readers(site, m / "f", JOBS, 0)
    time.sleep(1)
    with Stopped(volume):
        time.sleep(1)  # all of them wait by now
        end_by_signal(signal.SIGKILL, *readers[::2])
        check(all(reader.poll() is None for reader in readers[1::2]), "the others are still there")
    time.sleep(0.5)
    for reader in readers[1::2]:
        check(reader.poll() is None, f"a reader that was not killed: {reader.poll()}")
    end_by_signal(signal.SIGTERM, *readers[1::2])
    check_done(start_readers(site, m / "f", JOBS, 300))


def case_carried_reads_unmounted(site):
    """A mount that ends while many read."""
    volume = site.volume("256M", 0.05)
    m = volume.mount()
    numbered(m / "f", MEBIBYTES)
    readers = start_readers(site, m / "f", JOBS, 0)
    time.sleep(1)
    os.kill(m.pid, signal.SIGTERM)
    for reader in readers:
        reader.wait(60)
        check(reader.returncode == 1, f"a reader on a mount that has ended: {reader.returncode}")
    eventually(lambda: ended(m.pid), "the mount's process ends")
    volume.abandon(m)
    m = volume.mount()
    check_done(start_readers(site, m / "f", JOBS, 200))
