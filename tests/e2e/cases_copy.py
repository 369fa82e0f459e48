# SPDX-License-Identifier: Apache-2.0
"""copy_file_range: the server copies, and no byte passes through a mount."""
import errno
import hashlib
import os
import resource
import stat
import time

from cases_posix import MIB, read_file, refuses, write_file
from volume import check, eventually

# Copies a file over and over, and verifies it each time, until it is told to end.
COPIER = """
import hashlib, os, sys
source, target, log, stop = sys.argv[1:]
want = hashlib.sha256(open(source, "rb").read()).hexdigest()
size = os.stat(source).st_size
rounds = 0
while not os.path.exists(stop):
    a, b = os.open(source, os.O_RDONLY), os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    done = 0
    while done < size:
        copied = os.copy_file_range(a, b, min(size - done, 3 << 20), done, done)
        assert copied > 0, f"nothing is copied at {done}"
        done += copied
        with open(log, "w") as file:
            file.write(str(rounds * size + done))
    os.close(a), os.close(b)
    got = hashlib.sha256(open(target, "rb").read()).hexdigest()
    assert got == want, f"round {rounds} differs"
    rounds += 1
"""


def copy(source, target, length, source_offset=0, target_offset=0):
    """All of it, as far as there is something; how much that was."""
    done = 0
    while done < length:
        part = os.copy_file_range(source, target, length - done, source_offset + done, target_offset + done)
        if part == 0:
            break
        done += part
    return done


def bytes_through(m):
    words = m.describe()
    return int(words["fs_read_bytes_total"]) + int(words["fs_write_bytes_total"])


