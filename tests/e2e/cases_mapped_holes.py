# SPDX-License-Identifier: Apache-2.0
"""Processes that store to the pages of a file with holes through mappings, each to bytes of its own in each page, while
others read it, allocate its space and move its end: nothing of what was stored may be lost."""
import mmap
import multiprocessing
import os
import random
import struct

from coherence_calls import libc
from volume import check

PAGE = 4096
PAGES = 256
STORERS = 4


def store_all(path, number, order, barrier):
    fd = os.open(path, os.O_RDWR)
    memory = mmap.mmap(fd, PAGES * PAGE)
    barrier.wait(60)
    for page in order:
        struct.pack_into("<Q", memory, page * PAGE + number * 512, page << 8 | number + 1)
    memory.close()
    os.close(fd)


def disturb(path, how, barrier, end):
    """Until it is told to end; exit code 1 when it saw what cannot be."""
    fd = os.open(path, os.O_RDONLY if how == "read" else os.O_RDWR)
    chosen = random.Random(5)
    barrier.wait(60)
    while not end.is_set():
        page = chosen.randrange(PAGES)
        if how == "read":
            data = os.pread(fd, PAGE, page * PAGE)
            for number in range(STORERS):
                word, = struct.unpack_from("<Q", data, number * 512)
                if word not in (0, page << 8 | number + 1):
                    os._exit(1)
        elif how == "allocate":
            libc("fallocate", fd, 0, page * PAGE, PAGE)
        else:  # the end moves behind the pages that are stored to, not through them
            os.ftruncate(fd, (PAGES + chosen.randrange(1, 50)) * PAGE - chosen.randrange(PAGE))
    os._exit(0)


def check_words(fd, what):
    lost = []
    for page in range(PAGES):
        data = os.pread(fd, PAGE, page * PAGE)
        for number in range(STORERS):
            word, = struct.unpack_from("<Q", data, number * 512)
            if word != page << 8 | number + 1:
                lost.append((page, number, word))
    check(not lost, f"{what}: {len(lost)} stores are lost: (page, process, word) {lost[:5]}")


def run_storers(a, b, name, how, allocated, order_seed):
    path = a / name
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.ftruncate(fd, PAGES * PAGE)
    if allocated:
        libc("fallocate", fd, 0, 0, PAGES * PAGE)
    context = multiprocessing.get_context("fork")
    barrier, end = context.Barrier(STORERS + (how is not None)), context.Event()
    chosen = random.Random(order_seed)
    orders = [chosen.sample(range(PAGES), PAGES) if number % 2 else range(PAGES) for number in range(STORERS)]
    storers = [context.Process(target=store_all, args=(path, number, orders[number], barrier), daemon=True)
               for number in range(STORERS)]
    others = [context.Process(target=disturb, args=(path, how, barrier, end), daemon=True)] if how else []
    for process in storers + others:
        process.start()
    for process in storers:
        process.join(120)
    end.set()
    for process in others:
        process.join(120)
    check([process.exitcode for process in storers + others] == [0] * len(storers + others), f"{name}: a process failed")
    check_words(fd, f"{name}, the same mount")
    os.fsync(fd)
    other = os.open(b / name, os.O_RDONLY)
    check_words(other, f"{name}, another mount after fsync")
    os.close(other)
    os.close(fd)


def case_mapped_holes(site):
    volume = site.volume()
    a, b = volume.mount(), volume.mount()
    for how in (None, "read", "allocate", "move the end"):
        for allocated in (False, True):
            run_storers(a, b, f"{how}-{allocated}".replace(" ", "_"), how, allocated, 1)
