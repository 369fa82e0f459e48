# SPDX-License-Identifier: Apache-2.0
"""What a clumsy or hostile user gives: a clear error, the right exit code, and nothing changed."""
import concurrent.futures
import errno
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time

from cases_locks import Holder
from cases_posix import MIB, read_file, write_file
from volume import WAIT, NoMoreThreads, check, ended, eventually, need, need_less_than, run, stop


def refused(site, code, says, *arguments):
    """`termfs ARGUMENTS` ends with `code` and an error that contains all of `says`; no crash, no stack of messages."""
    done = subprocess.run([site.termfs, *[str(word) for word in arguments]], capture_output=True, text=True, timeout=60,
                          check=False)
    what = f"termfs {' '.join(str(word) for word in arguments)}"
    check(done.returncode == code, f"{what}: exit code {done.returncode}, not {code}: {done.stderr}")
    check(done.stdout == "", f"{what}: prints {done.stdout!r}")
    check(1 <= len(done.stderr.strip().splitlines()) <= 2, f"{what}: {done.stderr!r}")
    check(done.stderr.startswith("termfs: "), f"{what}: does not say who speaks: {done.stderr!r}")
    check("Structure needs cleaning" not in done.stderr, f"{what}: an errno that says nothing: {done.stderr!r}")
    for text in (says,) if isinstance(says, str) else says:
        check(text in done.stderr, f"{what}: {text!r} is not in {done.stderr!r}")


def snapshot(path):
    """Every file of a volume that a refused command must not change, by content; names only of what RocksDB keeps."""
    found = {}
    for folder, _, names in os.walk(path):
        for name in names:
            file = os.path.join(folder, name)
            small = os.path.getsize(file) < MIB and "/meta/" not in file and name not in ("log", "lock", "epoch")
            found[file] = read_file(file) if small else None
    return {file: text for file, text in found.items() if "/meta/" not in file}


SIZE, RANGE, RATIO = "is not a size", "capacity must be from 16 MiB", "is not a ratio from 0.01 to 1"

BAD_FORMATS = (
    (["--capacity", "abc"], SIZE), (["--capacity", "-1"], SIZE), (["--capacity=-8G"], SIZE), (["--capacity", " "], SIZE),
    (["--capacity", "1e9"], SIZE), (["--capacity", "0x10"], SIZE), (["--capacity", "nan"], SIZE),
    (["--capacity", "8E"], "below 8E"), (["--capacity", "99999999999999999999"], SIZE),
    (["--capacity", ""], "--capacity"), ([], "--capacity"), (["--capacity", "1G", "--capacity", "2G"], "--capacity"),
    (["--capacity", "0"], RANGE), (["--capacity", "15M"], ("'15M': " + RANGE)), (["--capacity", "16777217"], RANGE),
    (["--capacity", "4T"], RANGE), (["--capacity", "5T"], RANGE), (["--capacity", "7E"], RANGE),
    (["--capacity", "16M", "--dram-ratio", "0"], RATIO), (["--capacity", "16M", "--dram-ratio", "-1"], RATIO),
    (["--capacity", "16M", "--dram-ratio", "1.01"], RATIO), (["--capacity", "16M", "--dram-ratio", "nan"], RATIO),
    (["--capacity", "16M", "--dram-ratio", "inf"], RATIO), (["--capacity", "16M", "--dram-ratio", "half"], RATIO),
    (["--capacity", "16M", "--dram-ratio", ""], "--dram-ratio"), (["--capacity", "16M", "--colour", "red"], "--colour"),
)


def case_unknown_subcommand(site):
    refused(site, 2, ("'frmat'", "format, serve, mount"), "frmat", site.scratch)


def case_wrong_words_are_named(site):
    for before, command, words, says in (
            ([], "", [], "a subcommand is missing: format, serve"), ([], "", ["--bogus"], "no option '--bogus'"),
            (["--bogus"], "", ["status", site.scratch], "no option '--bogus'"),
            ([], "status", ["--bogus"], "no option '--bogus'"), ([], "status", [site.scratch, "-x"], "no option '-x'"),
            ([], "status", [], "ADDR|MNT is required"), ([], "status", ["a", "b"], "'b' is one argument too many"),
            ([], "format", ["x", "--capacity"], "--capacity"), ([], "format", ["x", "--capacity", "1X"], SIZE),
            ([], "stats", ["x", "--interval", "x"], "--interval"), ([], "set", ["x", "colour=1"], "'colour'"),
            ([], "mount", ["x", "y", "-o", "wombat"], "wombat")):
        help_of = f"See termfs {command} --help." if command else "See termfs --help."
        refused(site, 2, (says, help_of), *before, *([command] if command else []), *words)
    check("termfs SUBCOMMAND --help" in run(site.termfs, "--help"), "where the options of a subcommand are shown")


