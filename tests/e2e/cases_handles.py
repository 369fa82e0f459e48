# SPDX-License-Identifier: Apache-2.0
"""File handles: name_to_handle_at and open_by_handle_at, and an NFS server that lives on them."""
import ctypes
import errno
import glob
import os
import pathlib
import shutil
import subprocess

from cases_posix import AT_FDCWD, LIBC, MIB, read_file, refuses, write_file
from volume import Skip, alone, check, need, run

MAX_HANDLE_SZ = 128
BYTES = os.urandom(3 * MIB + 5)


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * MAX_HANDLE_SZ)]


def handle_of(path):
    handle, mount_id = Handle(MAX_HANDLE_SZ), ctypes.c_int()
    if LIBC.name_to_handle_at(AT_FDCWD, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount_id), 0) < 0:
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return handle


def open_handle(mount, handle, flags=os.O_RDONLY):
    """A descriptor of what the handle names, within the mount."""
    directory = os.open(mount.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fd = LIBC.open_by_handle_at(directory, ctypes.byref(handle), flags)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "open_by_handle_at")
        return fd
    finally:
        os.close(directory)


def expect_opens(mount, handles):
    """Each of (path, its handle) opens, and is that path's inode; of directories the kernel knows the path."""
    for path, handle in handles:
        fd = open_handle(mount, handle, os.O_PATH | os.O_NOFOLLOW)
        known, found = os.fstat(fd), os.lstat(mount / path)
        check((known.st_ino, known.st_mode) == (found.st_ino, found.st_mode), f"the handle of {path} leads elsewhere")
        if os.path.isdir(mount / path) and not os.path.islink(mount / path):
            check(os.readlink(f"/proc/self/fd/{fd}") == os.path.normpath(mount / path), f"the path of {path}")
        os.close(fd)


def case_handles_of_what_the_kernel_has_not_seen(site):
    """Handles open on a mount that has never heard of the inodes, after a remount, and after a restart of the server."""
    volume = site.volume()
    a = volume.mount()
    os.makedirs(a / "d/e/f")
    write_file(a / "d/e/f/file", b"bytes")
    os.symlink("nowhere", a / "d/e/link")
    os.mkfifo(a / "d/fifo")
    handles = [(path, handle_of(a / path)) for path in ("d/e/f/file", "d/e/f", "d", "d/e/link", "d/fifo", "")]
    expect_opens(a, handles)
    b = volume.mount()
    expect_opens(b, handles)
    volume.umount(a)
    a = volume.mount()
    expect_opens(a, handles)
    volume.umount(b)
    volume.stop()
    volume.serve()
    expect_opens(a, handles)
    b = volume.mount()
    expect_opens(b, handles)
    fd = open_handle(b, handles[0][1], os.O_RDWR)
    check(os.read(fd, 10) == b"bytes", "bytes by a handle")
    os.write(fd, b", more")
    os.close(fd)
    check(read_file(a / "d/e/f/file") == b"bytes, more", "bytes written by a handle")
    os.rename(a / "d/e", a / "moved")
    expect_opens(volume.mount(), [(path.replace("d/e", "moved"), handle) for path, handle in handles])


def case_handles_of_what_was_removed(site):
    volume = site.volume()
    a, b = volume.mount(), volume.mount()
    write_file(a / "f", b"x")
    write_file(a / "open", b"x")
    os.mkdir(a / "d")
    handles = [handle_of(a / name) for name in ("f", "open", "d")]
    held = os.open(a / "open", os.O_RDONLY)
    os.unlink(a / "f")
    os.unlink(a / "open")
    os.rmdir(a / "d")
    write_file(a / "f", b"another")
    os.mkdir(a / "d")
    for handle in handles:
        refuses(errno.ESTALE, open_handle, b, handle, os.O_RDONLY)
    os.close(held)
    c = volume.mount()
    for handle in handles:
        for mount in a, b, c:
            refuses(errno.ESTALE, open_handle, mount, handle, os.O_RDONLY)
    open(a / "other", "w").close()
    wrong = handle_of(a / "other")
    wrong.data[8] ^= 1  # of the generation, behind the number
    refuses(errno.ESTALE, open_handle, c, wrong, os.O_RDONLY)


