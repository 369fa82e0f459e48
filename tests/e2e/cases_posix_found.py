# SPDX-License-Identifier: Apache-2.0
"""What random calls beside ext4 have found (cases_parity.py), one by one; and the time of birth."""
import ctypes
import errno
import mmap
import os
import stat
import struct
import time

from cases_posix import AT_FDCWD, RENAME_EXCHANGE, libc, read_file, refuses, renameat2, write_file
from parity_calls import STATX_BASIC, STATX_BTIME
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
