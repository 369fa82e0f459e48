# SPDX-License-Identifier: Apache-2.0
"""What random calls beside ext4 have found (cases_parity.py), one by one; and the time of birth."""
import ctypes
import errno
import fcntl
import mmap
import os
import stat
import struct
import time

from cases_acl import ANN, error_as
from cases_posix import (AT_FDCWD, MIB, PUNCH_HOLE_KEEP_SIZE, RENAME_EXCHANGE, read_file, refuses, renameat2,
                         write_file)
from parity_calls import PAGE, STATX_BASIC, STATX_BTIME, libc
from volume import Skip, check

UTIME_NOW = (1 << 30) - 1


def birth(path):
    """Nanoseconds; None: the file system does not say."""
    buffer = ctypes.create_string_buffer(256)
    libc("statx", AT_FDCWD, path.encode(), 0, STATX_BASIC | STATX_BTIME, buffer)
    seconds, nanoseconds = struct.unpack_from("<qI", buffer, 80)
    return seconds * 10 ** 9 + nanoseconds if struct.unpack_from("<I", buffer)[0] & STATX_BTIME else None


def case_posix_append_mapping(site):
    """What is stored through a mapping has its place, also when it is written back by a file that appends."""
    m = site.mounted()
    write_file(m / "f", b"a" * 12293)
    fd = os.open(m / "f", os.O_RDWR | os.O_APPEND)
    memory = mmap.mmap(fd, 12293)
    memory[8292:8392] = b"v" * 100
    check(os.pread(fd, 102, 8291) == b"a" + b"v" * 100 + b"a", "read sees what was stored")
    memory[0:1] = b"w"
    memory.flush()
    memory.close()
    os.write(fd, b"end")
    os.close(fd)
    check(read_file(m / "f") == b"w" + b"a" * 8291 + b"v" * 100 + b"a" * 3901 + b"end", "the file at the end")


def case_posix_truncate_by_reader(site):
    m = site.mounted()
    write_file(m / "f", b"text")
    os.close(os.open(m / "f", os.O_RDONLY | os.O_TRUNC))
    check(os.stat(m / "f").st_size == 0, "O_TRUNC counts without O_WRONLY on Linux")


def case_posix_times(site):
    m = site.mounted()
    write_file(m / "e", b"")
    write_file(m / "f", b"")
    for change in (lambda: os.setxattr(m / "f", "user.a", b""), lambda: os.removexattr(m / "f", "user.a"),
                   lambda: os.link(m / "f", m / "g"), lambda: os.unlink(m / "g"), lambda: os.rename(m / "e", m / "f"),
                   lambda: renameat2(m / "f", m / "h", RENAME_EXCHANGE)):
        write_file(m / "h", b"")
        fd = os.open(m / "f", os.O_RDWR)
        before = os.fstat(fd).st_ctime_ns
        change()
        opened = os.fstat(fd).st_ctime_ns
        name = next((name for name in "fh" if os.path.samestat(os.stat(m / name), os.fstat(fd))), None)
        os.close(fd)
        check(before < opened, f"ctime {before}, after a change {opened}")
        if name:
            refuses(errno.EEXIST, os.mkdir, m / name)  # brings the attributes again
            closed = os.stat(m / name).st_ctime_ns
            check(opened == closed, f"ctime while the file is open {opened}, closed {closed}")
    times = struct.pack("4q", 0, 0, 0, UTIME_NOW)
    libc("utimensat", AT_FDCWD, (m / "f").encode(), times, 0)
    now = os.stat(m / "f")
    check(now.st_mtime_ns == now.st_ctime_ns and now.st_atime_ns == 0, f"utimensat with UTIME_NOW: {now}")