def case_format_refuses_bad_arguments(site):
    need_less_than(site.scratch, 3 << 40)
    path = os.path.join(site.scratch, "new")
    for arguments, says in BAD_FORMATS:
        refused(site, 2, says, "format", path, *arguments)
        check(not os.path.exists(path), f"format {arguments} left something behind")
    refused(site, 2, "DIR", "format", "", "--capacity", "16M")
    refused(site, 1, "iB", "format", path, "--capacity", "3T", "--dram-ratio", "0.01")  # no memory for that, or no disk
    refused(site, 1, "No such file", "format", os.path.join(path, "deeper"), "--capacity", "16M")
    refused(site, 1, "directory", "format", "/dev/null", "--capacity", "16M")
    check(not os.path.exists(path), "a format that failed left something behind")


def loop_device(site, size):
    """A loop device over a new sparse file."""
    need("losetup")
    need("mkfs.ext4")
    file = os.path.join(site.scratch, f"disk{site.next_number()}")
    with open(file, "wb") as disk:
        disk.truncate(size)
    return file, run("losetup", "--find", "--show", file).strip()


def case_format_refuses_bad_devices(site):
    path = os.path.join(site.scratch, "new")
    disk, loop = loop_device(site, 32 * MIB)
    mount = os.path.join(site.scratch, "ext4")
    os.mkdir(mount)

    def format_refused(says, device, *more):
        before = read_file(disk)
        refused(site, 1, says, "format", path, "--capacity", "16M", "--device", device, *more)
        check(not os.path.exists(path), f"a format on {device} left something behind")
        check(read_file(disk) == before, f"a format on {device} changed it")

    try:
        for device, says in (("/dev/null", "name a block device"), (site.scratch, "name a block device"),
                             (disk, "name a block device"), ("/nonexistent/disk", "No such file"),
                             ("/dev/termfs-none", "there is no block device /dev/termfs-none"),
                             ("/dev/../dev/termfs-none", "there is no block device /dev/termfs-none")):
            format_refused(says, device)
        refused(site, 1, "has 32 MiB, 33 MiB less than is needed", "format", path, "--capacity", "64M", "--device", loop)
        run("mkfs.ext4", "-q", loop)
        run("mount", loop, mount)
        format_refused("is mounted", loop, "--force")
        run("umount", mount)
        format_refused(("ext4", "--force"), loop)
        run(site.termfs, "format", path, "--capacity", "16M", "--device", loop, "--force")
        check(subprocess.run(["mount", loop, mount], stderr=subprocess.DEVNULL, check=False).returncode != 0,
              "the old file system is still there")
        other = os.path.join(site.scratch, "other")
        refused(site, 1, ("region of the termfs volume", "--force"), "format", other, "--capacity", "16M", "--device", loop)
        run(site.termfs, "format", other, "--capacity", "16M", "--device", loop, "--force")
        refused(site, 1, "another volume", "serve", path)
        run(site.termfs, "fsck", other)
        shutil.rmtree(path)
        shutil.rmtree(other)
        entry = struct.pack("<B3sB3sII", 0, b"\0" * 3, 0x83, b"\0" * 3, 2048, 8192)
        write_file(disk, b"\0" * 446 + entry + b"\0" * 48 + b"\x55\xaa" + b"\0" * (32 * MIB - 512))
        format_refused(("dos partition table", "--force"), loop)
    finally:
        if os.path.exists("/dev/termfs-none"):
            os.unlink("/dev/termfs-none")
        subprocess.run(["umount", "-q", mount], stderr=subprocess.DEVNULL, check=False)
        run("losetup", "--detach", loop)
        os.unlink(disk)
        os.rmdir(mount)


def case_format_takes_a_relative_device(site):
    path = os.path.join(site.scratch, "vol")
    pages = os.path.join(site.scratch, "pages")
    run(site.termfs, "format", path, "--capacity", "16M", "--device", "pages", cwd=site.scratch)
    check(os.path.getsize(pages) > 16 * MIB, "the device that was named")
    run(site.termfs, "serve", path)
    server = site.find_process("serve", path)
    os.kill(server, signal.SIGTERM)
    eventually(lambda: ended(server), "the server ends")
    shutil.rmtree(path)
    os.unlink(pages)


