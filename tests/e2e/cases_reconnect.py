# SPDX-License-Identifier: Apache-2.0
"""A server that goes away and comes back under programs that work on a mount; one that does not come back; and clients
that are killed, of which nothing may be left in the server."""
import errno
import fcntl
import hashlib
import json
import os
import signal
import time

from cases_posix import MIB, libc, read_file, refuses, write_file
from cases_sessions import GONE, Stopped, end_by_signal, start_waiting
from volume import check, ended, eventually, need, run

# Makes, appends to, renames and removes files, and says in a file of its own what has returned. Nothing may fail. A fifth
# argument: seconds to wait after each round, so that a case finds it at work.
WORKER = """
import hashlib, os, sys, time
mount, own, index, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
pause = float(sys.argv[5]) if len(sys.argv) > 5 else 0
log = open(os.path.join(own, f"log{index}"), "a", buffering=1)
held = os.open(os.path.join(mount, f"held{index}"), os.O_RDWR | os.O_CREAT | os.O_EXCL)
os.write(held, b"held")
os.unlink(os.path.join(mount, f"held{index}"))
lines = os.open(os.path.join(mount, f"lines{index}"), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
log.write("ready\\n")
for i in range(rounds):
    name = os.path.join(mount, f"f{index}.{i}")
    data = hashlib.sha256(f"{index}.{i}".encode()).digest() * 700
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    assert os.write(fd, data) == len(data)
    os.close(fd)
    line = f"{index} {i}\\n".encode()
    assert os.write(lines, line) == len(line)
    os.mkdir(name + ".d")
    os.link(name, name + ".l")
    os.rename(name, name + ".r")
    os.setxattr(name + ".r", "user.i", str(i).encode(), os.XATTR_CREATE)
    if i % 2:
        os.unlink(name + ".l")
        os.rmdir(name + ".d")
    assert os.pread(held, 10, 0) == b"held"
    log.write(f"{i}\\n")
    time.sleep(pause)
os.close(lines)
log.write("done\\n")
"""


def logged(site, index):
    try:
        with open(os.path.join(site.scratch, f"log{index}"), encoding="ascii") as log:
            return log.read().split()
    except OSError:
        return []


def check_work(m, index, rounds):
    lines = read_file(m / f"lines{index}").decode().splitlines()
    check(lines == [f"{index} {i}" for i in range(rounds)], f"the lines of {index}: each once, in order")
    for i in range(rounds):
        data = hashlib.sha256(f"{index}.{i}".encode()).digest() * 700
        check(read_file(m / f"f{index}.{i}.r") == data, f"f{index}.{i}.r")
        check(os.getxattr(m / f"f{index}.{i}.r", "user.i") == str(i).encode(), "its attribute")
        check(os.path.exists(m / f"f{index}.{i}.l") == (i % 2 == 0), f"the link of f{index}.{i}")
        check(os.path.isdir(m / f"f{index}.{i}.d") == (i % 2 == 0), f"the directory of f{index}.{i}")
    check(not os.path.exists(m / f"held{index}"), "what was unlinked")


def case_reconnect_under_load(site):
    """Several programs, two mounts, a server killed again and again: no call fails, everything happens once."""
    volume = site.volume("256M", 0.5)
    mounts = [volume.mount(), volume.mount()]
    free = volume.status()["free_bytes"]
    rounds, kills = site.size(600, 200), site.size(5, 3)
    workers = [site.start("python3", "-c", WORKER, mounts[i % 2].path, site.scratch, i, rounds) for i in range(4)]
    for number in range(kills):
        before = [len(logged(site, i)) for i in range(4)]
        # Something has been done since the last time by somebody, and not everybody is through.
        eventually(lambda: any(len(logged(site, i)) > before[i] + 3 for i in range(4)) or
                   all("done" in logged(site, i) for i in range(4)), "the programs go on")
        volume.kill()
        volume.serve()
    for index, worker in enumerate(workers):
        output, _ = worker.communicate(timeout=300)
        check(worker.returncode == 0, f"program {index}: {output[-600:]}")
        check("done" in logged(site, index), f"program {index} is through")
        check_work(mounts[(index + 1) % 2], index, rounds)
    for m in mounts:
        volume.umount(m)
    m = volume.mount()
    for name in os.listdir(m.path):
        path = m / name
        os.rmdir(path) if os.path.isdir(path) else os.unlink(path)
    eventually(lambda: volume.status()["free_bytes"] == free, "all space comes back")