def case_copy_passes_through_no_client(site):
    """A file that is larger than the tier; the other mount sees the copy at once, and the server's restart keeps it."""
    volume = site.volume("256M", 0.1)
    a, b = volume.mount(), volume.mount()
    size = site.size(64, 40) * MIB + 4321
    data = os.urandom(MIB) * (size // MIB) + os.urandom(size % MIB)
    write_file(a / "source", data)
    write_file(a / "target", b"x" * 777)
    seen = os.open(b / "target", os.O_RDONLY)
    check(os.pread(seen, 10, 0) == b"x" * 10, "before")
    source, target = os.open(a / "source", os.O_RDONLY), os.open(a / "target", os.O_RDWR)
    before, copied = bytes_through(a), int(a.describe()["fs_copied_bytes_total"])
    check(copy(source, target, 1 << 40, 0, 777) == size, "all of it")
    check(bytes_through(a) == before, f"{bytes_through(a) - before} bytes passed through the client")
    check(int(a.describe()["fs_copied_bytes_total"]) - copied == size, "the mount counts it")
    check(volume.metrics()["fs_copied_bytes_total"] == size, "the server, too")
    check(os.fstat(seen).st_size == size + 777, "its size on the other mount")
    want = hashlib.sha256(b"x" * 777 + data).hexdigest()
    check(hashlib.sha256(read_file(b / "target")).hexdigest() == want, "its bytes on the other mount")
    for fd in (source, target, seen):
        os.close(fd)
    volume.kill()
    volume.serve()
    check(hashlib.sha256(read_file(a / "target")).hexdigest() == want, "its bytes after the death of the server")


def case_copy_holes(site):
    m = site.mounted("256M")
    source, target = os.open(m / "source", os.O_RDWR | os.O_CREAT), os.open(m / "target", os.O_RDWR | os.O_CREAT)
    os.ftruncate(source, 1 << 40)
    os.pwrite(source, b"here", 1 << 33)
    os.pwrite(source, b"there", (1 << 40) - 5)
    check(copy(source, target, 1 << 41) == 1 << 40, "a terabyte of holes")
    check(os.fstat(target).st_size == 1 << 40 and os.fstat(target).st_blocks == 16, f"{os.fstat(target)}")
    check(os.lseek(target, 0, os.SEEK_DATA) == 1 << 33, "where the data is")
    check(os.pread(target, 8, (1 << 33) - 2) == b"\0\0here\0\0", "the data in the middle")
    check(os.pread(target, 9, (1 << 40) - 5) == b"there", "the data at the end")
    os.close(source)
    os.close(target)


def case_copy_as_linux_says(site):
    m = site.mounted("64M")
    write_file(m / "f", b"0123456789" * 1000)
    write_file(m / "g", b"")
    f, g = os.open(m / "f", os.O_RDWR), os.open(m / "g", os.O_RDWR)
    for at, to, length in ((0, 5, 10), (5, 0, 10), (0, 0, 1), (0, 9999, 1 << 40)):
        refuses(errno.EINVAL, os.copy_file_range, f, f, length, at, to)
    check(os.copy_file_range(f, f, 1 << 40, 0, 10000) == 10000, "behind itself")
    check(read_file(m / "f") == b"0123456789" * 2000, "what that makes")
    check(os.copy_file_range(f, g, 100, 20000, 0) == 0 and os.stat(m / "g").st_size == 0, "at the end")
    check(os.copy_file_range(f, g, 100, 19990, 5) == 10 and read_file(m / "g") == b"\0" * 5 + b"0123456789", "short")
    append = os.open(m / "g", os.O_WRONLY | os.O_APPEND)
    reader, writer = os.open(m / "g", os.O_RDONLY), os.open(m / "f", os.O_WRONLY)
    directory = os.open(m.path, os.O_RDONLY)
    refuses(errno.EBADF, os.copy_file_range, f, append, 10, 0, 0)
    refuses(errno.EBADF, os.copy_file_range, f, reader, 10, 0, 0)
    refuses(errno.EBADF, os.copy_file_range, writer, g, 10, 0, 0)
    refuses(errno.EISDIR, os.copy_file_range, directory, g, 10, 0, 0)
    for fd in (append, reader, writer, directory):
        os.close(fd)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        check(os.copy_file_range(f, g, 10000, 0, 0) == 4096, "as far as the limit goes")
        refuses(errno.EFBIG, os.copy_file_range, f, g, 10000, 0, 4096)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    before = os.stat(m / "g")
    time.sleep(0.02)
    os.copy_file_range(f, g, 10, 0, 0)
    after = os.stat(m / "g")
    check(after.st_mtime_ns > before.st_mtime_ns and after.st_ctime_ns == after.st_mtime_ns, "the target's times move")
    os.close(f)
    os.close(g)


def case_copy_clears_set_id_bits(site):
    m = site.mounted("64M")
    write_file(m / "f", b"data")
    write_file(m / "g", b"")
    f, g = os.open(m / "f", os.O_RDONLY), os.open(m / "g", os.O_WRONLY)
    for uid, left in ((0, 0o6777), (1000, 0o777)):
        os.chmod(m / "g", 0o6777)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setgid(uid)
                os.setuid(uid)
                code = 0 if os.copy_file_range(f, g, 4, 0, 0) == 4 else 2
            finally:
                os._exit(code)
        check(os.waitpid(child, 0)[1] == 0, f"{uid} copies")
        check(stat.S_IMODE(os.stat(m / "g").st_mode) == left, f"copied by {uid}: {os.stat(m / 'g').st_mode:o}")
    os.close(f)
    os.close(g)


def case_copy_without_space(site):
    """As much as there is room for, then ENOSPC; what was copied is right."""
    m = site.mounted("64M", 1)
    data = os.urandom(MIB) * 40
    write_file(m / "source", data)
    source, target = os.open(m / "source", os.O_RDONLY), os.open(m / "target", os.O_RDWR | os.O_CREAT)
    done = 0
    try:
        while True:
            part = os.copy_file_range(source, target, len(data) - done, done, done)
            check(part > 0, f"no room for 80 of 64 MiB, but {done} bytes are copied")
            done += part
    except OSError as error:
        check(error.errno == errno.ENOSPC, error)
    check(16 * MIB < done < 40 * MIB and os.fstat(target).st_size == done, f"{done} of {len(data)} bytes")
    check(read_file(m / "target") == data[:done], "what was copied")
    os.close(source)
    os.close(target)


def case_copy_server_killed(site):
    """The server dies in the midst of copies, again and again: no call fails, each copy is right."""
    volume = site.volume("256M", 0.3)
    a, b = volume.mount(), volume.mount()
    write_file(a / "source", os.urandom(24 * MIB))
    log, stop = os.path.join(site.scratch, "copied"), os.path.join(site.scratch, "stop")
    for name in (log, stop):
        if os.path.exists(name):
            os.unlink(name)
    copier = site.start("python3", "-c", COPIER, a / "source", a / "target", log, stop)

    def copied():
        try:
            with open(log, encoding="ascii") as file:
                return int(file.read() or 0)
        except OSError:
            return 0

    for _ in range(site.size(5, 3)):
        before = copied()
        eventually(lambda: copied() > before or copier.poll() is not None, "the copier copies")
        volume.kill()
        volume.serve()
    write_file(stop, b"")
    output, _ = copier.communicate(timeout=120)
    check(copier.returncode == 0, output[-600:])
    check(read_file(b / "target") == read_file(a / "source"), "the last copy on the other mount")
    check(int(a.describe()["link_reconnections_total"]) > 0, "the kills were noticed")