def damage(path, how):
    """Applies one row of DAMAGE to the volume at `path`."""
    kind, name, *more = how
    file = os.path.join(path, name)
    if kind == "remove":
        shutil.rmtree(file) if os.path.isdir(file) else os.unlink(file)
    elif kind == "cut":
        os.truncate(file, more[0])
    elif kind == "overwrite":
        with open(file, "r+b") as open_file:
            open_file.seek(more[0])
            open_file.write(os.urandom(more[1]))
    elif kind == "become":
        write_file(file, more[0])
    elif kind == "directory":
        os.unlink(file)
        os.mkdir(file)
    elif kind == "setting":
        text = read_file(file).decode()
        changed = re.sub(rf"(?m)^{more[0]} = .*$", f"{more[0]} = {more[1]}", text)
        check(changed != text, f"no setting {more[0]}")
        write_file(file, changed.encode())
    elif kind == "append":
        write_file(file, read_file(file) + more[0])
    elif kind == "tables":
        for table in os.listdir(file):
            if table.endswith((".sst", ".log")):
                damage(path, ("overwrite", os.path.join(name, table), 0, 2000))


# What is done to a volume, and what serve says of it. fsck finds each of them, too.
DAMAGE = (
    (("remove", "lock"), "not a termfs volume"),
    (("remove", "termfs.toml"), ("not whole", "termfs.toml")),
    (("remove", "epoch"), ("not whole", "epoch")),
    (("remove", "meta"), ("meta", "backup")),
    (("remove", "meta/CURRENT"), ("meta", "backup")),
    (("remove", "region"), ("region", "No such file")),
    (("remove", "written"), ("written", "No such file")),
    (("directory", "termfs.toml"), "termfs.toml"),
    (("directory", "region"), "neither a file nor a block device"),
    (("cut", "region", 0), ("too short", "backup")),
    (("cut", "region", 8 * MIB), ("cut short", "backup")),
    (("cut", "written", 100), "written log"),
    (("cut", "epoch", 0), "epoch"),
    (("overwrite", "region", 0, 100), "no region of termfs"),
    (("overwrite", "region", 30, 8), ("label is damaged", "backup")),
    (("overwrite", "written", 0, 8192), ("written log", "backup")),
    (("become", "epoch", b"-1\n"), "epoch"),
    (("become", "epoch", b"18446744073709551616\n"), "epoch"),
    (("become", "termfs.toml", b""), ("termfs.toml: capacity is missing", "add a line")),
    (("append", "termfs.toml", b"workers four\n"), ("termfs.toml line", "no setting; a line is KEY = VALUE")),
    (("become", "termfs.toml", os.urandom(300)), "termfs.toml"),
    (("become", "termfs.toml", b"a = 1\n" * 50000), "too long"),
    (("become", "termfs.toml", b"a = " + b"[" * 60000), "termfs.toml"),
    (("setting", "termfs.toml", "workers", '"two"'), ("termfs.toml", "workers must be")),
    (("setting", "termfs.toml", "workers", "0"), "workers must be"),
    (("setting", "termfs.toml", "dram-ratio", "nan"), "dram-ratio must be"),
    (("setting", "termfs.toml", "capacity", "33554432"), "16777216 (16 MiB)"),
    (("setting", "termfs.toml", "capacity", "-1"), "capacity must be"),
    (("setting", "termfs.toml", "device", '"/nonexistent"'), "/nonexistent"),
    (("setting", "termfs.toml", "device", '"relative"'), "absolute"),
    (("append", "termfs.toml", b"capacity = 3\n"), "'capacity' is in line 2 already"),
    (("append", "termfs.toml", b"colour = 3\n"), "unknown key 'colour'"),
    (("append", "termfs.toml", b"[colours]\n"), "a table"),
    (("overwrite", "meta/CURRENT", 0, 16), "meta"),
    (("tables", "meta"), "meta"),
)


def case_damaged_volumes_are_refused(site):
    volume = site.volume("16M")
    m = volume.mount()
    write_file(m / "f", b"precious" * 1000)
    volume.umount(m)
    volume.stop()
    damaged = os.path.join(site.scratch, "damaged")
    for how, says in DAMAGE:
        shutil.copytree(volume.path, damaged, symlinks=True)
        damage(damaged, how)
        before = snapshot(damaged)
        try:
            refused(site, 1, says, "serve", damaged)
            check(snapshot(damaged) == before, f"serve changed a damaged volume: {how}")
            done = subprocess.run([site.termfs, "fsck", damaged], capture_output=True, text=True, timeout=60, check=False)
            check(done.returncode == 1, f"fsck after {how}: {done.returncode} {done.stdout} {done.stderr}")
        except AssertionError as error:
            raise AssertionError(f"{how}: {error}") from error
        shutil.rmtree(damaged)
    volume.serve()
    check(read_file(volume.mount() / "f") == b"precious" * 1000, "the volume that was copied from")