# NFS 3, as libnfs 4.0.0 of Debian 12 does not write by NFS 4, to an ext4 neither. In a network namespace, as rpcbind and
# the server want ports of their own; /run is theirs, too. What still runs ends with the
# process namespace.
GANESHA = """
NFS_CORE_PARAM {{ Protocols = 3; NFS_Port = 2049; MNT_Port = 20048; Enable_NLM = false; Enable_RQUOTA = false; }}
NFSv4 {{ RecoveryRoot = {scratch}; }}
EXPORT {{ Export_Id = 1; Path = {path}; Pseudo = /export; Access_Type = RW; Squash = No_Root_Squash; SecType = sys;
         FSAL {{ Name = VFS; }} }}
"""
SERVE_AND_USE = """
ip link set lo up
mount -t tmpfs none /run
rpcbind -f &
until rpcinfo -p > /dev/null 2>&1; do sleep 0.1; done
ganesha.nfsd -F -L $1/log -f $1/ganesha.conf -p $1/pid & server=$!
url=nfs://127.0.0.1$2
until nfs-ls $url > /dev/null 2>&1; do ls -L /proc/$server/exe > /dev/null; sleep 0.2; done
nfs-cp $1/bytes $url/d/copy > /dev/null
nfs-cp $url/d/copy $1/back > /dev/null
nfs-cat $url/d/e/there
nfs-ls $url/d | sed 's/ .* / /' | sort
nfs-ls $url/d/e | sed 's/ .* / /' | sort
kill $server
wait $server
"""


def use_over_nfs(scratch, directory):
    """What an NFS client sees of the directory, while it reads and writes there."""
    scratch, directory = pathlib.Path(scratch), pathlib.Path(directory)
    scratch.mkdir()
    (scratch / "bytes").write_bytes(BYTES)
    (scratch / "ganesha.conf").write_text(GANESHA.format(scratch=scratch, path=directory))
    done = run("unshare", "-nmpf", "--kill-child", "--mount-proc", "bash", "-euc", SERVE_AND_USE, "nfs", scratch, directory, seconds=60)
    check((scratch / "back").read_bytes() == BYTES, "bytes read over NFS")
    check(read_file(directory / "d/copy") == BYTES, "bytes written over NFS")
    return done


@alone  # its mount namespace has the mounts of other cases, too
def case_handles_for_an_nfs_server(site):
    """nfs-ganesha with its VFS back end, which knows files by their handles only, on a mount as on ext4."""
    for program in "ganesha.nfsd", "rpcbind", "nfs-ls", "unshare", "ip":
        need(program)
    if not glob.glob("/usr/lib/*/ganesha/libfsalvfs.so"):
        raise Skip("no VFS back end of nfs-ganesha here (nfs-ganesha-vfs)")
    volume = site.volume()
    mount = volume.mount()
    seen = []
    for name, directory in ("ext4", f"{site.scratch}/exported{site.next_number()}"), ("termfs", mount.path):
        os.makedirs(f"{directory}/d/e")
        write_file(f"{directory}/d/e/there", b"was there before\n")
        seen.append(use_over_nfs(f"{site.scratch}/nfs-{name}", directory))
    check(seen[0] == seen[1], f"over NFS ext4 shows\n{seen[0]}\nand the mount\n{seen[1]}")
    check("was there before" in seen[1] and "copy" in seen[1], f"over NFS: {seen[1]}")
    volume.umount(mount)
    mount = volume.mount()
    os.unlink(mount / "d/copy")
    check(use_over_nfs(f"{site.scratch}/nfs-again", mount.path) == seen[0], "after a remount")
