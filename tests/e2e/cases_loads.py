# SPDX-License-Identifier: Apache-2.0
"""The loads that figures are made with: filebench's personalities."""
import json
import os

from volume import check, run


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
