# SPDX-License-Identifier: Apache-2.0
"""Two mounts of one volume: what a call on one did is seen by the next call on the other."""
import mmap
import os
import random
import subprocess
import sys
import threading
import time

from cases_acl import ACCESS, acl
from cases_posix import MIB, RENAME_EXCHANGE, read_file, refuses, renameat2, write_file
from cases_sessions import Stopped
from volume import check, eventually, run


def two_mounts(site):
    volume = site.volume()
    return volume.mount(), volume.mount()


def case_two_mounts_names(site):
    a, b = two_mounts(site)
    for i in range(50):
        refuses(2, os.stat, b / f"f{i}")  # so that the kernel could remember that it is not there
        write_file(a / f"f{i}", b"x")
        check(os.stat(b / f"f{i}").st_size == 1, "create")
        os.rename(b / f"f{i}", b / f"g{i}")
        refuses(2, os.stat, a / f"f{i}")
        check(os.path.exists(a / f"g{i}"), "rename")
    check(sorted(os.listdir(a.path)) == sorted(os.listdir(b.path)), "listings")
    os.unlink(a / "g0")
    refuses(2, os.stat, b / "g0")
    os.chmod(a / "g1", 0o600)
    check(os.stat(b / "g1").st_mode & 0o777 == 0o600, "chmod")


def case_two_mounts_data(site):
    a, b = two_mounts(site)
    write_file(a / "f", bytes(MIB))
    here = os.open(a / "f", os.O_RDWR)
    there = os.open(b / "f", os.O_RDWR)
    for i in range(200):
        text = f"{i:08}".encode()
        offset = (i * 37_123) % (MIB - 8)
        os.pwrite(here, text, offset)
        check(os.pread(there, 8, offset) == text, f"write {i}")
        os.pwrite(there, text[::-1], offset)
        check(os.pread(here, 8, offset) == text[::-1], f"write back {i}")
    os.ftruncate(here, 1000)
    check(os.fstat(there).st_size == 1000 and os.pread(there, 5000, 0) == os.pread(here, 5000, 0), "truncate")
    os.ftruncate(there, 9000)
    check(os.pread(here, 9000, 1000) == bytes(8000), "truncate up")
    os.close(here)
    os.close(there)


def case_two_mounts_append(site):
    a, b = two_mounts(site)
    write_file(a / "log", b"")
    here = os.open(a / "log", os.O_WRONLY | os.O_APPEND)
    there = os.open(b / "log", os.O_WRONLY | os.O_APPEND)
    for i in range(300):
        os.write(here if i % 3 else there, f"{i:06}\n".encode())
    os.close(here)
    os.close(there)
    check(read_file(b / "log") == b"".join(f"{i:06}\n".encode() for i in range(300)), "appended lines")


def case_two_mounts_mmap(site):
    a, b = two_mounts(site)
    write_file(a / "f", b"a" * 65536)
    here = os.open(a / "f", os.O_RDWR)
    there = os.open(b / "f", os.O_RDONLY)
    mapped = mmap.mmap(there, 65536, mmap.MAP_SHARED, mmap.PROT_READ)
    check(mapped[:] == b"a" * 65536, "mapped bytes")
    for i in range(50):
        text = f"{i:04}".encode()
        os.pwrite(here, text, 4094 + i)
        check(mapped[4094 + i:4098 + i] == text, f"a mapping after write {i} of the other mount")
    stored = mmap.mmap(here, 65536)
    stored[0:5] = b"store"
    stored.flush()
    check(os.pread(there, 5, 0) == b"store", "msync")
    check(mapped[0:5] == b"store", "a mapping after msync of the other mount")
    mapped.close()
    stored.close()
    os.close(here)
    os.close(there)


def case_two_mounts_unlink_open(site):
    a, b = two_mounts(site)
    write_file(a / "f", b"kept")
    there = os.open(b / "f", os.O_RDONLY)
    os.unlink(a / "f")
    check(os.pread(there, 4, 0) == b"kept", "a file unlinked by the other mount")
    os.close(there)


