#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mapped_writes.py DIRECTORY [DIRECTORY]: what writes of 8 bytes cost in a file that is mapped shared, beside one that is not.

In each directory, in turns: a file of 2000 pages. "unmapped": pwrite to each page. "cold": the same beside a shared mapping
none of whose pages has been touched. "hot": each page is read through the mapping first. Prints microseconds for a write,
the median of the rounds, and the ratios of the second directory to the first."""
import mmap
import os
import statistics
import sys
import time

PAGES, PAGE, ROUNDS = 2000, 4096, 7


def measure(directory):
    path = os.path.join(directory, "mapped_writes")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.pwrite(fd, b"o" * PAGES * PAGE, 0)
    figures = {}
    for kind in ("unmapped", "cold", "hot"):
        mapped = mmap.mmap(fd, PAGES * PAGE) if kind != "unmapped" else None
        spent = 0
        for page in range(PAGES):
            if kind == "hot":
                mapped[page * PAGE]
            began = time.perf_counter()
            os.pwrite(fd, b"WWWWWWWW", page * PAGE + 1024)
            spent += time.perf_counter() - began
        figures[kind] = spent / PAGES * 1e6
        if mapped is not None:
            mapped.close()
    os.close(fd)
    os.unlink(path)
    return figures


def main():
    directories = sys.argv[1:]
    if not 1 <= len(directories) <= 2:
        sys.exit(__doc__)
    rounds = [[measure(directory) for directory in directories] for _ in range(ROUNDS)]
    for kind in ("unmapped", "cold", "hot"):
        line = f"{kind:9}" + "".join(f" {statistics.median(r[i][kind] for r in rounds):8.1f} us" for i in range(len(directories)))
        if len(directories) == 2:
            ratios = sorted(r[1][kind] / r[0][kind] for r in rounds)
            line += f"  ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(line)


if __name__ == "__main__":
    main()
