# SPDX-License-Identifier: Apache-2.0
"""mount(8), umount(8), findmnt(8) and /etc/fstab, with the helpers that an installation brings."""
import contextlib
import errno
import os
import shutil
import subprocess

from cases_ordinary_user import AS_USER, UID, a_place_of_the_user, fuse_for_all
from cases_posix import read_file, refuses, write_file
from volume import Mount, check, ended, eventually, need, run

# A mount namespace of its own, in which $1 is in the place of /etc/fstab, and the helpers in $2 are where mount(8) looks.
PRIVATE = """
mount --bind "$1" /etc/fstab && mount --bind "$2" "$(realpath /sbin)" && echo ready && exec sleep 10000
"""


class Machine:
    """Programs run with their own /etc/fstab and /sbin; what they mount is seen by them alone, and at `seen`."""

    def __init__(self, site):
        self.site = site
        self.fstab = os.path.join(site.scratch, f"fstab{site.next_number()}")
        self.sbin = self.fstab + ".sbin"
        os.mkdir(self.sbin)
        for name in ("mount.termfs", "mount.fuse.termfs"):
            os.symlink(site.termfs, os.path.join(self.sbin, name))
        self.write_fstab()
        self.keeper = site.start("unshare", "--mount", "--propagation", "slave", "sh", "-c", PRIVATE, "sh", self.fstab,
                                 self.sbin)
        said = []
        while said[-1:] != ["ready\n"]:  # mount(8) may have hints
            said.append(self.keeper.stdout.readline())
            check(said[-1] != "", f"a mount namespace: {''.join(said)}")

    def write_fstab(self, *lines):
        with open(self.fstab, "w", encoding="utf-8") as file:  # the same file: it is bound to /etc/fstab
            file.write("".join(" ".join(line) + " 0 0\n" for line in lines))

    def run(self, *words, code=0):
        """Standard output and error."""
        inside = ["nsenter", "--mount", "--target", str(self.keeper.pid), *map(str, words)]
        done = subprocess.run(inside, capture_output=True, text=True, timeout=120, check=False)
        check(done.returncode == code, f"{words}: {done.returncode}, not {code}: {done.stderr}{done.stdout}")
        return done.stdout + done.stderr

    def options(self, path):
        return self.run("findmnt", "--noheadings", "--output", "OPTIONS", path).strip().split(",")

    def seen(self, path):
        return f"/proc/{self.keeper.pid}/root{path}"

    def process_at(self, path):
        pid = int(Mount(self.seen(path), 0).describe()["pid"])
        self.site.remember(pid)
        return pid

    def close(self):
        self.keeper.kill()
        self.keeper.wait()


@contextlib.contextmanager
def a_machine(site):
    for program in ("unshare", "nsenter", "findmnt"):
        need(program)
    machine = Machine(site)
    try:
        yield machine
    finally:
        machine.close()


def a_directory(site):
    path = os.path.join(site.scratch, f"mnt{site.next_number()}")
    os.mkdir(path)
    return path


def case_mount_by_type(site):
    volume = site.volume("64M")
    path = a_directory(site)
    with a_machine(site) as machine:
        for kind in ("termfs", "fuse.termfs"):
            machine.run("mount", "-t", kind, volume.path, path, "-o", "rw,noatime,_netdev,bitmap=pulled")
            pid = machine.process_at(path)
            write_file(machine.seen(path) + "/f", b"x")
            check(machine.run("findmnt", "-n", "-o", "SOURCE,FSTYPE", path).split() == [volume.path, "fuse.termfs"],
                  "what the mount table says")
            check(path in machine.run("findmnt", "-t", "fuse.termfs"), "it is found by its type")
            check(volume.status()["sessions"][0]["bitmap"] == "pulled", "the option arrived")
            machine.run("umount", path)
            eventually(lambda pid=pid: ended(pid), "the process ends after umount(8)")
        check("wombat" in machine.run("mount", "-t", "termfs", volume.path, path, "-o", "wombat", code=1), "its name")
        machine.run("mount", "-t", "termfs", volume.path, "/nonexistent", code=32)
        machine.run("mount", "-f", "-t", "termfs", volume.path, path)
        machine.run("mountpoint", "-q", path, code=32)
        machine.run("mount", "-s", "-t", "termfs", volume.path, path, "-o", "wombat,noexec")
        check("noexec" in machine.options(path), "sloppily: what is understood counts")
        machine.run("umount", path)
    os.rmdir(path)


