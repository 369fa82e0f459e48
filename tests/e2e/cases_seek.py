# SPDX-License-Identifier: Apache-2.0
"""SEEK_DATA and SEEK_HOLE of files with patterns of data and holes, as they were made, on the mount that made them and on
another, with descriptors of all kinds."""
import errno
import os
import random

from cases_posix import write_file
from coherence_calls import PUNCH_HOLE, libc
from volume import check

PAGE = 4096


def seek(fd, offset, whence):
    """Where it is, or None for ENXIO."""
    try:
        return os.lseek(fd, offset, whence)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


def check_seeks(fd, data, punched, size, what):
    """`data`: pages that hold data; `punched`: of those that do not, which had space that was freed. Others may count as
    data: space is allocated ahead of who appends."""
    def has(pages, begin, end):
        return [page for page in pages if begin < end and begin < (page + 1) * PAGE and page * PAGE < min(end, size)]

    for place in {place + more for place in range(0, size + 2 * PAGE, PAGE) for more in (-1, 0, 1, 2000)} | {size - 1, size, size + 1}:
        if place < 0:
            continue
        to_data, to_hole = seek(fd, place, os.SEEK_DATA), seek(fd, place, os.SEEK_HOLE)
        text = f"{what}, size {size}, data {sorted(data)}, punched {sorted(punched)}, from {place}: data {to_data}, hole {to_hole}"
        if place >= size:
            check(to_data is None and to_hole is None, f"{text}: both are beyond the end")
            continue
        check(to_hole is not None and place <= to_hole <= size, f"{text}: the end is a hole")
        check(not has(punched, place, to_hole), f"{text}: a hole that was punched is passed over")
        check(to_hole == size or not has(data, to_hole, to_hole + 1), f"{text}: the hole is data")
        if to_data is None:
            check(not has(data, place, size), f"{text}: there is data")
            continue
        check(place <= to_data < size and not has(data, place, to_data), f"{text}: data is passed over")
        check(not has(punched, to_data, to_data + 1), f"{text}: the data is a hole that was punched")
        check(place in (to_data, to_hole), f"{text}: it is in neither")
        check(seek(fd, to_data, os.SEEK_HOLE) > to_data, f"{text}: the data is a hole")


def case_seek_patterns(site):
    volume = site.volume()
    a, b = volume.mount(), volume.mount()
    chosen = random.Random(3)
    patterns = ["", "D", ".", ".D", "D.", "D.D", ".D.D.", "DD..DD", "." * 30 + "D", "D" * 17 + "." * 40 + "D" * 3]
    patterns += ["".join(chosen.choice("D.") for _ in range(chosen.randrange(1, 40))) for _ in range(6)]
    for number, pattern in enumerate(patterns):
        for cut in (0, 1, 2000):  # bytes that the last page lacks
            size = max(len(pattern) * PAGE - cut, 0)
            data, punched = {page for page, kind in enumerate(pattern) if kind == "D"}, set()
            name = f"{number}-{cut}"
            write_file(a / name, b"")
            writer, held = os.open(a / name, os.O_RDWR), os.open(b / name, os.O_RDONLY)
            for page in data:
                os.pwrite(writer, b"x" * min(PAGE, size - page * PAGE), page * PAGE)
            os.ftruncate(writer, size)
            check_seeks(writer, data, punched, size, "the writer")
            check_seeks(held, data, punched, size, "a reader on another mount")
            if data:
                gone = chosen.choice(sorted(data))
                libc("fallocate", writer, PUNCH_HOLE, gone * PAGE, PAGE)
                data, punched = data - {gone}, {gone}
                check_seeks(writer, data, punched, size, "the writer after a hole was punched")
                check_seeks(held, data, punched, size, "a reader after a hole was punched")
            os.close(held)
            again = os.open(b / name, os.O_RDONLY)
            check_seeks(again, data, punched, size, "opened later")
            os.close(again)
            os.close(writer)