def case_bitmap_pulled_and_off(site):
    volume = site.volume("256M", 0.1)
    data = os.urandom(64 * MIB)
    for options in ("bitmap=live", "bitmap=pulled", "bitmap=off,threads=2"):
        m = volume.mount(options)
        write_file(m / "f", data)
        check(read_file(m / "f") == data, options)
        absent = {name: int(value) for name, value in m.describe().items() if name.startswith("absent_by_")}
        if "off" in options:
            check(absent["absent_by_bitmap_pages_total"] == 0 and absent["absent_by_pattern_pages_total"] > 0, str(absent))
        if "live" in options:
            check(absent["absent_by_bitmap_pages_total"] > 0, str(absent))
        mine = [session["bitmap"] for session in volume.status()["sessions"] if session["pid"] == m.pid]
        check(mine == [options.split(",")[0].split("=")[1]], str(mine))
        volume.umount(m)


def case_grants_cost_no_requests(site):
    m = site.mounted()
    for i in range(20):
        write_file(m / f"f{i}", b"")
    names = [m / f"f{i}" for i in range(20)] + [m.path]

    def requests(action):
        before = int(m.describe()["fs_metadata_total"])
        action()
        return int(m.describe()["fs_metadata_total"]) - before

    for name in names:
        os.stat(name)
    # Fewer than one for ten: what was granted may just have ended.
    check(requests(lambda: [os.stat(name) for _ in range(20) for name in names]) < 42, "stat of what is known")
    os.listdir(m.path)
    check(requests(lambda: [os.path.exists(m / "missing") for _ in range(100)]) < 10, "a name that is not there")
    none = site.volumes[0].mount("cache=none")
    os.stat(none / "f0")
    before = int(none.describe()["fs_metadata_total"])
    for _ in range(20):
        os.stat(none / "f0")
    check(int(none.describe()["fs_metadata_total"]) - before >= 20, "cache=none asks each time")


