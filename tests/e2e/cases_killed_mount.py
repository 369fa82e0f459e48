# SPDX-License-Identifier: Apache-2.0
"""A mount's process that is killed at a bad moment: nobody hangs, and its guard makes sure of that and does nothing
else."""
import errno
import os
import signal
import time

from cases_coherence import two_mounts
from cases_posix import refuses, write_file
from volume import alone, check, ended, eventually, run, states, stop

GUARD = "termfs-guard"
ENDS = 30  # seconds; usually it takes some milliseconds

# Says that it is about to call, and what came of it.
CALL = """
import os, sys
print("calls", flush=True)
try:
    getattr(os, sys.argv[1])(sys.argv[2])
except OSError as error:
    print(error.errno)
"""


def guard_of(pid):
    """The guard of a mount's process; None."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as children:
            for child in children.read().split():
                with open(f"/proc/{child}/comm", encoding="utf-8") as name:
                    if name.read().strip() == GUARD:
                        return int(child)
    return None


def begin_call(site, name, path):
    """A process that waits in a call."""
    child = site.start("python3", "-c", CALL, name, path)
    check(child.stdout.readline() == "calls\n", "a caller starts")
    eventually(lambda: states(child.pid)[0][1] in "SD", "a caller waits")
    return child


def stick(site, a, b, number):
    """Has the kernel of `a` wait for the lock of a directory, in which a look-up waits for a server that is stopped, on
    behalf of a thread of the mount. Returns the processes that wait."""
    server = site.volumes[0].server
    folder = f"d{number}"
    os.mkdir(b / folder)  # in one of its own making the mount would need no server
    write_file(a / folder + "/x", b"x")
    os.stat(a / folder + "/x")
    stop(a.pid)
    look = begin_call(site, "stat", a / folder + "/missing")
    change = begin_call(site, "unlink", b / folder + "/x")
    time.sleep(1)  # it has got to the stopped mount; that one would be expelled after three seconds
    stop(server)
    os.kill(a.pid, signal.SIGCONT)
    eventually(lambda: ("termfs-entries", "D") in states(a.pid), "a thread waits for the directory")
    return look, change


def case_killed_mount_lets_go(site):
    """The kernel ends the connection of a mount that is killed, also when a thread of it waits for that connection."""
    lets_go(site, signal.SIGKILL)


def case_crashing_mount_lets_go(site):
    """The same for one that crashes; the kernel would wait for its threads, to write a core."""
    lets_go(site, signal.SIGSEGV)


def lets_go(site, number):
    a, b = two_mounts(site)
    server = site.volumes[0].server
    try:
        look, change = stick(site, a, b, 1)
        began = time.monotonic()
        os.kill(a.pid, number)
        said, _ = look.communicate(timeout=ENDS)
        check(said.strip() in map(str, (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)), f"the caller got {said}")
        eventually(lambda: ended(a.pid), "the mount's process ends", ENDS)
        print(f"     {signal.Signals(number).name}: after {(time.monotonic() - began) * 1000:.0f} ms", flush=True)
    finally:
        os.kill(server, signal.SIGCONT)
    changed, _ = change.communicate(timeout=120)
    check(changed == "", f"the other mount goes on: {changed}")
    site.volumes[0].abandon(a)


def control_of(guard):
    """The file with which a guard would end its mount."""
    for fd in os.listdir(f"/proc/{guard}/fd"):
        if os.readlink(f"/proc/{guard}/fd/{fd}").endswith("/abort"):
            return f"/proc/{guard}/fd/{fd}"
    raise AssertionError(f"guard {guard} has nothing to end its mount with")


def orphans():
    """Guards whose mount is gone."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8") as stat:
                name, rest = stat.read().split("(", 1)[1].rsplit(")", 1)
            if name == GUARD and int(rest.split()[1]) == 1:
                found.append(entry)
        except OSError:
            continue
    return found


def case_guard_of_a_mount(site):
    """A guard has nothing of the mount's, does not look like it, and ends with it. Without it the mount goes on."""
    volume = site.volume()
    for way in ("umount", "SIGTERM", "guard killed", "guard stopped", "killed"):
        mount = volume.mount()
        guard = guard_of(mount.pid)
        check(guard is not None, "a mount has a guard")
        with open(f"/proc/{guard}/cmdline", encoding="utf-8") as line:
            check(line.read().strip("\0") == GUARD, "its command line")
        links = [os.readlink(f"/proc/{guard}/fd/{fd}") for fd in os.listdir(f"/proc/{guard}/fd")]
        check(len(links) == 6 and links.count("/dev/null") == 3, f"what it has open: {links}")
        check(os.getsid(guard) == guard, "its session")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            os.kill(guard, number)
        write_file(mount / "f", b"x")
        if way == "guard stopped":
            os.kill(guard, signal.SIGSTOP)
        elif way == "guard killed":
            os.kill(guard, signal.SIGKILL)
            eventually(lambda guard=guard: ended(guard), "the guard ends")
            write_file(mount / "f", b"y")
        check(way == "guard killed" or not ended(guard), f"{way}: the guard has ended")
        if way in ("SIGTERM", "killed"):
            os.kill(mount.pid, signal.SIGTERM if way == "SIGTERM" else signal.SIGKILL)
            eventually(lambda mount=mount: ended(mount.pid), f"{way}: the mount ends")
            volume.abandon(mount)
        else:
            volume.umount(mount)
        eventually(lambda guard=guard: ended(guard), f"{way}: the guard ends")
    nowhere = os.path.join(site.scratch, "nowhere")
    os.mkdir(nowhere)
    volume.stop()
    run(site.termfs, "mount", volume.path, nowhere, code=1)
    eventually(lambda: not orphans(), f"guards without a mount: {orphans()}")


@alone
def case_guard_of_a_mount_that_is_gone(site):
    """What a guard has open means one connection for ever, not a later one of the same number."""
    volume = site.volume()
    first = volume.mount()
    number = os.stat(first.path).st_dev
    control = os.open(control_of(guard_of(first.pid)), os.O_WRONLY)
    try:
        volume.umount(first)
        second = volume.mount()
        check(os.stat(second.path).st_dev == number, f"no number twice: {number}, {os.stat(second.path).st_dev}")
        os.write(control, b"1")
        write_file(second / "f", b"x")
    finally:
        os.close(control)
    control = os.open(control_of(guard_of(second.pid)), os.O_WRONLY)  # so it is this that ends a mount
    try:
        os.write(control, b"1")
        refuses(errno.ENOTCONN, os.stat, second / "f2")
    finally:
        os.close(control)
    volume.abandon(second)
