# SPDX-License-Identifier: Apache-2.0
"""A name that is replaced by rename all the time, on the same mount and on another, under each call that takes a path: the
name is always there, so no call may fail."""
import collections
import contextlib
import errno
import multiprocessing
import os
import time

from volume import check

SECONDS = 1.5  # with each of the two mounts that replace
FINE = {errno.ENODATA}


def open_and_close(path, flags):
    os.close(os.open(path, flags))


def link_and_unlink(path, other):
    """Linux itself fails with ENOENT when the file that it has looked up has lost its name since."""
    with contextlib.suppress(FileNotFoundError):
        os.link(path, other)
        os.unlink(other)


def write_by_name(path):
    with open(path, "r+b", buffering=0) as file:
        file.write(b"y")


def read_by_name(path):
    with open(path, "rb", buffering=0) as file:
        check(file.read(), "nothing in it")


CALLS = {
    "open to read": lambda path: open_and_close(path, os.O_RDONLY),
    "open to write": lambda path: open_and_close(path, os.O_WRONLY),
    "open to read and write": lambda path: open_and_close(path, os.O_RDWR),
    "open O_PATH": lambda path: open_and_close(path, os.O_PATH),
    "open O_CREAT": lambda path: open_and_close(path, os.O_RDWR | os.O_CREAT),
    "open, read": read_by_name,
    "open, write": write_by_name,
    "stat": os.stat,
    "lstat": os.lstat,
    "access": lambda path: check(os.access(path, os.R_OK), "no access"),
    "chmod": lambda path: os.chmod(path, 0o644),
    "chown": lambda path: os.chown(path, 0, 0),
    "utime": os.utime,
    "truncate": lambda path: os.truncate(path, 100),
    "getxattr": lambda path: os.getxattr(path, "user.a"),
    "setxattr": lambda path: os.setxattr(path, "user.a", b"1"),
    "listxattr": os.listxattr,
    "removexattr": lambda path: os.removexattr(path, "user.a"),
    "link": lambda path: link_and_unlink(path, f"{path}.link"),
}


def replace_on(path, ready, end):
    while not end.is_set():
        with open(f"{path}.new", "wb", buffering=0) as file:
            file.write(b"x" * 100)
        os.rename(f"{path}.new", path)
        ready.set()


def failures(writer, reader, seconds):
    """{(call, errno): how often}, and how often each call was made."""
    ready, end = multiprocessing.Event(), multiprocessing.Event()
    process = multiprocessing.Process(target=replace_on, args=(writer / "replaced", ready, end), daemon=True)
    process.start()
    check(ready.wait(60), "nothing was replaced")
    found, rounds, deadline = collections.Counter(), 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        rounds += 1
        for name, call in CALLS.items():
            try:
                call(reader / "replaced")
            except OSError as error:
                if error.errno not in FINE:
                    found[name, errno.errorcode[error.errno]] += 1
            except AssertionError as error:
                found[name, str(error)] += 1
    end.set()
    process.join(60)
    return found, rounds


def check_replaced(site, same):
    volume = site.volume()
    a = volume.mount()
    b = a if same else volume.mount()
    found, rounds = failures(a, b, site.size(SECONDS, SECONDS / 3))
    check(rounds >= 5, f"only {rounds} rounds")
    check(not found, f"of {rounds} calls of each: " + ", ".join(
        f"{name}: {times} {what}" for (name, what), times in sorted(found.items())))


def case_replaced_name_here(site):
    check_replaced(site, True)


def case_replaced_name_elsewhere(site):
    check_replaced(site, False)
