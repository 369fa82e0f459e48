# SPDX-License-Identifier: Apache-2.0
"""Direct I/O beside mappings and cached reads of the same pages: what a direct write has written is seen at once, by all, and
nothing older after it."""
import mmap
import multiprocessing
import os
import struct
import time

from cases_posix import write_file
from volume import check

PAGE = 4096
PAGES = 4
SECONDS = 1.0


def words_of(memory, page):
    return set(struct.unpack_from(f"<{PAGE // 8}Q", memory, page * PAGE))


def watch(path, how, end, result):
    """Reads pages over and over; the words of each may never go back."""
    fd = os.open(path, os.O_RDWR if how == "mapping" else os.O_RDONLY | (os.O_DIRECT if how == "direct" else 0))
    buffer = mmap.mmap(fd, PAGES * PAGE, prot=mmap.PROT_READ) if how == "mapping" else mmap.mmap(-1, PAGES * PAGE)
    last, looks = [0] * PAGES, 0
    while not end.is_set():
        if how != "mapping":
            os.preadv(fd, [buffer], 0)
        for page in range(PAGES):
            first, = struct.unpack_from("<Q", buffer, page * PAGE)
            if first < last[page]:
                result.put(f"{how}: page {page} shows {first} after {last[page]}")
                return
            last[page], looks = first, looks + 1
    result.put(looks)


def case_direct_writes_beside_mapping(site):
    """The writer itself looks at what it has written through a mapping, through the cache and directly."""
    mount = site.mounted()
    write_file(mount / "f", bytes(PAGES * PAGE))
    context = multiprocessing.get_context("fork")
    end, result = context.Event(), context.Queue()
    kinds = ("mapping", "cache", "direct")
    watchers = [context.Process(target=watch, args=(mount / "f", how, end, result), daemon=True) for how in kinds]
    for watcher in watchers:
        watcher.start()
    direct, cached = os.open(mount / "f", os.O_RDWR | os.O_DIRECT), os.open(mount / "f", os.O_RDONLY)
    plain = os.open(mount / "f", os.O_RDWR)
    memory = mmap.mmap(plain, PAGES * PAGE)
    source = mmap.mmap(-1, PAGE)
    number, deadline = 0, time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        number += 1
        page = number % PAGES
        source[:] = struct.pack("<Q", number) * (PAGE // 8)
        check(os.pwrite(direct, source, page * PAGE) == PAGE, "written")
        check(words_of(memory, page) == {number}, f"write {number} by the mapping: {words_of(memory, page)}")
        check(words_of(os.pread(cached, PAGE, page * PAGE), 0) == {number}, f"write {number} through the cache")
        check(words_of(os.pread(plain, PAGE, page * PAGE), 0) == {number}, f"write {number} by another descriptor")
    end.set()
    said = [result.get(timeout=60) for _ in watchers]
    for watcher in watchers:
        watcher.join(60)
    memory.close()
    for fd in (direct, cached, plain):
        os.close(fd)
    check(all(isinstance(one, int) and one > 0 for one in said), f"{said}")


def case_direct_reads_beside_stores(site):
    """What is stored through a mapping is what a direct read reads, and a direct write of other pages leaves it there."""
    mount = site.mounted()
    write_file(mount / "f", bytes(PAGES * PAGE))
    direct, plain = os.open(mount / "f", os.O_RDWR | os.O_DIRECT), os.open(mount / "f", os.O_RDWR)
    memory = mmap.mmap(plain, PAGES * PAGE)
    buffer = mmap.mmap(-1, PAGES * PAGE)
    for number in range(1, site.size(400, 100)):
        page = number % PAGES
        struct.pack_into("<Q", memory, page * PAGE + 8 * (number % 512), number)
        other = (page + 1) % PAGES
        buffer[:PAGE] = struct.pack("<Q", number) * (PAGE // 8)
        os.pwritev(direct, [memoryview(buffer)[:PAGE]], other * PAGE)
        os.preadv(direct, [buffer], 0)
        check(buffer[:] == memory[:], f"turn {number}: a direct read is not what the mapping shows")
        check(struct.unpack_from("<Q", buffer, page * PAGE + 8 * (number % 512))[0] == number, f"turn {number}: the store")
    memory.close()
    os.close(direct)
    os.close(plain)