def case_reconnect_fio(site):
    """fio writes at random and verifies, and never hears of the kills."""
    need("fio")
    volume = site.volume("256M", 0.3)
    m = volume.mount()
    fio = site.start("fio", "--name=verify", f"--filename={m / 'fio'}", "--rw=randwrite", "--bs=16k", "--size=32M",
                     "--ioengine=psync", "--verify=crc32c", "--verify_fatal=1", f"--loops={site.size(6, 3)}",
                     "--output-format=terse", cwd=site.scratch)
    writes = lambda: volume.metrics()["fs_writes_total"]  # noqa: E731
    for _ in range(site.size(4, 2)):
        eventually(lambda: writes() > 200 or fio.poll() is not None, "fio writes to this server")
        volume.kill()
        volume.serve()
    output, _ = fio.communicate(timeout=300)
    check(fio.returncode == 0, output[-600:])
    check(int(m.describe()["link_reconnections_total"]) > 0, "the kills were noticed")


def sync_error(fd):
    """What fsync says: 0, or the errno."""
    try:
        os.fsync(fd)
        return 0
    except OSError as error:
        return error.errno


def case_reconnect_lost_memory(site):
    """The server comes back without its memory: fsync of what had been written and not synced fails, once."""
    volume = site.volume("64M", 0.5)
    m = volume.mount()
    lost, synced = (os.open(m / name, os.O_RDWR | os.O_CREAT) for name in ("lost", "synced"))
    content = os.urandom(MIB)
    for fd in (lost, synced):
        os.pwrite(fd, content, 0)
    os.fsync(synced)
    volume.kill()
    volume.drop_tier()
    volume.serve()
    check(sync_error(synced) == 0, "what was synced is there")
    check(os.pread(synced, MIB, 0) == content, "with all its bytes")
    check(sync_error(lost) == errno.EIO, "fsync of what was lost")
    check(sync_error(lost) == 0, "which is said once")
    os.pwrite(lost, content, 0)
    check(sync_error(lost) == 0, "fsync of what was written again")
    volume.kill()
    volume.drop_tier()
    volume.serve()
    check((sync_error(lost), sync_error(synced)) == (0, 0), "everything had been synced")
    check(os.pread(lost, MIB, 0) == content, "and is there")
    check(int(m.describe()["link_memory_losses_total"]) == 2, str(m.describe()))
    os.close(lost)
    os.close(synced)


def case_reconnect_kept_memory(site):
    """The server comes back with its memory, or was stopped: nothing is lost, and fsync means what it says."""
    volume = site.volume("64M", 0.5)
    m = volume.mount()
    fd = os.open(m / "f", os.O_RDWR | os.O_CREAT)
    first, second = os.urandom(MIB), os.urandom(MIB)
    os.pwrite(fd, first, 0)
    volume.kill()
    volume.serve()
    check(sync_error(fd) == 0, "its memory was taken over")
    volume.kill()
    volume.drop_tier()
    volume.serve()
    check(os.pread(fd, MIB, 0) == first, "fsync after the takeover made it durable")
    os.pwrite(fd, second, 0)
    check(sync_error(fd) == 0, "nothing that was not synced was lost")
    os.pwrite(fd, first, 0)
    volume.stop()
    volume.serve()
    check(sync_error(fd) == 0, "a server that is stopped has written everything")
    check(os.pread(fd, MIB, 0) == first, "which is there")
    os.close(fd)


def shrink_names(path):
    """Has the kernel drop the names that it has of a mount, and with them the inodes that nobody uses: a remount does."""
    nosuid, nodev, remount = 2, 4, 32
    libc("mount", None, path.encode(), None, remount | nosuid | nodev, None)


def memory_of_dead_servers(pid):
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return [line for line in maps if "(deleted)" in line and ("frames" in line or "page-table" in line)]


def case_reconnect_drops_the_old_memory(site):
    """A mount holds on to nothing of a server that has gone, also where its threads have nothing to do."""
    volume = site.volume("64M", 0.5)
    m = volume.mount("threads=8")
    write_file(m / "f", os.urandom(8 * MIB))
    readers = [site.start("dd", f"if={m / 'f'}", "of=/dev/null", "bs=4k") for _ in range(8)]
    for reader in readers:
        check(reader.wait(60) == 0, "dd")
    before = len(os.listdir(f"/proc/{m.pid}/fd"))
    for _ in range(3):
        volume.stop()
        volume.serve()
        os.stat(m / "f")
    eventually(lambda: not memory_of_dead_servers(m.pid), "the memory of former servers is given back")
    eventually(lambda: len(os.listdir(f"/proc/{m.pid}/fd")) <= before + 4, "and so are descriptors")
    check(int(m.describe()["link_reconnections_total"]) == 3, str(m.describe()))