def case_mount_by_fstab(site):
    """mount -a mounts what is not mounted yet; remarks for others, and what means mount(8), are passed over."""
    volume = site.volume("64M")
    first, second = a_directory(site), a_directory(site)
    with a_machine(site) as machine:
        machine.write_fstab(
            (volume.path, first, "termfs", "defaults,nofail,_netdev,users,comment=a,x-systemd.automount,X-b,lazytime"),
            (volume.path, second, "fuse.termfs", "ro,strictatime,group,iversion,nosuid,dev,nosymfollow,threads=3"),
            (volume.path, "/nonexistent", "termfs", "noauto,user"))
        for _ in range(2):
            machine.run("mount", "-a")
            places = machine.run("findmnt", "-n", "-l", "-o", "TARGET", "-t", "fuse.termfs", "-S", volume.path).split()
            check(places == [first, second], f"each once: {places}")
        check({"rw", "nosuid", "nodev", "noexec"} <= set(machine.options(first)), "users: what mount(8) makes of it")
        shown = set(machine.options(second))
        check({"ro", "nosuid", "nosymfollow", "relatime"} <= shown and "nodev" not in shown, f"options: {shown}")
        os.symlink("/", machine.seen(first) + "/link")
        check(machine.run("ls", f"{first}/link/etc/fstab") != "", "links are followed")
        machine.run("ls", f"{second}/link/etc/fstab", code=2)
        pids = [machine.process_at(path) for path in (first, second)]
        machine.run("umount", first)
        machine.run("umount", "-a", "-t", "fuse.termfs", "-O", "ro")
        eventually(lambda: all(map(ended, pids)), "they end")
        machine.run("mount", first)
        check("nosuid" in machine.options(first), "by the mount point alone")
        machine.run("umount", first)
        machine.write_fstab((volume.path, first, "termfs", "defaults"))
        machine.run("mount", first)
        check(not {"nosuid", "nodev", "noexec"} & set(machine.options(first)), f"suid, dev: {machine.options(first)}")
        machine.run("umount", first)
    os.rmdir(first)
    os.rmdir(second)


def case_mount_by_fstab_over_a_network(site):
    volume = site.volume("64M")
    volume.stop()
    address = volume.listen_at("::1")
    volume.serve("--listen", address)
    path = a_directory(site)
    with a_machine(site) as machine:
        machine.write_fstab((address, path, "termfs", f"secret={volume.path}/secret,noatime,_netdev"))
        machine.run("mount", "-a")
        machine.run("mount", "-a")
        check(machine.run("findmnt", "-n", "-o", "SOURCE", path).strip() == address, "once, as fstab has it")
        machine.run("mount", "-o", "remount,ro", path)
        refuses(errno.EROFS, write_file, machine.seen(path) + "/f", b"x")
        machine.run("umount", path)
    os.rmdir(path)


def access_time_moves(path):
    os.utime(path, ns=(0, os.stat(path).st_mtime_ns))
    before = os.stat(path).st_atime_ns
    read_file(path)
    return os.stat(path).st_atime_ns != before


