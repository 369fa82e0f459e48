# SPDX-License-Identifier: Apache-2.0
"""Names that are there all the time though what they name changes, and working directories that are there no more."""
import collections
import contextlib
import errno
import os
import stat
import time

from cases_posix import MIB, read_file, refuses, write_file
from cases_quota import set_quota, used
from cases_tmpfile import give_name
from volume import check, eventually

SECONDS = 3  # of each pair of mounts


def pairs(site):
    """Of a volume: the same mount twice, two mounts of one host, and two over a network."""
    volume = site.volume("64M")
    a, b = volume.mount(), volume.mount()
    yield "one mount", volume, a, a
    yield "two mounts", volume, a, b
    volume = site.volume("64M")
    volume.stop()
    serve(volume, "::1")
    yield "network", volume, volume.mount(), volume.mount()


def serve(volume, listen=None):
    """Where it was served before, or to other hosts as well from now on."""
    listen = volume.listen_at(listen) if listen is not None else volume.address[0]
    volume.serve(*(("--listen", listen) if len(volume.address) > 1 else ()))


def replace_for_ever(mount):
    """In a process of its own: replaces a file, a program, a symbolic link, a fifo and an empty directory by rename."""
    number = 0
    while True:
        number += 1
        for name, make in (("file", lambda path: write_file(path, b"x" * (number % 200))),
                           ("program", lambda path: write_file(path, b"#!/bin/true\n")),
                           ("link", lambda path: os.symlink(f"to{number}", path)), ("fifo", os.mkfifo), ("dir", os.mkdir)):
            make(mount / f"{name}.new")
            if name == "program":
                os.chmod(mount / f"{name}.new", 0o755)
            os.rename(mount / f"{name}.new", mount / name)


@contextlib.contextmanager
def replacing(mount):
    for name in ("file", "program", "link", "fifo", "dir"):  # left by an earlier one
        with contextlib.suppress(OSError):
            os.unlink(mount / f"{name}.new")
        with contextlib.suppress(OSError):
            os.rmdir(mount / f"{name}.new")
    child = os.fork()
    if child == 0:
        try:
            replace_for_ever(mount)
        finally:
            os._exit(1)
    try:
        eventually(lambda: all(os.path.lexists(mount / name) for name in ("file", "program", "link", "fifo", "dir")),
                   "all names are there")
        yield
        check(os.waitpid(child, os.WNOHANG) == (0, 0), "it replaces until the end")
    finally:
        os.kill(child, 9)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def run_program(path):
    pid = os.posix_spawn(path, [path], {})
    check(os.waitpid(pid, 0)[1] == 0, "the program runs")


def open_and_close(path, flags):
    os.close(os.open(path, flags))


def case_replaced_name(site):
    """No call on a name that another process replaces all the time says that the name is not there."""
    for pair, _, a, b in pairs(site):
        file, link, fifo, directory = b / "file", b / "link", b / "fifo", b / "dir"
        calls = {
            "open": lambda: open_and_close(file, os.O_RDONLY),
            "open to write": lambda: open_and_close(file, os.O_RDWR),
            "open and truncate": lambda: open_and_close(file, os.O_WRONLY | os.O_TRUNC),
            "read": lambda: read_file(file),
            "stat": lambda: os.stat(file),
            "chmod": lambda: os.chmod(file, 0o640),
            "chown": lambda: os.chown(file, 1, 2),
            "utime": lambda: os.utime(file),
            "truncate": lambda: os.truncate(file, 100),
            "access": lambda: check(os.access(file, os.R_OK), f"{pair}: access denies it"),
            "getxattr": lambda: refuses(errno.ENODATA, os.getxattr, file, "user.none"),
            "setxattr": lambda: os.setxattr(file, "user.a", b"1"),
            "listxattr": lambda: os.listxattr(file),
            "statvfs": lambda: os.statvfs(file),
            "execute": lambda: run_program(b / "program"),
            "readlink": lambda: check(os.readlink(link).startswith("to"), "a link's target"),
            "open a fifo": lambda: open_and_close(fifo, os.O_RDWR),
            "list": lambda: check(os.listdir(directory) == [], "an empty directory"),
        }
        failed = collections.Counter()
        with replacing(a):
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                for name, call in calls.items():
                    try:
                        call()
                    except OSError as error:
                        failed[name, errno.errorcode[error.errno]] += 1
        check(not failed, f"{pair}: {dict(failed)}")


