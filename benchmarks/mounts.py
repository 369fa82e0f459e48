# SPDX-License-Identifier: Apache-2.0
"""A served volume and its mounts for the benchmarks, in a scratch directory, and how all of it is put away: what was
started is ended by its process id, in reverse order, also when a measurement fails."""
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time

DEADLINE = 120  # seconds that any single step may take


class Processes:
    """What was started, in order, so that it can be ended in reverse."""

    def __init__(self):
        self.stack = contextlib.ExitStack()

    def start(self, command, log, errors=subprocess.STDOUT):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=errors)
        self.stack.callback(end, process)
        return process


def end(process):
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_mounted(path):
    """Also of a mount whose daemon has died, which os.path.ismount denies."""
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        return any(line.split()[4] == path for line in mounts)


def unmount(path):
    if is_mounted(path):
        subprocess.run(["umount", path], check=False, timeout=DEADLINE)
    if is_mounted(path):
        subprocess.run(["umount", "-l", path], check=False, timeout=DEADLINE)


def wait_for(condition, what, process):
    limit = time.monotonic() + DEADLINE
    while not condition():
        if process.poll() is not None:
            raise RuntimeError(f"{what}: the process ended with exit code {process.returncode}")
        if time.monotonic() > limit:
            raise RuntimeError(f"{what}: nothing after {DEADLINE} s")
        time.sleep(0.05)


class RingSwitch:
    """FUSE over io_uring is on in the kernel for as long as this process lives, where the kernel has it."""

    def __init__(self):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools", "ring_switch.sh")
        self.holder = subprocess.Popen(["bash", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                       start_new_session=True)
        self.said = self.holder.stdout.readline().strip()
        self.on = self.said == "on"

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.holder.stdin.close()
        self.holder.wait()
        self.holder.stdout.close()


class Mounts:
    """A served volume, its mounts, and ceilings: the same FUSE layer over plain memory. Put away at the end."""

    def __init__(self, build, scratch, capacity="1G", ratio="1", before=(), serve_options=()):
        """`before`: words before the server's command, of a program that becomes it."""
        self.build = build
        self.scratch = scratch
        self.processes = Processes()
        self.daemons = {}  # {name of a mount: its process}
        self.termfs = os.path.join(build, "mount", "termfs")
        self.volume = os.path.join(scratch, "volume")
        self.log = open(os.path.join(scratch, "log"), "w", encoding="utf-8")
        self.processes.stack.callback(self.log.close)
        try:
            self.serve(capacity, ratio, before, serve_options)
        except BaseException:  # SystemExit by a signal, too
            self.__exit__(RuntimeError)
            raise

    def serve(self, capacity, ratio, before, serve_options):
        subprocess.run([self.termfs, "format", self.volume, "--capacity", capacity, "--dram-ratio", ratio], check=True,
                       stdout=self.log, timeout=DEADLINE)
        self.server = self.processes.start([*before, self.termfs, "serve", self.volume, "--foreground", *serve_options],
                                           self.log)
        wait_for(lambda: os.path.exists(os.path.join(self.volume, "socket")), "termfs serve", self.server)

    def __enter__(self):
        return self

    def __exit__(self, kind, *unused):
        if kind is not None:
            with open(self.log.name, encoding="utf-8") as lines:
                sys.stderr.writelines(lines.readlines()[-20:])
        self.processes.stack.close()

    def mount(self, name, *command):
        """Starts a program that serves the mount point `name`; its path."""
        path = os.path.join(self.scratch, name)
        os.mkdir(path)
        process = self.processes.start([word.replace("MOUNTPOINT", path) for word in command], self.log)
        self.daemons[name] = process
        self.processes.stack.callback(unmount, path)
        wait_for(lambda: os.path.ismount(path), name, process)
        return path

    def termfs_mount(self, name, fuse):
        path = self.mount(name, self.termfs, "mount", self.volume, "MOUNTPOINT", "--foreground", "-o", f"fuse={fuse}")
        described = os.getxattr(path, "system.termfs.mount").decode()
        expected = {"io_uring": "fuse io_uring", "device": "fuse /dev/fuse"}[fuse]
        if expected not in described.splitlines():
            raise RuntimeError(f"{name}: requests do not come over {fuse}")
        return path

    def ceiling(self, name, fuse, mebibytes):
        path = self.mount(name, os.path.join(self.build, "benchmarks", "ceiling_fuse"), "MOUNTPOINT", str(mebibytes),
                          "16", fuse)
        return path


def scratch_directory():
    return tempfile.TemporaryDirectory(prefix="termfs-bench-", dir="/var/tmp")


def end_by_signals():
    """Also when a signal ends this program, what it has started is put away."""
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, lambda *_: sys.exit(1))
