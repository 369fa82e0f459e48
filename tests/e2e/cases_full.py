# SPDX-License-Identifier: Apache-2.0
"""Disks that are full or fail while a volume is served."""
import errno
import mmap
import os
import shutil
import subprocess

from cases_posix import MIB, error_of, read_file, refuses, write_file
from volume import check, eventually, need, run

PAGE = 4096


class SmallDisk:
    """A tmpfs of `size` over the directory `path`, with what was in it."""

    def __init__(self, path, size):
        self.path = path
        self.filler = os.path.join(path, "filler")
        copy = path + ".copy"
        shutil.copytree(path, copy)
        run("mount", "-t", "tmpfs", "-o", f"size={size}", "none", path)
        shutil.copytree(copy, path, dirs_exist_ok=True)
        shutil.rmtree(copy)

    def leave(self, free):
        """Fills it so that `free` bytes are left; all of it when that is 0."""
        if os.path.exists(self.filler):
            os.unlink(self.filler)
        use = os.statvfs(self.path)
        with open(self.filler, "wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, use.f_bavail * use.f_frsize - free)

    def end(self):
        subprocess.run(["umount", "-l", self.path], check=False)


def case_full_metadata_disk(site):
    volume = site.volume("64M")
    volume.stop()
    disk = SmallDisk(os.path.join(volume.path, "meta"), 128 * MIB)
    fd = None
    try:
        volume.serve()
        m = volume.mount()
        data = os.urandom(2 * MIB)
        write_file(m / "kept", data)
        for i in range(20):
            write_file(m / f"f{i}", b"x" * 5000)
        fd = os.open(m / "kept", os.O_RDWR)
        os.fsync(fd)

        # Little room: nothing is added, but what is there can be changed and removed.
        disk.leave(32 * MIB)
        refuses(errno.ENOSPC, write_file, m / "new", b"x")
        refuses(errno.ENOSPC, os.mkdir, m / "new")
        refuses(errno.ENOSPC, os.link, m / "kept", m / "new")
        refuses(errno.ENOSPC, os.setxattr, m / "kept", "user.a", b"x")
        check(not os.path.lexists(m / "new"), "what was refused is not there")
        os.unlink(m / "f0")
        os.truncate(m / "f1", 10)
        os.chmod(m / "f2", 0o600)
        os.pwrite(fd, b"changed", 100)
        os.fsync(fd)
        data = data[:100] + b"changed" + data[107:]

        # No room at all, taken by somebody else: reads go on, nothing that was acknowledged is lost.
        disk.leave(0)
        os.unlink(m / "f3")  # by what is kept in reserve
        refuses(errno.ENOSPC, os.mkdir, m / "new")
        check(read_file(m / "kept") == data and len(os.listdir(m.path)) == 19, "reading on a full disk")
        check("0 MiB free" in volume.status()["health"], volume.status()["health"])
        os.close(fd)
        fd = None
        volume.umount(m)
        m2 = volume.mount()
        check(read_file(m2 / "kept") == data, "reading on a full disk, from a new mount")

        # Room again: no restart, no remount.
        os.unlink(disk.filler)

        def works():
            try:
                os.mkdir(m2 / "new")
                return True
            except OSError as error:
                check(error.errno == errno.ENOSPC, f"{errno.errorcode[error.errno]}")
                return False

        eventually(works, "writing goes on when there is room again")
        check(volume.status()["health"] == "ok", volume.status()["health"])
        os.unlink(m2 / "f4")
        write_file(m2 / "after", data)
        volume.umount(m2)
        volume.stop()
        volume.fsck()
        volume.serve()
        m3 = volume.mount()
        check(read_file(m3 / "kept") == data and read_file(m3 / "after") == data, "after a restart")
        volume.umount(m3)
        volume.stop()
        volume.fsck()
    finally:
        if fd is not None:
            os.close(fd)
        disk.end()


def case_failing_ssd(site):
    """A thin disk whose backing store is full: writes fail, what was there is read, and nothing acknowledged is lost."""
    need("losetup")
    backing = os.path.join(site.scratch, "backing")
    os.mkdir(backing)
    run("mount", "-t", "tmpfs", "-o", "size=128m", "none", backing)
    disk, filler = os.path.join(backing, "disk"), os.path.join(backing, "filler")
    with open(disk, "wb") as sparse:
        sparse.truncate(80 * MIB)
    loop = run("losetup", "--direct-io=off", "--find", "--show", disk).strip()
    fd = None
    try:
        volume = site.volume("64M", 0.5, "--device", loop)
        m, other = volume.mount(), volume.mount()
        early = os.urandom(8 * MIB)
        write_file(m / "early", early)
        fd = os.open(m / "early", os.O_RDWR)
        os.fsync(fd)
        os.close(fd)

        # Full to the last page: of a write that fits in part, the loop driver would say that it succeeded.
        use = os.statvfs(backing)
        with open(filler, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, use.f_bavail * use.f_frsize)

        late = os.urandom(24 * MIB)
        fd = os.open(m / "late", os.O_RDWR | os.O_CREAT, 0o600)
        written = 0
        try:
            while written < len(late):
                written += os.pwrite(fd, late[written:written + MIB], written)
        except OSError as error:
            check(error.errno in (errno.EIO, errno.ENOSPC), errno.errorcode[error.errno])
        check(written > 0, "the first write was taken into memory")
        try:
            os.fsync(fd)
            raise AssertionError("fsync succeeded although the disk is full")
        except OSError as error:
            check(error.errno in (errno.EIO, errno.ENOSPC), errno.errorcode[error.errno])
        check(read_file(other / "early") == early, "reading goes on")
        check(read_file(other / "late")[:written] == late[:written], "what was acknowledged is read back")
        os.mkdir(other / "directory")
        check("SSD have failed" in volume.status()["health"], volume.status()["health"])
        with open(os.path.join(volume.path, "log"), encoding="utf-8") as lines:
            failed = [line for line in lines if f"{loop}: write of" in line or f"{loop}: flush failed" in line]
        check(1 <= len(failed) <= 4, f"one line for each kind and minute: {failed}")
        ino = os.stat(other / "late").st_ino
        check(any("errno " in line for line in failed), f"{failed}")
        check("flush" in failed[0] or f"of inode {ino} at" in failed[0], f"the file of {failed[0]}")

        os.unlink(filler)

        def synced():
            try:
                os.fsync(fd)
                return True
            except OSError:
                return False

        eventually(synced, "the server goes on when the disk works again")
        os.pwrite(fd, late[written:], written)
        os.fsync(fd)
        os.close(fd)
        fd = None
        volume.umount(m)
        volume.umount(other)
        volume.stop()
        volume.fsck()
        volume.serve()
        m = volume.mount()
        for name, wanted in (("early", early), ("late", late)):
            found = read_file(m / name)
            wrong = [i for i in range(0, len(wanted), 4096) if found[i:i + 4096] != wanted[i:i + 4096]]
            check(found == wanted, f"{name} after a restart, {len(found)} bytes, wrong pages {len(wrong)} from {wrong[:4]}")
        volume.umount(m)
        volume.stop()
        volume.fsck()
    finally:
        if fd is not None:
            os.close(fd)
        site.clean_up_case()
        run("losetup", "--detach", loop)
        run("umount", "-l", backing)
        os.rmdir(backing)


def case_full_volume_and_stores_through_mappings(site):
    """A store into a hole is taken; that there was no room for it says msync or fsync, once to each descriptor."""
    m = site.mounted("64M")
    holes = {}
    for name in "synced by msync", "synced by fsync", "unmapped", "closed", "two":
        holes[name] = os.open(m / name, os.O_RDWR | os.O_CREAT)
        os.ftruncate(holes[name], 16 * PAGE)
    with open(m / "big", "wb", buffering=0) as big:
        for step in MIB, PAGE:
            check(error_of(lambda: [big.write(b"x" * step) for _ in range(64 * MIB // step + 1)]) == errno.ENOSPC, "full")

    def store(name):
        mapping = mmap.mmap(holes[name], 16 * PAGE)
        mapping[5 * PAGE] = 65  # no SIGBUS
        return mapping

    mapping, fd = store("synced by msync"), holes["synced by msync"]
    check(error_of(mapping.flush) == errno.ENOSPC, "msync")
    check(mapping[5 * PAGE] == 65 and os.pread(fd, 1, 5 * PAGE) == b"\0", "the mapping has it, the file does not")
    check(error_of(os.fsync, fd) == 0 and error_of(mapping.flush) == 0, "it is said once")
    mapping.close()
    os.close(fd)
    mapping, fd = store("synced by fsync"), holes["synced by fsync"]
    check(error_of(os.fsync, fd) == errno.ENOSPC and error_of(os.fsync, fd) == 0, "fsync, once")
    mapping.close()
    store("unmapped").close()
    check(error_of(os.fsync, holes["unmapped"]) == errno.ENOSPC, "fsync after munmap")
    store("closed").close()
    check(error_of(os.close, holes["closed"]) == 0, "close says nothing")
    fd = os.open(m / "closed", os.O_RDONLY)
    check(error_of(os.fsync, fd) == errno.ENOSPC, "fsync of the next that opens the file")
    other = os.open(m / "two", os.O_RDONLY)
    opened = fd, other, holes["synced by fsync"], holes["unmapped"], holes["two"]
    mapping = store("two")
    check(error_of(os.fsync, other) == errno.ENOSPC and error_of(os.fsync, holes["two"]) == errno.ENOSPC, "each is told")
    mapping.close()
    os.unlink(m / "big")
    fd = holes["two"]
    eventually(lambda: error_of(os.pwrite, fd, b"x", 0) == 0, "there is room again")
    mapping = store("two")
    mapping[6 * PAGE] = 66
    mapping.flush()
    check(os.pread(fd, 1, 6 * PAGE) == b"B", "with room, a store is kept")
    mapping.close()
    for fd in opened:
        os.close(fd)