def case_posix_chown_of_nothing(site):
    """Clears the set-id bits, as if there were something to change; of directories it does not."""
    m = site.mounted()
    write_file(m / "f", b"")
    os.mkdir(m / "d")
    os.chmod(m / "d", 0o6777)
    os.chown(m / "d", -1, -1)
    check(stat.S_IMODE(os.stat(m / "d").st_mode) == 0o6777, "a directory keeps them")

    def after(mode, user):
        os.chown(m / "f", ANN, 2000)
        os.chmod(m / "f", mode)
        before = os.stat(m / "f").st_ctime_ns
        check(error_as(user, m, os.chown, "f", -1, -1) == 0, f"chown by {user}")
        st = os.stat(m / "f")
        check(st.st_ctime_ns > before, f"{mode:o}: it moves ctime")
        return stat.S_IMODE(st.st_mode)

    for mode, by_root, by_owner in ((0o6777, 0o777, 0o777), (0o2767, 0o2767, 0o767), (0o4711, 0o711, 0o711),
                                    (0o2710, 0o710, 0o710), (0o755, 0o755, 0o755)):
        found = (after(mode, 0), after(mode, ANN))
        check(found == (by_root, by_owner), f"{mode:o}: {found[0]:o} by root, {found[1]:o} by its owner")


def case_posix_old_times(site):
    m = site.mounted()
    write_file(m / "f", b"")
    for seconds, kept in ((-100, -100), (-2 ** 31, -2 ** 31), (-2 ** 40, -2 ** 31), (2 ** 33, 2 ** 33)):
        libc("utimensat", AT_FDCWD, (m / "f").encode(), struct.pack("4q", seconds, 0, seconds, 0), 0)
        st = os.stat(m / "f")
        check((st.st_atime, st.st_mtime) == (kept, kept), f"{seconds} became {st.st_mtime}")


def case_posix_owner_of_a_fifo(site):
    """Not only of a regular file, and for root as well; a directory keeps its bits."""
    m = site.mounted()
    os.mkfifo(m / "fifo")
    os.mkdir(m / "d")
    for name, after in (("fifo", 0o777), ("d", 0o6777)):
        os.chmod(m / name, 0o6777)
        os.chown(m / name, 1002, 1002)
        mode = stat.S_IMODE(os.stat(m / name).st_mode)
        check(mode == after, f"{name}: {mode:o} after chown")


def case_posix_birth(site):
    m = site.mounted()
    begin = time.time_ns()
    os.mkdir(m / "d")
    write_file(m / "d/f", b"")
    end = time.time_ns()
    if birth(m / "d") is None:
        raise Skip("no FUSE_STATX: Linux before 6.6, or an older libfuse")
    born = birth(m / "d/f")
    check(begin <= birth(m / "d") <= born <= end, f"{begin} <= {born} <= {end}")
    write_file(m / "d/f", b"more")
    os.utime(m / "d/f", ns=(1, 1))
    os.rename(m / "d/f", m / "f")
    check(birth(m / "f") == born, "nothing changes it")
    buffer = ctypes.create_string_buffer(256)
    os.mknod(m / "null", 0o20644, os.makedev(1, 3))
    libc("statx", AT_FDCWD, (m / "null").encode(), 0, STATX_BASIC | STATX_BTIME, buffer)
    st = os.stat(m / "null")
    mode, ino = struct.unpack_from("<H", buffer, 28)[0], struct.unpack_from("<Q", buffer, 32)[0]
    check((mode, ino, struct.unpack_from("<2I", buffer, 128)) == (st.st_mode, st.st_ino, (1, 3)), "statx and stat")


def case_posix_xattr_names(site):
    m = site.mounted()
    write_file(m / "f", b"")
    for name, code in (("plain", errno.EOPNOTSUPP), ("nothing.a", errno.EOPNOTSUPP), ("user.", errno.EINVAL),
                       ("system.other", errno.EOPNOTSUPP)):
        refuses(code, os.setxattr, m / "f", name, b"x")
    no_capabilities = struct.pack("<5I", 0x02000000, 0, 0, 0, 0)
    refuses(errno.EOPNOTSUPP, os.setxattr, m / "f", "security.capability", no_capabilities)
    both = os.XATTR_CREATE | os.XATTR_REPLACE
    refuses(errno.ENODATA, os.setxattr, m / "f", "user.a", b"x", both)
    os.setxattr(m / "f", "user.a", b"x")
    refuses(errno.EEXIST, os.setxattr, m / "f", "user.a", b"y", both)
    os.setxattr(m / "f", "trusted.t", b"")
    os.chmod(m / "f", 0o666)
    check(sorted(os.listxattr(m / "f")) == ["trusted.t", "user.a"], "root sees all")
    here = os.open(m / "f", os.O_RDONLY)
    os.seteuid(1000)
    try:
        check(os.listxattr(here) == ["user.a"], f"a user sees {os.listxattr(here)}")
    finally:
        os.seteuid(0)
        os.close(here)


