# SPDX-License-Identifier: Apache-2.0
"""The first write of a new file, which does not wait for the server: it is there for everybody all the same."""
import os
import signal
import subprocess
import sys
import threading
import time

from cases_posix import read_file
from cases_sessions import Stopped
from volume import check, ended, eventually, stop

HANG = 20  # seconds
THREADS = 10  # of a mount for each CPU, or more

# Makes files, and when it is told to, writes them and closes them.
WRITER = """
import os, sys
files = [os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY) for name in sys.argv[1:]]
print("made", flush=True)
sys.stdin.readline()
for name, file in zip(sys.argv[1:], files):
    assert os.write(file, (os.path.basename(name) * 1024).encode()) > 0
    os.close(file)
print("closed", flush=True)
"""


def contents(name):
    return (name * 1024).encode()


class Writer:
    """Has made the files already."""

    def __init__(self, site, mount, *names):
        self.child = site.start(sys.executable, "-c", WRITER, *(str(mount / name) for name in names),
                                stdin=subprocess.PIPE)
        check(self.child.stdout.readline() == "made\n", "the files are made")

    def write(self):
        """Returns when it has closed them."""
        self.child.communicate("\n", timeout=HANG)
        check(self.child.returncode == 0, "written and closed")


def use_threads(volume, m):
    """So that each of the mount has asked the server: one that is new to it cannot write to one that is stopped."""

    def ask(cpu):
        os.sched_setaffinity(0, {cpu})
        os.statvfs(m.path)

    with Stopped(volume):
        askers = [threading.Thread(target=ask, args=(cpu,)) for cpu in range(os.cpu_count()) for _ in range(THREADS)]
        for asker in askers:
            asker.start()
        time.sleep(1)  # or fewer threads are used, and the case fails
    for asker in askers:
        asker.join()


def mounted(site):
    m = site.mounted()
    use_threads(site.volumes[0], m)
    return m


def is_mounted(path):
    """Nothing is asked of the mount."""
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        return any(line.split()[1] == path for line in mounts)


def case_first_write_costs_no_round_trip(site):
    """Between the creation of a file and its end the server has nothing to say: it is stopped."""
    m = mounted(site)
    other = site.volumes[0].mount()
    writer = Writer(site, m, "f", "g")
    with Stopped(site.volumes[0]):
        writer.write()
    for name in ("f", "g"):
        check(read_file(other / name) == contents(name), f"{name} on another mount")
        check(read_file(m / name) == contents(name), f"{name} on the mount that has written it")
    posted = int(m.describe()["fs_writes_posted_total"])
    check(posted == 2, f"{posted} writes were posted")
    for i in range(100):
        with open(m / f"small{i}", "wb") as file:
            file.write(b"x" * 4096)
        check(os.stat(other / f"small{i}").st_size == 4096, f"small{i} is there for who looks at once")
    check(int(m.describe()["fs_writes_posted_total"]) > 95, "in the common case")


def case_first_write_outlives_the_server(site):
    """What a server that was killed has not taken from its connections is sent to the next one."""
    m = mounted(site)
    volume = site.volumes[0]
    other = volume.mount()
    writer = Writer(site, m, "f", "g")
    stop(volume.server)
    writer.write()
    volume.kill()
    volume.serve()
    for name in ("f", "g"):
        check(read_file(other / name) == contents(name), f"{name} on another mount, which may be back first")
        check(read_file(m / name) == contents(name), f"{name} on the mount that has written it")


def case_first_write_outlives_the_server_and_the_mount(site):
    """A mount that ends while its server is gone waits for the next one; and for none after a signal."""
    m = site.mounted()
    volume = site.volumes[0]
    others = [volume.mount() for _ in range(2)]
    for last, name in ((False, "f"), (True, "g")):
        use_threads(volume, m)
        writer = Writer(site, m, name)
        stop(volume.server)
        writer.write()
        volume.kill()
        volume.mounts.remove(m)
        umount = site.start(site.termfs, "umount", m.path)
        eventually(lambda: not is_mounted(m.path), "it is unmounted")
        check(not ended(m.pid), "its process waits")
        if last:
            os.kill(m.pid, signal.SIGTERM)
            check(umount.wait(HANG) == 0 and ended(m.pid), "until a signal comes")
        volume.serve()
        check(umount.wait(HANG) == 0 and ended(m.pid), "it ends")
        os.rmdir(m.path)
        m = others.pop()
        check(len(read_file(m / name)) == (0 if last else 1024), f"{name} on another mount")


def case_first_write_outlives_its_mount(site):
    """What has returned is kept when the mount is killed, though the server has not begun with it."""
    m = mounted(site)
    volume = site.volumes[0]
    other = volume.mount()
    writer = Writer(site, m, "f", "g")
    with Stopped(volume):
        writer.write()
        os.kill(m.pid, signal.SIGKILL)
        eventually(lambda: ended(m.pid), "the mount's process ends")
    volume.abandon(m)
    for name in ("f", "g"):
        check(read_file(other / name) == contents(name), f"{name} on another mount")


def case_first_write_and_a_stopped_mount(site):
    """A mount that does not answer delays who looks at its new file by no more than the time of a lease."""
    m = site.mounted()
    other = site.volumes[0].mount()
    with open(m / "f", "wb") as file:
        stop(m.pid)
        try:
            check(os.stat(other / "f").st_size == 0, "it has written nothing")
        finally:
            os.kill(m.pid, signal.SIGCONT)
        try:
            file.write(b"late")
            file.flush()
        except OSError:
            pass  # its session was lost for too long
    check(os.stat(other / "f").st_size == os.stat(m / "f").st_size, "both see the same")
