# SPDX-License-Identifier: Apache-2.0
"""The TeRM paper's figure 16: the file system over each kind of memory region, by file_bench (benchmarks/files).

The volumes are those of `termfs format`, `serve --kind` and `mount`. Half of the files fits into memory: the tier is
that large, and where the kernel's page cache takes its place, a control group limits the server.
"""
import contextlib
import json
import os
import subprocess
import tempfile

from mounts import Mounts, Processes, RingSwitch, scratch_directory

DRAM_RATIO = 0.5
SPARE = 64 << 20  # of a volume beside its files
# Of a server beside what it holds of its region; that of odp pages in on the way to its frames.
BLOCKING_WORKERS = "8"  # theirs wait for the SSD, as in term_bench
OWN_BYTES = {"rpc": 64 << 20, "odp": 160 << 20}


def serve(stack, build, scratch, kind, files_bytes, group):
    home = os.path.join(scratch, kind)
    os.mkdir(home)
    capacity = files_bytes + SPARE
    ratio = DRAM_RATIO * files_bytes / capacity
    before, options = [], ["--kind", kind]
    if kind in OWN_BYTES:
        memory = int(DRAM_RATIO * files_bytes) + OWN_BYTES[kind]
        options += ["--workers", BLOCKING_WORKERS]
        before = [os.path.join(build, "benchmarks", "confined"), f"{group}-{kind}", "--memory", str(memory), "--"]
    return stack.enter_context(Mounts(build, home, str(capacity), f"{ratio:.4f}", before, options))


def place(kind, mounts, fuse):
    words = [kind, str(mounts.server.pid), mounts.volume]
    if fuse:
        path = mounts.termfs_mount("mount", fuse)
        words += [str(mounts.daemons["mount"].pid), path]
    return ":".join(words)


def sweep(build, group):
    subprocess.run([os.path.join(build, "benchmarks", "confined"), group, "--sweep"], check=False, timeout=60)


def measure(build, kinds, load):
    """What file_bench says: a list with an object for each way, size, and reads or writes. Without /dev/fuse nothing is
    mounted, and there are no such points. RuntimeError, OSError, subprocess.SubprocessError: it failed."""
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(scratch_directory())
        group = os.path.basename(scratch)
        stack.callback(sweep, build, group)
        rings = stack.enter_context(RingSwitch())
        fuse = ("io_uring" if rings.on else "device") if os.path.exists("/dev/fuse") else None
        command = [os.path.join(build, "benchmarks", "file_bench")]
        for kind in kinds:
            mounts = serve(stack, build, scratch, kind, load.mib << 20, group)
            command += ["--place", place(kind, mounts, fuse)]
        options = {"--mib": load.mib, "--processes": load.processes, "--warmup": load.warmup, "--seconds": load.seconds,
                   "--rounds": load.rounds}
        command += [str(word) for pair in options.items() for word in pair] + (["--writes"] if load.writes else [])
        return output_of(command, 120 + len(kinds) * (4 * load.warmup + 16 * load.seconds + load.mib / 10))


def output_of(command, deadline):
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        processes = Processes()
        with processes.stack:
            code = processes.start(command, out, errors).wait(deadline)
        for file in (out, errors):
            file.seek(0)
        if code != 0:
            raise RuntimeError(f"{' '.join(command)}\n  ended with {code}\n  {errors.read()[-1000:]}")
        return json.load(out)
