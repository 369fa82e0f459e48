# SPDX-License-Identifier: Apache-2.0
"""File handles: name_to_handle_at and open_by_handle_at, as NFS servers and backup programs use them."""
import ctypes
import errno
import os

from cases_posix import read_file, write_file
from volume import Skip, check

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
MAX_HANDLE_SZ = 128


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * MAX_HANDLE_SZ)]


def handle_of(path):
    handle, mount_id = Handle(bytes=MAX_HANDLE_SZ), ctypes.c_int()
    if LIBC.name_to_handle_at(AT_FDCWD, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount_id), 0) != 0:
        number = ctypes.get_errno()
        if number == errno.EOPNOTSUPP:
            raise Skip("no file handles")
        raise OSError(number, "name_to_handle_at")
    return handle


def open_handle(mount, handle, flags=os.O_RDONLY):
    root = os.open(mount.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fd = LIBC.open_by_handle_at(root, ctypes.byref(handle), flags)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "open_by_handle_at")
        return fd
    finally:
        os.close(root)


def case_handles_of_open_files(site):
    """A handle leads to the file whatever its name is, and to none after the file has gone."""
    mount = site.mounted("64M")
    os.mkdir(mount / "d")
    write_file(mount / "d/f", b"first")
    keep = os.open(mount / "d/f", os.O_RDONLY)  # the kernel knows the inode for as long
    handle = handle_of(mount / "d/f")
    os.rename(mount / "d/f", mount / "g")
    write_file(mount / "d/f", b"second")
    fd = open_handle(mount, handle)
    check(os.read(fd, 10) == b"first" and os.fstat(fd).st_ino == os.fstat(keep).st_ino, "the file, not the name")
    os.close(fd)
    directory = open_handle(mount, handle_of(mount / "d"), os.O_RDONLY | os.O_DIRECTORY)
    check(os.listdir(directory) == ["f"], "a directory")
    os.close(directory)
    os.unlink(mount / "g")
    os.close(keep)


def case_handles_outlive_the_mount(site):
    volume = site.volume("64M")
    mount = volume.mount()
    write_file(mount / "f", b"kept")
    write_file(mount / "gone", b"x")
    handle, gone = handle_of(mount / "f"), handle_of(mount / "gone")
    os.unlink(mount / "gone")
    volume.umount(mount)
    mount = volume.mount()
    try:
        fd = open_handle(mount, handle)
    except OSError as error:
        if error.errno == errno.ESTALE:
            raise Skip("the kernel opens handles only of what it knows: the mount does not offer FUSE_EXPORT_SUPPORT") from None
        raise
    check(os.read(fd, 10) == b"kept", "after the mount was made again")
    os.close(fd)
    try:
        os.close(open_handle(mount, gone))
    except OSError as error:
        check(error.errno == errno.ESTALE, f"of a file that has gone: {error}")
    else:
        raise AssertionError("a file that has gone is opened")
    check(read_file(mount / "f") == b"kept", "by its name")
