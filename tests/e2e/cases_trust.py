# SPDX-License-Identifier: Apache-2.0
"""Root uses nothing that another user could change, on the host of a server and on that of a mount."""
import errno
import os
import shutil
import signal
import socket
import subprocess
import tempfile

from cases_input import refused, snapshot
from cases_ordinary_user import AS_USER, a_place_of_the_user
from cases_posix import read_file, refuses, write_file
from volume import check, eventually, free_port, need, run

NOBODY = 65534
# What a server, or a check with --repair, would replace or create.
NAMES = ("epoch.new", "termfs.toml.new", "tier.new", "kept.new", "log", "meta/000001.log.cut-off", "meta/000001.sst")


def case_root_follows_no_link_of_another_user(site):
    """Such a link once had a server overwrite root's files, wherever it led to."""
    volume = site.volume("16M")
    volume.stop()
    os.unlink(os.path.join(volume.path, "log"))
    precious = os.path.join(site.scratch, "precious")
    write_file(precious, b"precious")
    for mode in (0o777, 0o755):  # it is open to others, or was
        os.chmod(volume.path, mode)
        for name in NAMES:
            link = os.path.join(volume.path, name)
            for user in (NOBODY, 0):
                os.symlink(precious, link)
                os.lchown(link, user, user)
                before = snapshot(volume.path)
                if name != "log" or user != 0 or mode == 0o777:
                    says = "chmod go-w" if mode == 0o777 else f"belongs to user {NOBODY}" if user else "symbolic link"
                    for words in (("serve",), ("fsck",), ("fsck", "--repair")):
                        refused(site, 1, (volume.path, says), words[0], volume.path, *words[1:])
                check(read_file(precious) == b"precious", f"{name} led out of the volume")
                check(snapshot(volume.path) == before, f"{name}: the volume was changed")
                os.unlink(link)
    volume.serve()
    os.unlink(precious)


def case_root_stays_out_of_a_place_of_another_user(site):
    """Its owner could put another directory there at any time."""
    volume = site.volume("16M")
    volume.stop()
    place = os.path.join(site.scratch, "place")
    os.mkdir(place)
    moved, new, empty = (os.path.join(place, name) for name in ("volume", "new", "empty"))
    shutil.move(volume.path, moved)
    os.mkdir(empty)
    os.chown(place, NOBODY, NOBODY)
    before = snapshot(moved)
    for command in (("serve", moved), ("fsck", moved), ("fsck", "--repair", moved), ("status", moved), ("stats", moved),
                    ("mount", moved, site.scratch), ("set", moved, "dram-ratio=0.3"), ("format", new, "--capacity", "16M"),
                    ("format", empty, "--capacity", "16M")):
        refused(site, 1, (f"{place} belongs to user {NOBODY}", "chown root"), *command)
    check(snapshot(moved) == before and sorted(os.listdir(place)) == ["empty", "volume"], "nothing was changed")
    device = os.path.join(site.scratch, "device")
    refused(site, 1, f"{place} belongs to user", "format", device, "--capacity", "16M", "--device", os.path.join(place, "f"))
    shutil.move(moved, volume.path)
    refused(site, 1, f"{place} belongs to user", "serve", "--memory-directory", place, volume.path)
    shutil.rmtree(place)
    volume.serve()


def case_links_of_root_are_followed(site):
    """To a volume, and to its parts on other disks; of another user they are not."""
    volume = site.volume("16M")
    volume.stop()
    disk = os.path.join(site.scratch, "disk")
    os.mkdir(disk)
    for name in ("region", "written", "meta"):
        shutil.move(os.path.join(volume.path, name), os.path.join(disk, name))
        os.symlink(os.path.join(disk, name), os.path.join(volume.path, name))
    link = os.path.join(site.scratch, "link")
    os.symlink(volume.path, link)
    check("sound" in run(site.termfs, "fsck", link), "through links")
    volume.serve()
    m = volume.mount()
    write_file(m / "f", b"text")
    volume.umount(m)
    volume.stop()
    os.lchown(link, NOBODY, NOBODY)
    refused(site, 1, f"{link} belongs to user {NOBODY}", "fsck", link)
    for name in ("region", "meta"):
        planted = os.path.join(volume.path, name)
        os.lchown(planted, NOBODY, NOBODY)
        refused(site, 1, f"{planted} belongs to user {NOBODY}", "serve", volume.path)
        os.lchown(planted, 0, 0)
        os.chown(os.path.join(disk, name), NOBODY, NOBODY)
        refused(site, 1, f"{os.path.join(disk, name)} belongs to user {NOBODY}", "serve", volume.path)
        os.chown(os.path.join(disk, name), 0, 0)
    volume.serve()
    os.unlink(link)


