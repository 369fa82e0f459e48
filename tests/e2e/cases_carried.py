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
from volume import alone, check, ended, eventually, is_stopped

PAGE = 4096
MEBIBYTES = 96  # far more than is in memory
JOBS = 16

# Reads pages at random, past the kernel's cache, until it is killed or has read enough; page N says N.
READER = """
import mmap, os, random, signal, sys
path, pages, seed, reads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
chosen = random.Random(seed)
fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
buffer = mmap.mmap(-1, 8 * 4096)
print("ready", flush=True)
if sys.argv[5]:
    os.kill(os.getpid(), signal.SIGSTOP)
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


def start_readers(site, path, jobs, reads, pages=MEBIBYTES * 256, cpus=None, held=False):
    """Half of them on each of two CPUs, so that they share the kernel's queues. `held`: until SIGCONT."""
    cpus = cpus or sorted(os.sched_getaffinity(0))[:2]
    readers = []
    for seed in range(jobs):
        readers.append(site.start("taskset", "-c", cpus[seed % len(cpus)], sys.executable, "-c", READER, path, pages,
                                  seed, reads, "held" if held else ""))
    for reader in readers:
        check(reader.stdout.readline() == "ready\n", "a reader begins")
    if held:
        eventually(lambda: all(is_stopped(reader.pid) for reader in readers), "the readers hold still")
    return readers


def check_done(readers):
    for reader in readers:
        reader.wait(600)
        said = reader.stdout.read()  # little: it has not blocked the reader
        check(reader.returncode == 0 and said.startswith("done"), f"a reader ended with {reader.returncode}: {said}")


class Carried:
    """That the reads of this block were carried, or it shows nothing."""

    def __init__(self, site, mount, least):
        self.site, self.mount, self.least = site, mount, least

    def count(self):
        return int(self.mount.describe()["fuse_carried_reads_total"])

    def enough(self):
        return self.site.fuse != "io_uring" or self.count() - self.before > self.least

    def __enter__(self):
        self.before = self.count()
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            check(self.enough(), f"only {self.count() - self.before} reads were carried")


class Threads:
    """Of a case. An exception in one of them is the case's."""

    def __init__(self):
        self.threads = []
        self.failed = []

    def start(self, function, *arguments):
        def run():
            try:
                function(*arguments)
            except BaseException as error:  # whatever it is
                self.failed.append(error)

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def join(self):
        for thread in self.threads:
            thread.join()
        if self.failed:
            raise self.failed[0]


@alone
def case_carried_reads_beside_everything(site):
    """With programs that make, write and remove files beside, for which the same commands of the kernel are used."""
    m = site.mounted("256M", 0.05)
    numbered(m / "f", MEBIBYTES)
    stop = threading.Event()
    made = [0, 0, 0]

    def make_files(index):
        while not stop.is_set():
            name = m / f"made{index}"
            text = b"%d" % made[index] * 1000
            with open(name, "wb") as file:
                file.write(text)
            with open(name, "rb") as file:
                check(file.read() == text, "what was written")
            os.rename(name, name + ".r")
            os.unlink(name + ".r")
            made[index] += 1

    makers = Threads()
    with Carried(site, m, JOBS * 100):
        readers = start_readers(site, m / "f", JOBS, site.size(6000, 1500))
        for index in range(len(made)):
            makers.start(make_files, index)
        try:
            check_done(readers)
        finally:
            stop.set()
            makers.join()
    check(min(made) > 0, f"files were made beside: {made}")


