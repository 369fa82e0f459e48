# SPDX-License-Identifier: Apache-2.0
"""O_TMPFILE: files that have no name, and may get one."""
import ctypes
import errno
import os
import signal
import stat

from cases_posix import AT_FDCWD, LIBC, MIB, libc, read_file, refuses, write_file
from volume import Skip, check, ended, eventually, run

AT_SYMLINK_FOLLOW = 0x400


def unnamed(path, flags=0, mode=0o644):
    try:
        return os.open(path, os.O_RDWR | os.O_TMPFILE | flags, mode)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise Skip("this kernel or libfuse has no O_TMPFILE") from None
        raise


def give_name(fd, path):
    LIBC.linkat.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
    libc("linkat", AT_FDCWD, f"/proc/self/fd/{fd}".encode(), AT_FDCWD, path.encode(), AT_SYMLINK_FOLLOW)


def case_tmpfile_gets_a_name(site):
    volume = site.volume("64M")
    a, b = volume.mount(), volume.mount()
    os.mkdir(a / "d")
    os.chown(a / "d", 0, 1234)
    os.chmod(a / "d", 0o2775)
    before = os.stat(a / "d")
    umask = os.umask(0o027)
    try:
        fd = unnamed(a / "d", mode=0o666)
    finally:
        os.umask(umask)
    now = os.fstat(fd)
    check((now.st_nlink, stat.S_IMODE(now.st_mode), now.st_gid) == (0, 0o640, 1234), f"{now}")
    check(os.listdir(b / "d") == [], "it is in no directory")
    check(os.stat(a / "d").st_mtime_ns == before.st_mtime_ns, "the directory is as it was")
    os.write(fd, b"kept")
    give_name(fd, a / "d/f")
    check(os.fstat(fd).st_nlink == 1 and os.listdir(b / "d") == ["f"], "it has a name")
    check(read_file(b / "d/f") == b"kept", "its bytes by that name")
    write_file(a / "taken", b"")
    refuses(errno.EEXIST, give_name, fd, a / "taken")
    give_name(fd, a / "second")
    os.write(fd, b", too")
    os.close(fd)
    check(read_file(b / "second") == b"kept, too" and os.stat(b / "second").st_nlink == 2, "a second name")
    fd = unnamed(a.path, os.O_EXCL)
    refuses(errno.ENOENT, give_name, fd, a / "none")
    os.close(fd)
    gone = os.open(a / "d", os.O_RDONLY)
    os.unlink(b / "d/f")
    os.rmdir(b / "d")
    refuses(errno.ENOENT, os.open, f"/proc/self/fd/{gone}", os.O_RDWR | os.O_TMPFILE)
    os.close(gone)
    refuses(errno.ENOTDIR, os.open, a / "second", os.O_RDWR | os.O_TMPFILE)


def case_tmpfile_of_killed_ones(site):
    """A file that was closed, one of a killed mount, one of a killed mount and server: nothing is left."""
    volume = site.volume("64M")
    keeper = volume.mount()
    free, inodes = volume.status()["free_bytes"], volume.metrics()["fs_inodes"]

    def nothing_left(when):
        eventually(lambda: volume.metrics()["fs_inodes"] == inodes and volume.status()["free_bytes"] == free,
                   f"nothing is left after {when}")

    fd = unnamed(keeper.path)
    os.write(fd, b"x" * MIB)
    check(volume.metrics()["fs_inodes"] == inodes + 1, "it is counted")
    os.close(fd)
    nothing_left("the close")
    for server_too in (False, True):
        m = volume.mount()
        fd = unnamed(m.path)
        os.write(fd, b"x" * MIB)
        if server_too:
            volume.kill()
        os.kill(m.pid, signal.SIGKILL)
        eventually(lambda: ended(m.pid), "the mount is dead")
        try:
            os.close(fd)
        except OSError:
            pass
        run(site.termfs, "umount", m.path)
        volume.mounts.remove(m)
        os.rmdir(m.path)
        if server_too:
            volume.serve()
        nothing_left("the death of the mount" + (" and the server" if server_too else ""))
    volume.umount(keeper)
    volume.stop()
    volume.fsck()
    volume.serve()


def case_tmpfile_survives_the_server(site):
    """Its mount comes back for it, and names it then."""
    volume = site.volume("64M")
    m = volume.mount()
    fd = unnamed(m.path)
    os.write(fd, b"kept")
    volume.kill()
    volume.serve()
    check(os.pread(fd, 10, 0) == b"kept", "it is open still")
    give_name(fd, m / "f")
    os.close(fd)
    volume.kill()
    volume.serve()
    check(read_file(m / "f") == b"kept" and os.stat(m / "f").st_nlink == 1, "its name")