def case_reconnect_and_what_the_kernel_forgets(site):
    """Special files that a kernel forgets at once are closed one by one, by a thread that has no way to the new server yet."""
    volume = site.volume("64M", 0.5)
    mounts = [volume.mount(), volume.mount("fuse=device")]
    for number, m in enumerate(mounts):
        for i in range(200):
            os.mkfifo(m / f"fifo{number}.{i}")
            os.stat(m / f"fifo{number}.{i}")
    volume.kill()
    volume.serve()
    for m in mounts:
        eventually(lambda m=m: m.describe()["link_reconnections_total"] == "1", "the mount has the next server")
        shrink_names(m.path)
        check(os.stat(m / "fifo0.0").st_nlink == 1, "the mount goes on")
        check(not ended(m.pid), "so does its process")


def case_reconnect_status(site):
    """A mount says whether it has its server."""
    volume = site.volume("64M", 0.5)
    m = volume.mount("reconnect=3")

    def connection(code):
        return json.loads(run(site.termfs, "status", m.path, "--json", code=code))["mount"]["connection"]
    check(connection(0) == {"state": "connected", "seconds": 0, "reconnections": 0}, str(connection(0)))
    people = run(site.termfs, "status", m.path)
    check("connection connected, 0 reconnections" in people and "DRAM tier" in people, people)
    volume.kill()
    eventually(lambda: connection(1)["state"] == "reconnecting", "the mount notices")
    people = run(site.termfs, "status", m.path, code=1)
    check("connection reconnecting for" in people, people)
    sample = json.loads(run(site.termfs, "stats", m.path, "--json", "--count", "1"))
    check(sample["connection"]["state"] in ("reconnecting", "given up") and "server" not in sample, str(sample))
    eventually(lambda: connection(1)["state"] == "given up", "the time is over")
    live = run(site.termfs, "stats", m.path, "--count", "1", "--interval", "0.1").splitlines()
    check(len(live[1].split()) == len(live[2].split()) and live[2].split()[-1].startswith("given-up:"), "\n".join(live))
    volume.serve()
    eventually(lambda: connection(0) == {"state": "connected", "seconds": 0, "reconnections": 1}, "it is back")


def case_reconnect_time_over(site):
    """Past the time that a mount waits, calls fail with EIO. When the server is back, what was open works again, but for
    what has been removed, and what had locks that others may have by now."""
    volume = site.volume("64M")
    m = volume.mount("reconnect=2")
    write_file(m / "f", b"content")
    held = os.open(m / "f", os.O_RDWR)
    write_file(m / "locked", b"content")
    locked = os.open(m / "locked", os.O_RDWR)
    fcntl.flock(locked, fcntl.LOCK_EX)
    volume.kill()
    eventually(lambda: m.describe()["link_up"] == "0", "the mount notices")
    began = time.monotonic()
    for call in (lambda: os.pread(held, 1, 0), lambda: os.stat(m / "f"), lambda: os.listdir(m.path),
                 lambda: os.open(m / "f", os.O_RDONLY)):
        try:
            call()
            raise AssertionError("a call succeeded without a server")
        except OSError as error:
            check(error.errno == errno.EIO, errno.errorcode[error.errno])
    check(time.monotonic() - began < 60, "calls end when the time is over")
    volume.serve()

    def answers():
        try:
            os.stat(m / "f")
            return True
        except OSError:
            return False
    eventually(answers, "the mount finds the server again")
    check(read_file(m / "f") == b"content", "a new open")
    check(os.pread(held, 7, 0) == b"content" and os.pwrite(held, b"C", 0) == 1, "what was open works again")
    os.fsync(held)
    os.close(held)
    check(read_file(m / "f") == b"Content", "what it has written")
    refuses(errno.EIO, os.pwrite, locked, b"x", 0)
    os.close(locked)