def case_replaced_inode(site):
    """What was looked up before it was replaced is found by its number, which an O_PATH descriptor shows at once."""
    for pair, volume, a, b in pairs(site):
        write_file(a / "f", b"older")
        write_file(a / "g", b"newer")
        looked_up = os.open(b / "f", os.O_PATH)
        old = f"/proc/self/fd/{looked_up}"
        os.rename(a / "g", a / "f")
        check(read_file(b / "f") == b"newer", f"{pair}: the name is the new file's")
        check(read_file(old) == b"older" and os.stat(old).st_nlink == 0, f"{pair}: the old one is there")
        os.chmod(old, 0o600)
        os.setxattr(old, "user.a", b"1")
        check(os.getxattr(old, "user.a") == b"1" and os.access(old, os.W_OK), f"{pair}: attributes")
        os.truncate(old, 3)
        check(read_file(old) == b"old", f"{pair}: its size")
        open_and_close(old, os.O_WRONLY | os.O_TRUNC)
        check(os.stat(old).st_size == 0, f"{pair}: it was truncated")
        refuses(errno.ENOENT, give_name, looked_up, b / "again")
        check(not os.path.exists(b / "again") and read_file(b / "f") == b"newer", f"{pair}: no name came of it")
        eventually(lambda: volume.metrics()["fs_replaced_inodes"] == 0, f"{pair}: its grace ends")
        refuses(errno.ESTALE, os.open, old, os.O_RDONLY)
        os.close(looked_up)
        looked_up = os.open(b / "f", os.O_PATH)
        os.unlink(a / "f")
        refuses(errno.ENOENT, os.open, b / "f", os.O_RDONLY)
        refuses(errno.ESTALE, os.open, f"/proc/self/fd/{looked_up}", os.O_RDONLY)
        os.close(looked_up)


def inodes_in_use(path):
    space = os.statvfs(path)
    return space.f_files - space.f_ffree


def case_replaced_space(site):
    """The space of a replaced file is free at once, for df and for new files, and so is its quota."""
    volume = site.volume("64M")
    a, b = volume.mount(), volume.mount()
    free, inodes = os.statvfs(a.path).f_bfree, inodes_in_use(a.path)
    for _ in range(5):  # more than there is space for, in less than a grace
        write_file(a / "new", b"x" * (24 * MIB))
        os.rename(a / "new", a / "f")
        check(os.statvfs(b.path).f_bfree >= free - (24 * MIB >> 12) - 64, "df shows one of them")
    os.unlink(a / "f")
    eventually(lambda: os.statvfs(b.path).f_bfree >= free - 64, "the space comes back")
    os.mkdir(a / "d")
    set_quota(site, a / "d", "bytes=8M", "inodes=3")
    for _ in range(5):
        write_file(a / "d/new", b"x" * (4 * MIB))
        os.rename(a / "d/new", a / "d/f")
    check(used(site, a / "d") == (4 * MIB, 2), "the directory and a file")
    check(inodes_in_use(a / "d") == 2, "df says the same")
    os.unlink(a / "d/f")
    os.rmdir(a / "d")
    check(inodes_in_use(b.path) == inodes, "nothing is left")
    eventually(lambda: volume.metrics()["fs_inodes"] == inodes, "nor in the store")


def case_replaced_and_killed(site):
    """A server that is killed within the grace leaves nothing of what was replaced; its name is there all the time."""
    volume = site.volume("64M")
    a, b = volume.mount(), volume.mount()
    write_file(a / "f", b"x" * MIB)
    write_file(a / "g", b"y")
    inodes, free = volume.metrics()["fs_inodes"], volume.status()["free_bytes"]
    looked_up = os.open(b / "f", os.O_PATH)
    os.rename(a / "g", a / "f")
    volume.kill()
    volume.serve()
    check(read_file(b / "f") == b"y", "the new one has the name")
    os.close(looked_up)
    eventually(lambda: volume.metrics()["fs_inodes"] == inodes - 1, "the old one is gone")
    eventually(lambda: volume.status()["free_bytes"] > free, "and its space is free")
    volume.umount(a)
    volume.umount(b)
    volume.stop()
    volume.fsck()
    volume.serve()


