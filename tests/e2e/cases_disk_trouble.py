# SPDX-License-Identifier: Apache-2.0
"""Volumes on small disks that fill up to the last byte, or fail, while they are served and at each end and start."""
import errno
import fcntl
import os
import struct
import subprocess
import threading

from cases_posix import MIB, error_of, read_file, refuses, write_file
from volume import check, eventually, need, run

RESERVE = 32 * MIB
SHUT_DOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
WITHOUT_FLUSH = 2


class LoopDisk:
    """An ext4 of `size` MiB with a journal, without blocks for root only, at the directory of the next volume."""

    def __init__(self, site, size, options="defaults"):
        need("mkfs.ext4")
        self.path = os.path.join(site.scratch, f"vol{site.number + 1}")
        self.image = self.path + ".image"
        self.filler = os.path.join(self.path, "filler")
        with open(self.image, "wb") as image:
            image.truncate(size * MIB)
        run("mkfs.ext4", "-q", "-m", "0", "-F", self.image)
        os.mkdir(self.path)
        self.mount(options)
        os.rmdir(os.path.join(self.path, "lost+found"))

    def mount(self, options="defaults"):
        run("mount", "-o", f"loop,{options}", self.image, self.path)

    def free(self):
        use = os.statvfs(self.path)
        return use.f_bavail * use.f_frsize

    def fill(self):
        """To the last byte, as another program would."""
        with open(self.filler, "ab", buffering=0) as filler:
            for size in MIB, 65536, 4096, 1024:
                try:
                    while True:
                        filler.write(b"\xff" * size)
                except OSError as error:
                    check(error.errno == errno.ENOSPC, errno.errorcode[error.errno])

    def fail(self):
        """Each access fails from now on."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUT_DOWN, struct.pack("I", WITHOUT_FLUSH))
        finally:
            os.close(fd)

    def end(self):
        subprocess.run(["umount", "-l", self.path], check=False)
        if os.path.exists(self.image):
            os.unlink(self.image)


def log_of(volume):
    with open(os.path.join(volume.path, "log"), encoding="utf-8", errors="replace") as lines:
        return lines.read()


def reserve_of(volume):
    return os.stat(os.path.join(volume.path, "meta", "reserve")).st_blocks * 512


def messages_of(volume):
    """Bytes of everything that says something on the volume's disk."""
    meta = os.path.join(volume.path, "meta")
    return os.stat(os.path.join(volume.path, "log")).st_size + sum(
        os.stat(os.path.join(meta, name)).st_size for name in os.listdir(meta) if name.startswith("LOG"))


def tear_the_log(volume):
    """What a killed server leaves may end within a record."""
    meta = os.path.join(volume.path, "meta")
    newest = max(name for name in os.listdir(meta) if name.endswith(".log"))
    path = os.path.join(meta, newest)
    check(os.stat(path).st_size > 0, f"{newest} has records")
    os.truncate(path, os.stat(path).st_size - 3)


def case_full_disk_at_each_stage(site):
    disk = LoopDisk(site, 300)
    try:
        volume = site.volume("64M")
        check(reserve_of(volume) >= RESERVE, "the reserve is there")
        m = volume.mount("reconnect=120")
        data = os.urandom(2 * MIB)
        write_file(m / "kept", data)
        for i in range(60):
            write_file(m / f"f{i}", b"x" * 5000)
        os.mkdir(m / "directory")
        with open(m / "kept", "rb") as kept:
            os.fsync(kept.fileno())
        disk.fill()
        check(disk.free() == 0, "the disk is full")
        said = messages_of(volume)

        def works(stage, first):
            """Reading, removing and cutting off go on, and nothing is added."""
            check(read_file(m / "kept") == data, f"reading, {stage}")
            for i in range(first, first + 5):
                os.unlink(m / f"f{i}")
            os.truncate(m / f"f{first + 5}", 10)
            check(read_file(m / f"f{first + 5}") == b"x" * 10, f"truncated, {stage}")
            for _ in range(20):
                refuses(errno.ENOSPC, os.mkdir, m / "new")
            disk.fill()

        works("while it is served", 0)
        os.rmdir(m / "directory")
        volume.kill()
        volume.serve()
        works("after kill -9", 10)
        volume.kill()
        tear_the_log(volume)
        volume.serve()
        works("after kill -9 with a torn log", 20)
        volume.stop()
        check(log_of(volume).splitlines()[-1].endswith("ended, everything is on the SSD"), "its end")
        volume.serve()
        works("after an end", 30)
        check("in reserve" in volume.status()["health"], volume.status()["health"])
        check(messages_of(volume) - said < 128 << 10, f"{messages_of(volume) - said} bytes of messages")
        check(0 < reserve_of(volume) < RESERVE, f"{reserve_of(volume)} bytes are left in reserve")

        os.unlink(disk.filler)
        eventually(lambda: error_of(os.mkdir, m / "new") == 0, "writing goes on when there is room")
        write_file(m / "after", data)
        eventually(lambda: reserve_of(volume) >= RESERVE, "the reserve is full again")
        check(volume.status()["health"] == "ok", volume.status()["health"])
        volume.umount(m)
        volume.stop()
        volume.fsck()
        volume.serve()
        m = volume.mount()
        gone = [i for first in (0, 10, 20, 30) for i in range(first, first + 5)]
        left = {f"f{i}" for i in range(60) if i not in gone}
        check(set(os.listdir(m.path)) == left | {"kept", "after", "new"}, "each removal was kept, and nothing else")
        check(read_file(m / "kept") == data and read_file(m / "after") == data, "the bytes")
        volume.umount(m)
        volume.stop()
        volume.fsck()
    finally:
        site.clean_up_case()
        disk.end()


