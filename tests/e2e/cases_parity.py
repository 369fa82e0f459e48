# SPDX-License-Identifier: Apache-2.0
"""The same random calls on a mount and on ext4: results, attributes and trees must be alike. See docs/posix.md."""
import contextlib
import os
import subprocess

import parity
from cases_posix_found import birth
from volume import Skip, check, need, run

SEED = 4711


@contextlib.contextmanager
def loop_ext4(scratch, options):
    """A fresh journalled ext4 on a loop device, mounted as termfs mounts; its path."""
    need("mkfs.ext4")
    image, path = os.path.join(scratch, "ext4.img"), os.path.join(scratch, "ext4")
    with open(image, "wb") as file:
        file.truncate(512 << 20)
    run("mkfs.ext4", "-q", "-F", "-O", "has_journal", "-I", "256", image)
    os.mkdir(path)
    try:
        done = subprocess.run(["mount", "-o", f"loop,nosuid,nodev,{options}", image, path], capture_output=True, text=True)
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
    """A seed that is the same in every run, and one that no run had before; or the one that was asked for."""
    seeds = [SEED, site.new_parity_seed] if site.parity_seed is None else [site.parity_seed]
    print(f"     parity_random: seed {seeds[-1]}", flush=True)
    mount = site.mounted("512M", options="noatime")  # random calls cannot tell ext4's times of accesses: it takes ticks
    if birth(mount.path) is None:
        raise Skip("Linux before 6.6, or an older libfuse: no time of birth, no shared mappings")
    with loop_ext4(site.scratch, "noatime") as ext4:
        for seed in seeds:
            done = parity.check_alike(mount.path, ext4, site.parity_seconds / len(seeds), seed)
            check(done > 0, "no episode")
