# SPDX-License-Identifier: Apache-2.0
"""The calls of POSIX, one by one, on a mount."""
import ctypes
import errno
import fcntl
import mmap
import os
import socket
import stat
import threading

from volume import alone, check, eventually, run

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
KEEP_SIZE = 1
PUNCH_HOLE_KEEP_SIZE = 3
MIB = 1 << 20


def error_of(call, *arguments):
    """The errno that it fails with; 0: it does not."""
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return 0


def refuses(code, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except OSError as error:
        check(error.errno == code, f"{call.__name__}{arguments}: {errno.errorcode[error.errno]}, not {errno.errorcode[code]}")
        return
    raise AssertionError(f"{call.__name__}{arguments} succeeded, {errno.errorcode[code]} was due")


def libc(name, *arguments):
    if getattr(LIBC, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def renameat2(old, new, flags):
    libc("renameat2", AT_FDCWD, old.encode(), AT_FDCWD, new.encode(), flags)


def write_file(path, data, flags=os.O_CREAT | os.O_TRUNC):
    fd = os.open(path, os.O_WRONLY | flags, 0o644)
    check(os.write(fd, data) == len(data), "a short write")
    os.close(fd)


def read_file(path):
    with open(path, "rb") as file:
        return file.read()


def case_posix_names(site):
    m = site.mounted()
    os.mkdir(m / "d", 0o750)
    check(stat.S_IMODE(os.stat(m / "d").st_mode) == 0o750, "mkdir's mode")
    write_file(m / "d/f", b"one")
    os.link(m / "d/f", m / "g")
    check(os.stat(m / "g").st_nlink == 2 and os.path.samefile(m / "g", m / "d/f"), "link")
    os.symlink("../no/where", m / "s")
    check(os.readlink(m / "s") == "../no/where" and os.lstat(m / "s").st_size == 11, "symlink")
    refuses(errno.EEXIST, os.mkdir, m / "d")
    refuses(errno.ENOTEMPTY, os.rmdir, m / "d")
    refuses(errno.ENOTDIR, os.rmdir, m / "g")
    refuses(errno.EISDIR, os.unlink, m / "d")
    refuses(errno.ENOENT, os.stat, m / "none")
    refuses(errno.ENAMETOOLONG, os.stat, m / ("x" * 256))
    write_file(m / ("x" * 255), b"")
    os.unlink(m / "g")
    check(os.stat(m / "d/f").st_nlink == 1, "unlink lowers the link count")
    os.unlink(m / "d/f")
    os.rmdir(m / "d")
    check(sorted(os.listdir(m.path)) == ["s", "x" * 255], "the directory's names at the end")


def case_posix_rename(site):
    m = site.mounted()
    write_file(m / "a", b"a")
    write_file(m / "b", b"b")
    refuses(errno.EEXIST, renameat2, m / "a", m / "b", RENAME_NOREPLACE)
    renameat2(m / "a", m / "b", RENAME_EXCHANGE)
    check((read_file(m / "a"), read_file(m / "b")) == (b"b", b"a"), "exchange")
    os.rename(m / "a", m / "b")
    check(os.listdir(m.path) == ["b"] and read_file(m / "b") == b"b", "rename over an existing file")
    os.makedirs(m / "d/e")
    os.mkdir(m / "f")
    refuses(errno.EINVAL, os.rename, m / "d", m / "d/e/x")
    refuses(errno.ENOTEMPTY, os.rename, m / "f", m / "d")
    refuses(errno.EISDIR, os.rename, m / "b", m / "f")
    refuses(errno.ENOTDIR, os.rename, m / "f", m / "b")
    os.rename(m / "d/e", m / "f")
    check(os.listdir(m / "d") == [] and os.stat(m / "d").st_nlink == 2, "rename of a directory over an empty one")


def case_posix_data(site):
    m = site.mounted()
    fd = os.open(m / "f", os.O_RDWR | os.O_CREAT)
    data = bytes(i * 7 % 251 for i in range(3 * MIB + 12345))
    for offset in (0, 1, 4095, 4096, 10 * MIB + 17):
        check(os.pwrite(fd, data, offset) == len(data), "a short write")
        check(os.pread(fd, len(data), offset) == data, f"bytes at {offset}")
    end = os.fstat(fd).st_size
    check(os.pread(fd, 100, end) == b"" and os.pread(fd, 100, end - 1) == data[-1:], "reads at the end")
    os.ftruncate(fd, 100)
    os.ftruncate(fd, 2 * MIB)
    check(os.pread(fd, 2 * MIB, 100) == bytes(2 * MIB - 100), "truncate down and up reads zeros")
    os.ftruncate(fd, 64 * MIB)
    check(os.fstat(fd).st_blocks * 512 < 32 * MIB, "a hole takes no space")
    check(os.pread(fd, MIB, 40 * MIB) == bytes(MIB), "a hole reads zeros")
    check(os.lseek(fd, 0, os.SEEK_HOLE) <= 2 * MIB, "SEEK_HOLE")
    refuses(errno.ENXIO, os.lseek, fd, 65 * MIB, os.SEEK_DATA)
    os.fsync(fd)
    os.fdatasync(fd)
    os.close(fd)
    for text in (b"one", b"two"):
        write_file(m / "log", text, os.O_CREAT | os.O_APPEND)
    check(read_file(m / "log") == b"onetwo", "append")
    write_file(m / "log", b"", os.O_TRUNC)
    check(os.stat(m / "log").st_size == 0, "O_TRUNC")
    directory = os.open(m.path, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def case_posix_fallocate(site):
    m = site.mounted()
    fd = os.open(m / "f", os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, MIB)
        check(os.fstat(fd).st_size == MIB and os.pread(fd, MIB, 0) == bytes(MIB), "allocated space reads zeros")
        os.pwrite(fd, b"x" * MIB, 0)
        LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
        libc("fallocate", fd, PUNCH_HOLE_KEEP_SIZE, 4096, 8192)
        check(os.pread(fd, 16384, 0) == b"x" * 4096 + bytes(8192) + b"x" * 4096, "a punched hole")
    except OSError as error:
        check(error.errno == errno.EOPNOTSUPP, f"fallocate: {error}")
    os.close(fd)


def case_posix_space_ahead(site):
    """What the server allocates ahead of a file that grows is neither data nor counted, while it is open and after."""
    volume = site.volume()
    m, other = volume.mount(), volume.mount()
    piece = b"x" * (64 << 10)
    fd = os.open(m / "f", os.O_RDWR | os.O_CREAT)
    for at in range(0, MIB, len(piece)):
        os.pwrite(fd, piece, at)
        for stats in os.fstat(fd), os.stat(m / "f"), os.stat(other / "f"):
            check(stats.st_blocks * 512 == at + len(piece), f"{stats.st_blocks} blocks after {at + len(piece)} bytes")
    os.pwrite(fd, piece, 8 << 30)
    check(os.lseek(fd, 0, os.SEEK_HOLE) == MIB, f"the first hole is at {os.lseek(fd, 0, os.SEEK_HOLE)}")
    check(os.lseek(fd, MIB, os.SEEK_DATA) == 8 << 30, f"data at {os.lseek(fd, MIB, os.SEEK_DATA)}")
    du = lambda: int(run("du", "--block-size=1", other / "f").split()[0])
    check(du() == MIB + len(piece), f"du says {du()}")
    LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    libc("fallocate", fd, KEEP_SIZE, 9 << 30, MIB)
    check(os.fstat(fd).st_blocks * 512 == 2 * MIB + len(piece), "what fallocate asked for counts")
    os.close(fd)
    check(du() == 2 * MIB + len(piece), f"du says {du()} after close")


def case_posix_attributes(site):
    m = site.mounted()
    write_file(m / "f", b"x")
    os.chmod(m / "f", 0o7654)
    check(stat.S_IMODE(os.stat(m / "f").st_mode) == 0o7654, "chmod")
    os.chown(m / "f", 12, 34)
    st = os.stat(m / "f")
    check((st.st_uid, st.st_gid) == (12, 34), "chown")
    check(st.st_mode & stat.S_ISUID == 0, "chown clears set-user-id")
    os.utime(m / "f", ns=(1_000_000_001, 2_000_000_002))
    st = os.stat(m / "f")
    check((st.st_atime_ns, st.st_mtime_ns) == (1_000_000_001, 2_000_000_002), "times have nanoseconds")
    write_file(m / "f", b"y", 0)
    check(os.stat(m / "f").st_mtime_ns > st.st_mtime_ns, "a write moves the time")
    os.setxattr(m / "f", "user.k", b"v" * 5000)
    os.setxattr(m / "f", "user.e", b"")
    check(os.getxattr(m / "f", "user.k") == b"v" * 5000 and os.getxattr(m / "f", "user.e") == b"", "getxattr")
    check(sorted(os.listxattr(m / "f")) == ["user.e", "user.k"], "listxattr")
    refuses(errno.EEXIST, os.setxattr, m / "f", "user.k", b"", os.XATTR_CREATE)
    refuses(errno.ENODATA, os.setxattr, m / "f", "user.n", b"", os.XATTR_REPLACE)
    os.removexattr(m / "f", "user.k")
    refuses(errno.ENODATA, os.getxattr, m / "f", "user.k")


def case_posix_nodes(site):
    m = site.mounted()
    os.mkfifo(m / "fifo")
    os.mknod(m / "char", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod(m / "block", 0o600 | stat.S_IFBLK, os.makedev(259, 300000))
    server = socket.socket(socket.AF_UNIX)
    server.bind(m / "socket")
    server.listen()
    kinds = {name: stat.S_IFMT(os.stat(m / name).st_mode) for name in os.listdir(m.path)}
    check(kinds == {"fifo": stat.S_IFIFO, "char": stat.S_IFCHR, "block": stat.S_IFBLK, "socket": stat.S_IFSOCK}, str(kinds))
    check(os.stat(m / "block").st_rdev == os.makedev(259, 300000), "a device number")
    writer = threading.Thread(target=write_file, args=(m / "fifo", b"through", 0))
    writer.start()
    check(read_file(m / "fifo") == b"through", "a fifo")
    writer.join()
    client = socket.socket(socket.AF_UNIX)
    client.connect(m / "socket")
    client.close()
    server.close()


def case_posix_locks(site):
    m = site.mounted()
    write_file(m / "f", b"")
    first = open(m / "f", "r+b")
    second = open(m / "f", "r+b")
    fcntl.flock(first, fcntl.LOCK_EX)
    refuses(errno.EAGAIN, fcntl.flock, second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(first, fcntl.LOCK_UN)
    fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    first.close()
    second.close()


def case_posix_permissions(site):
    m = site.mounted()
    os.chmod(m.path, 0o755)
    write_file(m / "secret", b"x")
    os.chmod(m / "secret", 0o600)
    child = os.fork()
    if child == 0:
        os.setgid(1000)
        os.setuid(1000)
        code = 1
        try:
            refuses(errno.EACCES, read_file, m / "secret")
            refuses(errno.EACCES, os.mkdir, m / "d")
            code = 0
        finally:
            os._exit(code)
    check(os.waitpid(child, 0)[1] == 0, "a user is kept out")


def case_posix_set_id_bits(site):
    """They go when a user writes, with the write itself, and stay for root; a write asks for nothing else."""
    m = site.mounted()
    write_file(m / "f", b"x" * MIB)
    for mode, after in ((0o6777, 0o777), (0o6767, 0o2767), (0o777, 0o777)):
        os.chmod(m / "f", mode)
        fd = os.open(m / "f", os.O_WRONLY)
        before = int(m.describe()["fs_metadata_total"])
        child = os.fork()
        if child == 0:
            os.setgid(1000)
            os.setuid(1000)
            code = 1
            try:
                for block in range(100):
                    os.pwrite(fd, b"y" * 4096, block * 4096)
                code = 0
            finally:
                os._exit(code)
        check(os.waitpid(child, 0)[1] == 0, "a user writes")
        asked = int(m.describe()["fs_metadata_total"]) - before
        check(asked < 50, f"100 writes took {asked} other requests")
        os.close(fd)
        now = stat.S_IMODE(os.stat(m / "f").st_mode)
        check(now == after, f"{mode:o} became {now:o}")
    os.chmod(m / "f", 0o6777)
    with open(m / "f", "r+b", buffering=0) as file:
        file.write(b"root")
    check(stat.S_IMODE(os.stat(m / "f").st_mode) == 0o6777, "root keeps them")
    with open(m / "f", "ab", buffering=0) as file:
        os.chmod(m / "f", 0o4777)
        file.write(b"grows")
    check(stat.S_IMODE(os.stat(m / "f").st_mode) == 0o4777, "also where the file grows")


def case_unlinked_open_file(site):
    volume = site.volume()
    m = volume.mount()
    free = os.statvfs(m.path).f_bfree
    fd = os.open(m / "f", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"x" * (8 * MIB))
    os.unlink(m / "f")
    check(os.pread(fd, 3, 8 * MIB - 3) == b"xxx" and os.fstat(fd).st_nlink == 0, "the file lives on")
    os.pwrite(fd, b"more", 9 * MIB)
    check(os.pread(fd, 4, 9 * MIB) == b"more", "and can be written")
    os.close(fd)
    eventually(lambda: os.statvfs(m.path).f_bfree >= free - 16, "the space comes back")


def case_removed_while_open(site):
    """A directory, fifo, socket or device that was removed while it is open: no links, an empty listing, no error."""
    volume = site.volume("64M")
    here, other = volume.mount(), volume.mount()
    inodes = volume.metrics()["fs_inodes"]
    for remover in (here, other):
        os.mkdir(here / "d")
        os.mkfifo(here / "fifo")
        os.mknod(here / "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(here / "socket")
        opened = {"d": os.open(here / "d", os.O_RDONLY), "fifo": os.open(here / "fifo", os.O_RDWR),
                  "null": os.open(here / "null", os.O_PATH), "socket": os.open(here / "socket", os.O_PATH)}
        before = {name: os.fstat(fd) for name, fd in opened.items()}
        os.rmdir(remover / "d")
        for name in ("fifo", "null", "socket"):
            os.unlink(remover / name)
        check(os.listdir(remover.path) == [], "all names are gone")
        for name, fd in opened.items():
            now = os.fstat(fd)
            check((now.st_nlink, now.st_mode, now.st_ino) == (0, before[name].st_mode, before[name].st_ino), f"{name}: {now}")
        check(os.listdir(opened["d"]) == [], "the listing of a removed directory")
        refuses(errno.ENOENT, os.mkdir, "new", dir_fd=opened["d"])
        os.write(opened["fifo"], b"through")
        check(os.read(opened["fifo"], 7) == b"through", "a fifo works without a name")
        listener.close()
        for fd in opened.values():
            os.close(fd)
        for name in opened:  # so that the kernel forgets them
            check(not os.path.lexists(here / name), f"{name} is gone")
        eventually(lambda: volume.metrics()["fs_inodes"] == inodes, "nothing is left of them")


def case_enospc(site):
    volume = site.volume("64M", 0.5)
    m = volume.mount()
    free = os.statvfs(m.path).f_bfree
    fd = os.open(m / "full", os.O_WRONLY | os.O_CREAT)

    def fill():
        while True:
            os.write(fd, b"z" * MIB)

    refuses(errno.ENOSPC, fill)
    size = os.fstat(fd).st_size
    check(size >= 48 * MIB, f"only {size} bytes fit")
    os.close(fd)
    with open(m / "full", "rb") as file:
        check(file.read(MIB) == b"z" * MIB, "what was written stays")
    os.unlink(m / "full")
    eventually(lambda: os.statvfs(m.path).f_bfree >= free - 64, "the space comes back")
    write_file(m / "again", b"y" * (32 * MIB))
    check(read_file(m / "again") == b"y" * (32 * MIB), "freed space can be used")


def case_no_old_bytes(site):
    m = site.mounted("64M", 0.25)
    write_file(m / "old", b"S" * (40 * MIB))
    os.unlink(m / "old")
    fd = os.open(m / "new", os.O_RDWR | os.O_CREAT)
    deadline_free = 30 * MIB // os.statvfs(m.path).f_frsize
    eventually(lambda: os.statvfs(m.path).f_bfree > deadline_free, "the space comes back")
    for page in range(0, 30 * MIB, 65536):
        os.pwrite(fd, b"n", page + 1000)
    for page in range(0, 30 * MIB, 65536):
        check(b"S" not in os.pread(fd, 65536, page), "another file's old bytes")
    os.close(fd)


@alone
def case_directory_100000(site):
    m = site.mounted()
    count = site.size(100_000, 10_000)
    os.mkdir(m / "d")
    for i in range(count):
        os.mknod(m / f"d/entry-{i:06}")
    check(sorted(os.listdir(m / "d")) == [f"entry-{i:06}" for i in range(count)], "listing")
    with os.scandir(m / "d") as entries:
        sampled = [entry.stat().st_size for i, entry in enumerate(entries) if i % 10 == 0]
    check(sampled == [0] * len(sampled) and len(sampled) == count // 10, "listing with attributes")
    for i in range(0, count, 4):
        os.unlink(m / f"d/entry-{i:06}")
    check(len(os.listdir(m / "d")) == count - count // 4, "after deletes")


def case_mmap_writer(site):
    m = site.mounted()
    fd = os.open(m / "f", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, MIB)
    memory = mmap.mmap(fd, MIB)
    memory[5000:5005] = b"hello"
    check(os.pread(fd, 5, 5000) == b"hello", "read sees what was stored")
    os.pwrite(fd, b"WORLD", 5000)
    check(memory[5000:5005] == b"WORLD", "the mapping sees what was written")
    memory[6000:6003] = b"end"
    memory.flush()
    memory.close()
    os.close(fd)
    check(read_file(m / "f")[6000:6003] == b"end", "msync")
