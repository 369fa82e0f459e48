# SPDX-License-Identifier: Apache-2.0
"""Programs that people run."""
import os
import stat

from cases_posix import write_file
from volume import check, need, run


def fio(site, m, *jobs, size):
    need("fio")
    run("fio", "--directory=" + m.path, "--size=" + size, "--group_reporting", "--verify=crc32c", "--verify_fatal=1",
        "--fallocate=none", "--minimal", *jobs, seconds=600, cwd=site.scratch)


def case_fio_verify_direct(site):
    m = site.mounted("1G", 0.25)
    fio(site, m, "--name=random", "--rw=randwrite", "--bs=4k", "--direct=1", "--numjobs=4", "--ioengine=libaio",
        "--iodepth=8", size=site.size("48M", "12M"))
    fio(site, m, "--name=odd", "--rw=randwrite", "--bsrange=512-128k", "--bs_unaligned=1", "--numjobs=2",
        "--ioengine=psync", size=site.size("32M", "8M"))


def case_fio_verify_mixed(site):
    m = site.mounted("1G", 0.1)
    fio(site, m, "--name=mixed", "--rw=randrw", "--bsrange=4k-64k", "--direct=1", "--numjobs=4", "--ioengine=psync",
        "--verify_backlog=64", size=site.size("48M", "12M"))


def case_fio_verify_buffered(site):
    m = site.mounted("1G", 0.25)
    fio(site, m, "--name=big", "--rw=write", "--bs=1m", "--end_fsync=1", size=site.size("256M", "64M"))
    fio(site, m, "--name=mapped", "--rw=randwrite", "--bs=4k", "--ioengine=mmap", size=site.size("16M", "4M"))


def sqlite(site, mode):
    need("sqlite3")
    m = site.mounted()
    rows = site.size(20_000, 2_000)
    script = f"""PRAGMA journal_mode={mode}; CREATE TABLE t(k INTEGER PRIMARY KEY, v BLOB); CREATE INDEX i ON t(v);
        WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n WHERE x<{rows})
        INSERT INTO t SELECT x, randomblob(100) FROM n;
        UPDATE t SET v=randomblob(200) WHERE k%7=0; DELETE FROM t WHERE k%5=0; VACUUM;"""
    check(mode in run("sqlite3", m / "db", script), "the journal mode was not taken")
    out = run("sqlite3", m / "db", "PRAGMA integrity_check; SELECT count(*) FROM t;").split()
    check(out == ["ok", str(rows - rows // 5)], str(out))


def case_sqlite_delete(site):
    sqlite(site, "delete")


def case_sqlite_wal(site):
    sqlite(site, "wal")


def case_git(site):
    need("git")
    m = site.mounted()
    identity = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "gc.auto=0"]
    os.mkdir(m / "origin")
    run("git", "init", "-q", m / "origin")
    for commit in range(site.size(20, 5)):
        for i in range(20):
            write_file(m / f"origin/file{i}", os.urandom(2000 * (i + 1)))
        run("git", "-C", m / "origin", *identity, "add", "-A")
        run("git", "-C", m / "origin", *identity, "commit", "-q", "-m", f"commit {commit}")
    run("git", "clone", "-q", "--no-hardlinks", m / "origin", m / "clone")
    run("git", "-C", m / "clone", "gc", "-q", "--aggressive")
    run("git", "-C", m / "clone", "fsck", "--full", "--strict")
    check(run("git", "-C", m / "clone", "status", "--porcelain") == "", "a clean clone")


def make_tree(path):
    """All file types, odd names, a sparse file, hard links, attributes."""
    os.makedirs(os.path.join(path, "sub/deep/er"))
    for i in range(200):
        write_file(os.path.join(path, f"sub/f{i}"), os.urandom(i * 97))
    write_file(os.path.join(path, "sub/name with\nnewline \xff"), b"odd")
    write_file(os.path.join(path, "xattr"), b"x")
    os.setxattr(os.path.join(path, "xattr"), "user.color", b"blue")
    os.link(os.path.join(path, "sub/f7"), os.path.join(path, "hard"))
    os.symlink("sub/f7", os.path.join(path, "soft"))
    os.mkfifo(os.path.join(path, "fifo"))
    os.mknod(os.path.join(path, "null"), 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    with open(os.path.join(path, "sparse"), "wb") as file:
        file.seek(5 << 20)
        file.write(b"end")
    os.chmod(os.path.join(path, "sub/f9"), 0o4755)
    os.chown(os.path.join(path, "sub/f10"), 123, 456)
    os.utime(os.path.join(path, "sub/f11"), ns=(123456789, 987654321))


def case_rsync(site):
    need("rsync")
    m = site.mounted()
    there, back = os.path.join(site.scratch, "tree"), os.path.join(site.scratch, "back")
    make_tree(there)
    try:
        run("rsync", "-aHX", "--checksum", there + "/", m / "tree")
        run("rsync", "-aHX", "--checksum", m / "tree/", back)
        left = run("rsync", "-aHXn", "--checksum", "--itemize-changes", "--delete", there + "/", back)
        check(left == "", f"differences after the round trip: {left}")
        run("diff", "-r", "--no-dereference", there + "/sub", back + "/sub")
    finally:
        run("rm", "-rf", there, back)


def case_tar(site):
    m = site.mounted()
    make_tree(m / "tree")
    archive = os.path.join(site.scratch, "a.tar")
    os.mkdir(m / "out")
    run("tar", "--xattrs", "-C", m.path, "-cf", archive, "tree")
    run("tar", "--xattrs", "--xattrs-include=*", "-C", m / "out", "-xpf", archive)
    run("tar", "--xattrs", "-C", m / "out", "-df", archive)
    check(os.getxattr(m / "out/tree/xattr", "user.color") == b"blue", "attributes")
    check(os.stat(m / "out/tree/hard").st_nlink == 2, "hard links")
    os.unlink(archive)


def case_rm_rf(site):
    m = site.mounted()
    for i in range(30):
        os.makedirs(m / f"t/{i}/{i}/{i}")
        for j in range(30):
            write_file(m / f"t/{i}/{i}/f{j}", b"x" * 5000)
    run("cp", "-a", m / "t", m / "u")
    run("diff", "-r", m / "t", m / "u")
    run("rm", "-rf", m / "t", m / "u")
    check(os.listdir(m.path) == [], "everything is gone")
