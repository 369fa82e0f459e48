# SPDX-License-Identifier: Apache-2.0
"""What a killed server and a loss of power leave. The mounts end with their server here, and new ones look."""
import contextlib
import ctypes
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time

from cases_input import refused
from cases_posix import LIBC, MIB, PUNCH_HOLE_KEEP_SIZE, libc, read_file, write_file
from volume import alone, check, ended, eventually, run, stop


def lose_memory(volume, m, opened):
    """The server is killed and its tmpfs dropped, with descriptors of the mount open; another mount of what is left."""
    volume.kill()
    for fd in opened:
        with contextlib.suppress(OSError):
            os.close(fd)
    volume.abandon(m)
    volume.drop_tier()
    volume.fsck()
    volume.serve()
    return volume.mount()


def log_of(volume):
    with open(os.path.join(volume.path, "log"), encoding="utf-8") as lines:
        return lines.read()


def case_serve_after_a_kill(site):
    """A server that was killed has its volume until the kernel has taken its memory to pieces: the next one waits."""
    volume = site.volume("512M", 0.5)
    m = volume.mount()
    for i in range(8):
        write_file(m / f"f{i}", os.urandom(32 * MIB))
    for _ in range(5):
        os.kill(volume.server, signal.SIGKILL)
        volume.serve()
    check(len(read_file(m / "f7")) == 32 * MIB, "the mount goes on")