def case_a_users_private_group_is_the_user(site):
    """With umask 002 a user's directories may be written to by a group that only that user is in."""
    need("setpriv")
    with a_place_of_the_user("/var/tmp") as home:
        termfs = shutil.copy(site.termfs, home)
        volume = os.path.join(home, "volume")
        run(*AS_USER, "sh", "-c", 'umask 002 && mkdir "$2" && "$1" format "$2" --capacity 16M', "sh", termfs, volume)
        check(os.stat(volume).st_mode & 0o777 == 0o775, "the group may write")
        check("sound" in run(*AS_USER, termfs, "fsck", volume), "as the user")
        os.chown(volume, -1, 100)
        os.chmod(volume, 0o775)
        done = subprocess.run([*AS_USER, termfs, "fsck", volume], capture_output=True, text=True, timeout=60, check=False)
        check(done.returncode == 1 and "by group 100: chmod go-w" in done.stderr, f"{done.returncode}: {done.stderr}")


AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


def described_to_nobody(path):
    folder = os.open(path, os.O_RDONLY)
    os.seteuid(NOBODY)
    try:
        return os.getxattr(folder, "system.termfs.mount").decode()
    finally:
        os.seteuid(0)
        os.close(folder)


def case_the_secrets_path_is_hidden(site):
    """From ps, the mount table, and what a mount says of itself to other users; root's commands and mount(8) go on."""
    need("setpriv")
    volume = site.volume("16M")
    volume.stop()
    address = f"127.0.0.1:{free_port(socket.AF_INET, '127.0.0.1')}"
    volume.serve("--listen", address)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        os.chmod(place, 0o755)
        secret, log, path = (os.path.join(place, name) for name in ("hidden-name", "log", "mount"))
        shutil.copy(os.path.join(volume.path, "secret"), secret)
        os.chmod(secret, 0o600)
        for words in (("--secret", secret), (f"--secret={secret}",), ("-o", f"secret={secret},noatime")):
            os.mkdir(path)
            run(site.termfs, "mount", address, path, *words, "-o", f"fuse={site.fuse}", "--log", log)
            m = volume.mounted(path)
            try:
                hides_the_secret(site, m, address, secret, log)
                remounts_and_reopens(site, m, address, words[-1] if words[0] == "-o" else "exec", log)
                volume.umount(m)
            finally:
                subprocess.run(["umount", "-l", path], stderr=subprocess.DEVNULL, check=False)
            os.unlink(log)


def remounts_and_reopens(site, m, address, options, log):
    os.unlink(log)
    os.kill(m.pid, signal.SIGHUP)
    eventually(lambda: os.path.exists(log), "the log is made again")
    check(os.stat(log).st_mode & 0o777 == 0o640, "nor is it for everybody after logrotate")
    helper = os.path.join(os.path.dirname(site.termfs), "mount.termfs")
    run(helper, address, m.path, "-o", f"remount,ro,{options}")
    refuses(errno.EROFS, os.mkdir, m / "d")


def hides_the_secret(site, m, address, secret, log):
    shown = read_file(f"/proc/{m.pid}/cmdline") + read_file("/proc/self/mountinfo") + read_file(log)
    check(b"hidden-name" not in shown, f"it is shown: {shown}")
    told = described_to_nobody(m.path)
    check(f"address {address}" in told and "hidden-name" not in told and "secret" not in told, told)
    check(m.describe()["secret"] == secret, "root is told")
    check("region_pages" in run(site.termfs, "stats", "--json", "--count", "1", m.path), "stats")
    check(os.stat(log).st_mode & 0o777 == 0o640, "the log is not for everybody")
    program = shutil.copy(site.termfs, os.path.dirname(m.path))  # where the user may look
    done = subprocess.run([*AS_NOBODY, program, "set", m.path, "dram-ratio=0.3"], capture_output=True, text=True,
                          timeout=60, check=False)
    check(done.returncode == 1 and "only root and the user of the mount" in done.stderr, done.stderr)
