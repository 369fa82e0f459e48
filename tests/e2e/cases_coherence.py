# SPDX-License-Identifier: Apache-2.0
"""Two mounts of one volume: what a call on one did is seen by the next call on the other."""
import mmap
import os

from cases_posix import MIB, read_file, refuses, write_file
from volume import check


def two_mounts(site):
    volume = site.volume()
    return volume.mount(), volume.mount()


def case_two_mounts_names(site):
    a, b = two_mounts(site)
    for i in range(50):
        refuses(2, os.stat, b / f"f{i}")  # so that the kernel could remember that it is not there
        write_file(a / f"f{i}", b"x")
        check(os.stat(b / f"f{i}").st_size == 1, "create")
        os.rename(b / f"f{i}", b / f"g{i}")
        refuses(2, os.stat, a / f"f{i}")
        check(os.path.exists(a / f"g{i}"), "rename")
    check(sorted(os.listdir(a.path)) == sorted(os.listdir(b.path)), "listings")
    os.unlink(a / "g0")
    refuses(2, os.stat, b / "g0")
    os.chmod(a / "g1", 0o600)
    check(os.stat(b / "g1").st_mode & 0o777 == 0o600, "chmod")


def case_two_mounts_data(site):
    a, b = two_mounts(site)
    write_file(a / "f", bytes(MIB))
    here = os.open(a / "f", os.O_RDWR)
    there = os.open(b / "f", os.O_RDWR)
    for i in range(200):
        text = f"{i:08}".encode()
        offset = (i * 37_123) % (MIB - 8)
        os.pwrite(here, text, offset)
        check(os.pread(there, 8, offset) == text, f"write {i}")
        os.pwrite(there, text[::-1], offset)
        check(os.pread(here, 8, offset) == text[::-1], f"write back {i}")
    os.ftruncate(here, 1000)
    check(os.fstat(there).st_size == 1000 and os.pread(there, 5000, 0) == os.pread(here, 5000, 0), "truncate")
    os.ftruncate(there, 9000)
    check(os.pread(here, 9000, 1000) == bytes(8000), "truncate up")
    os.close(here)
    os.close(there)


def case_two_mounts_append(site):
    a, b = two_mounts(site)
    write_file(a / "log", b"")
    here = os.open(a / "log", os.O_WRONLY | os.O_APPEND)
    there = os.open(b / "log", os.O_WRONLY | os.O_APPEND)
    for i in range(300):
        os.write(here if i % 3 else there, f"{i:06}\n".encode())
    os.close(here)
    os.close(there)
    check(read_file(b / "log") == b"".join(f"{i:06}\n".encode() for i in range(300)), "appended lines")


def case_two_mounts_mmap(site):
    a, b = two_mounts(site)
    write_file(a / "f", b"a" * 65536)
    here = os.open(a / "f", os.O_RDWR)
    there = os.open(b / "f", os.O_RDONLY)
    mapped = mmap.mmap(there, 65536, mmap.MAP_SHARED, mmap.PROT_READ)
    check(mapped[:] == b"a" * 65536, "mapped bytes")
    for i in range(50):
        text = f"{i:04}".encode()
        os.pwrite(here, text, 4094 + i)
        check(mapped[4094 + i:4098 + i] == text, f"a mapping after write {i} of the other mount")
    stored = mmap.mmap(here, 65536)
    stored[0:5] = b"store"
    stored.flush()
    check(os.pread(there, 5, 0) == b"store", "msync")
    check(mapped[0:5] == b"store", "a mapping after msync of the other mount")
    mapped.close()
    stored.close()
    os.close(here)
    os.close(there)


def case_two_mounts_unlink_open(site):
    a, b = two_mounts(site)
    write_file(a / "f", b"kept")
    there = os.open(b / "f", os.O_RDONLY)
    os.unlink(a / "f")
    check(os.pread(there, 4, 0) == b"kept", "a file unlinked by the other mount")
    os.close(there)


def case_bitmap_pulled_and_off(site):
    volume = site.volume("256M", 0.1)
    data = os.urandom(64 * MIB)
    for options in ("bitmap=live", "bitmap=pulled", "bitmap=off,threads=2"):
        m = volume.mount(options)
        write_file(m / "f", data)
        check(read_file(m / "f") == data, options)
        absent = {name: int(value) for name, value in m.describe().items() if name.startswith("absent_by_")}
        if "off" in options:
            check(absent["absent_by_bitmap_pages_total"] == 0 and absent["absent_by_pattern_pages_total"] > 0, str(absent))
        if "live" in options:
            check(absent["absent_by_bitmap_pages_total"] > 0, str(absent))
        mine = [session["bitmap"] for session in volume.status()["sessions"] if session["pid"] == m.pid]
        check(mine == [options.split(",")[0].split("=")[1]], str(mine))
        volume.umount(m)
