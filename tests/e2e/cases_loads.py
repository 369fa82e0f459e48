# SPDX-License-Identifier: Apache-2.0
"""The loads that figures are made with: filebench's personalities, and fio on the client library."""
import json
import os
import subprocess

from volume import Skip, alone, check, need, run


def personality(site, m, name, files, seconds):
    out = json.loads(
        run(site.workloads, m.path, "--personality", name, "--files", files, "--threads", 4, "--seconds", seconds,
            "--json"))
    check(os.listdir(m.path) == [], f"{name} leaves nothing")
    return out["turns"], {name: operation["count"] for name, operation in out["operations"].items()}


def case_workloads(site):
    m = site.mounted()
    seconds = site.size(3, 1)
    turns, counts = personality(site, m, "fileserver", 100, seconds)
    check(turns > 0 and len(counts) == 8 and "sync" not in counts, f"fileserver does all but sync: {counts}")
    turns, counts = personality(site, m, "webserver", 100, seconds)
    check(turns > 0 and abs(counts["read_whole"] - 10 * counts["append_random"]) <= 40,
          f"webserver reads ten files for each line of the log: {counts}")
    turns, counts = personality(site, m, "varmail", 100, seconds)
    check(turns > 0 and 0 <= counts["append_random"] - counts["sync"] <= 4,
          f"varmail syncs what it appends: {counts}")
    _, counts = personality(site, m, "mongo", 50, 60)
    check(counts["delete"] == 50, f"mongo ends when all is deleted: {counts}")
    turns, counts = personality(site, m, "copyfiles", 50, 60)
    check(counts["create"] == 50, f"copyfiles ends when all is copied: {counts}")


@alone
def case_fio_engine(site):
    need("fio")
    if not os.path.exists(site.fio_engine):
        raise Skip("the engine is not built: the headers of the installed fio are missing (tools/build_fio_headers.sh)")
    volume = site.volume("1G", 0.1)
    library = [f"--ioengine=external:{site.fio_engine}", f"--volume={volume.path}", "--filename=made/by/library"]
    job = ["--name=same", "--rw=randwrite", "--bs=4k", f"--size={site.size('192M', '16M')}", "--verify=crc32c",
           "--verify_fatal=1", "--minimal"]

    def fio(*options, code=0):
        return run("fio", *job, *options, code=code, cwd=site.scratch)

    fio(*library, "--iodepth=8", "--fsync=1024", "--end_fsync=1")
    fio(*library, "--filename=made/by/both", "--rw=randrw", "--iodepth=32", "--bsrange=4k-64k", "--fsync=64")
    m = volume.mount()
    on_mount = ["--ioengine=psync", f"--filename={m / 'made/by/library'}", "--verify_only"]
    fio(*on_mount)
    fio(*library, "--iodepth=1", "--verify_only")
    with open(m / "made/by/library", "r+b", buffering=0) as file:
        file.seek(5 << 20)
        file.write(b"of another")
    fio(*library, "--iodepth=8", "--verify_only", code=1)
    with open(m / "made/by/library", "r+b", buffering=0) as file:
        file.truncate(8 << 20)
    run("fio", "--name=short", *library, "--iodepth=4", "--rw=read", "--bs=1m", "--size=12m", "--minimal",
        cwd=site.scratch)
    check(os.stat(m / "made/by/library").st_size == 12 << 20, "a file that is too short is laid out")
    volume.umount(m)
    volume.stop()
    done = subprocess.run(["fio", *job, *library], capture_output=True, text=True, timeout=60, check=False,
                          cwd=site.scratch)
    check(done.returncode != 0 and "no server" in done.stderr, f"without a server it says so: {done.stderr}")