@contextlib.contextmanager
def working_directory(path):
    before = os.getcwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)


def check_removed(pair, parent):
    """The working directory has been removed."""
    now = os.stat(".")
    check((now.st_nlink, now.st_size, stat.S_ISDIR(now.st_mode)) == (0, 0, True), f"{pair}: {now}")
    check(os.listdir(".") == [] and list(os.scandir(".")) == [], f"{pair}: an empty listing")
    fd = os.open(".", os.O_RDONLY)
    check(os.listdir(fd) == [] and os.fstat(fd).st_nlink == 0, f"{pair}: it can be opened")
    os.fsync(fd)
    os.fchdir(fd)
    os.close(fd)
    os.chdir(".")
    check(os.access(".", os.R_OK | os.W_OK | os.X_OK), f"{pair}: access")
    check(os.stat("..").st_ino == os.stat(parent).st_ino, f"{pair}: its parent")
    check(os.statvfs(".").f_blocks > 0, f"{pair}: its file system")
    refuses(errno.ENOENT, os.getcwd)
    for call in (lambda: os.open("x", os.O_CREAT | os.O_WRONLY), lambda: os.open("x", os.O_RDONLY), lambda: os.mkdir("x"),
                 lambda: os.symlink("a", "x"), lambda: os.mkfifo("x"), lambda: os.link(os.path.join(parent, "keep"), "x"),
                 lambda: os.rename(os.path.join(parent, "keep"), "x"), lambda: os.rename("x", os.path.join(parent, "y")),
                 lambda: os.unlink("x"), lambda: os.rmdir("x")):
        refuses(errno.ENOENT, call)
    os.chmod(".", 0o700)
    os.chown(".", 1, 2)
    os.utime(".", (5, 6))
    now = os.stat(".")
    check((stat.S_IMODE(now.st_mode), now.st_uid, now.st_gid, now.st_mtime) == (0o700, 1, 2, 6), f"{pair}: {now}")
    refuses(errno.ENODATA, os.getxattr, ".", "user.a")
    check(os.listxattr(".") == [], f"{pair}: extended attributes")
    refuses(errno.ENOENT, os.setxattr, ".", "user.a", b"1")
    refuses(errno.ENODATA, os.removexattr, ".", "user.a")


def case_removed_working_directory(site):
    """As on ext4, whichever mount removes it, also after the server was killed; its name may be another directory's by then."""
    for pair, volume, a, b in pairs(site):
        write_file(a / "keep", b"")
        for restarts in (False, True):
            os.mkdir(a / "d")
            with working_directory(a / "d"):
                os.rmdir(b / "d")
                if restarts:
                    volume.kill()
                    serve(volume)
                check_removed(pair, a.path)
                os.mkdir(b / "d")
                write_file(b / "d/x", b"")
                check(os.listdir(".") == [] and os.stat(".").st_ino != os.stat(a / "d").st_ino, f"{pair}: not the new one")
                refuses(errno.ENOENT, os.open, "x", os.O_RDONLY)
            check(os.listdir(a / "d") == ["x"], f"{pair}: the new one")
            os.unlink(a / "d/x")
            os.rmdir(a / "d")


def case_removed_directory_that_was_listed(site):
    """The kernel knows it from a listing with attributes alone."""
    volume = site.volume("64M")
    a, b = volume.mount(), volume.mount()
    os.makedirs(a / "p/d")
    with os.scandir(b / "p") as entries:
        check([entry.stat().st_nlink for entry in entries] == [2], "the listing")
    with working_directory(b / "p/d"):
        os.rmdir(a / "p/d")
        check(os.stat(".").st_nlink == 0 and os.listdir(".") == [], "it is there")