def case_remount(site):
    volume = site.volume("64M")
    path = a_directory(site)
    with a_machine(site) as machine:
        machine.run("mount", "-t", "termfs", volume.path, path, "-o", "nosuid,threads=3")
        file = machine.seen(path) + "/f"
        write_file(file, b"x")
        pid = machine.process_at(path)
        machine.run("mount", "-o", "remount,ro", path)
        check({"ro", "nosuid"} <= set(machine.options(path)), f"ro, and the rest stays: {machine.options(path)}")
        refuses(errno.EROFS, write_file, file, b"y")
        check(read_file(file) == b"x", "reading")
        machine.run("mount", "-o", "remount,rw", path)
        write_file(file, b"y")
        check(access_time_moves(file), "access times move again")
        machine.run("mount", "-o", "remount,noatime,sync", path)
        check({"rw", "noatime", "sync", "nosuid"} <= set(machine.options(path)), f"{machine.options(path)}")
        check(not access_time_moves(file), "access times stay")
        dirty = volume.status()["dirty_bytes"]
        write_file(file, b"z" * 100_000)
        check(volume.status()["dirty_bytes"] <= dirty, "what was written is on the SSD")
        machine.run("mount", "-o", "remount,atime,async", path)
        check({"relatime", "rw"} <= set(machine.options(path)) and "sync" not in machine.options(path), "back again")
        check(access_time_moves(file), "access times move once more")
        write_file(file, b"z" * 100_000)
        check(volume.status()["dirty_bytes"] > 0, "what was written need not be on the SSD")
        refused = machine.run("mount", "-o", "remount,threads=4", path, code=32)
        check("does not change threads" in refused, refused)
        machine.run("mount", "-o", "remount,threads=3", path)  # as it is
        machine.run("mount", "-o", "remount,wombat", path, code=1)
        with open(file, "ab"):
            refused = machine.run("mount", "-o", "remount,ro", path, code=32)
            check("open for writing" in refused and "rw" in machine.options(path), refused)
        check(machine.process_at(path) == pid, "the mount is the same all the time")
        machine.write_fstab((volume.path, path, "termfs", "ro,noexec,threads=3"))
        machine.run("mount", "-o", "remount", path)
        check({"ro", "noexec"} <= set(machine.options(path)), f"as fstab says: {machine.options(path)}")
        machine.run("umount", path)
        refused = machine.run("mount", "-o", "remount,ro", "-t", "termfs", volume.path, path, code=32)
        check("is not the mount point of a termfs\n" in refused, refused)
    os.rmdir(path)


def case_ordinary_user_mounts_by_fstab(site):
    """Who fstab lets mount, mounts for himself, and unmounts by umount(8)."""
    need("setpriv")
    need("fusermount3")
    with fuse_for_all(), a_place_of_the_user("/var/tmp") as home, a_place_of_the_user("/dev/shm") as memory:
        volume, path = os.path.join(home, "volume"), os.path.join(home, "m")
        termfs = shutil.copy(site.termfs, home)
        os.mkdir(path)
        os.chown(path, UID, UID)
        run(*AS_USER, termfs, "format", volume, "--capacity", "64M")
        run(*AS_USER, termfs, "serve", volume, "--memory-directory", memory)
        site.find_process("serve", volume)
        with a_machine(site) as machine:
            for name in os.listdir(machine.sbin):
                os.unlink(os.path.join(machine.sbin, name))
                os.symlink(termfs, os.path.join(machine.sbin, name))  # which the user may run
            os.chmod(machine.fstab, 0o644)
            machine.write_fstab((volume, path, "termfs", "users,noauto"))
            machine.run(*AS_USER, "mount", path)
            check({f"user_id={UID}", "nosuid", "nodev", "noexec"} <= set(machine.options(path)), "the user's own")
            machine.run(*AS_USER, "touch", f"{path}/f")
            machine.run(*AS_USER, "mount", "-o", "remount,ro", path, code=32)
            machine.run(*AS_USER, "umount", path)
            eventually(lambda: path not in machine.run("cat", "/proc/self/mounts"), "it is unmounted")
        site.end_processes()


INSTALL = """
mount --bind "$1" "$1" && mount --bind "$2" "$2" && mount -o remount,bind,ro / || exit 77
shift 2
exec "$@"
"""


def case_install_stays_below_its_prefix(site):
    """Where everything but the scratch directory and the build is read-only."""
    need("cmake")
    build = os.path.dirname(os.path.dirname(site.termfs))

    def install(words, **environment):
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", INSTALL, "sh", site.scratch, build, "cmake",
                   "--install", os.path.join(build, "mount"), *words]
        run(*command, env={**os.environ, **environment})

    def found(top):
        return sorted(os.path.relpath(os.path.join(place, name), top) for place, _, names in os.walk(top) for name in names)
    programs = ["bin/termfs", "sbin/mount.fuse.termfs", "sbin/mount.termfs"]
    prefix = os.path.join(site.scratch, "prefix")
    install(["--prefix", prefix])
    check(found(prefix) == programs, f"below the prefix: {found(prefix)}")
    stage = os.path.join(site.scratch, "stage")
    install(["--prefix", "/usr"], DESTDIR=stage)
    check(found(stage) == [f"usr/{name}" for name in programs], f"below DESTDIR: {found(stage)}")
    check(run(os.path.join(stage, "usr", "sbin", "mount.termfs"), "--help").startswith("usage: mount.termfs"), "the helper")
