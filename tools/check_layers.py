#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who may include whom. Prints each violation as file:line: reason; exit code 1 when there is one.

  base      nothing of ours
  driver    base; an implementation (driver/NAME/) never another implementation
  tlib      base, driver/nic.h
  metadata  base
  fs        base, tlib; metadata in fs/server only
  mount     base, fs

client/ never includes server/ nor the reverse. *_main.cc, tests/ and benchmarks/ may include anything. A library that
only one folder may know (RocksDB, libfuse, ...) is included there only. Includes are named from the repository's root.

usage: check_layers.py [--self-test]
"""

import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tree  # noqa: E402

# folder: prefixes of what it may include besides itself
MAY_INCLUDE = {
    "base/": (),
    "driver/": ("base/",),
    "tlib/": ("base/", "driver/nic.h"),
    "metadata/": ("base/",),
    "fs/server/": ("base/", "tlib/", "metadata/", "fs/"),
    "fs/": ("base/", "tlib/"),
    "mount/": ("base/", "fs/"),
}
FREE = ("tests/", "benchmarks/")
OF_THE_KERNEL = ("driver/kernel/rxe/", "driver/kernel/mlx5/", "driver/kernel/abi/")  # built in its tree, by its rules
OURS = tuple(MAY_INCLUDE) + FREE

# prefix of a system include: the only paths that may include it
OWNED_BY = {
    "rocksdb/": "metadata/",
    "fuse": "mount/",
    "spdlog/": "base/log.cc",
    "blkid/": "tlib/server/device_contents.cc",
    "boost/coroutine2/": "tlib/server/task",
    "boost/context/": "tlib/server/task",
    "infiniband/": "driver/",
    "rdma/": "driver/",
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def side_of(path):
    """'client', 'server' or None."""
    folders = path.split("/")[:-1]
    return next((f for f in folders if f in ("client", "server")), None)


def reason_against(path, quote, included):
    """Why `path` may not include `included`, or None."""
    if quote == "<":
        if included.startswith(OURS) and not included.startswith("rdma/"):
            return f"a file of ours is included with quotes: {included}"
        for prefix, owner in OWNED_BY.items():
            if included.startswith(prefix) and not path.startswith(owner):
                return f"only {owner} may include <{included}>"
        return None
    if not included.startswith(OURS):
        return f"includes are named from the repository's root, others in angle brackets: {included}"
    if included.endswith("_main.h") or included.startswith(FREE):
        return f"nothing outside of tests and benchmarks may include {included}"
    folder = next(f for f in MAY_INCLUDE if path.startswith(f))
    if not included.startswith(MAY_INCLUDE[folder] + (folder,)):
        return f"{folder} may not include {included}"
    implementation = re.match(r"driver/(\w+)/", included)
    if implementation and not path.startswith(implementation.group(0)):
        carries = ((implementation.group(1) == "roce" and path.startswith(("driver/softnic/", "driver/verbs/"))) or
                   (implementation.group(1) == "iwarp" and path.startswith("driver/softnic/")) or
                   (implementation.group(1) == "kernel" and path.startswith("driver/verbs/")))
        if not carries and (path.count("/") > 1 or not path.startswith("driver/")):
            return f"an implementation of the NIC is included by itself and by *_main.cc only: {included}"
    sides = {side_of(path), side_of(included)}
    if sides == {"client", "server"}:
        return f"client and server may not include each other: {included}"
    return None


def check(root):
    """Violations as strings, and the number of files seen."""
    violations = []
    seen = 0
    for path in tree.files(root):
        if not path.endswith(tree.CXX) or not path.startswith(tuple(MAY_INCLUDE)) or path.startswith(OF_THE_KERNEL):
            continue
        seen += 1
        if path.endswith("_main.cc"):
            continue
        with open(os.path.join(root, path), encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                found = INCLUDE.match(line)
                reason = found and reason_against(path, found.group(1), found.group(2))
                if reason:
                    violations.append(f"{path}:{number}: {reason}")
    return violations, seen


ALLOWED = [
    ("base/log.cc", "<spdlog/spdlog.h>"),
    ("driver/softnic/a.cc", '"driver/nic.h"'),
    ("driver/softnic/a.cc", '"driver/softnic/b.h"'),
    ("driver/paired/a.cc", '"driver/device.h"'),
    ("driver/verbs/a.cc", '"driver/kernel/rxe/b.h"'),
    ("tlib/client/a.cc", '"driver/nic.h"'),
    ("tlib/client/a.cc", '"tlib/rpc/b.h"'),
    ("fs/server/a.cc", '"metadata/b.h"'),
    ("fs/server/a.cc", '"tlib/server/b.h"'),
    ("fs/client/a.cc", '"fs/proto/fs_generated.h"'),
    ("mount/a_main.cc", '"driver/softnic/b.h"'),
    ("mount/a.cc", '"fs/client/b.h"'),
    ("mount/a.cc", "<fuse_lowlevel.h>"),
    ("tests/unit/a.cc", '"driver/softnic/b.h"'),
]
FORBIDDEN = [
    ("base/a.h", '"driver/nic.h"'),
    ("driver/nic.cc", '"tlib/rpc/b.h"'),
    ("driver/softnic/a.cc", '"driver/verbs/b.h"'),
    ("driver/paired/a.cc", '"driver/verbs/b.h"'),
    ("driver/softnic/a.cc", '"driver/kernel/rxe/b.h"'),
    ("tlib/server/a.cc", '"driver/device.h"'),
    ("tlib/client/a.cc", '"driver/softnic/b.h"'),
    ("tlib/client/a.cc", '"tlib/server/b.h"'),
    ("tlib/server/a.cc", '"tlib/client/b.h"'),
    ("tlib/server/a.cc", '"metadata/b.h"'),
    ("metadata/a.cc", '"tlib/rpc/b.h"'),
    ("fs/client/a.cc", '"metadata/b.h"'),
    ("fs/client/a.cc", '"fs/server/b.h"'),
    ("fs/client/a.cc", '"tlib/server/b.h"'),
    ("fs/server/a.cc", '"driver/nic.h"'),
    ("mount/a.cc", '"tlib/client/b.h"'),
    ("mount/a.cc", '"metadata/b.h"'),
    ("fs/client/a.cc", "<rocksdb/db.h>"),
    ("fs/client/a.cc", "<fuse_lowlevel.h>"),
    ("base/metrics.cc", "<spdlog/spdlog.h>"),
    ("tlib/client/a.cc", '"b.h"'),
    ("tlib/client/a.cc", "<tlib/rpc/b.h>"),
    ("mount/a.cc", '"tests/fakes/b.h"'),
]


def self_test():
    """Seeds one include at a time into an empty tree: every forbidden one is found, no allowed one is."""
    failures = []
    for expected, cases in ((0, ALLOWED), (1, FORBIDDEN)):
        for path, included in cases:
            with tempfile.TemporaryDirectory() as root:
                os.makedirs(os.path.join(root, os.path.dirname(path)))
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(f"#include {included}\n")
                if len(check(root)[0]) != expected:
                    failures.append(f"{path} including {included}: {'missed' if expected else 'wrongly refused'}")
    return failures


if __name__ == "__main__":
    sys.exit(tree.check_main(__doc__, check, "keep to their layers", self_test,
                             f"{len(ALLOWED)} allowed and {len(FORBIDDEN)} forbidden includes told apart"))
