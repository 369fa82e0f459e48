# SPDX-License-Identifier: Apache-2.0
"""A volume that grows and shrinks while it is served and used, and a DRAM tier that does."""
import contextlib
import errno
import hashlib
import json
import os
import pty
import random
import signal
import subprocess
import sys
import threading
import time

from cases_input import loop_device, refused
from cases_posix import MIB, read_file, write_file
from volume import alone, check, ended, eventually, need, need_less_than, run, stop


# Writes and reads pages of a file of its own, and compares, until SIGTERM; then it compares all of them.
LOAD = """
import os, random, signal, sys
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
random.seed(sys.argv[2])
pages, operations = 4096, 0
versions = [0] * pages
def page(i):
    return (b"%s-%d-%d " % (sys.argv[2].encode(), i, versions[i])).ljust(32, b".") * 128
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for i in range(pages):
    os.pwrite(fd, page(i), i * 4096)
print("ready", flush=True)
while not stop:
    i = random.randrange(pages)
    if random.random() < 0.4:
        versions[i] += 1
        assert os.pwrite(fd, page(i), i * 4096) == 4096
    else:
        assert os.pread(fd, 4096, i * 4096) == page(i), f"page {i}"
    operations += 1
for i in range(pages):
    assert os.pread(fd, 4096, i * 4096) == page(i), f"page {i} at last"
print(operations)
"""


def start_load(site, mount, name):
    load = site.start(sys.executable, "-c", LOAD, mount / name, name)
    check(load.stdout.readline() == "ready\n", f"{name} is laid out")
    return load


def end_load(load):
    load.terminate()
    output, _ = load.communicate(timeout=300)
    check(load.returncode == 0 and int(output) > 0, f"load: {output[-500:]}")


class Fio:
    """fio writes and reads 4 KiB pages of its files and verifies them, again and again until end()."""

    def __init__(self, site, mount, size):
        need("fio")
        self.command = ["fio", "--name=fio", f"--directory={mount.path}", f"--size={size}", "--numjobs=2", "--rw=randrw",
                        "--bs=4k", "--direct=1", "--verify=crc32c", "--verify_fatal=1", "--verify_backlog=128",
                        "--fallocate=none", "--minimal"]
        self.site = site
        self.runs = 0
        self.problem = None
        self.stopping = False
        self.first_ended = threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()
        check(self.first_ended.wait(300) and not self.problem, f"fio's first run: {self.problem}")  # its space is allocated

    def work(self):
        while not self.stopping and not self.problem:
            child = self.site.start(*self.command, cwd=self.site.scratch)
            try:
                output, _ = child.communicate(timeout=300)
                self.problem = None if child.returncode == 0 else f"exit code {child.returncode}: {output[-500:]}"
            except subprocess.TimeoutExpired:
                child.kill()
                self.problem = "it hangs"
            self.runs += 1
            self.first_ended.set()

    def end(self, at_least):
        """Once it has run so often in all."""
        eventually(lambda: self.runs >= at_least or self.problem, "fio goes on", 300)
        self.stopping = True
        self.thread.join(timeout=310)
        check(not self.problem and not self.thread.is_alive(), f"fio: {self.problem}")