def case_posix_trusted_list(site):
    """It is CAP_SYS_ADMIN that sees names of trusted.*: setfsuid leaves it, and root may be without it."""
    m = site.mounted()
    write_file(m / "f", b"")
    os.setxattr(m / "f", "trusted.t", b"")
    os.chmod(m / "f", 0o666)
    no_version, version_3, sys_admin = 0, 0x20080522, 21
    header = struct.pack("<II", version_3, no_version)
    before = ctypes.create_string_buffer(24)
    libc("capget", header, before)
    sets = list(struct.unpack("<6I", before.raw))
    sets[0] &= ~(1 << sys_admin)
    fd = os.open(m / "f", os.O_RDONLY)
    libc("capset", header, struct.pack("<6I", *sets))
    try:
        seen = os.listxattr(fd)
    finally:
        libc("capset", header, before)
    check(not seen, f"root without CAP_SYS_ADMIN sees {seen}")
    libc("setfsuid", 1000)
    try:
        seen = os.listxattr(fd)
    finally:
        libc("setfsuid", 0)
        os.close(fd)
    check(seen == ["trusted.t"], f"one with CAP_SYS_ADMIN sees {seen}")


def case_posix_ctime_of_cleared_bits(site):
    """A write that takes set-id bits away has moved ctime; what is brought to the store later does not move it back."""
    m = site.mounted()
    write_file(m / "f", b"text")
    os.chmod(m / "f", 0o6777)
    fd = os.open(m / "f", os.O_WRONLY)
    os.seteuid(1000)
    try:
        os.pwrite(fd, b"more", 0)
    finally:
        os.seteuid(0)
    written = os.fstat(fd)
    check(stat.S_IMODE(written.st_mode) == 0o777, f"mode {written.st_mode:o}")
    os.fsync(fd)
    os.close(fd)
    refuses(errno.EEXIST, os.mkdir, m / "f")  # brings the attributes again
    later = os.stat(m / "f")
    check(later.st_ctime_ns == written.st_ctime_ns, f"ctime {written.st_ctime_ns}, then {later.st_ctime_ns}")


def case_posix_punch_frees(site):
    """A hole that reaches beyond the end takes the whole last page, and the space set aside for growth."""
    m = site.mounted()
    for size in (3 * PAGE + 5, MIB):
        fd = os.open(m / "f", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        check(os.write(fd, b"x" * size) == size, "a short write")
        libc("fallocate", fd, PUNCH_HOLE_KEEP_SIZE, 0, size + 1)
        check(os.fstat(fd).st_blocks == 0, f"{os.fstat(fd).st_blocks} blocks of nothing")
        check(os.pread(fd, size + 1, 0) == bytes(size), "zeros up to the size")
        os.write(fd, b"y")
        os.close(fd)
        check(read_file(m / "f") == bytes(size) + b"y", "it grows as before")


def case_posix_leap_leaves_a_hole(site):
    """A size that is set beyond the end takes no space, wherever space was set aside for the file to grow into."""
    m = site.mounted()
    fd = os.open(m / "f", os.O_RDWR | os.O_CREAT)
    check(os.write(fd, b"x" * MIB) == MIB, "a short write")
    os.ftruncate(fd, 4 * MIB)
    check(os.fstat(fd).st_blocks == MIB // 512, f"{os.fstat(fd).st_blocks} blocks")
    os.close(fd)


def case_posix_append_by_fcntl(site):
    """O_APPEND counts as it is at the write."""
    m = site.mounted()
    write_file(m / "f", b"begin")
    fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
    os.write(fd, b" end")
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.pwrite(fd, b"B", 0)
    check(read_file(m / "f") == b"Begin end", f"not any more: {read_file(m / 'f')}")
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    os.pwrite(fd, b".", 0)
    os.close(fd)
    check(read_file(m / "f") == b"Begin end.", f"since the call: {read_file(m / 'f')}")