def case_carried_reads_of_what_is_written(site):
    """A page has a number that only grows; whoever reads it sees none that is older than one he knows of. Of all pages,
    most of which are absent."""
    volume = site.volume("256M", 0.05)
    m, other = volume.mount(), volume.mount()
    numbered(m / "f", MEBIBYTES)
    step = 7
    written = [0] * (MEBIBYTES * 256 // step)
    stop = threading.Event()

    def write_on():
        file = os.open(other / "f", os.O_RDWR)
        chosen = random.Random(5)
        number = 10**9  # more than was there
        while not stop.is_set():
            number += 1
            page = chosen.randrange(len(written))
            os.pwrite(file, page_of(number), page * step * PAGE)
            written[page] = number
        os.close(file)
        check(number > 10**9 + 50, f"only {number - 10**9} were written")

    def read_on(seed):
        chosen = random.Random(seed)
        file = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)
        buffer = mmap.mmap(-1, PAGE)
        for _ in range(site.size(3000, 1000)):
            page = chosen.randrange(len(written))
            least = written[page]
            check(os.preadv(file, [buffer], page * step * PAGE) == PAGE, "a page is read")
            seen = int(buffer[:16])
            check(int(buffer[4080:]) == seen, f"two pages in one: {seen}, {buffer[4080:]}")
            check(seen >= least and seen in (page * step, max(seen, 10**9)), f"page {page}: {seen} after {least}")
        os.close(file)

    writer, readers = Threads(), Threads()
    with Carried(site, m, JOBS * 20):
        writer.start(write_on)
        for seed in range(JOBS):
            readers.start(read_on, seed)
        try:
            readers.join()
        finally:
            stop.set()
            writer.join()


@alone
def case_carried_reads_server_killed(site):
    volume = site.volume("256M", 0.05)
    m = volume.mount()
    numbered(m / "f", MEBIBYTES)
    with Carried(site, m, JOBS * 20):
        readers = start_readers(site, m / "f", JOBS, site.size(6000, 2500))
        for _ in range(site.size(4, 2)):
            time.sleep(0.7)
            volume.kill()
            volume.serve()
        check_done(readers)
    with Carried(site, m, JOBS * 20):  # over the session that is new
        readers = start_readers(site, m / "f", JOBS, 500, held=True)  # or the first are done before the last begin
        for reader in readers:
            reader.send_signal(signal.SIGCONT)
        check_done(readers)


@alone
def case_carried_reads_interrupted(site):
    """With a server that answers nobody, each of those who wait can be killed, and the others wait on. In a mount that
    has carried reads before, and in one that has not."""
    volume = site.volume("256M", 0.05)
    m = volume.mount()
    numbered(m / "f", MEBIBYTES)
    for mount in (m, volume.mount()):
        new = mount is not m
        readers = []
        if not new:
            with Carried(site, mount, JOBS) as carried:
                readers = start_readers(site, mount / "f", JOBS, 0)
                eventually(carried.enough, "reads are carried")
        else:  # opened already, so that the next thing they do is to read
            readers = start_readers(site, mount / "f", JOBS, 0, held=True)
        with Stopped(volume):
            if new:
                for reader in readers:
                    reader.send_signal(signal.SIGCONT)
            time.sleep(1)  # all of them wait by now
            end_by_signal(signal.SIGKILL, *readers[::2])
            check(all(reader.poll() is None for reader in readers[1::2]), "the others are still there")
        time.sleep(0.5)
        for reader in readers[1::2]:
            check(reader.poll() is None, f"a reader that was not killed: {reader.poll()}")
        end_by_signal(signal.SIGTERM, *readers[1::2])
        with Carried(site, mount, JOBS) as carried:
            readers = start_readers(site, mount / "f", JOBS, 0)
            eventually(carried.enough, "reads are carried")
            end_by_signal(signal.SIGTERM, *readers)


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


@alone
def case_carried_reads_without_a_server(site):
    """A mount whose server was killed before any reads were carried waits for it without using a CPU, also once one of
    those who wait in it was killed."""
    volume = site.volume("256M", 0.05)
    m = volume.mount()
    numbered(m / "f", MEBIBYTES)
    # Fewer than the CPU has lanes, so that one is left for what a killed program closes.
    readers = start_readers(site, m / "f", 4, 0, cpus=sorted(os.sched_getaffinity(0))[:1], held=True)
    volume.kill()
    for reader in readers:
        reader.send_signal(signal.SIGCONT)
    time.sleep(1)  # all of them wait by now
    end_by_signal(signal.SIGKILL, readers[0])
    before = processor_seconds(m.pid)
    time.sleep(3)
    used = processor_seconds(m.pid) - before
    check(used < 1, f"{used:.2f} s of a CPU used in 3 s")
    with Carried(site, m, JOBS) as carried:
        volume.serve()
        eventually(carried.enough, "reads are carried once it is there")
    check(all(reader.poll() is None for reader in readers[1:]), "the others read on")
    end_by_signal(signal.SIGTERM, *readers[1:])