def case_full_disk_with_a_greedy_neighbour(site):
    """Another program takes each block that becomes free, and a volume is emptied all the same."""
    files = site.size(3000, 1000)
    disk = LoopDisk(site, 300)
    full = threading.Event()
    try:
        volume = site.volume("64M")
        m = volume.mount()
        for i in range(files):
            write_file(m / f"f{i}", b"x")
        disk.fill()

        def neighbour():
            while not full.is_set():
                disk.fill()

        eater = threading.Thread(target=neighbour)
        eater.start()
        try:
            for i in range(files):
                os.unlink(m / f"f{i}")
            check(not os.listdir(m.path), "all are gone")
        finally:
            full.set()
            eater.join()
        volume.kill()
        disk.fill()
        volume.serve()
        check(not os.listdir(m.path), "and stay so")
        volume.umount(m)
        volume.stop()
        os.unlink(disk.filler)
        volume.fsck()
    finally:
        full.set()
        site.clean_up_case()
        disk.end()


def case_disk_that_fails_altogether(site):
    """Region, written log and metadata on a disk that is gone: EIO, a line for each kind, and an honest end."""
    disk = LoopDisk(site, 300)
    tier = None
    try:
        volume = site.volume("64M", 0.25)
        tier = volume.tier()  # it cannot be read later
        m = volume.mount()
        write_file(m / "file", os.urandom(40 * MIB))
        fd = os.open(m / "file", os.O_RDWR)
        os.fsync(fd)
        os.pwrite(fd, b"changed", 0)
        log = os.path.join(site.scratch, "log")  # where the server can still write
        os.unlink(os.path.join(volume.path, "log"))
        os.symlink(log, os.path.join(volume.path, "log"))
        os.kill(volume.server, 1)
        eventually(lambda: os.path.exists(log) and "opened again" in log_of(volume), "the log is elsewhere")
        ino = os.fstat(fd).st_ino
        disk.fail()
        failed = {error_of(os.pread, fd, MIB, at * MIB) for at in range(40)}
        check(failed <= {0, errno.EIO} and errno.EIO in failed, f"reading: {failed}")
        check(error_of(os.fsync, fd) == errno.EIO, "fsync")
        check(error_of(os.mkdir, m / "new") == errno.EIO, "mkdir")
        os.close(fd)
        pid = volume.server
        volume.stop()
        check(pid, "it has ended")
        with open(log, encoding="utf-8") as lines:
            text = lines.read()
        lines = [line for line in text.splitlines() if " E " in line]
        region = os.path.join(volume.path, "region")
        reads = [line for line in lines if f"{region}: read of" in line]
        check(len(reads) == 1 and f"of inode {ino} at " in reads[0] and "errno 5" in reads[0], f"reads: {reads}")
        check(len([line for line in lines if "metadata store: write of" in line]) == 1, f"metadata: {lines}")
        check("everything is on the SSD" not in text.replace("not everything is on the SSD", ""), "it said that all is well")
        check("not everything is on the SSD" in text, text[-1000:])
        check(len(lines) < 40, f"{len(lines)} lines")
    finally:
        for volume in site.volumes:
            for mount in list(volume.mounts):
                volume.abandon(mount)
        site.end_processes()
        site.volumes = []
        if tier is not None:
            check(os.path.exists(os.path.join(tier, "frames")), "what is not on the SSD is still in memory")
            run("umount", tier)
            os.rmdir(tier)
        disk.end()
