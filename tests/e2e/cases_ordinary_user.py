# SPDX-License-Identifier: Apache-2.0
"""A user who is not root serves a volume and mounts it, for himself alone, by fusermount3."""
import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile

from cases_posix import read_file, refuses, write_file
from volume import check, ended, eventually, need, run

UID = 1000
AS_USER = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups")


@contextlib.contextmanager
def fuse_for_all():
    """Anybody may open the device, as on an ordinary machine."""
    mode = os.stat("/dev/fuse").st_mode & 0o777
    os.chmod("/dev/fuse", 0o666)
    try:
        yield
    finally:
        os.chmod("/dev/fuse", mode)


@contextlib.contextmanager
def a_place_of_the_user(parent):
    with tempfile.TemporaryDirectory(dir=parent) as place:
        os.chown(place, UID, UID)
        yield place


def case_ordinary_user_serves_and_mounts(site):
    need("setpriv")
    need("fusermount3")
    with fuse_for_all(), a_place_of_the_user("/var/tmp") as home, a_place_of_the_user("/dev/shm") as memory:
        termfs = shutil.copy(site.termfs, home)  # where the user may look
        volume, mountpoint = os.path.join(home, "volume"), os.path.join(home, "m")
        run(*AS_USER, "mkdir", mountpoint)
        run(*AS_USER, termfs, "format", volume, "--capacity", "64M")
        said = subprocess.run([*AS_USER, termfs, "serve", volume], capture_output=True, text=True, timeout=60,
                              check=False).stderr
        check("run the server as root, or set memory-directory" in said, f"what to do is said: {said}")
        settings = os.path.join(volume, "termfs.toml")
        text = read_file(settings).decode()
        write_file(settings, re.sub("memory-directory = .*", f'memory-directory = "{memory}"', text).encode())
        try:
            serves_and_mounts(site, termfs, volume, mountpoint)
        finally:
            subprocess.run(["umount", "-l", mountpoint], stderr=subprocess.DEVNULL, check=False)
            site.end_processes()


def serves_and_mounts(site, termfs, volume, mountpoint):
    run(*AS_USER, termfs, "serve", volume)
    server = site.find_process("serve", volume)
    mount = mounted(site, termfs, volume, mountpoint)
    file = os.path.join(mountpoint, "f")
    run(*AS_USER, "sh", "-c", 'echo text > "$1"', "sh", file)
    check(run(*AS_USER, "stat", "-c", "%u %g %s", file) == f"{UID} {UID} 5\n", "whose it is")
    refuses(errno.EACCES, os.listdir, mountpoint)  # root, as fusermount3 has it
    os.kill(mount, signal.SIGKILL)
    eventually(lambda: ended(mount), "the mount is dead")
    run(*AS_USER, termfs, "umount", mountpoint)
    mount = mounted(site, termfs, volume, mountpoint)
    check(run(*AS_USER, "cat", file) == "text\n", "what the dead mount has written")
    run(*AS_USER, termfs, "umount", mountpoint)
    check(ended(mount), "umount waits for the mount's process")
    os.kill(server, signal.SIGTERM)
    eventually(lambda: ended(server), "the server ends after SIGTERM")
    run(*AS_USER, termfs, "fsck", volume)


def mounted(site, termfs, volume, mountpoint):
    """The process of a mount by the user."""
    run(*AS_USER, termfs, "mount", volume, mountpoint)
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        line = next(line for line in table if line.split()[4] == mountpoint)
    check("nosuid,nodev" in line and f"user_id={UID}" in line, f"the user's own: {line}")
    sessions = json.loads(run(*AS_USER, termfs, "status", volume, "--json"))["sessions"]
    check({session["uid"] for session in sessions} == {UID}, f"the user's session: {sessions}")
    pid = sessions[-1]["pid"]
    site.remember(pid)
    return pid