def case_carried_reads_more_than_lanes_wait(site):
    """Each program that waits for a server that is gone can be killed alone, also where far more wait than there are
    lanes."""
    volume = site.volume("256M", 0.05)
    m = volume.mount("reconnect=3600")
    numbered(m / "f", 4)
    readers = start_readers(site, m / "f", 40, 0, pages=4 * 256, cpus=sorted(os.sched_getaffinity(0))[:1], held=True)
    volume.kill()
    eventually(lambda: m.describe()["link_up"] == "0", "the mount notices")
    for reader in readers:
        reader.send_signal(signal.SIGCONT)
    time.sleep(1)  # all of them wait by now
    for reader in readers[::4]:
        end_by_signal(signal.SIGKILL, reader)
    left = [reader for reader in readers if reader.poll() is None]
    check(len(left) == 30, f"{len(left)} wait on")
    volume.serve()
    check_done(start_readers(site, m / "f", 4, 100, pages=4 * 256))
    check(all(reader.poll() is None for reader in left), "they read on")
    end_by_signal(signal.SIGTERM, *left)


def case_carried_reads_not_over_a_network(site):
    """A READ of another host's memory is a round trip: one thread would make them one after the other."""
    site.network = "::1"
    try:
        m = site.mounted("256M", 0.05)
        numbered(m / "f", MEBIBYTES)
        check_done(start_readers(site, m / "f", JOBS, 300))
        check(m.describe()["fuse_carried_reads_total"] == "0", "none were carried")
        check("termfs-carrier" not in threads_of(m.pid), "nothing is there to carry them")
    finally:
        site.network = None


def threads_of(pid):
    names = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/comm", encoding="ascii") as name:
            names.append(name.read().strip())
    return names


@alone
def case_carried_reads_hold_up_nobody(site):
    """What is in memory is read at once, by the commands that the carrier has, while others wait for a server that does
    not answer."""
    volume = site.volume("512M", 0.3)
    m = volume.mount()
    numbered(m / "f", MEBIBYTES * 3)
    numbered(m / "hot", 1)
    cpu = sorted(os.sched_getaffinity(0))[0]
    with Carried(site, m, JOBS * 10) as carried:
        readers = start_readers(site, m / "f", JOBS, 0, pages=MEBIBYTES * 3 * 256)
        eventually(carried.enough, "reads are carried")
        end_by_signal(signal.SIGTERM, *readers)
    os.sched_setaffinity(0, {cpu})
    try:
        file = os.open(m / "hot", os.O_RDONLY | os.O_DIRECT)
        buffer = mmap.mmap(-1, PAGE)
        absent = start_readers(site, m / "f", 2, 0, pages=MEBIBYTES * 3 * 256, cpus=[cpu])
        until = time.monotonic() + 1
        while time.monotonic() < until:  # what they read takes the place of what nobody reads
            for page in range(16):
                os.preadv(file, [buffer], page * PAGE)
        with Stopped(volume):
            time.sleep(1)  # both wait by now
            began = time.monotonic()
            for page in [*range(16)] * 4:
                check(os.preadv(file, [buffer], page * PAGE) == PAGE and int(buffer[:16]) == page, "what is in memory")
            took = time.monotonic() - began
            # A thousandth of that is usual; one second for each, where a sleeping carrier is not woken.
            check(took < 10, f"reads of what is in memory took {took:.1f} s")
        os.close(file)
        end_by_signal(signal.SIGKILL, *absent)
    finally:
        os.sched_setaffinity(0, range(os.cpu_count()))


def case_carried_reads_unmounted(site):
    """A mount that ends while many read."""
    volume = site.volume("256M", 0.05)
    m = volume.mount()
    numbered(m / "f", MEBIBYTES)
    with Carried(site, m, JOBS):
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
