# SPDX-License-Identifier: Apache-2.0
"""Access times, by default as ext4's with relatime."""
import mmap
import os
import time

from cases_parity import loop_ext4
from cases_posix import read_file, write_file
from volume import check

TICK = 0.02  # seconds; ext4 takes access times from the kernel's tick
DAY = 24 * 3600 * 10 ** 9


def read_at(path, flags=0):
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        with mmap.mmap(-1, 4096) as page:  # O_DIRECT wants a whole one
            os.preadv(fd, [page], 0)
    finally:
        os.close(fd)


def map_it(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        return memory[0]


def copy(source, target):
    with open(source, "rb") as from_file, open(target, "wb") as to_file:
        os.copy_file_range(from_file.fileno(), to_file.fileno(), 1000)


def write_at(path):
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, b"w", 0)
    os.close(fd)


def list_after_a_change(path):
    """Nobody looks at the directory between the change and the listing, nor after that."""
    with os.scandir(path) as entries:
        write_file(os.path.join(path, "z"), b"")
        time.sleep(TICK)
        list(entries)


def accesses(d):
    """What is done, to what; in this order."""
    file, link, directory = os.path.join(d, "f"), os.path.join(d, "l"), os.path.join(d, "d")
    day_ago = time.time_ns() - DAY - 10 ** 9
    almost = time.time_ns() - DAY + 600 * 10 ** 9

    def set_times(path, atime, mtime):
        os.utime(path, ns=(atime, mtime), follow_symlinks=False)

    write_file(file, b"x" * 10000)
    os.symlink("f", link)
    os.mkdir(directory)
    write_file(os.path.join(directory, "x"), b"")
    for name, path, action in (
            ("stat", file, lambda: os.stat(file)),
            ("open without a read", file, lambda: os.close(os.open(file, os.O_RDWR))),
            ("O_NOATIME", file, lambda: read_at(file, os.O_NOATIME)),
            ("write", file, lambda: write_at(file)),
            ("read", file, lambda: read_at(file)),
            ("read again", file, lambda: read_at(file)),
            ("read after a write", file, lambda: (write_at(file), time.sleep(TICK), read_at(file))),
            ("O_DIRECT", file, lambda: (write_at(file), time.sleep(TICK), read_at(file, os.O_DIRECT))),
            ("chmod", file, lambda: os.chmod(file, 0o600)),
            ("read after chmod", file, lambda: read_at(file)),
            ("map after a write", file, lambda: (write_at(file), time.sleep(TICK), map_it(file))),
            ("map again", file, lambda: map_it(file)),
            ("copy after a write", file, lambda: (write_at(file), time.sleep(TICK), copy(file, file + "2"))),
            ("copy again", file, lambda: copy(file, file + "2")),
            ("a program's text", file, lambda: (write_at(file), time.sleep(TICK), os.system(f"cat {file} > /dev/null"))),
            ("set", file, lambda: set_times(file, almost, 0)),
            ("read after that", file, lambda: (time.sleep(TICK), read_at(file))),
            ("a day ago", file, lambda: set_times(file, day_ago, 0)),
            ("read a day later", file, lambda: read_at(file)),
            ("follow", link, lambda: os.stat(link)),
            ("follow again", link, lambda: os.stat(link)),
            ("another link", link, lambda: (os.unlink(link), os.symlink("f", link))),
            ("readlink", link, lambda: (time.sleep(TICK), os.readlink(link))),
            ("look up", directory, lambda: os.stat(os.path.join(directory, "x"))),
            ("list", directory, lambda: os.listdir(directory)),
            ("list again", directory, lambda: os.listdir(directory)),
            ("list after a change", directory,
             lambda: (write_file(os.path.join(directory, "y"), b""), time.sleep(TICK), os.listdir(directory))),
            ("list after a change, opened before it", directory, lambda: list_after_a_change(directory))):
        time.sleep(TICK)
        before = os.lstat(path)
        action()
        after = os.lstat(path)
        yield name, (after.st_atime_ns != before.st_atime_ns or after.st_ino != before.st_ino,
                     after.st_mtime_ns != before.st_mtime_ns, after.st_ctime_ns != before.st_ctime_ns)


def case_access_times_as_ext4(site):
    """Which of the times each access moves."""
    m = site.mounted()
    with loop_ext4(site.scratch, "relatime") as ext4:
        for ours, theirs in zip(list(accesses(m.path)), list(accesses(ext4))):
            check(ours == theirs, f"{ours} on termfs, {theirs} on ext4: moved are access, modification, change")


def case_access_times_two_mounts(site):
    """What one mount has read, the other knows, whatever its kernel caches."""
    volume = site.volume()
    a, b = volume.mount(), volume.mount()
    write_file(a / "f", b"text")
    os.mkdir(a / "d")
    for path, access in (("f", read_file), ("d", os.listdir)):
        before = os.stat(b / path).st_atime_ns
        access(a / path)
        after = os.stat(b / path).st_atime_ns
        check(before < after, f"{path}: {before}, then {after}")
        check(os.stat(a / path).st_atime_ns == after, "both know the same")
        access(b / path)
        check(os.stat(a / path).st_atime_ns == after, "once is enough")


def case_access_times_kept(site):
    """By noatime, nodiratime and ro; and what has moved is kept by the volume."""
    volume = site.volume()
    m = volume.mount()
    write_file(m / "f", b"text")
    os.symlink("f", m / "l")
    os.mkdir(m / "d")
    times = {path: os.lstat(m / path).st_atime_ns for path in "fld"}
    for options, moved in (("noatime", ""), ("ro", ""), ("nodiratime", "fl"), ("noatime,relatime", "fld")):
        other = volume.mount(options)
        check(read_file(other / "l") == b"text" and os.listdir(other / "d") == [], "what was made")
        for path in "fld":
            now = os.lstat(m / path).st_atime_ns
            check((now != times[path]) == (path in moved), f"{options}: {path} was {times[path]}, is {now}")
        volume.umount(other)
    times = {path: os.lstat(m / path).st_atime_ns for path in "fld"}
    volume.umount(m)
    volume.stop()
    volume.serve()
    m = volume.mount()
    check(times == {path: os.lstat(m / path).st_atime_ns for path in "fld"}, "after the server's end")