def whole_volume(path):
    """Every file with its content."""
    found = {}
    for folder, _, names in os.walk(path):
        for name in names:
            if name not in ("lock", "log", "region", "socket"):
                found[os.path.join(folder, name)] = read_file(os.path.join(folder, name))
    return found


def case_damaged_metadata_log(site):
    """What stands behind a damage in the log of the metadata is not lost by starting, nor by checking: fsck tells of it,
    serve refuses, and fsck --repair keeps what it cuts off."""
    volume = site.volume("64M")
    m = volume.mount()
    for i in range(300):
        write_file(m / f"f{i}", b"%d" % i)
    for path in (m / "f299", m.path):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    volume.kill()
    volume.abandon(m)
    before = whole_volume(volume.path)
    said = run(site.termfs, "fsck", volume.path)
    check("301 inodes" in said and "sound" in said, said)
    check(whole_volume(volume.path) == before, "fsck changed a volume")
    meta = os.path.join(volume.path, "meta")
    log = max((os.path.join(meta, name) for name in os.listdir(meta) if name.endswith(".log")), key=os.path.getsize)
    saved = read_file(log)
    with open(log, "r+b") as file:
        file.seek(len(saved) // 2)
        file.write(bytes(8))
    before = whole_volume(volume.path)
    said = run(site.termfs, "fsck", volume.path, code=1)
    check(log in said and "fsck --repair" in said and "1 problem" in said, said)
    refused(site, 1, (log, "fsck --repair"), "serve", volume.path)
    check(whole_volume(volume.path) == before, "a damaged volume was changed")
    run(site.termfs, "fsck", "--repair", volume.path)
    check(saved.endswith(read_file(log + ".cut-off")[8 + len(saved) // 2:]), "what was cut off")
    check("sound" in run(site.termfs, "fsck", volume.path), "it is sound")
    volume.serve()
    m = volume.mount()
    left = len(os.listdir(m.path))
    check(0 < left < 300, f"{left} names are left")
    check(all(read_file(m / f"f{i}") == b"%d" % i for i in range(left - 1)), "what was before the damage")


def case_fsck_of_a_read_only_copy(site):
    need("mount")
    volume = site.volume("16M")
    volume.stop()
    view = os.path.join(site.scratch, "view")
    os.mkdir(view)
    run("mount", "--bind", volume.path, view)
    try:
        run("mount", "-o", "remount,bind,ro", view)
        check("sound" in run(site.termfs, "fsck", view), "it is checked")
        refused(site, 1, "Read-only file system", "fsck", "--repair", view)
    finally:
        run("umount", view)
        os.rmdir(view)
    volume.serve()


def case_root_leaves_a_users_volume_alone(site):
    """What root would make in it would be lost to its owner."""
    volume = site.volume("16M")
    volume.stop()
    log = os.path.join(volume.path, "log")
    os.unlink(log)
    run("chown", "-R", "65534", volume.path)
    before = snapshot(volume.path)
    for command in (("serve", volume.path), ("fsck", "--repair", volume.path), ("fsck", volume.path)):
        refused(site, 1, (f"{volume.path} belongs to user 65534", "chown"), *command)
    check(snapshot(volume.path) == before, "it was changed")
    elsewhere = os.path.join(site.scratch, "elsewhere")
    os.symlink(elsewhere, log)
    refused(site, 1, ("belongs to user 65534", "chown"), "serve", volume.path)
    run("chown", "-R", "-h", "0", volume.path)
    os.chmod(volume.path, 0o775)
    refused(site, 1, (f"{volume.path}, of user 0, may be written to by group", "chmod go-w"), "serve", volume.path)
    check(not os.path.lexists(elsewhere), "the server wrote where a link leads")
    os.chmod(volume.path, 0o755)
    volume.serve()
    check("is served" in read_file(elsewhere).decode(), "where only its owner can have made the link, it is followed")
    os.unlink(log)
    os.unlink(elsewhere)


def case_open_doors_are_told(site):
    volume = site.volume("16M")
    volume.stop()
    os.chmod(volume.path, 0o755)
    os.chmod(os.path.join(volume.path, "region"), 0o644)
    volume.serve()
    said = read_file(os.path.join(volume.path, "log")).decode()
    check("region may be read by everybody" in said, said)
    check("chmod o= " + os.path.join(volume.path, "meta") not in said, said)
    os.chmod(os.path.join(volume.path, "region"), 0o600)
    volume.stop()
    os.chmod(os.path.join(volume.path, "meta"), 0o755)
    volume.serve()
    said = read_file(os.path.join(volume.path, "log")).decode()
    check("chmod o= " + os.path.join(volume.path, "meta") in said, said)


def case_unknown_features_are_refused(site):
    """What a later termfs may write into the superblock: each program says what it does not know and changes nothing."""
    volume = site.volume("16M")
    m = volume.mount()
    write_file(m / "f", b"precious" * 1000)
    volume.umount(m)
    volume.stop()
    later = os.path.join(site.scratch, "later")
    empty = os.path.join(site.scratch, "empty")
    os.mkdir(empty)
    for kind, mask in (("incompat", "0x10"), ("incompat", "0x8000000000000020"), ("ro-compat", "0x4")):
        shutil.copytree(volume.path, later)
        run(site.set_features, later, kind, mask)
        before = snapshot(later)
        for command in (["serve"], ["serve", "--foreground"], ["fsck"], ["fsck", "--repair"], ["fsck", "--json"]):
            refused(site, 1, (f"{kind} {mask}", "use a newer termfs"), command[0], later, *command[1:])
        refused(site, 1, "termfs serve", "mount", later, empty)
        check(snapshot(later) == before, f"a volume with {kind} {mask} was changed")
        shutil.rmtree(later)
    shutil.copytree(volume.path, later)
    run(site.set_features, later, "compat", "0x10")
    run(site.termfs, "fsck", later)
    run(site.termfs, "serve", later)
    os.kill(site.find_process("serve", later), signal.SIGTERM)
    os.rmdir(empty)
    volume.serve()


def case_a_region_of_another_volume_is_refused(site):
    one, other = site.volume("16M"), site.volume("16M")
    one.stop()
    other.stop()
    region = os.path.join(one.path, "region")
    os.rename(region, region + ".own")
    shutil.copy(os.path.join(other.path, "region"), region)
    refused(site, 1, "another volume", "serve", one.path)
    os.replace(region + ".own", region)
    one.serve()


def case_status_of_a_stopped_server(site):
    """It says so before whoever asks thinks that it hangs itself."""
    volume = site.volume("16M")
    stop(volume.server)
    try:
        for command in (["status"], ["stats", "--count", "1"]):
            began = time.monotonic()
            refused(site, 1, "does not answer", command[0], volume.path, *command[1:])
            check(time.monotonic() - began < 40, f"{command[0]} took {time.monotonic() - began:.0f} s")
    finally:
        os.kill(volume.server, signal.SIGCONT)
    check("1 inode" in run(site.termfs, "status", volume.path), "it goes on")


def case_serve_refuses(site):
    volume = site.volume("16M")
    for arguments, says in ((["--workers", "0"], "workers"), (["--workers", "x"], "workers"),
                            (["--kind", "magic"], "kind must be"), (["--promoter", "luck"], "promoter must be"),
                            (["--dram-ratio", "2"], RATIO), (["--kind", ""], "--kind")):
        refused(site, 2, says, "serve", volume.path, *arguments)
    for command in ("serve", "fsck"):
        refused(site, 1, f"is served by process {volume.server}; that has to end first", command, volume.path)
    for force in ([], ["--force"]):
        refused(site, 1, ("is a termfs volume already", "empty or does not exist"), "format", volume.path,
                "--capacity", "16M", *force)
    refused(site, 1, ("is not empty", "empty or does not exist"), "format", site.scratch, "--capacity", "16M")
    empty = os.path.join(site.scratch, "empty")
    os.mkdir(empty)
    file = os.path.join(site.scratch, "file")
    write_file(file, b"")
    for command in (["serve"], ["fsck"], ["status"], ["stats"], ["set", "dram-ratio=0.5"]):
        name, settings = command[0], command[1:]
        advice = "; termfs format makes one" if name == "serve" else "(no file 'lock' in it), nor is one mounted there"
        refused(site, 1, ("not a termfs volume", advice), name, empty, *settings)
        refused(site, 1, "(no file 'lock' in it), nor is one mounted there", name, site.scratch, *settings)
        refused(site, 1, "a volume is a directory", name, file, *settings)
        refused(site, 1, "No such file", name, file + "x", *settings)
    check(os.listdir(empty) == [], "a directory that is no volume was changed")
    check(" free, 1 inode\n" in run(site.termfs, "status", volume.path), "one inode, by status")
    volume.stop()
    check(": 1 inode, 1 directory, 0 extents, " in volume.fsck(), "one inode, by fsck")
    for command in (["status"], ["stats", "--count", "1"], ["set", "dram-ratio=0.5"]):
        refused(site, 1, "termfs serve", command[0], volume.path, *command[1:])
    os.rmdir(empty)
    volume.serve()


def case_set_refuses(site):
    volume = site.volume("16M", 0.5)
    for setting, says in (("dram-ratio=nan", RATIO), ("dram-ratio=", RATIO), ("dram-ratio=0", RATIO),
                          ("dram-ratio", "KEY=VALUE"), ("=1", "KEY=VALUE"), ("promoter=luck", "promoter"),
                          ("pattern=zeros", "pattern"), ("colour=blue", "'colour' is not a setting")):
        refused(site, 2, says, "set", volume.path, "dram-ratio=0.25", setting)
        check(volume.status()["dram_ratio"] == 0.5, f"set dram-ratio=0.25 {setting} did half of it")
    refused(site, 2, "'dram-ratio' is there twice", "set", volume.path, "dram-ratio=0.25", "dram-ratio=0.3")
    check(volume.status()["dram_ratio"] == 0.5, "the first of two was set")
    refused(site, 2, "capacity: '15M': " + RANGE, "set", volume.path, "capacity=15M")
    for arguments, says in ((["--count", "0"], "count"), (["--count", "-1"], "count"), (["--interval", "0"], "interval"),
                            (["--interval", "nan"], "interval"), (["--interval", "x"], "interval")):
        refused(site, 2, says, "stats", volume.path, *arguments)


def case_mount_refuses(site):
    volume = site.volume("16M")
    m = volume.mount()
    empty = os.path.join(site.scratch, "empty")
    os.mkdir(empty)
    file = os.path.join(site.scratch, "file")
    write_file(file, b"")
    for option, says in (("wombat", "wombat"), ("threads=0", "threads"), ("threads=x", "threads"),
                         ("timeout=-1", "timeout"), ("bitmap=perhaps", "bitmap"), ("bitmap", "bitmap"), ("ro=1", "ro=1")):
        refused(site, 2, says, "mount", volume.path, empty, "-o", option)
    for arguments in (["-o", "secret=x"], ["--secret", "x"], ["-o", "rdma=x"]):
        refused(site, 2, "is for a volume that is served on a network", "mount", volume.path, empty, *arguments)
    refused(site, 1, "a server on another host is HOST:PORT, such as 127.0.0.1:4794", "mount", "127.0.0.1", empty)
    for address, place, says in ((volume.path, m.path, ("termfs is mounted there", "umount")),
                                 (volume.path, file, "is no directory"), (volume.path, file + "x", "No such file"),
                                 (volume.path, site.scratch, "empty"), (volume.path, "/proc/self", "empty"),
                                 (volume.path, "/proc", "mounted there"), (empty, empty, "not a termfs volume"),
                                 (file, empty, "a volume is a directory"), (file + "x", empty, "No such file")):
        refused(site, 1, says, "mount", address, place)
    for place, says in ((empty, "nothing is mounted"), (file, "nothing is mounted"), ("/proc", "no termfs"),
                        (file + "x", "filex: No such file"), (os.path.join(m.path, "x"), "/x: No such file")):
        refused(site, 1, says, "umount", place)
    refused(site, 1, "No such file", "mount", volume.path, empty, "--log", "/nonexistent/log")
    check(not os.path.ismount(empty), "a mount that was refused is there")
    volume.umount(m)
    volume.stop()
    refused(site, 1, "termfs serve", "mount", volume.path, empty)
    check(not os.path.ismount(empty) and os.listdir(empty) == [], "a mount that was refused is there")
    os.rmdir(empty)
    os.unlink(file)
    volume.serve()


def case_only_root_or_its_owner_unmounts(site):
    need("setpriv")
    volume = site.volume("16M")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:  # that others may look into
        os.chmod(place, 0o755)
        path = os.path.join(place, "m")
        os.mkdir(path)
        termfs = shutil.copy(site.termfs, place)
        run(site.termfs, "mount", volume.path, path, "-o", f"fuse={site.fuse}")
        m = volume.mounted(path)
        try:
            for lazily in ([], ["--lazy"]):
                done = subprocess.run(["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", termfs, "umount", path,
                                       *lazily], capture_output=True, text=True, timeout=60, check=False)
                check(done.returncode == 1 and "only root, or who mounted it, may unmount" in done.stderr and
                      "busy" not in done.stderr, f"{lazily}: {done.returncode}: {done.stderr}")
        finally:
            volume.umount(m)


def case_dead_mounts_are_named(site):
    volume = site.volume("16M")
    m = volume.mount()
    os.kill(m.pid, signal.SIGKILL)
    eventually(lambda: ended(m.pid), "the mount is dead")
    for command in (["status"], ["stats"], ["set", "dram-ratio=0.5"]):
        refused(site, 1, "a dead mount is there, end it with termfs umount", command[0], m.path, *command[1:])
    run(site.termfs, "umount", m.path)
    volume.abandon(m)


def case_demo_looks_at_its_options_first(site):
    """In a folder where nothing could be built."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    copy = os.path.join(site.scratch, "tree")
    os.mkdir(copy)
    shutil.copy(os.path.join(root, "dev"), copy)
    shutil.copytree(os.path.join(root, "tools"), os.path.join(copy, "tools"), ignore=shutil.ignore_patterns("__pycache__"))
    for arguments, says in ((["--seconds", "0"], "'0' is no number"), (["--bogus"], "usage: ./dev demo"),
                            (["--dir", "/nonexistent"], "no directory '/nonexistent'")):
        done = subprocess.run([os.path.join(copy, "dev"), "demo", *arguments], capture_output=True, text=True, timeout=60,
                              check=False)
        check(done.returncode == 2 and says in done.stderr and "building" not in done.stderr,
              f"{arguments}: {done.returncode}: {done.stderr}")
    shutil.rmtree(copy)


def case_service_without_resources(site):
    """Too few descriptors, too little memory, no threads: the command says so; what was there is as it was."""
    volume = site.volume("16M")
    m = volume.mount()
    write_file(m / "f", b"precious")
    volume.umount(m)
    empty = os.path.join(site.scratch, f"empty{site.next_number()}")
    os.mkdir(empty)

    def limited(limit, *command):
        done = subprocess.run(["prlimit", limit, site.termfs, *command], capture_output=True, text=True, timeout=60,
                              check=False)
        what = f"{limit} {' '.join(command)}: {done.returncode}: {done.stderr}"
        if done.returncode == 0:
            return False
        if "Fatal glibc error" not in done.stderr:  # the C library ends a process that has no memory for a thread's locals
            check("terminate called" not in done.stderr and "signal" not in done.stderr, what)
        check(done.returncode == 1, what)
        check("Too many open files" in done.stderr or "memory" in done.stderr, what)
        return True

    refusals = sum(limited(f"--nofile={count}:{count}", "mount", volume.path, empty) for count in (6, 10, 14, 18, 24))
    check(refusals == 5, f"{refusals} mounts were refused")
    volume.stop()
    refusals = 0
    for limit in [f"--nofile={count}:{count}" for count in range(8, 44)] + [
            f"--as={mib * MIB}" for mib in (60, 120, 180, 240)]:
        if limited(limit, "serve", volume.path):
            refusals += 1
        else:
            server = site.find_process("serve", volume.path)
            os.kill(server, signal.SIGTERM)
            eventually(lambda: ended(server), "the server ends")
    check(refusals >= 8, f"{refusals} servers were refused")
    volume.serve()
    check(read_file(volume.mount() / "f") == b"precious", "what was there")
    os.rmdir(empty)


def case_threads_run_out_at_a_mount(site):
    """It goes on: a wait for a lock is refused, READs wait one by one, the server is come back to when that can be."""
    volume = site.volume("64M", 0.25)
    m = volume.mount()
    data = os.urandom(32 * MIB)
    write_file(m / "f", data)

    def read_at(places):
        fd = os.open(m / "f", os.O_RDONLY)
        try:
            return all(os.pread(fd, 4096, at) == data[at:at + 4096] for at in places)
        finally:
            os.close(fd)

    with NoMoreThreads(m.pid) as limit:
        holders = [Holder(site, m, "flock") for _ in range(2)]
        said = [holder.says() for holder in holders]
        check(said == ["locked", os.strerror(errno.ENOLCK)], f"who would wait is refused: {said}")
        for holder in holders:
            holder.end()
        pages = list(range(0, len(data), 4096))
        with concurrent.futures.ThreadPoolExecutor(8) as readers:
            random.Random(1).shuffle(pages)
            check(all(readers.map(read_at, [pages[i::8] for i in range(8)])), "8 programs read what is on the SSD")
            before = limit.threads()
            volume.kill()
            eventually(lambda: limit.threads() <= before - 2, "the threads of the lost session end")
            limit.fill()
            reader = readers.submit(read_at, pages[:8])
            volume.serve()
            for threads in (0, 1):  # of the two that a session has
                limit.fill(but=threads)
                time.sleep(3)  # for some attempts: the longest pause between them is a second
                check(not reader.done() and not ended(m.pid), f"the mount waits, with {threads} threads to be had")
            limit.close()
            check(reader.result(timeout=10 * WAIT), "what is read when there are threads again")
    with NoMoreThreads(m.pid):
        os.kill(m.pid, signal.SIGTERM)
        eventually(lambda: ended(m.pid), "the mount ends")
    check(os.listdir(m.path) == [], "it is unmounted")
    volume.mounts.remove(m)
    os.rmdir(m.path)


def case_threads_run_out_at_a_server(site):
    """What needs one is refused, and nothing has changed."""
    volume = site.volume("64M")
    m = volume.mount()
    write_file(m / "f", b"x" * MIB)
    before = volume.status()
    with NoMoreThreads(volume.server):
        refused(site, 1, "no thread can be started", "set", volume.path, "capacity=32M")
        after = volume.status()
        same = ("pid", "capacity_bytes", "capacity_target_bytes", "capacity_changing")
        check([after[key] for key in same] == [before[key] for key in same], f"{before}, then {after}")
        check(read_file(m / "f") == b"x" * MIB, "it serves")
    run(site.termfs, "set", volume.path, "capacity=32M")
    check(volume.status()["capacity_bytes"] == 32 * MIB, "later it can be had")


def case_service_with_little_locked_memory(site):
    """A limit on locked memory costs a warning that says what to do, and no more."""
    need("setpriv")
    volume = site.volume("64M", 0.5)
    volume.stop()
    for number, limit in enumerate((0, 65536)):
        limited = ["setpriv", "--bounding-set=-ipc_lock", "prlimit", f"--memlock={limit}:{limit}", site.termfs]
        run(*limited, "serve", volume.path)
        volume.server = site.find_process("serve", volume.path)
        warning = "raise the memlock limit"
        log = read_file(os.path.join(volume.path, "log")).decode()
        check(log.count(warning) == number + 1, f"one warning of each server, with {limit} bytes: {log}")
        path = os.path.join(site.scratch, f"limited{number}")
        mount_log = path + ".log"
        os.mkdir(path)
        if limit == 0 and site.fuse == "io_uring":  # rings are locked memory, too
            done = subprocess.run([*limited, "mount", volume.path, path, "-o", "fuse=io_uring"], capture_output=True,
                                  text=True, timeout=60, check=False)
            check(done.returncode == 1 and warning in done.stderr, f"{done.returncode}: {done.stderr}")
        run(*limited, "mount", volume.path, path, "--log", mount_log)
        m = volume.mounted(path)
        check(m.describe()["fuse"] in ("/dev/fuse", "io_uring"), "the transport that could be had")
        data = os.urandom(8 * MIB)
        write_file(m / "f", data)
        check(read_file(m / "f") == data, "reading and writing")
        said = read_file(mount_log).decode()
        check("stays unlocked" in said and warning in said, f"the mount warns: {said}")
        volume.umount(m)
        volume.stop()
        os.unlink(mount_log)
    volume.serve()


def case_errors_end_in_what_is_wrong(site):
    """And not in what an errno is called, which says nothing more."""
    volume = site.volume("64M")
    m = volume.mount()
    empty = os.path.join(site.scratch, "empty_place")
    os.mkdir(empty)
    volume_of_none = os.path.join(site.scratch, "none")
    errnos = {os.strerror(number) for number in errno.errorcode}
    for words in (("umount", empty), ("umount", "/proc"), ("mount", volume.path, m.path), ("mount", volume.path, "/dev/null"),
                  ("quota", "get", empty), ("quota", "get", m.path), ("quota", "set", empty, "bytes=1M"),
                  ("status", m.path + "/nothing/here:x"), ("status", "no-such-host.invalid:4794", "--secret", "/dev/null"),
                  ("set", volume.path, "capacity=1P"), ("serve", volume.path), ("serve", empty), ("fsck", volume.path),
                  ("format", volume.path, "--capacity", "64M"), ("stats", empty), ("mount", volume.path, empty, "-o", "x")):
        done = subprocess.run([site.termfs, *words], capture_output=True, text=True, timeout=120, check=False)
        check(done.returncode in (1, 2) and done.stderr.startswith("termfs: "), f"{words}: {done.returncode}: {done.stderr}")
        line = done.stderr.splitlines()[0]
        check(not any(line.endswith(f": {text}") for text in errnos - {os.strerror(errno.ENOENT)}), f"{words}: {line}")
    # Where nothing else is known, it is what the system says.
    done = subprocess.run([site.termfs, "umount", volume_of_none], capture_output=True, text=True, timeout=60, check=False)
    check(done.stderr == f"termfs: {volume_of_none}: No such file or directory\n", done.stderr)
    os.rmdir(empty)
