# SPDX-License-Identifier: Apache-2.0
"""The same random calls on a mount and on ext4: results, attributes and trees must be alike. See docs/posix.md."""
import contextlib
import os
import subprocess

import parity
from volume import Skip, check, need, run


@contextlib.contextmanager
def loop_ext4(scratch):
    """A fresh journalled ext4 on a loop device, mounted as termfs mounts; its path."""
    need("mkfs.ext4")
    image, path = os.path.join(scratch, "ext4.img"), os.path.join(scratch, "ext4")
    with open(image, "wb") as file:
        file.truncate(512 << 20)
    run("mkfs.ext4", "-q", "-F", "-O", "has_journal", "-I", "256", image)
    os.mkdir(path)
    try:
        done = subprocess.run(["mount", "-o", "loop,nosuid,nodev,noatime", image, path], capture_output=True, text=True)
        if done.returncode != 0:
            raise Skip(f"no ext4 on a loop device here: {done.stderr.strip()}")
        try:
            yield path
        finally:
            run("umount", path)
    finally:
        os.rmdir(path)
        os.unlink(image)


def case_parity_random(site):
    # Some seeds still find differences (docs/posix.md says which), so it is not a part of every run.
    if not site.parity_seconds:
        raise Skip("only with --parity-seconds")
    mount = site.mounted("512M")
    with loop_ext4(site.scratch) as ext4:
        done = parity.check_alike(mount.path, ext4, site.parity_seconds, site.parity_seed)
        check(done > 0, "no episode")