def content_of(name, size=MIB):
    return hashlib.sha256(name.encode()).digest() * (size // 32)


def write_synced(path, data):
    with open(path, "wb", buffering=0) as file:
        check(file.write(data) == len(data), f"{path}: a short write")
        os.fsync(file.fileno())


def fill(mount, prefix):
    """Files of 1 MiB until there is no space; the names of those that were written whole."""
    names = []
    while True:
        name = f"{prefix}{len(names)}"
        try:
            with open(mount / name, "wb", buffering=0) as file:
                whole = file.write(content_of(name)) == MIB
        except OSError as error:
            check(error.errno == errno.ENOSPC, f"{name}: {error}")
            whole = False
        if not whole:
            os.unlink(mount / name)
            return names
        names.append(name)


def expect_contents(mount, names):
    wrong = [name for name in names if read_file(mount / name) != content_of(name)]
    check(not wrong, f"contents: {wrong}")


def set_capacity(site, volume, capacity):
    run(site.termfs, "set", volume.path, f"capacity={capacity}")


def in_memory(volume):
    """Bytes of memory that the volume's tier has now."""
    found = os.statvfs(volume.tier())
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def expect_after_restart(volume, capacity, names):
    """A check in between finds nothing."""
    for mount in list(volume.mounts):
        volume.umount(mount)
    volume.stop()
    volume.fsck()
    volume.serve()
    check(volume.status()["capacity_bytes"] == capacity, "the capacity after a restart")
    expect_contents(volume.mount(), names)


@alone
def case_capacity_grows_under_load(site):
    volume = site.volume("96M", 0.4)
    m = volume.mount()
    check(os.statvfs(m.path).f_blocks * 4096 == 96 * MIB, "the size that the mount says")
    loads = [start_load(site, m, f"load{index}") for index in range(2)]
    fio = Fio(site, m, "4m")
    names = fill(m, "before")
    check(40 < len(names) < 64, f"{len(names)} files until the volume was full")
    runs = fio.runs
    set_capacity(site, volume, "160M")
    status = volume.status()
    check(status["capacity_bytes"] == status["capacity_target_bytes"] == 160 * MIB, str(status))
    check(status["tier_bytes"] == 64 * MIB, f"the tier grows along: {status['tier_bytes']}")
    check(os.statvfs(m.path).f_blocks * 4096 == 160 * MIB, "the mount says so, too")
    more = fill(m, "after")
    check(60 <= len(more) <= 64, f"{len(more)} files in 64 MiB more")
    set_capacity(site, volume, "512M")
    more += fill(m, "last")
    check(len(more) > 400, f"{len(more)} files")
    expect_contents(m, names + more)
    fio.end(runs + 2)
    for load in loads:
        end_load(load)
    other = volume.mount()
    expect_contents(other, names + more)
    expect_after_restart(volume, 512 * MIB, names + more)


def case_capacity_grows_for_every_bitmap(site):
    volume = site.volume("32M", 1)
    mounts = [volume.mount(f"bitmap={mode}") for mode in ("live", "pulled", "off")]
    names = fill(mounts[0], "before")
    set_capacity(site, volume, "64M")
    more = []
    for index, mount in enumerate(mounts):
        for name in (f"a{index}", f"b{index}", f"c{index}"):
            write_file(mount / name, content_of(name))
            more.append(name)
    for mount in mounts:
        expect_contents(mount, names + more)


def case_capacity_in_odd_sizes(site):
    """All of it in memory, which comes in pieces of 4 MiB, of sizes that are no multiple of them."""
    volume = site.volume("18M", 1)
    m = volume.mount()
    names = []
    for capacity in (18, 21, 50, 23, 22, 87):
        set_capacity(site, volume, f"{capacity}M")
        status = volume.status()
        check(status["capacity_bytes"] == status["tier_bytes"] == capacity * MIB, f"{capacity}: {status}")
        names += fill(m, f"at{capacity}-")
        expect_contents(m, names)
        for name in names[5:]:
            os.unlink(m / name)
        names = names[:5]


def case_capacity_growth_killed(site):
    volume = site.volume("32M", 0.5)
    moments = random.Random(11)
    names, capacity = [], 32
    for round_number in range(site.size(12, 5)):
        m = volume.mount()
        name = f"f{round_number}"
        write_synced(m / name, content_of(name))
        names.append(name)
        wanted = capacity + 20
        setting = subprocess.Popen([site.termfs, "set", volume.path, f"capacity={wanted}M"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        time.sleep(moments.uniform(0, 0.05))  # the moment of death, not a wait for anything
        volume.kill()
        setting.wait(timeout=120)
        volume.abandon(m)
        if round_number % 3 == 2:
            volume.drop_tier()
        volume.fsck()
        volume.serve()
        found = volume.status()["capacity_bytes"] // MIB
        check(found in (capacity, wanted), f"capacity {found} MiB, neither {capacity} nor {wanted}")
        check(setting.returncode != 0 or found == wanted, "what set has done is kept")
        check(os.path.getsize(os.path.join(volume.path, "region")) == (found + 1) * MIB, "the file is as long as it has to be")
        capacity = found
        m = volume.mount()
        expect_contents(m, names)
        volume.umount(m)
    set_capacity(site, volume, f"{capacity + 20}M")
    m = volume.mount()
    expect_contents(m, names + fill(m, "last"))


def case_capacity_refuses(site):
    need_less_than(site.scratch, 3 << 40)
    volume = site.volume("32M", 0.5)
    before = volume.status()
    size, allowed = "is not a size", "capacity must be from 16 MiB"
    for value, says in (("abc", size), ("-1", size), ("", size), ("1e9", size), ("8X", size), ("0", allowed),
                        ("15M", allowed), ("67108865", allowed), ("4T", allowed), ("99999999999999999999", size)):
        refused(site, 2, says, "set", volume.path, "dram-ratio=0.25", f"capacity={value}")
    run(site.termfs, "set", volume.path, "dram-ratio=1")
    refused(site, 1, "iB", "set", volume.path, "capacity=60G")  # no memory for that tier, or no disk for that region
    run(site.termfs, "set", volume.path, "dram-ratio=0.5")
    refused(site, 1, "more are needed", "set", volume.path, "capacity=3T")
    after = volume.status()
    same = ("capacity_bytes", "capacity_target_bytes", "free_bytes", "tier_bytes", "dram_ratio")
    check(all(before[key] == after[key] for key in same), f"{before} became {after}")
    check(os.path.getsize(os.path.join(volume.path, "region")) == 33 * MIB, "the region's file")
    setters = [subprocess.Popen([site.termfs, "set", volume.path, f"capacity={size}M"], stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL) for size in (64, 48)]
    codes = [setter.wait(timeout=60) for setter in setters]
    check(0 in codes and set(codes) <= {0, 1}, f"two at once: {codes}")
    check(volume.status()["capacity_bytes"] in (64 * MIB, 48 * MIB), "one of the two")


def files_beyond(mount, count, kept):
    """Of `count` files of 1 MiB the last `kept`, which lie farther back than those that were removed."""
    names = [f"f{i}" for i in range(count)]
    for name in names:
        write_synced(mount / name, content_of(name))
    for name in names[:-kept]:
        os.unlink(mount / name)
    return names[-kept:]


@alone
def case_capacity_shrinks_under_load(site):
    volume = site.volume("256M", 0.4)
    m = volume.mount()
    names = files_beyond(m, 200, 60)
    other = volume.mount("bitmap=pulled")
    held = [os.open(other / name, os.O_RDONLY) for name in names]
    loads = [start_load(site, mount, f"load{index}") for index, mount in enumerate((m, other))]
    fio = Fio(site, m, "4m")
    runs = fio.runs
    region = os.path.join(volume.path, "region")
    refused(site, 1, ("in use", "must be freed first"), "set", volume.path, "capacity=64M")
    check(volume.status()["capacity_target_bytes"] == 256 * MIB and os.path.getsize(region) == 257 * MIB, "as before")
    set_capacity(site, volume, "128M")
    status = volume.status()
    check(status["capacity_bytes"] == status["capacity_target_bytes"] == 128 * MIB, str(status))
    check(status["capacity_to_move_bytes"] == 0 and status["capacity_failure"] == "", str(status))
    check(status["tier_bytes"] == round(0.4 * 32768) * 4096, f"the tier shrinks along: {status['tier_bytes']}")
    check(os.path.getsize(region) == 129 * MIB, "the file is cut")
    check(os.statvfs(m.path).f_blocks * 4096 == 128 * MIB, "the mount says so, too")
    more = fill(m, "more")
    check(len(more) > 10, f"{len(more)} files in what was left")
    for mount in (m, other):
        expect_contents(mount, names + more)
    wrong = [name for name, fd in zip(names, held) if os.pread(fd, MIB, 0) != content_of(name)]
    check(not wrong, f"what was open: {wrong}")
    set_capacity(site, volume, "200M")
    more += fill(m, "again")
    expect_contents(other, names + more)
    fio.end(runs + 2)
    for load in loads:
        end_load(load)
    for fd in held:
        os.close(fd)
    expect_after_restart(volume, 200 * MIB, names + more)


@alone
def case_capacity_shrink_killed(site):
    volume = site.volume("128M", 0.25)
    moments = random.Random(5)
    m = volume.mount()
    names = files_beyond(m, 60, 30)
    volume.umount(m)
    outcomes = set()
    latest = 0.4
    for round_number in range(site.size(16, 6)):
        m = volume.mount()
        load = start_load(site, m, f"load{round_number}")
        setting = subprocess.Popen([site.termfs, "set", volume.path, "capacity=64M"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        moment = moments.uniform(0, latest)
        time.sleep(moment)  # the moment of death, not a wait for anything
        volume.kill()
        setting.wait(timeout=120)
        load.kill()
        volume.abandon(m)
        if round_number % 3 == 2:
            volume.drop_tier()
        volume.fsck()
        volume.serve()
        status = volume.status()
        found = status["capacity_bytes"] // MIB
        check(found in (64, 128), f"capacity {found} MiB, neither 64 nor 128")
        check(setting.returncode != 0 or found == 64, "what set has done is kept")
        check(status["capacity_target_bytes"] == found * MIB, f"what was begun is not gone on with: {status}")
        check(os.path.getsize(os.path.join(volume.path, "region")) == (found + 1) * MIB, "the file is as long as it has to be")
        outcomes.add(found)
        latest = moment / 2 if found == 64 else 2 * latest  # however long it takes here
        m = volume.mount()
        expect_contents(m, names)
        os.unlink(m / f"load{round_number}")
        if found == 64:
            set_capacity(site, volume, "128M")
        for name in names[:5]:  # to the end again
            os.unlink(m / name)
            write_synced(m / name, content_of(name))
        volume.umount(m)
    check(outcomes == {64, 128}, f"deaths before and after the end of it: {outcomes}")
    m = volume.mount()
    set_capacity(site, volume, "64M")
    expect_contents(m, names)


# Holds a file open, has read it, and reads it again for each line that it gets.
HOLDER = """
import hashlib, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
while True:
    print(hashlib.sha256(os.pread(fd, 1 << 20, 0)).hexdigest(), flush=True)
    if not sys.stdin.readline():
        break
"""


class SilentMounts:
    """Mounts of which each has one of `names` open and is stopped: the server waits for one after the other until it gives
    it up, some seconds each. The files are open in other processes: to close one of a mount that does not answer, as
    whoever starts a program does, takes for ever."""

    def __init__(self, site, volume, names):
        self.site, self.volume = site, volume
        self.mounts = [volume.mount() for _ in names]
        self.names = names
        self.holders = [site.start(sys.executable, "-c", HOLDER, mount / name, stdin=subprocess.PIPE)
                        for mount, name in zip(self.mounts, names)]
        self.expect_contents()
        for mount in self.mounts:
            stop(mount.pid)

    def expect_contents(self):
        for name, holder in zip(self.names, self.holders):
            found = holder.stdout.readline().strip()
            check(found == hashlib.sha256(content_of(name)).hexdigest(), f"{name} where it was open: {found}")

    def changing(self):
        return self.volume.status()["capacity_changing"]

    def go_on(self):
        for mount in self.mounts:
            os.kill(mount.pid, signal.SIGCONT)

    def close(self):
        """They have found new sessions, and still have their files."""
        for holder in self.holders:
            holder.stdin.write("again\n")
            holder.stdin.flush()
        self.expect_contents()
        for holder in self.holders:
            holder.stdin.close()
            check(holder.wait(timeout=60) == 0, "who had the file open")


def on_a_terminal(*command):
    """Its standard output, and what a terminal got as its standard error."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True) as child:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the end, of a terminal
            while True:
                shown += os.read(ours, 4096)
        os.close(ours)
        said, _ = child.communicate(timeout=120)
    check(child.returncode == 0, f"{command}: {shown}")
    return said, shown.decode()


def case_capacity_shows_its_way(site):
    volume = site.volume("64M", 0.5)
    m = volume.mount()
    names = files_beyond(m, 40, 10)
    silent = SilentMounts(site, volume, names[:6])
    try:
        setting = subprocess.Popen([site.termfs, "set", volume.path, "capacity=32M"], stderr=subprocess.PIPE, text=True)
        eventually(silent.changing, "status says that the capacity is being changed")
        status = volume.status()
        check(status["capacity_bytes"] == 64 * MIB and status["capacity_target_bytes"] == 32 * MIB, str(status))
        check(4096 <= status["capacity_to_move_bytes"] <= 10 * MIB, str(status))
        text = run(site.termfs, "status", volume.path)
        check("on its way to 32.0 MiB" in text and "to be moved" in text, text)
        for other in ("96M", "40M"):
            refused(site, 1, ("on its way to 32 MiB; capacity=67108864 (64 MiB) calls that off"), "set", volume.path, f"capacity={other}")
        setting.send_signal(signal.SIGINT)
        check(setting.wait(timeout=60) != 0, "set was interrupted")
        setting.stderr.close()
        said, shown = on_a_terminal(site.termfs, "set", volume.path, "capacity=32M")  # waits for what was begun
        check(said.startswith("capacity 32.0 MiB, was 64.0 MiB; "), said)
        check("\rcapacity 64.0 MiB of 32.0 MiB, " in shown and "to be moved" in shown, repr(shown))
        status = volume.status()
        check(status["capacity_bytes"] == status["capacity_target_bytes"] == 32 * MIB, str(status))
        check(status["capacity_changing"] == 0 and status["capacity_failure"] == "", str(status))
    finally:
        silent.go_on()
    expect_contents(m, names)
    silent.close()
    check("on its way" not in run(site.termfs, "status", volume.path), "status afterwards")


def case_capacity_shrink_called_off(site):
    volume = site.volume("64M", 0.5)
    m = volume.mount()
    names = files_beyond(m, 40, 10)
    silent = SilentMounts(site, volume, names[:4])
    try:
        setting = subprocess.Popen([site.termfs, "set", volume.path, "capacity=32M"], stderr=subprocess.PIPE, text=True)
        eventually(silent.changing, "the change begins")
        set_capacity(site, volume, "64M")
        _, error = setting.communicate(timeout=60)
        check(setting.returncode == 1 and "called off" in error, f"who waited: {error}")
    finally:
        silent.go_on()
    status = volume.status()
    check(status["capacity_bytes"] == 64 * MIB and "called off" in status["capacity_failure"], str(status))
    check("called off" in run(site.termfs, "status", volume.path), "status says so")
    check(os.path.getsize(os.path.join(volume.path, "region")) == 65 * MIB, "the region's file")
    silent.close()
    more = fill(m, "more")
    check(len(more) > 40, f"{len(more)} files: all of it is given out again")
    expect_contents(m, names + more)


@contextlib.contextmanager
def small_disk(site, size):
    """The mount point of an ext4 on a disk of its own."""
    disk, loop = loop_device(site, size)
    small = os.path.join(site.scratch, "small")
    os.mkdir(small)
    try:
        run("mkfs.ext4", "-q", "-m", "0", loop)
        run("mount", loop, small)
        try:
            yield small
        finally:
            run("umount", "-l", small)
    finally:
        os.rmdir(small)
        subprocess.run(["losetup", "--detach", loop], check=False)
        os.unlink(disk)


def case_capacity_on_a_full_disk(site):
    """The region's disk has no room for the growth, or for not quite all of it."""
    with small_disk(site, 192 * MIB) as small:
        region = os.path.join(small, "region")
        volume = site.volume("32M", 0.5, "--device", region)
        m = volume.mount()
        names = fill(m, "before")
        capacity = 32
        refused(site, 1, "more are needed", "set", volume.path, "capacity=4G")
        check(volume.status()["capacity_bytes"] == capacity * MIB, "as before")
        for _ in range(3):
            space = os.statvfs(small)
            free = space.f_bavail * space.f_frsize
            wanted = capacity * MIB + free // 4096 * 4096  # what it takes beyond the pages does not fit
            done = subprocess.run([site.termfs, "set", volume.path, f"capacity={wanted}"], capture_output=True, text=True,
                                  timeout=300, check=False)
            found = volume.status()["capacity_bytes"]
            check(found == (wanted if done.returncode == 0 else capacity * MIB), f"{done}: {found}")
            check(os.path.getsize(region) == found + MIB, "the region's file")
            if done.returncode == 0:
                break
            check("space" in done.stderr or "needed" in done.stderr, done.stderr)
            with open(os.path.join(small, "filler"), "wb") as filler:
                os.posix_fallocate(filler.fileno(), 0, free // 2)
            expect_contents(m, names)
        if os.path.exists(os.path.join(small, "filler")):
            os.unlink(os.path.join(small, "filler"))
        if volume.status()["capacity_bytes"] == capacity * MIB:
            set_capacity(site, volume, "96M")
        more = fill(m, "after")
        check(len(more) > 40, f"{len(more)} files")
        expect_contents(m, names + more)
        volume.umount(m)
        volume.stop()
        volume.fsck()
        site.volumes.remove(volume)  # its disk goes away before the others are checked


def case_capacity_leaves_room_for_the_metadata(site):
    """As much of their disk as format does."""
    with small_disk(site, 384 * MIB) as small:
        try:
            path = os.path.join(small, "volume")
            run(site.termfs, "format", path, "--capacity", "64M")
            run(site.termfs, "serve", path)
            server = site.find_process("serve", path)

            def all_but(megabytes):
                space = os.statvfs(small)
                return 64 * MIB + space.f_bavail * space.f_frsize // 4096 * 4096 - megabytes * MIB

            refused(site, 1, "more are needed on its disk", "set", path, f"capacity={all_but(100)}")
            wanted = all_but(140)
            run(site.termfs, "set", path, f"capacity={wanted}")
            check(json.loads(run(site.termfs, "status", path, "--json"))["capacity_bytes"] == wanted, "it is larger")
            os.kill(server, signal.SIGTERM)
            eventually(lambda: ended(server), "the server ends")
            run(site.termfs, "fsck", path)
        finally:
            site.end_processes()


def case_capacity_on_a_block_device(site):
    disk, loop = loop_device(site, 48 * MIB)
    try:
        volume = site.volume("16M", 0.5, "--device", loop)
        m = volume.mount()
        names = fill(m, "before")
        refused(site, 1, "48", "set", volume.path, f"capacity={48 * MIB}")  # the label needs room
        check(volume.status()["capacity_bytes"] == 16 * MIB, "a device that is too small changes nothing")
        set_capacity(site, volume, "47M")
        names += fill(m, "after")
        check(len(names) > 40, f"{len(names)} files")
        expect_contents(m, names)
        volume.umount(m)
        volume.stop()
        volume.fsck()
        volume.serve()
        expect_contents(volume.mount(), names)
        volume.umount(volume.mounts[0])
        volume.stop()
        volume.fsck()
        site.volumes.remove(volume)  # its disk goes away before the others are checked
    finally:
        subprocess.run(["losetup", "--detach", loop], check=False)
        os.unlink(disk)


@alone
def case_ratio_gives_memory_back(site):
    volume = site.volume("128M", 0.9)
    m = volume.mount()
    names = [f"f{i}" for i in range(90)]
    for name in names:
        write_file(m / name, content_of(name))
    check(in_memory(volume) > 100 * MIB, f"{in_memory(volume)} bytes in memory")
    load = start_load(site, m, "load")
    for ratio in (0.05, 0.5, 0.1):
        said = run(site.termfs, "set", volume.path, f"dram-ratio={ratio}")
        check(said.startswith(f"dram-ratio {ratio}, was "), said)
        # Frames get memory by 4 MiB; page table, states and slack take one or two more.
        eventually(lambda most=ratio * 128 * MIB + 8 * MIB: in_memory(volume) <= most, f"memory at ratio {ratio}")
        check(volume.status()["tier_used_bytes"] <= ratio * 128 * MIB + 4096, f"the tier at ratio {ratio}")
        expect_contents(m, names)
    end_load(load)


@alone
def case_ratio_changes_under_fio(site):
    volume = site.volume("256M", 0.5)
    m = volume.mount()
    names = [f"f{i}" for i in range(160)]
    for name in names:
        write_file(m / name, content_of(name))
    load = start_load(site, m, "load")
    fio = Fio(site, m, "8m")
    for ratio in (0.05, 0.9, 0.5, 0.05, 0.5):
        run(site.termfs, "set", volume.path, f"dram-ratio={ratio}")
        status = volume.status()
        budget = round(ratio * 65536) * 4096
        check(status["dram_ratio"] == ratio and status["tier_bytes"] == budget, f"ratio {ratio}: {status}")
        check(status["tier_used_bytes"] <= budget, f"the tier's use at ratio {ratio}: {status['tier_used_bytes']}")
        eventually(lambda most=budget + 10 * MIB: in_memory(volume) <= most, f"memory at ratio {ratio}")
        before = fio.runs
        expect_contents(m, names)
        eventually(lambda after=before + 1: fio.runs >= after or fio.problem, "fio goes on", 300)
    fio.end(6)
    end_load(load)


def case_ratio_beyond_the_tmpfs(site):
    small = os.path.join(site.scratch, "small")
    os.mkdir(small)
    run("mount", "-t", "tmpfs", "-o", "size=48m,mode=0700", "termfs-test", small)
    try:
        volume = site.volume("64M", 0.25)
        volume.stop()
        volume.serve("--memory-directory", small)
        m = volume.mount()
        write_file(m / "f", content_of("f"))
        before = volume.status()
        refused(site, 1, "tmpfs", "set", volume.path, "dram-ratio=0.9")
        refused(site, 1, "tmpfs", "set", volume.path, "capacity=400M")
        after = volume.status()
        check(all(before[key] == after[key] for key in ("tier_bytes", "dram_ratio", "capacity_bytes")), str(after))
        run(site.termfs, "set", volume.path, "dram-ratio=0.5")
        expect_contents(m, ["f"])
        volume.umount(m)
        volume.stop()
    finally:
        run("umount", "-l", small)
        os.rmdir(small)


def case_ratio_smaller_after_a_kill(site):
    volume = site.volume("64M", 0.9)
    m = volume.mount()
    names = [f"f{i}" for i in range(50)]
    for name in names:
        write_file(m / name, content_of(name))
    volume.kill()
    volume.abandon(m)
    volume.serve("--dram-ratio", "0.05")  # it takes over more than that, some of it not on the SSD yet
    check(volume.status()["tier_used_bytes"] <= 0.051 * 64 * MIB, "the tier has its new size")
    expect_contents(volume.mount(), names)
