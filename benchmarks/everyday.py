# SPDX-License-Identifier: Apache-2.0
"""What programs do every day that no other group looks at: streams of writes that are larger than the memory, fsync after
each small write, truncation within a page, listing a small directory, a name that comes and goes, and unlinking beside a
program that lists the directory. Beside them stand O_DIRECT writes and a journalled ext4 on the same disk, alone and under
libfuse's passthrough_ll."""
import ctypes
import os
import subprocess
import sys
import time

from mounts import Mounts, scratch_directory

MIB = 1 << 20
LISTS = "import os, sys\nprint(flush=True)\nwhile True:\n    os.listdir(sys.argv[1])\n"
STREAM_MIB = 768  # of a volume of 1 GiB, an eighth of it in memory


def timed(operation, times):
    """Seconds that one takes."""
    began = time.perf_counter()
    for number in range(times):
        operation(number)
    return (time.perf_counter() - began) / times


def stream(path, flags):
    """Bytes a second, on the disk at the end."""
    data = memoryview(bytearray(os.urandom(MIB)) + bytearray(4096))
    at = -ctypes.addressof(ctypes.c_char.from_buffer(data)) % 4096
    data = data[at:at + MIB]
    file = os.open(path, os.O_WRONLY | os.O_CREAT | flags)
    began = time.perf_counter()
    for number in range(STREAM_MIB):
        os.pwrite(file, data, number * MIB)
    os.fsync(file)
    taken = time.perf_counter() - began
    os.close(file)
    return STREAM_MIB * MIB / taken


class Place:
    """A directory, with a file of four pages, and what is done in it. All results are seconds."""

    def __init__(self, path):
        self.path = path
        self.small = os.path.join(path, "small")
        os.mkdir(self.small)
        for name in ("one", "two"):
            os.close(os.open(os.path.join(self.small, name), os.O_CREAT | os.O_WRONLY))
        self.file = os.open(os.path.join(path, "file"), os.O_RDWR | os.O_CREAT)
        os.pwrite(self.file, os.urandom(4 * 4096), 0)
        os.fsync(self.file)

    def close(self):
        os.close(self.file)

    def truncate(self, size):
        def operation(number):
            os.pwrite(self.file, b"x" * 100, 3 * 4096)
            began = time.perf_counter()
            os.ftruncate(self.file, size)
            self.spent += time.perf_counter() - began

        self.spent = 0
        timed(operation, 100)
        return self.spent / 100

    def truncate_within(self):
        return self.truncate(2 * 4096 + 1000)

    def truncate_aligned(self):
        return self.truncate(2 * 4096)

    def write_and_truncate(self):
        def operation(number):
            os.pwrite(self.file, b"x" * 3000, 4096)
            os.ftruncate(self.file, 4096 + 100 + number)

        return timed(operation, 200)

    def write_and_sync(self):
        def operation(number):
            os.pwrite(self.file, b"y" * 4096, number % 4 * 4096)
            os.fsync(self.file)

        return timed(operation, 100)

    def list(self):
        return timed(lambda _: os.listdir(self.small), 500)

    def come_and_go(self):
        name = os.path.join(self.small, "name")

        def operation(_):
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            os.unlink(name)

        return timed(operation, 300)


def unlinks(path, lister):
    """Seconds for 2,000 of them; `lister`: another mount's path, where a program lists the directory meanwhile, or None."""
    directory = os.path.join(path, "many")
    os.mkdir(directory)
    for number in range(2000):
        os.close(os.open(os.path.join(directory, str(number)), os.O_CREAT | os.O_WRONLY))
    process = None
    if lister:  # as a thread of this process it would hold up the unlinks whatever it lists
        process = subprocess.Popen([sys.executable, "-c", LISTS, os.path.join(lister, "many")], stdout=subprocess.PIPE)
        process.stdout.readline()
        time.sleep(0.1)
    began = time.perf_counter()
    for number in range(2000):
        os.unlink(os.path.join(directory, str(number)))
    taken = time.perf_counter() - began
    if process:
        process.kill()
        process.communicate()
    os.rmdir(directory)
    return taken


def in_turn(subject, reference, pairs):
    """Ratios; one of each goes before."""
    subject()
    reference()
    return [subject() / reference() for _ in range(pairs)]


def streams(build, fuse, pairs, bar):
    with scratch_directory() as scratch, Mounts(build, scratch, "1G", "0.125") as mounts:
        ours = os.path.join(mounts.termfs_mount("termfs", fuse), "stream")
        theirs = os.path.join(scratch, "stream")

        def again(path, flags, new):
            if new and os.path.exists(path):
                os.unlink(path)
                time.sleep(1)  # until its room is there again
            return stream(path, flags)

        for what, new in (("new", True), ("over", False)):
            yield bar(f"writes of 1 MiB beyond the memory, {what}, rate / O_DIRECT", 0.8,
                      in_turn(lambda: again(ours, 0, new), lambda: again(theirs, os.O_DIRECT, new), pairs))


def bars(build, rings, quick, loop_ext4, passthrough, bar):
    """`loop_ext4`: makes a journalled ext4 in a directory; `passthrough`: its program, or None; `bar` makes a bar."""
    fuse = "io_uring" if rings else "device"
    pairs = 5 if quick else 7
    yield from streams(build, fuse, 3 if quick else 7, bar)
    with scratch_directory() as scratch, loop_ext4(scratch) as ext4, scratch_directory() as other, \
            Mounts(build, other) as mounts:
        path, lister = mounts.termfs_mount("termfs", fuse), mounts.termfs_mount("lister", fuse)
        through = mounts.mount("passthrough", passthrough, "-f", "-o", f"source={ext4}", "MOUNTPOINT")
        os.mkdir(os.path.join(ext4, "plain"))
        os.mkdir(os.path.join(ext4, "through"))
        ours, plain, theirs = Place(path), Place(os.path.join(ext4, "plain")), Place(os.path.join(through, "through"))
        try:
            yield bar("ftruncate within a page, time / an aligned one", 2.0,
                      in_turn(ours.truncate_within, ours.truncate_aligned, pairs), lower_is_better=True)
            yield bar("write of 4 KiB and fsync, time / ext4", 2.0,
                      in_turn(ours.write_and_sync, plain.write_and_sync, pairs), lower_is_better=True)
            for name, what in (("list", "listing two names"), ("come_and_go", "create and unlink of a name"),
                               ("write_and_truncate", "write and ftruncate in turn")):
                yield bar(f"{what}, rate / passthrough_ll", 0.7,
                          in_turn(getattr(theirs, name), getattr(ours, name), pairs))
            yield bar("2,000 unlinks beside a lister on another mount, time / alone", 3.0,
                      in_turn(lambda: unlinks(path, lister), lambda: unlinks(path, None), 3 if quick else 7),
                      lower_is_better=True)
        finally:
            for place in (ours, plain, theirs):
                place.close()
