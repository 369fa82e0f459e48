# SPDX-License-Identifier: Apache-2.0
"""A guest: an initial file system made of this machine's own programs, and QEMU without acceleration, which any machine
can run."""
import os
import re
import shutil
import signal
import subprocess
import time

from kernel import MODULES, ROOT, run

MEMORY_MIB = 640
DISK_MIB = 1024  # sparse
PROVIDERS = "/usr/lib/x86_64-linux-gnu/libibverbs"
# Programs of this machine that the guest runs.
PROGRAMS = ("ip", "rdma", "ibv_rc_pingpong", "ib_read_bw")


class Initramfs:
    """A folder that becomes the guest's root."""

    def __init__(self, folder):
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("bin", "programs", "lib", "dev", "proc", "sys", "tmp", "mnt", "run", "modules", "etc/libibverbs.d",
                     "sys/fs/cgroup", "var/tmp", "root"):
            os.makedirs(os.path.join(folder, name))
        shutil.copy(shutil.which("busybox"), os.path.join(folder, "bin/busybox"))
        os.symlink("busybox", os.path.join(folder, "bin/sh"))
        for name in PROGRAMS:
            self.add_program(shutil.which(name))
        for name in os.listdir(PROVIDERS):
            if name.startswith("librxe"):
                self.add_library(os.path.join(PROVIDERS, name))
        with open(os.path.join(folder, "etc/libibverbs.d/rxe.driver"), "w", encoding="utf-8") as file:
            file.write("driver rxe\n")
        shutil.copy(os.path.join(ROOT, "tests/vm/init"), os.path.join(folder, "init"))

    def add_library(self, path):
        target = self.folder + path
        if not os.path.exists(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy(os.path.realpath(path), target)
            self.add_libraries_of(path)

    def add_libraries_of(self, path):
        for library in re.findall(r"(/\S+) \(0x", run("ldd", path)):
            self.add_library(library)

    def add_program(self, path, name=None):
        shutil.copy(path, os.path.join(self.folder, "programs", name or os.path.basename(path)))
        self.add_libraries_of(path)

    def add_modules(self, kernel, rxe):
        with open(os.path.join(self.folder, "modules/order"), "w", encoding="utf-8") as order:
            for name in MODULES:
                with open(os.path.join(self.folder, "modules", name + ".ko"), "wb") as file:
                    file.write(kernel.module(name))
                order.write(name + "\n")
        for name, path in rxe.items():
            shutil.copy(path, os.path.join(self.folder, "modules", name + ".ko"))

    def pack(self, path):
        with open(path, "wb") as packed, \
                subprocess.Popen(["find", "."], cwd=self.folder, stdout=subprocess.PIPE) as names, \
                subprocess.Popen(["cpio", "--quiet", "-o", "-H", "newc", "-R", "0:0"], cwd=self.folder, stdin=names.stdout,
                                 stdout=subprocess.PIPE) as archive:
            if subprocess.run(["gzip", "-1"], stdin=archive.stdout, stdout=packed, check=False).returncode != 0:
                raise RuntimeError("gzip failed")
        return path


def make_disk(path):
    with open(path, "wb") as disk:
        disk.truncate(DISK_MIB << 20)
    run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,nodiscard", path)
    return path


class Guest:
    """One run of QEMU, from boot to power off."""

    def __init__(self, kernel, initramfs, disk, log_path, scenario, cpus=2, network=()):
        self.log_path = log_path
        self._log = open(log_path, "wb")
        self._process = subprocess.Popen(
            ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(cpus), "-m", str(MEMORY_MIB),
             "-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot",
             "-kernel", kernel.image, "-initrd", initramfs, "-append",
             f"console=ttyS0 quiet panic=-1 tsc=reliable rdinit=/init scenario={scenario}",
             "-drive", f"file={disk},if=virtio,format=raw,cache=unsafe", *network],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True)

    def wait(self, seconds):
        """What it printed, and whether it came to its end by itself."""
        until = time.monotonic() + seconds
        ended = True
        try:
            self._process.wait(timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            ended = False
        self.end()
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read().replace("\r", ""), ended

    def end(self):
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()
