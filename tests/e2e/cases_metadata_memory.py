# SPDX-License-Identifier: Apache-2.0
"""The memory of the metadata store: a setting of the volume, of one start, and of a server that runs; and what it holds."""
import json
import os

from cases_input import refused
from volume import check, run

MIB = 1 << 20
RANGE = "metadata-memory must be from 32 MiB to 1 TiB"


def setting_of(volume):
    with open(os.path.join(volume.path, "termfs.toml"), encoding="utf-8") as lines:
        found = [int(line.split("=")[1]) for line in lines if line.startswith("metadata-memory ")]
    return found[0] if found else None


def memory_of(volume):
    """What status and stats say, which is the same."""
    said = volume.status()["metadata_memory_bytes"]
    check(volume.metrics()["metadata_memory_bytes"] == said, "status and stats agree")
    return said


def case_metadata_memory_is_set(site):
    volume = site.volume("16M", 0.5, "--metadata-memory", "64M")
    check(setting_of(volume) == 64 * MIB and memory_of(volume) == 64 * MIB, "format sets it")
    check(" of at most 64.0 MiB in memory used" in run(site.termfs, "status", volume.path), "status tells people")
    run(site.termfs, "set", volume.path, "metadata-memory=48M")
    check(setting_of(volume) == 48 * MIB and memory_of(volume) == 48 * MIB, "it is set while it is served")
    for value, says in (("31M", RANGE), ("2T", RANGE), ("much", "is not a size")):
        refused(site, 2, says, "set", volume.path, f"metadata-memory={value}")
        refused(site, 2, says, "format", os.path.join(site.scratch, "none"), "--capacity", "16M", "--metadata-memory", value)
    check(memory_of(volume) == 48 * MIB, "what is refused changes nothing")
    volume.stop()
    volume.serve("--metadata-memory", "32M")
    check(setting_of(volume) == 48 * MIB and memory_of(volume) == 32 * MIB, "one start has another")
    volume.stop()
    with open(os.path.join(volume.path, "termfs.toml"), encoding="utf-8") as file:
        lines = [line for line in file if not line.startswith("metadata-memory ")]
    with open(os.path.join(volume.path, "termfs.toml"), "w", encoding="utf-8") as file:
        file.writelines(lines)
    volume.serve()
    check(memory_of(volume) == 256 * MIB, "a volume of an earlier version has the default")


def case_metadata_memory_is_counted(site):
    volume = site.volume("16M", 0.5)
    m = volume.mount()
    for i in range(300):
        with open(m / f"f{i}", "w", encoding="utf-8"):
            pass
    volume.umount(m)
    volume.stop()
    volume.serve()  # what was in the log is in a table now
    volume.stop()
    volume.serve()
    before = volume.metrics()
    m = volume.mount("cache=none")
    check(len(os.listdir(m.path)) == 300, "all names are listed")
    after = volume.metrics()
    for name in ("metadata_cache_misses_total", "metadata_read_bytes_total", "metadata_memory_used_bytes"):
        check(after[name] > before[name], f"{name} grows with what is read: {before[name]}, {after[name]}")
    check(0 < after["metadata_memory_used_bytes"] <= after["metadata_memory_bytes"], f"within its memory: {after}")
    check(len(os.listdir(m.path)) == 300, "all names are listed again")
    again = volume.metrics()
    check(again["metadata_cache_hits_total"] > after["metadata_cache_hits_total"], "they were in memory")
    check(again["metadata_read_bytes_total"] == after["metadata_read_bytes_total"], "and nothing was read")
    check(again["metadata_table_bytes"] == volume.status()["metadata_table_bytes"] > 0, "the size of its files")


def case_names_bench(site):
    """Files that the benchmark makes are files as any; it counts what they cost."""
    volume = site.volume("16M", 0.5)
    volume.stop()
    run(site.names_bench, "fill", volume.path, "3500")
    check(": 3505 inodes, 5 directories, " in volume.fsck(), "what it makes is sound")
    volume.serve()
    costs = json.loads(run(site.names_bench, "load", volume.path, "3500", "--operations", "200", "--lists", "5"))
    check([cost["name"] for cost in costs] == ["cold look-up", "look-up", "list", "create", "unlink"], f"all: {costs}")
    check(0 < costs[0]["most_read_bytes"] <= 64 << 10, f"a cold look-up reads little: {costs[0]}")
    check(all(cost["server_us"] > 0 for cost in costs[1:]), f"each takes processor time: {costs}")
    run(site.names_bench, "load", volume.path, "3500", "--turn", "1", "--operations", "50", "--lists", "1", "--cold", "0")
    check(volume.status()["inodes_used"] == 3505 - 109 - 50, "it creates and unlinks")
    volume.stop()
    volume.fsck()
    volume.serve()
