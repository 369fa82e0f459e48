# SPDX-License-Identifier: Apache-2.0
"""A mount's process that is killed at a bad moment: nobody hangs, and its guard makes sure of that and does nothing
else."""
import errno
import os
import signal
import subprocess
import time

from cases_coherence import two_mounts
from cases_posix import write_file
from volume import check, ended, eventually

GUARD = "termfs-guard"
ENDS = 30  # seconds; usually it takes some milliseconds

# Calls until the mount is dead: prints the error.
LOOK = "import os, sys\ntry:\n  os.stat(sys.argv[1])\nexcept OSError as e:\n  print(e.errno)"


def guard_of(pid):
    """The guard of a mount's process; None."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as children:
            for child in children.read().split():
                with open(f"/proc/{child}/comm", encoding="utf-8") as name:
                    if name.read().strip() == GUARD:
                        return int(child)
    return None


def thread_state(pid, name):
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8") as stat:
            text = stat.read()
        if f"({name})" in text:
            return text.rsplit(")", 1)[1].split()[0]
    return None


def stick(site, a, b, number):
    """Has the kernel of `a` wait for the lock of a directory, in which a look-up waits for a server that is stopped, on
    behalf of a thread of the mount. Returns the processes that wait."""
    server = site.volumes[0].server
    folder = f"d{number}"
    os.mkdir(a / folder)
    write_file(a / folder + "/x", b"x")
    os.stat(a / folder + "/x")
    os.kill(a.pid, signal.SIGSTOP)
    look = site.start("python3", "-c", LOOK, a / folder + "/missing")
    change = site.start("python3", "-c", "import os, sys; os.unlink(sys.argv[1])", b / folder + "/x")
    time.sleep(0.7)  # both have got as far as they get; after three seconds the mount would be expelled
    os.kill(server, signal.SIGSTOP)
    os.kill(a.pid, signal.SIGCONT)
    eventually(lambda: thread_state(a.pid, "termfs-entries") == "D", "a thread waits for the directory", 10)
    return look, change


def case_killed_mount_lets_go(site):
    """The kernel ends the connection of a mount that is killed, also when a thread of it waits for that connection."""
    a, b = two_mounts(site)
    server = site.volumes[0].server
    try:
        look, change = stick(site, a, b, 1)
        began = time.monotonic()
        os.kill(a.pid, signal.SIGKILL)
        said, _ = look.communicate(timeout=ENDS)
        check(said.strip() in map(str, (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)), f"the caller got {said}")
        eventually(lambda: ended(a.pid), "the mount's process ends", ENDS)
        print(f"     killed_mount_lets_go: after {(time.monotonic() - began) * 1000:.0f} ms", flush=True)
    finally:
        os.kill(server, signal.SIGCONT)
    check(change.wait(timeout=120) == 0, "the other mount goes on")
    site.volumes[0].abandon(a)
