# SPDX-License-Identifier: Apache-2.0
"""flock and fcntl locks between two mounts of one volume: as between processes on a local disk."""
import errno
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import time

from cases_posix import write_file
from volume import WAIT, check, ended, eventually

# Says on a line each what has happened. Locks "f" of the mount argv[1] by argv[2], and holds it until told to end.
HOLDER = r"""
import fcntl, os, signal, struct, sys
path, how = sys.argv[1] + "/f", sys.argv[2]
class Signalled(Exception): pass
def handle(*_): raise Signalled
signal.signal(signal.SIGUSR1, handle)
fd = os.open(path, os.O_RDWR)
print("begins", flush=True)
try:
    if how == "flock":
        fcntl.flock(fd, fcntl.LOCK_EX)
    elif how == "ofd":
        fcntl.fcntl(fd, 38, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
    else:
        first, length = (int(word) for word in how.split("+"))
        fcntl.lockf(fd, fcntl.LOCK_EX, length, first)
    print("locked", flush=True)
    sys.stdin.readline()
except Signalled:
    print("signalled", flush=True)
except OSError as error:
    print(os.strerror(error.errno), flush=True)
"""


class Holder:
    def __init__(self, site, mount, how, program=HOLDER):
        self.child = site.start("python3", "-c", program, mount.path, how, stdin=-1)
        self.said = b""
        check(self.says() == "begins", "the program begins")

    def can_say(self, seconds=0):
        return b"\n" in self.said or bool(select.select([self.child.stdout], [], [], seconds)[0])

    def says(self):
        """The next line; nothing when none comes in time."""
        deadline = time.monotonic() + WAIT
        while b"\n" not in self.said and self.can_say(max(0, deadline - time.monotonic())):
            got = os.read(self.child.stdout.fileno(), 4096)
            if not got:
                break
            self.said += got
        line, _, self.said = self.said.partition(b"\n")
        return line.decode()

    def end(self):
        self.child.stdin.close()
        self.child.wait(timeout=60)


