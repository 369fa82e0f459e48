#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes files of known contents and a manifest for sha256sum --check.

usage: demo_files.py write DIRECTORY MANIFEST COUNT MIB     COUNT files data.NN of MIB MiB each

The contents come from a generator seeded with the file's number, and the checksums from the generator as well: nothing
that was read back from the file system is ever taken for true.
"""

import hashlib
import os
import random
import sys

CHUNK = 1 << 20


def write(directory, manifest, count, mib):
    with open(manifest, "w", encoding="ascii") as sums:
        for number in range(count):
            name = f"data.{number:02}"
            source, digest = random.Random(number), hashlib.sha256()
            with open(os.path.join(directory, name), "wb", buffering=0) as file:
                for _ in range(mib):
                    chunk = source.randbytes(CHUNK)
                    digest.update(chunk)
                    written = 0
                    while written < len(chunk):
                        written += file.write(chunk[written:])
                os.fsync(file.fileno())
            sums.write(f"{digest.hexdigest()}  {name}\n")
            if sys.stdout.isatty():
                print(f"\r{(number + 1) * mib} of {count * mib} MiB", end="", flush=True)
    print("\r" * sys.stdout.isatty() + f"{count} files of {mib} MiB written and flushed")


def main():
    if len(sys.argv) != 6 or sys.argv[1] != "write":
        print(__doc__, file=sys.stderr)
        return 2
    write(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