def case_a_long_listing_costs_a_request_for_each_batch(site):
    """`ls -l` looks at each file, and asks each for extended attributes."""
    a, b = two_mounts(site)
    files = 2000
    os.mkdir(a / "d")
    for i in range(files):
        os.close(os.open(a / f"d/f{i}", os.O_CREAT | os.O_WRONLY))

    def listed():
        before = int(b.describe()["fs_metadata_total"])
        lines = run("ls", "-l", b / "d").splitlines()
        check(len(lines) == files + 1, f"{len(lines)} lines")
        return lines, int(b.describe()["fs_metadata_total"]) - before

    asked = listed()[1]
    check(asked < files // 8, f"{files} files took {asked} requests")
    os.setxattr(a / "d/f7", ACCESS, acl(("user", 6), ("named user", 4, 1001), ("group", 0), ("mask", 4), ("other", 0)))
    marked = [line for line in listed()[0] if line.split()[0].endswith("+")]
    check(len(marked) == 1 and marked[0].endswith(" f7"), f"with a list: {marked}")


def case_names_of_a_new_directory_are_known(site):
    """A file in a directory that this mount has made costs a create and a release, and no look-up before."""
    m = site.mounted()
    other = site.volumes[0].mount()
    os.mkdir(m / "d")
    before = int(m.describe()["fs_metadata_total"])
    for i in range(200):
        os.close(os.open(m / f"d/f{i}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    asked = int(m.describe()["fs_metadata_total"]) - before
    check(asked < 450, f"200 files took {asked} requests")
    check(len(os.listdir(other / "d")) == 200, "another mount sees all")
    check(not os.path.exists(m / "d/new"), "not there yet")
    write_file(other / "d/new", b"x")
    check(read_file(m / "d/new") == b"x", "what another mount has made")


# Looks at a file and reads it, when it is told to.
READER = """
import os, sys
print("ready", flush=True)
sys.stdin.readline()
for _ in range(3):
    assert os.stat(sys.argv[1]).st_size == 5
    with open(sys.argv[1], "rb") as file:
        assert file.read() == b"first"
print("read", flush=True)
"""


def case_repeated_look_costs_nothing(site):
    """A file that was read is looked at, opened and read again without the server: it is stopped."""
    a, b = two_mounts(site)
    write_file(a / "f", b"first")
    check(read_file(a / "f") == b"first" and read_file(a / "f") == b"first", "read once")
    reader = site.start(sys.executable, "-c", READER, str(a / "f"), stdin=subprocess.PIPE)
    check(reader.stdout.readline() == "ready\n", "started")
    with Stopped(site.volumes[0]):
        said, _ = reader.communicate("\n", timeout=20)
    check(reader.returncode == 0, said)
    check(int(a.describe()["fs_opens_again_total"]) >= 3, "opened again")
    write_file(b / "f", b"second, longer")
    check(read_file(a / "f") == b"second, longer", "what another mount has written since")
    os.unlink(b / "f")
    check(not os.path.exists(a / "f"), "removed by another mount")
    eventually(lambda: int(site.volumes[0].metrics()["fs_inodes"]) == 1, "a removed file is freed, though it was open")


def facts(path):
    s = os.lstat(path)
    return (s.st_mode, s.st_nlink, s.st_uid, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_blocks)


def case_two_mounts_attributes(site):
    """Each change by one mount, of what the other one has just looked at."""
    a, b = two_mounts(site)
    os.mkdir(a / "d")
    write_file(a / "d/f", b"x" * 10)
    write_file(a / "d/victim", b"")
    handle = os.open(a / "d/f", os.O_RDWR)

    def seen(what, action, *names):
        for name in names:
            facts(b / name)
        action()
        for name in names:
            # The second mount may not keep anything, and tells how it is.
            check(facts(b / name) == facts(a / name), f"{what}: {name}")

    def changes(what, action, name, field):
        before = getattr(os.lstat(b / name), field)
        action()
        check(getattr(os.lstat(b / name), field) != before, f"{what}: {field} of {name} on the other mount")
        check(facts(a / name) == facts(b / name), f"{what}: {name} on both")

    for _ in range(3):
        changes("chmod", lambda: os.chmod(a / "d/f", os.stat(a / "d/f").st_mode ^ 0o100), "d/f", "st_mode")
        changes("chown", lambda: os.chown(a / "d/f", os.stat(a / "d/f").st_uid + 1, -1), "d/f", "st_uid")
        changes("utime", lambda: os.utime(a / "d/f", ns=(1, os.stat(a / "d/f").st_mtime_ns - 1)), "d/f", "st_mtime_ns")
        changes("append", lambda: os.pwrite(handle, b"more", os.fstat(handle).st_size), "d/f", "st_size")
        changes("overwrite", lambda: os.pwrite(handle, b"same", 0), "d/f", "st_mtime_ns")
        changes("truncate", lambda: os.truncate(a / "d/f", os.stat(a / "d/f").st_size - 1), "d/f", "st_size")
        changes("setxattr", lambda: os.setxattr(a / "d/f", "user.a", os.urandom(4)), "d/f", "st_ctime_ns")
        changes("link", lambda: os.link(a / "d/f", a / "d/g"), "d/f", "st_nlink")
        changes("write by the other name", lambda: write_file(a / "d/g", os.urandom(30)), "d/f", "st_mtime_ns")
        changes("unlink", lambda: os.unlink(a / "d/g"), "d/f", "st_nlink")
        changes("mkdir", lambda: os.mkdir(a / "d/sub"), "d", "st_nlink")
        changes("rmdir", lambda: os.rmdir(a / "d/sub"), "d", "st_nlink")
        changes("create", lambda: write_file(a / "d/new", b""), "d", "st_mtime_ns")
        changes("rename", lambda: os.rename(a / "d/new", a / "new"), "d", "st_mtime_ns")
        changes("rename back", lambda: os.rename(a / "new", a / "d/new"), "", "st_mtime_ns")
        os.unlink(a / "d/new")
        seen("rename over", lambda: os.rename(a / "d/victim", a / "d/f2"), "d")
        os.rename(a / "d/f2", a / "d/victim")
    os.close(handle)


def case_own_mount_attributes(site):
    """What a kernel has cached changes by another name of the same mount."""
    m = site.mounted()
    os.mkdir(m / "d")
    write_file(m / "f", b"1")

    def changes(what, action, path, field):
        before = getattr(os.lstat(path), field)
        action()
        check(getattr(os.lstat(path), field) != before, f"{what}: {field}")

    for _ in range(3):
        changes("link", lambda: os.link(m / "f", m / "d/g"), m / "f", "st_nlink")
        check(os.stat(m / "d/g").st_nlink == os.stat(m / "f").st_nlink == 2, "both names")
        changes("write by the other name", lambda: write_file(m / "d/g", os.urandom(9)), m / "f", "st_mtime_ns")
        changes("chmod by the other name", lambda: os.chmod(m / "d/g", os.stat(m / "f").st_mode ^ 0o010), m / "f", "st_mode")
        changes("rename of the other name", lambda: os.rename(m / "d/g", m / "h"), m / "f", "st_ctime_ns")
        changes("into the root", lambda: os.link(m / "f", m / "i"), m.path, "st_mtime_ns")
        os.unlink(m / "i")
        changes("unlink of the other name", lambda: os.unlink(m / "h"), m / "f", "st_nlink")
        changes("setxattr", lambda: os.setxattr(m / "f", "user.a", os.urandom(4)), m / "f", "st_ctime_ns")
        changes("mkdir", lambda: os.mkdir(m / "d/sub"), m / "d", "st_nlink")
        changes("rename of a directory", lambda: os.rename(m / "d/sub", m / "sub"), m / "d", "st_nlink")
        os.rmdir(m / "sub")
    os.chmod(m / "f", 0o4755)
    check(os.stat(m / "f").st_mode & 0o7777 == 0o4755, "set-user-id")
    with open(m / "f", "rb+", buffering=0) as file:
        os.chmod(m / "f", 0o4777)
        os.stat(m / "f")
        child = os.fork()
        if child == 0:
            os.setuid(12345)
            os.write(file.fileno(), b"x")
            os._exit(0)
        os.waitpid(child, 0)
    check(os.stat(m / "f").st_mode & 0o7777 == 0o777, "a write that clears set-user-id")


def churn_same_directory(a, b):
    """Both change the directory d at the same time."""
    problems = []

    def churn(m, me):
        try:
            for i in range(150):
                write_file(m / f"d/{me}{i}", b"")
                os.rename(m / f"d/{me}{i}", m / f"d/{me}x")
                os.stat(m / "d")
                os.path.exists(m / f"d/{me}{i + 1}")
                os.unlink(m / f"d/{me}x")
                refuses(2, os.stat, m / f"d/{me}x")
        except Exception as error:  # pylint: disable=broad-except
            problems.append(f"{me}: {error!r}")

    def look(m):
        for _ in range(150):
            os.listdir(m / "d")
            for me in "abcd":
                os.path.exists(m / f"d/{me}x")

    threads = [threading.Thread(target=churn, args=(m, me)) for m, me in ((a, "a"), (a, "b"), (b, "c"), (b, "d"))]
    threads += [threading.Thread(target=look, args=(m,)) for m in (a, b)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(not problems, "; ".join(problems))


def case_two_mounts_same_directory(site):
    """Each one's notifications meet the other's requests."""
    a, b = two_mounts(site)
    os.mkdir(a / "d")
    churn_same_directory(a, b)
    check(os.listdir(a / "d") == os.listdir(b / "d") == [], "nothing is left")
    expelled = site.volumes[0].metrics()["fs_expulsions_total"]
    check(expelled == 0, f"{expelled} sessions were expelled")


def case_two_mounts_rename_the_same(site):
    """One moves the name that the other one has just replaced: what its kernel moves is not what the server moves."""
    a, b = two_mounts(site)
    numbers = random.Random(5)
    wrong = []
    rounds = site.size(400, 100)
    for number in range(rounds):
        for name in ("old", "other", "new"):
            write_file(b / name, b"")
        os.link(b / "old", b / "kept")  # or its inode is found to be gone, and the name looked up again
        for name in ("old", "other"):
            os.stat(a / name)
        replacing = threading.Thread(target=os.rename, args=(b / "new", b / "old"))
        replacing.start()
        time.sleep(numbers.uniform(0, 0.0005))
        renameat2(a / "old", a / "other", RENAME_EXCHANGE if number % 2 else 0)
        replacing.join()
        seen, there = ([os.path.exists(m / name) and os.stat(m / name).st_ino for name in ("old", "other")] for m in (a, b))
        if seen != there:
            wrong.append((number, seen, there))
        for name in ("old", "other", "kept"):
            if os.path.exists(b / name):
                os.unlink(b / name)
    check(not wrong, f"{len(wrong)} of {rounds} were seen wrong: {wrong[:3]}")


def case_two_mounts_random(site):
    """Each mount changes files of its own; what a call returned is seen by every look at any mount that begins later."""
    a, b = two_mounts(site)
    seed = random.randrange(1 << 30)
    files = 8
    for i in range(files):
        os.mkdir(a / f"d{i}")
    truth = [{"step": 0, "size": None, "name": None} for _ in range(files)]
    problems = []

    def change(m, rng, i):
        fact = truth[i]
        fact["step"] += 1  # odd: under way
        name, size = fact["name"], fact["size"]
        if name is None:
            name, size = f"d{i}/n{rng.randrange(3)}", rng.randrange(1, 100)
            write_file(m / name, b"x" * size)
        else:
            what = rng.randrange(4)
            if what == 0:
                os.unlink(m / name)
                name, size = None, None
            elif what == 1:
                new = f"d{rng.randrange(files)}/m{i}"
                os.rename(m / name, m / new)
                name = new
            elif what == 2:
                size = rng.randrange(1, 100)
                os.truncate(m / name, size)
            else:
                size += 5
                with open(m / name, "ab", buffering=0) as file:
                    file.write(b"12345")
        fact["name"], fact["size"] = name, size
        fact["step"] += 1

    def look(m, rng):
        i = rng.randrange(files)
        before, name, size = truth[i]["step"], truth[i]["name"], truth[i]["size"]
        candidates = [f"d{i}/n{k}" for k in range(3)] + [f"d{k}/m{i}" for k in range(files)]
        picked = name if name and rng.randrange(2) else rng.choice(candidates)
        try:
            found = os.stat(m / picked).st_size
        except FileNotFoundError:
            found = None
        if before % 2 == 0 and truth[i]["step"] == before:
            expected = size if picked == name else None
            if found != expected:
                problems.append(f"seed {seed}: {m.path}/{picked} has size {found}, not {expected}")

    def run(m, me, number):
        rng = random.Random(seed + number)
        try:
            for _ in range(site.size(600, 200)):
                if rng.randrange(6) == 0 and me is not None:
                    change(m, rng, rng.randrange(files // 4) * 4 + me)
                else:
                    look(m, rng)
        except Exception as error:  # pylint: disable=broad-except
            problems.append(f"seed {seed}: {error!r}")

    owners = [(a, 0), (a, 1), (b, 2), (b, 3), (a, None), (b, None)]
    threads = [threading.Thread(target=run, args=(m, me, number)) for number, (m, me) in enumerate(owners)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(not problems, "; ".join(problems[:3]))


def case_a_mount_below_another(site):
    """What is mounted on a directory stays, when the server is lost and when others change what is around it."""
    a, b = two_mounts(site)
    os.makedirs(a / "d/e")
    run("mount", "-t", "tmpfs", "tmpfs", a / "d/e")
    try:
        write_file(a / "d/e/inside", b"x")
        for i in range(20):
            write_file(b / f"d/f{i}", b"")
            os.chmod(b / "d", 0o700 + i % 8)
            os.rename(b / f"d/f{i}", b / "d/g")
        check(os.path.ismount(a / "d/e"), "mounted after changes by another mount")
        check(read_file(a / "d/e/inside") == b"x", "after changes by another mount")
        churn_same_directory(a, b)
        check(os.path.ismount(a / "d/e"), "mounted after both have changed the directory")
        volume = site.volumes[0]
        expelled = volume.metrics()["fs_expulsions_total"]
        check(expelled == 0, f"{expelled} sessions were expelled")
        volume.kill()
        volume.serve()
        os.stat(a / "d")
        check(os.path.ismount(a / "d/e"), "mounted after the server was lost")
        check(read_file(a / "d/e/inside") == b"x", "after the server was lost")
    finally:
        if os.path.ismount(a / "d/e"):
            run("umount", a / "d/e")