def asleep(child):
    """In a system call that waits, for longer than a moment."""
    def waits():
        with open(f"/proc/{child.pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] in "SD"
    for _ in range(3):
        eventually(waits, "it waits")
        time.sleep(0.05)
    return waits()


def try_lock(fd, what=fcntl.LOCK_EX, length=0, start=0):
    """0, or the errno of fcntl without waiting."""
    try:
        fcntl.lockf(fd, what | fcntl.LOCK_NB, length, start)
        return 0
    except OSError as error:
        return error.errno


def try_flock(fd, what=fcntl.LOCK_EX):
    try:
        fcntl.flock(fd, what | fcntl.LOCK_NB)
        return 0
    except OSError as error:
        return error.errno


def two_mounts(site):
    volume = site.volume("64M", 0.5)
    mounts = [volume.mount(), volume.mount()]
    write_file(mounts[0] / "f", bytes(100))
    return volume, mounts


def case_locks_conflict(site):
    """Ranges, readers and writers, F_GETLK, and what close ends; flock beside fcntl; open file descriptions."""
    _, (a, b) = two_mounts(site)
    first, fd = Holder(site, a, "10+10"), os.open(b / "f", os.O_RDWR)
    check(first.says() == "locked", "the first locks")
    refused = [try_lock(fd, length=1, start=10), try_lock(fd, fcntl.LOCK_SH, 1, 19)]
    check(refused == [errno.EAGAIN] * 2, f"conflicts with a writer: {refused}")
    check(try_lock(fd, length=10) == 0 and try_lock(fd, length=10, start=20) == 0, "what is beside it is free")
    check(try_flock(fd) == 0, "flock does not see fcntl's")
    first.end()
    check(try_lock(fd) == 0, "the end of a process ends its locks")
    os.close(os.open(b / "f", os.O_RDONLY))  # any close of the file by this process
    other = Holder(site, a, "0+0")
    check(other.says() == "locked", "close has ended the locks of this process")
    check(try_flock(fd) == 0, "but not its flock")
    other.end()
    other = Holder(site, a, "flock")
    check(asleep(other.child), "a flock waits for a flock")
    os.close(fd)
    check(other.says() == "locked", "the last close ends a flock")
    fd = os.open(b / "f", os.O_RDWR)
    other.end()
    eventually(lambda: try_flock(fd) == 0, "the end of a process ends its flock")
    owner = Holder(site, a, "ofd")
    check(owner.says() == "locked" and try_lock(fd) == errno.EAGAIN, "a lock of an open file")
    owner.end()
    eventually(lambda: try_lock(fd) == 0, "ends with that")
    os.close(fd)


def case_locks_handed_over(site):
    """Who waits gets it when it is free, in turn; a signal ends a wait, and nothing of it stays."""
    volume, (a, b) = two_mounts(site)
    for how in ("0+10", "flock", "ofd"):
        first = Holder(site, a, how)
        check(first.says() == "locked", "the first locks")
        second = Holder(site, b, how)
        check(asleep(second.child), "the second waits")
        for number in (signal.SIGUSR1, signal.SIGKILL):
            waits = Holder(site, b, how)
            check(asleep(waits.child), "a third waits")
            os.kill(waits.child.pid, number)
            waits.child.wait(timeout=30)
            check(number == signal.SIGKILL or waits.says() == "signalled", "the handler ran, the wait ended")
        eventually(lambda: volume.metrics()["fs_lock_waits"] == 1, "one waits")
        first.end()
        check(second.says() == "locked", "the second has it")
        second.end()
        eventually(lambda: volume.metrics()["fs_locks"] == 0, "nothing is locked")


def case_locks_deadlock(site):
    """Two processes on two mounts that wait for one another: one is told."""
    _, (a, b) = two_mounts(site)
    fd = os.open(b / "f", os.O_RDWR)
    check(try_lock(fd, length=1, start=1) == 0, "this process")
    script = HOLDER.replace('print("locked", flush=True)\n    sys.stdin.readline()',
                            'print("locked", flush=True)\n    sys.stdin.readline()\n'
                            '    fcntl.lockf(fd, fcntl.LOCK_EX, 1, 1)\n    print("both", flush=True)')
    crossed = Holder(site, a, "0+1", script)
    check(crossed.says() == "locked", "the other")
    crossed.child.stdin.write("\n")
    crossed.child.stdin.flush()
    check(asleep(crossed.child), "it waits for this process")
    def too_long(*_):
        raise AssertionError("both wait for one another")
    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(WAIT)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, 0)
        raise AssertionError("two have the same")
    except OSError as error:
        check(error.errno == errno.EDEADLK, f"EDEADLK, not {error}")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        os.close(fd)
    check(crossed.says() == "both", "the other goes on")
    crossed.child.wait(timeout=30)


def case_locks_of_a_killed_mount(site):
    """kill -9 of the mount whose process holds a lock: who waits on another mount gets it."""
    volume, (a, b) = two_mounts(site)
    first = Holder(site, a, "0+0")
    check(first.says() == "locked", "the first locks")
    second = Holder(site, b, "0+0")
    check(asleep(second.child), "the second waits")
    os.kill(a.pid, signal.SIGKILL)
    eventually(lambda: ended(a.pid), "the mount is dead")
    check(second.says() == "locked", "the second has it")
    first.child.kill()
    first.child.wait()
    volume.abandon(a)
    second.end()


def case_locks_many_waiters(site):
    """More wait on the mount of the holder than it has threads: the unlock gets through, each has its turn."""
    volume, (a, b) = two_mounts(site)
    for how in ("0+0", "flock"):
        first = Holder(site, a, how)
        check(first.says() == "locked", "the first locks")
        waiters = [Holder(site, a if i % 4 else b, how) for i in range(40)]
        eventually(lambda: volume.metrics()["fs_lock_waits"] == 40, "all wait")
        check(os.stat(a / "f").st_size == 100, "the mount answers")
        write_file(a / "g", b"x" * 4096)
        first.end()
        while waiters:
            eventually(lambda: any(waiter.can_say() for waiter in waiters), "the next has its turn")
            served = [waiter for waiter in waiters if waiter.can_say()]
            check(len(served) == 1 and served[0].says() == "locked", f"one at a time, not {len(served)}")
            waiters.remove(served[0])
            served[0].end()
        eventually(lambda: volume.metrics()["fs_locks"] == 0, "nothing is locked")


