# SPDX-License-Identifier: Apache-2.0
"""Quotas of directory trees: what is refused, what is counted, and what df shows."""
import errno
import json
import os

from cases_acl import ANN, error_as
from cases_input import refused
from cases_posix import MIB, read_file, refuses, write_file
from volume import check, eventually, run

PAGE = 4096


def set_quota(site, path, *limits, **options):
    return run(site.termfs, "quota", "set", path, *limits, **options)


def quota(site, path):
    return json.loads(run(site.termfs, "quota", "get", path, "--json"))


def used(site, path):
    found = quota(site, path)
    return found["bytes_used"], found["inodes_used"]


def expect_used(site, path, size, inodes):
    """Space that was allocated ahead of a growth is given back after the file was closed."""
    eventually(lambda: used(site, path) == (size, inodes), f"{size} bytes and {inodes} inodes are in use")


def put(path, data):
    fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def fill(path, step=MIB):
    """Appends until that is refused; the errno, and how many bytes there are."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        while True:
            os.write(fd, b"x" * step)
    except OSError as error:
        return error.errno, os.fstat(fd).st_size
    finally:
        os.close(fd)


def case_quota_limits_bytes(site):
    volume = site.volume("64M")
    a, b = volume.mount(), volume.mount()
    os.mkdir(a / "d")
    set_quota(site, a / "d", "bytes=8M")
    check(fill(a / "d/f") == (errno.EDQUOT, 8 * MIB), "as much as the limit")
    refuses(errno.EDQUOT, put, b / "d/g", b"x")
    check(os.stat(b / "d/g").st_size == 0, "nothing of it is there")
    write_file(b / "outside", b"x" * MIB)
    with open(a / "d/g", "r+b") as file:
        refuses(errno.EDQUOT, os.posix_fallocate, file.fileno(), 0, 1)
        refuses(errno.EDQUOT, os.pwrite, file.fileno(), b"x", 0)
    with open(a / "outside", "rb") as source, open(a / "d/g", "r+b") as target:
        refuses(errno.EDQUOT, os.copy_file_range, source.fileno(), target.fileno(), MIB)
    os.truncate(a / "d/f", 7 * MIB + PAGE // 2)
    with open(a / "outside", "rb") as source, open(b / "d/g", "r+b") as target:
        os.posix_fallocate(target.fileno(), 0, PAGE)
        refuses(errno.EDQUOT, os.posix_fallocate, target.fileno(), 0, MIB)
        check(os.fstat(target.fileno()).st_blocks == PAGE // 512, "all of it or nothing")
    expect_used(site, a / "d", 7 * MIB + 2 * PAGE, 3)
    os.unlink(a / "d/f")
    expect_used(site, b / "d", PAGE, 2)
    write_file(b / "d/g", b"y" * 8 * MIB)
    check(read_file(a / "d/g") == b"y" * 8 * MIB, "there is room again")
    check("it is still counted" in set_quota(site, b / "d", "bytes=none"), "it is said that the tree remains one")
    write_file(a / "d/more", b"x" * MIB)
    for name in ("g", "more"):
        os.unlink(a / f"d/{name}")
    expect_used(site, a / "d", 0, 1)
    check(set_quota(site, a / "d", "bytes=none") == "", "nothing is left of it")
    run(site.termfs, "quota", "get", a / "d", code=1)
    for mount in (a, b):
        volume.umount(mount)
    volume.stop()
    volume.fsck()


def case_quota_limits_inodes(site):
    volume = site.volume("64M")
    m = volume.mount()
    os.mkdir(m / "d")
    set_quota(site, m / "d", "inodes=4")
    write_file(m / "d/f", b"x")
    os.mkdir(m / "d/sub")
    os.symlink("f", m / "d/sub/link")
    refuses(errno.EDQUOT, write_file, m / "d/g", b"")
    refuses(errno.EDQUOT, os.mkdir, m / "d/sub/g")
    os.link(m / "d/f", m / "d/sub/again")
    fd = os.open(m / "d/f", os.O_RDONLY)
    os.unlink(m / "d/f")
    os.unlink(m / "d/sub/again")
    refuses(errno.EDQUOT, write_file, m / "d/g", b"")
    os.close(fd)
    eventually(lambda: used(site, m / "d") == (0, 3), "what was open and unlinked is gone")
    write_file(m / "d/g", b"")


def case_quota_keeps_names_in_their_tree(site):
    volume = site.volume("64M")
    m = volume.mount()
    for name in ("d", "e"):
        os.mkdir(m / name)
        set_quota(site, m / name, "bytes=8M")
        write_file(m / f"{name}/f", name.encode())
    refuses(errno.EXDEV, os.rename, m / "d/f", m / "e/g")
    refuses(errno.EXDEV, os.rename, m / "d/f", m / "g")
    refuses(errno.EXDEV, os.link, m / "d/f", m / "g")
    run("mv", m / "d/f", m / "e/f")
    check(read_file(m / "e/f") == b"d" and not os.path.lexists(m / "d/f"), "mv copies")
    os.rename(m / "d", m / "moved")
    expect_used(site, m / "moved", 0, 1)


def case_quota_is_what_df_shows(site):
    volume = site.volume("64M")
    m = volume.mount()
    whole = os.statvfs(m.path)
    os.mkdir(m / "d")
    set_quota(site, m / "d", "bytes=8M", "inodes=100")
    write_file(m / "d/f", b"x" * MIB)
    expect_used(site, m / "d", MIB, 2)
    for path in (m / "d", m / "d/f"):
        shown = os.statvfs(path)
        check(shown.f_blocks * shown.f_frsize == 8 * MIB and shown.f_bavail * shown.f_frsize == 7 * MIB, f"{shown}")
        check((shown.f_files, shown.f_ffree) == (100, 98), f"{shown}")
    check(os.statvfs(m.path).f_blocks == whole.f_blocks, "elsewhere all of the volume")


def case_quota_counts_what_is_there(site):
    volume = site.volume("64M")
    m = volume.mount()
    os.makedirs(m / "d/sub/deep")
    for i in range(1000):
        write_file(m / f"d/sub/{i}", b"")
    write_file(m / "d/sub/deep/f", b"x" * MIB)
    set_quota(site, m / "d/sub", "bytes=512K")
    expect_used(site, m / "d/sub", MIB, 1003)
    refuses(errno.EDQUOT, put, m / "d/sub/1", b"x")
    text = run(site.termfs, "quota", "get", m / "d/sub/deep")
    check("1.00 MiB of 512 KiB" in text and "1003, no limit" in text, text)


def case_quota_is_roots(site):
    volume = site.volume("64M")
    m = volume.mount()
    os.mkdir(m / "d")
    os.chmod(m / "d", 0o777)
    set_quota(site, m / "d", "bytes=8M")
    value = os.getxattr(m / "d", "system.termfs.quota")
    check(error_as(ANN, m, os.setxattr, "d", "system.termfs.quota", value) == errno.EPERM, "others may not set")
    check(error_as(ANN, m, os.getxattr, "d", "system.termfs.quota") == 0, "but may see")
    refuses(errno.EINVAL, os.setxattr, m / "d", "system.termfs.quota", b"nonsense")
    check(os.listxattr(m / "d") == [], "and it is not listed")
    os.mkdir(m / "d/sub")
    for arguments in ((m / "d/sub", "bytes=8M"), (m.path, "bytes=8M"), (volume.path, "bytes=8M")):
        set_quota(site, *arguments, code=1)
    for limit in ("bytes", "bytes=", "bytes=x", "bytes=100", "inodes=-1", "files=3"):
        set_quota(site, m / "d", limit, code=2)
    run(site.termfs, "quota", "get", m.path, code=1)
    for limit in ("bytes=0", "inodes=0", "inodes=-1"):
        refused(site, 2, "'none' removes the limit", "quota", "set", m / "d", limit)
    check(quota(site, m / "d")["bytes_limit"] == 8 * MIB, "the limit stays")
    for word in ("del", "remove"):
        refused(site, 2, (f"'{word}'", "set, get", "termfs quota --help"), "quota", word, m / "d")
    refused(site, 2, "a subcommand is missing: set, get", "quota")


def case_quota_is_exact_after_a_kill(site):
    volume = site.volume("64M")
    a, b = volume.mount(), volume.mount()
    os.mkdir(a / "d")
    set_quota(site, a / "d", "bytes=16M", "inodes=1000")
    for i in range(100):
        write_file((a, b)[i % 2] / f"d/{i}", b"x" * PAGE * (i % 7))
    for i in range(0, 100, 3):
        os.unlink((b, a)[i % 2] / f"d/{i}")
    volume.kill()
    volume.serve()
    pages = sum(i % 7 for i in range(100) if i % 3 != 0)
    expect_used(site, b / "d", pages * PAGE, 67)
    check(fill(a / "d/f", PAGE)[0] == errno.EDQUOT, "and enforced")
    expect_used(site, b / "d", 16 * MIB, 68)
    for mount in (a, b):
        volume.umount(mount)
    volume.stop()
    volume.fsck()


def case_quota_list(site):
    volume = site.volume("64M")
    m = volume.mount()
    check(json.loads(run(site.termfs, "quota", "list", volume.path, "--json")) == [], "none")
    os.makedirs(m / "home/ann")
    os.mkdir(m / "b ob")
    set_quota(site, m / "home/ann", "bytes=8M")
    set_quota(site, m / "b ob", "inodes=4")
    put(m / "home/ann/f", b"x" * MIB)
    expect_used(site, m / "home/ann", MIB, 2)
    os.rename(m / "home", m / "people")
    for place in (m.path, volume.path):
        listed = json.loads(run(site.termfs, "quota", "list", place, "--json"))
        check([quota["path"] for quota in listed] == ["/b ob", "/people/ann"], f"by path: {listed}")
        check(listed[1]["bytes_limit"] == 8 * MIB and listed[1]["bytes_used"] == MIB and listed[0]["inodes_limit"] == 4,
              f"limits and use: {listed}")
    people = run(site.termfs, "quota", "list", m.path).splitlines()
    check(people[0].split()[-1] == "path" and people[1].endswith("  /b ob") and people[2].endswith("  /people/ann"),
          "\n".join(people))
    check("1.00 MiB" in people[2] and "8.00 MiB" in people[2] and " 12% " in people[2], people[2])
