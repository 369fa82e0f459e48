# SPDX-License-Identifier: Apache-2.0
"""What each kernel keeps to itself, so that other mounts know nothing of it: docs/posix.md has a row for each."""
import ctypes
import errno
import fcntl
import os
import select
import shutil
import signal
import struct
import subprocess

from cases_posix import libc, read_file, refuses, write_file
from volume import Skip, check, eventually, need

# In the directory $1, one command for each line of standard input.
IN_DIRECTORY = 'cd "$1" && echo there; while read -r line; do eval "$line" 2>&1; echo end; done'


class Shell:
    def __init__(self, site, directory):
        self.shell = site.start("sh", "-c", IN_DIRECTORY, "sh", directory, stdin=subprocess.PIPE)
        check(self.shell.stdout.readline() == "there\n", "a shell in the directory")

    def run(self, line):
        self.shell.stdin.write(line + "\n")
        self.shell.stdin.flush()
        said = []
        while said[-1:] != ["end\n"]:
            said.append(self.shell.stdout.readline())
            check(said[-1] != "", f"the shell has ended: {''.join(said)}")
        return "".join(said[:-1]).strip()


def case_working_directory_moved_by_another_mount(site):
    """It goes on; its path is known again once a path of this mount leads to it."""
    volume = site.volume("64M")
    a, b = volume.mount(), volume.mount()
    os.makedirs(a / "old/dir")
    os.mkdir(a / "new")
    shell = Shell(site, a / "old/dir")
    write_file(b / "old/where", b"old\n")
    write_file(b / "new/where", b"new\n")
    os.rename(b / "old/dir", b / "new/dir")
    check(shell.run("echo x > made; cat made") == "x", "files in it")
    check(read_file(b / "new/dir/made") == b"x\n", "which are where it is now")
    check("(deleted)" in shell.run("readlink /proc/self/cwd") and shell.run("cat ../where") == "old", "its path is not known")
    check(os.listdir(a / "new/dir") == ["made"], "a path that leads to it")
    check(shell.run("readlink /proc/self/cwd") == str(a / "new/dir") and shell.run("cat ../where") == "new", "it is known now")


def open_at_once(path, flags):
    os.close(os.open(path, flags | os.O_NONBLOCK))


def case_leases_are_of_one_mount(site):
    volume = site.volume("64M")
    a, b = volume.mount(), volume.mount()
    write_file(a / "f", b"x")
    told = []
    before = signal.signal(signal.SIGIO, lambda *_: told.append(1))
    fd = os.open(a / "f", os.O_RDONLY)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        open_at_once(b / "f", os.O_WRONLY)
        check(not told, "an open by another mount breaks no lease")
        refuses(errno.EWOULDBLOCK, open_at_once, a / "f", os.O_WRONLY)
        check(told, "one by the same mount does")
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, before)


IN_CREATE = 0x100


def names_of_events(fd):
    names, data = [], b""
    while select.select([fd], [], [], 0)[0]:
        data += os.read(fd, 65536)
    while data:
        _, mask, _, length = struct.unpack_from("iIII", data)
        name = data[16:16 + length].rstrip(b"\0").decode()
        names += [name] if mask & IN_CREATE else []
        data = data[16 + length:]
    return names


def case_inotify_is_of_one_mount(site):
    volume = site.volume("64M")
    a, b = volume.mount(), volume.mount()
    os.mkdir(a / "d")
    fd = ctypes.CDLL(None).inotify_init1(os.O_NONBLOCK)
    check(fd >= 0, "inotify")
    try:
        libc("inotify_add_watch", fd, (a / "d").encode(), IN_CREATE)
        write_file(b / "d/other", b"x")
        check(sorted(os.listdir(a / "d")) == ["other"], "what another mount has made is seen")
        write_file(a / "d/own", b"x")
        check(names_of_events(fd) == ["own"], "and only what this one has made is told of")
    finally:
        os.close(fd)


def case_running_programs_on_other_mounts(site):
    """ETXTBSY, as far as one kernel's mount knows."""
    need("sleep")
    volume = site.volume("64M")
    a, b = volume.mount(), volume.mount()
    program = a / "sleep"
    shutil.copy(shutil.which("sleep"), program)
    running = site.start(program, "1000")
    eventually(lambda: os.readlink(f"/proc/{running.pid}/exe") == program, "it runs")
    refuses(errno.ETXTBSY, os.open, program, os.O_WRONLY)
    fd = os.open(b / "sleep", os.O_WRONLY)
    check(subprocess.run([program, "0"], check=False).returncode == 0, "it starts while another mount has it open to write")
    refuses(errno.ETXTBSY, subprocess.run, [b / "sleep", "0"], check=False)
    os.close(fd)


class MountAttributes(ctypes.Structure):
    _fields_ = [("set", ctypes.c_uint64), ("clear", ctypes.c_uint64), ("propagation", ctypes.c_uint64),
                ("namespace", ctypes.c_uint64)]


def map_owners(path, namespace):
    """Of a copy of the mount, which goes with its descriptor."""
    open_tree, mount_setattr = 428, 442
    clone, empty_path, idmap = 1, 0x1000, 0x100000
    system = ctypes.CDLL(None, use_errno=True).syscall
    tree = system(open_tree, -100, os.fsencode(path), clone | os.O_CLOEXEC)
    if tree < 0:
        raise OSError(ctypes.get_errno(), "open_tree")
    try:
        attributes = MountAttributes(set=idmap, namespace=namespace)
        if system(mount_setattr, tree, b"", empty_path, ctypes.byref(attributes), ctypes.sizeof(attributes)) != 0:
            raise OSError(ctypes.get_errno(), "mount_setattr")
    finally:
        os.close(tree)


def case_owners_of_a_mount_are_not_mapped(site):
    """An idmapped mount of a file system that knows none is refused, and not made without the mapping."""
    need("unshare")
    volume = site.volume("64M")
    m = volume.mount()
    holder = site.start("unshare", "--user", "sh", "-c", "echo there; exec sleep 1000")
    check(holder.stdout.readline() == "there\n", "a user namespace")
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{holder.pid}/{name}", "w", encoding="ascii") as file:
            file.write("0 100000 1000")
    namespace = os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY)
    try:
        try:
            map_owners("/dev/shm", namespace)
        except OSError as error:
            raise Skip(f"this kernel maps no owners of a tmpfs: {error}") from None
        refuses(errno.EINVAL, map_owners, m.path, namespace)
    finally:
        os.close(namespace)