def case_locks_over_a_restart(site):
    """The server is killed: who holds keeps, who waits waits, nobody else gets it in between."""
    volume, (a, b) = two_mounts(site)
    for how in ("0+10", "flock"):
        first = Holder(site, a, how)
        check(first.says() == "locked", "the first locks")
        second = Holder(site, b, how)
        check(asleep(second.child), "the second waits")
        volume.kill()
        volume.serve()
        fd = os.open(b / "f", os.O_RDWR)
        refused = try_flock(fd) if how == "flock" else try_lock(fd, length=1)
        check(refused == errno.EAGAIN, f"it is still locked: {refused}")
        os.close(fd)
        eventually(lambda: volume.metrics()["fs_lock_waits"] == 1, "the second waits again")
        first.end()
        check(second.says() == "locked", "the second has it")
        second.end()
        eventually(lambda: volume.metrics()["fs_locks"] == 0, "nothing is locked")


def case_locks_are_not_in_proc(site):
    """The server has the locks of files, the kernel's FUSE keeps none beside it; of directories it does."""
    m = site.mounted()
    ofd_set_lock, second_page = 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 4096, 4096, 0)
    with open(m / "f", "w+b") as file, open(site.scratch + "/plain", "w+b") as plain:
        directory = os.open(m.path, os.O_RDONLY)
        for lock in (lambda fd: fcntl.flock(fd, fcntl.LOCK_EX), lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX, 4096),
                     lambda fd: fcntl.fcntl(fd, ofd_set_lock, second_page)):
            lock(file)
            lock(plain)
        fcntl.flock(directory, fcntl.LOCK_EX)
        with open("/proc/locks") as locks:
            shown = locks.read().splitlines()

        def of(fd):
            st = os.fstat(fd)
            return [line for line in shown if f" {os.major(st.st_dev):02x}:{os.minor(st.st_dev):02x}:{st.st_ino} " in line]

        check(len(of(plain.fileno())) == 3, f"on ext4: {of(plain.fileno())}")
        check(of(file.fileno()) == [], f"on the mount: {of(file.fileno())}")
        check(len(of(directory)) == 1 and "FLOCK" in of(directory)[0], f"of its directory: {of(directory)}")
        os.close(directory)


# Takes and closes, by its argument, the file argv[2]; says that it has been closed, and goes on when it is told to.
CLOSER = r"""
import fcntl, os, struct, sys
how, path = sys.argv[1:]
for line in sys.stdin:
    fd = os.open(path, os.O_RDWR)
    if how == "flock":
        fcntl.flock(fd, fcntl.LOCK_EX)
    elif how == "posix":
        fcntl.lockf(fd, fcntl.LOCK_EX)
    else:
        fcntl.fcntl(fd, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
    if how == "dup":
        kept = os.dup(fd)
    os.close(fd)
    print("closed", flush=True)
"""


def is_locked(fd, how):
    """Whether another has it locked, at this moment."""
    if how == "flock":
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(fd, fcntl.LOCK_UN)
        return False
    get_lock = fcntl.F_GETLK if how == "posix" else 36
    found = fcntl.fcntl(fd, get_lock, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
    return struct.unpack("hhqqi4x", found)[0] != fcntl.F_UNLCK


def case_locks_are_gone_when_close_returns(site):
    """Of a file's last descriptor, though the kernel sends the release behind the close; a busy machine may be late."""
    volume = site.volume()
    a, b = volume.mount(), volume.mount()
    write_file(a / "f", b"")
    rounds = site.size(200, 50)
    for asker in a, b:
        fd = os.open(asker / "f", os.O_RDWR)
        for how in "posix", "ofd", "flock":
            closer = site.start(sys.executable, "-c", CLOSER, how, a / "f", stdin=subprocess.PIPE)
            locked = 0
            for _ in range(rounds):
                closer.stdin.write("again\n")
                closer.stdin.flush()
                check(closer.stdout.readline() == "closed\n", "the closer")
                locked += is_locked(fd, how)
            check(locked <= (0 if how == "posix" else rounds // 50), f"{how}: locked after {locked} of {rounds} closes")
            closer.stdin.close()
            closer.wait()
        closer = site.start(sys.executable, "-c", CLOSER, "dup", a / "f", stdin=subprocess.PIPE)
        closer.stdin.write("once\n")
        closer.stdin.flush()
        check(closer.stdout.readline() == "closed\n" and is_locked(fd, "ofd"), "a second descriptor keeps the lock")
        closer.stdin.close()
        closer.wait()
        os.close(fd)