def case_killed_server_keeps_what_was_written(site):
    volume = site.volume("128M", 0.5)
    m = volume.mount()
    data = {f"f{i}": os.urandom(i * 150_001 + 5) for i in range(24)}
    for name, content in data.items():
        write_file(m / name, content)
    os.rename(m / "f3", m / "g3")
    data["g3"] = data.pop("f3")
    with open(m / "f2", "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"changed", 3)
    data["f2"] = data["f2"][:3] + b"changed" + data["f2"][10:]
    volume.kill()
    volume.abandon(m)
    check(os.path.isdir(volume.tier()), "the memory is still there")
    said = volume.fsck()
    check("sound\npages that are only in memory of this host: " in said and volume.tier() in said, said)
    kept = json.loads(run(site.termfs, "fsck", "--json", volume.path))
    check(kept["kept_memory"] == volume.tier() and kept["kept_bytes"] > 0, str(kept))
    volume.serve()
    check("its memory is taken over" in log_of(volume), "the log says what was found")
    m = volume.mount()
    check(sorted(os.listdir(m.path)) == sorted(data), "the names")
    wrong = [name for name, content in data.items() if read_file(m / name) != content]
    check(not wrong, f"contents after a kill: {wrong}")
    memory = volume.tier()
    volume.umount(m)
    volume.stop()
    check(volume.tier() is None and not os.path.exists(memory), "a clean stop leaves no memory behind")
    check(volume.fsck().endswith("sound\n"), "fsck after a clean stop")


def refuses_to_serve(site, says, path, *flags):
    try:
        refused(site, 1, says, "serve", path, *flags)
    except AssertionError:
        with contextlib.suppress(AssertionError):
            site.find_process("serve", path)  # which is ended after the case
        raise


def case_memory_is_not_passed_over(site):
    """A server without memory of its own does not start over what a killed one kept: the one after it would take that for
    newer than all that was written and synced in between."""
    volume = site.volume("64M", 0.5)
    m = volume.mount()
    first = os.urandom(8 * MIB)
    write_file(m / "f", first)
    volume.kill()
    volume.abandon(m)
    memory = volume.tier()
    for place in ("none", os.path.join("/dev/shm", os.path.basename(site.scratch))):
        says = (f"may be in {memory}", f"start it once with memory-directory {os.path.dirname(memory)}")
        refuses_to_serve(site, says, volume.path, "--memory-directory", place)
    check(memory in volume.fsck(), "it is still there")
    volume.serve()
    m = volume.mount()
    check(read_file(m / "f") == first, "what the killed server had")
    volume.kill()
    volume.abandon(m)
    os.unlink(os.path.join(volume.path, "tier"))  # given up
    volume.serve("--memory-directory", "none")
    m = volume.mount()
    synced = os.urandom(8 * MIB)
    with open(m / "f", "wb") as file:
        file.write(synced)
        file.flush()
        os.fsync(file.fileno())
    volume.umount(m)
    volume.stop()
    volume.serve()
    check(read_file(volume.mount() / "f") == synced, "what was synced since")


def snapshot_of(volume):
    """The volume's directory as it is at one instant, in another place."""
    copy = volume.path + ".copy"
    stop(volume.server)
    try:
        shutil.copytree(volume.path, copy, ignore=shutil.ignore_patterns("socket"))
    finally:
        os.kill(volume.server, signal.SIGCONT)
    return copy


def case_copy_of_a_volume_leaves_its_memory_alone(site):
    """A copy has the uuid by which a server finds its memory, and a snapshot even the record of it."""
    volume = site.volume("64M", 0.5)
    m = volume.mount()
    data = os.urandom(8 * MIB)
    write_file(m / "f", data)
    copy = snapshot_of(volume)
    record = os.path.join(copy, "tier")
    refuses_to_serve(site, f"{volume.tier()} is in use by process {volume.server}", copy)
    os.rename(record, record + ".kept")  # as a copy of a volume that was not served
    refuses_to_serve(site, f"{volume.tier()} is in use by process {volume.server}", copy)
    check(read_file(m / "f") == data, "the volume is served as before")
    write_file(m / "g", data[::-1])
    volume.kill()
    volume.abandon(m)
    refuses_to_serve(site, (f"is that of the volume in {volume.path}/", "give those writes up by removing"), copy)
    os.rename(record + ".kept", record)
    refuses_to_serve(site, f"is that of the volume in {volume.path}/", copy)
    volume.serve()
    check("its memory is taken over" in log_of(volume), "its memory is its own")
    m = volume.mount()
    check(read_file(m / "f") == data and read_file(m / "g") == data[::-1], "every byte")
    volume.umount(m)
    volume.stop()
    run(site.termfs, "serve", copy)
    server = site.find_process("serve", copy)
    os.kill(server, signal.SIGTERM)
    eventually(lambda: ended(server), "the copy's server ends")


def case_lost_memory_keeps_what_was_synced(site):
    volume = site.volume("64M", 0.5)
    m = volume.mount()
    synced = os.urandom(5 * MIB + 7)
    write_file(m / "synced", synced)
    with open(m / "synced", "rb") as file:
        os.fsync(file.fileno())
    write_file(m / "not-synced", b"x" * MIB)
    volume.kill()
    volume.abandon(m)
    volume.drop_tier()
    volume.serve()
    check("is gone" in log_of(volume), "the log warns")
    m = volume.mount()
    check(read_file(m / "synced") == synced, "what was synced")
    volume.umount(m)
    volume.stop()
    eventually(lambda: volume.tier() is None, "a clean stop")
    volume.fsck()


def case_lost_memory_keeps_synchronous_writes(site):
    """What a write by O_SYNC, O_DSYNC or RWF_DSYNC has returned is there without an fsync, with size and name."""
    volume = site.volume("64M", 0.5)
    m = volume.mount()
    files, opened = {}, []
    for name, flags, how in (("sync", os.O_SYNC, 0), ("dsync", os.O_DSYNC, 0), ("append", os.O_DSYNC | os.O_APPEND, 0),
                             ("one", 0, os.RWF_DSYNC), ("one-sync", 0, os.RWF_SYNC)):
        fd = os.open(m / name, os.O_RDWR | os.O_CREAT | flags)
        data = bytearray()
        for at, size in ((0, 5000), (5000, 3), (5003, 1 * MIB + 1)):  # each grows the file
            part = os.urandom(size)
            check(os.pwritev(fd, [part], at, how) == size, "a short write")
            data[at:at + size] = part
        if "append" not in name:
            os.pwritev(fd, [b"overwritten"], 4090, how)
            data[4090:4101] = b"overwritten"
        files[name] = bytes(data)
        opened.append(fd)
    check(volume.metrics()["pages_dirty"] == 0, "nothing waits to be written")
    m = lose_memory(volume, m, opened)
    for name, data in files.items():
        found = read_file(m / name) if os.path.exists(m / name) else None
        check(found == data, f"{name} after the loss of memory")


def case_lost_memory_keeps_synchronous_fallocate(site):
    """What fallocate by O_SYNC or O_DSYNC has zeroed or made longer is so without an fsync."""
    volume = site.volume("64M", 0.5)
    m = volume.mount()
    LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    opened = []
    for name, flags in (("sync", os.O_SYNC), ("dsync", os.O_DSYNC)):
        fd = os.open(m / name, os.O_RDWR | os.O_CREAT | flags)
        os.pwrite(fd, b"x" * 10000, 0)
        libc("fallocate", fd, PUNCH_HOLE_KEEP_SIZE, 100, 6000)
        check(volume.metrics()["pages_dirty"] == 0, "nothing waits to be written")
        os.posix_fallocate(fd, 0, 20000)
        opened.append(fd)
    m = lose_memory(volume, m, opened)
    for name in ("sync", "dsync"):
        check(read_file(m / name) == b"x" * 100 + bytes(6000) + b"x" * 3900 + bytes(10000), f"{name} after the loss of memory")


# Writes files, renames them, removes old ones, and says in files of its own how far it came: what a line says has returned.
WRITER = """
import hashlib, os, sys
mount, own, index = sys.argv[1], sys.argv[2], int(sys.argv[3])
done = os.open(os.path.join(own, f"done{index}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
synced = os.open(os.path.join(own, f"synced{index}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
folder = os.open(mount, os.O_RDONLY)
for n in range(int(sys.argv[4]), 1000000):
    content = hashlib.sha256(f"{index}-{n}".encode()).digest() * (n % 1700 + 1)
    fd = os.open(os.path.join(mount, f"new{index}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    assert os.write(fd, content) == len(content)
    if n % 7 == 0:
        os.fsync(fd)
    os.close(fd)
    os.rename(os.path.join(mount, f"new{index}"), os.path.join(mount, f"f{index}-{n}"))
    if n % 7 == 0:
        os.fsync(folder)
        os.write(synced, f"{n}\\n".encode())
    os.write(done, f"{n}\\n".encode())
    if n % 40 == 39:
        for old in range(n - 79, n - 39):
            if old >= int(sys.argv[4]):
                os.unlink(os.path.join(mount, f"f{index}-{old}"))
"""
WRITERS = 3


def last_number(path):
    try:
        with open(path, encoding="ascii") as lines:
            return max((int(line) for line in lines), default=-1)
    except OSError:
        return -1


def expect_files(m, own, firsts, dropped):
    """The files of the last acknowledged steps that no removal concerns; after lost memory those that were synced."""
    for index, first in enumerate(firsts):
        last = last_number(os.path.join(own, f"done{index}"))
        for n in range(max(first, last // 40 * 40), last + 1):
            if dropped and (n % 7 != 0 or n > last_number(os.path.join(own, f"synced{index}"))):
                continue
            content = hashlib.sha256(f"{index}-{n}".encode()).digest() * (n % 1700 + 1)
            check(read_file(m / f"f{index}-{n}") == content, f"f{index}-{n}, which was acknowledged")


@alone
def case_killed_under_load_keeps_what_returned(site):
    volume = site.volume("128M", 0.2)
    own = os.path.join(site.scratch, "acknowledged")
    os.mkdir(own)
    moments = random.Random(7)
    for round_number in range(site.size(10, 4)):
        dropped = round_number % 4 == 3
        m = volume.mount()
        firsts = [(last_number(os.path.join(own, f"done{index}")) // 40 + 2) * 40 for index in range(WRITERS)]
        writers = [site.start(sys.executable, "-c", WRITER, m.path, own, index, first)
                   for index, first in enumerate(firsts)]
        eventually(lambda: all(last_number(os.path.join(own, f"done{index}")) >= first
                               for index, first in enumerate(firsts)), "the writers write")
        time.sleep(moments.uniform(0.1, 1.0))  # the moment of death, not a wait for anything
        volume.kill()
        for writer in writers:
            writer.kill()
        volume.abandon(m)
        for writer in writers:
            writer.wait(timeout=60)
        if dropped:
            volume.drop_tier()
        volume.fsck()
        volume.serve()
        m = volume.mount()
        expect_files(m, own, firsts, dropped)
        for name in os.listdir(m.path):
            os.unlink(m / name)
        volume.umount(m)
    shutil.rmtree(own)