def case_reconnect_interrupt_and_umount(site):
    """While a mount waits for its server, its callers can be ended by signals, and it can be unmounted."""
    volume = site.volume("64M")
    m = volume.mount("threads=4,reconnect=3600")
    write_file(m / "f", b"content" * 1000)
    volume.kill()
    for number in (signal.SIGINT, signal.SIGKILL):
        children = [start_waiting(site, *command) for command in (
            ["cat", m / "f"], ["stat", m / "f"], ["touch", m / f"new{number}"], ["ls", "-l", m.path],
            ["cat", m / "f"], ["rm", m / "none"])]
        end_by_signal(number, *children)
    metrics = m.describe()
    check(metrics["pid"] == str(m.pid), "the mount itself answers")
    volume.umount(m)
    volume.serve()
    lazy = volume.mount("reconnect=3600")
    volume.kill()
    waiting = start_waiting(site, "stat", lazy / "f")
    volume.mounts.remove(lazy)
    run("umount", "-f", "-l", lazy.path)
    check(waiting.wait(GONE) != 0, "who waited is sent away")
    eventually(lambda: ended(lazy.pid), "a mount that is unmounted by force ends")
    os.rmdir(lazy.path)
    volume.serve()


def case_reconnect_stopped_server(site):
    """A server that is stopped and continued loses nothing."""
    volume = site.volume("128M")
    m = volume.mount()
    worker = site.start("python3", "-c", WORKER, m.path, site.scratch, 0, 100)
    eventually(lambda: "ready" in logged(site, 0), "the program works")
    for _ in range(3):
        with Stopped(volume):
            time.sleep(0.5)
    output, _ = worker.communicate(timeout=300)
    check(worker.returncode == 0, f"the program: {output[-600:]}")
    check_work(m, 0, 100)


def kept_by(pid):
    """What a process has: descriptors, and mappings of shared memory."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        shared = sum(1 for line in maps if " rw-s " in line or " r--s " in line)
    return len(os.listdir(f"/proc/{pid}/fd")), shared


def case_killed_client_leaves_nothing(site):
    """A mount that is killed with files open, unlinked and being written."""
    volume = site.volume("256M", 0.5)
    warm = volume.mount()  # what the server takes once
    write_file(warm / "w", b"x" * MIB)
    os.unlink(warm / "w")
    volume.umount(warm)
    free = lambda: volume.status()["free_bytes"]  # noqa: E731
    eventually(lambda: volume.metrics()["sessions"] <= 1 and free() == volume.status()["capacity_bytes"], "all is quiet")
    pairs, (descriptors, shared) = volume.metrics()["queue_pairs"], kept_by(volume.server)
    for _ in range(3):
        m = volume.mount()
        held = os.open(m / "held", os.O_RDWR | os.O_CREAT)
        os.write(held, b"x" * (8 * MIB))
        os.unlink(m / "held")
        writer = site.start("dd", "if=/dev/zero", f"of={m / 'f'}", "bs=64k", "count=100000")
        eventually(lambda: os.path.exists(m / "f") and os.stat(m / "f").st_size > MIB, "the writer writes")
        os.kill(m.pid, signal.SIGKILL)
        writer.wait(timeout=60)
        try:
            os.close(held)
        except OSError:
            pass
        run(site.termfs, "umount", m.path)
        volume.mounts.remove(m)
        eventually(lambda: ended(m.pid), "the mount is dead")
        os.rmdir(m.path)
        cleaner = volume.mount()
        os.unlink(cleaner / "f")
        volume.umount(cleaner)
        eventually(lambda: free() == volume.status()["capacity_bytes"], "all space is back")
        eventually(lambda: volume.metrics()["queue_pairs"] == pairs, "its queue pairs are gone")
        eventually(lambda: kept_by(volume.server)[0] <= descriptors, "its descriptors are closed")
        eventually(lambda: kept_by(volume.server)[1] <= shared, "its memory is not mapped any more")
    check(volume.status()["sessions"] == [], "no session is left")
    eventually(lambda: volume.metrics()["fs_clients_away"] == 0, "nobody is expected back")


def case_killed_client_and_server(site):
    """Both die; the next server does not wait for a client whose process has ended."""
    volume = site.volume("64M", 0.5)
    m = volume.mount("reconnect=3600")
    held = os.open(m / "held", os.O_RDWR | os.O_CREAT)
    os.write(held, b"x" * MIB)
    os.unlink(m / "held")
    volume.kill()
    os.kill(m.pid, signal.SIGKILL)
    eventually(lambda: ended(m.pid), "the mount is dead")
    try:
        os.close(held)
    except OSError:
        pass
    run(site.termfs, "umount", m.path)
    volume.mounts.remove(m)
    os.rmdir(m.path)
    volume.serve()
    eventually(lambda: volume.status()["free_bytes"] == volume.status()["capacity_bytes"], "the space is back")
    check(volume.metrics()["fs_clients_away"] == 0, "nobody is expected")
