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

DISK_MIB = 1024  # sparse
PROVIDERS_FOLDER = "/usr/lib/x86_64-linux-gnu/libibverbs"
PROVIDERS = ("rxe", "siw")  # of libibverbs
# Programs of this machine that the guest runs.
PROGRAMS = ("ip", "rdma", "ibv_devinfo", "ibv_rc_pingpong", "ib_read_bw")


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
        for name in os.listdir(PROVIDERS_FOLDER):
            if name.startswith(tuple(f"lib{provider}-" for provider in PROVIDERS)):
                self.add_library(os.path.join(PROVIDERS_FOLDER, name))
        for name in PROVIDERS:
            with open(os.path.join(folder, f"etc/libibverbs.d/{name}.driver"), "w", encoding="utf-8") as file:
                file.write(f"driver {name}\n")
        shutil.copy(os.path.join(ROOT, "tests/vm/init"), os.path.join(folder, "init"))
        shutil.copytree(os.path.join(ROOT, "tests/vm/scenarios"), os.path.join(folder, "scenarios"))

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

    def add_modules(self, kernel, drivers):
        """What every guest loads, in /modules/order; and the drivers, each with what it needs besides in NAME.order."""
        for name in MODULES:
            self._add_module(kernel, name)
        self._write_order("order", MODULES)
        for name, path in drivers.items():
            needed = [module for module in kernel.needed_by(path) if module not in MODULES]
            for module in needed:
                self._add_module(kernel, module)
            self._write_order(f"{name}.order", needed)
            shutil.copy(path, os.path.join(self.folder, "modules", name + ".ko"))

    def _add_module(self, kernel, name):
        with open(os.path.join(self.folder, "modules", name + ".ko"), "wb") as file:
            file.write(kernel.module(name))

    def _write_order(self, name, modules):
        with open(os.path.join(self.folder, "modules", name), "w", encoding="utf-8") as order:
            order.writelines(module + "\n" for module in modules)

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
    """One run of QEMU, from boot to power off. Its files are in `folder` and begin with `name`."""

    def __init__(self, kernel, initramfs, folder, name, parameters, memory, cpus, devices):
        self.name = name
        self.folder = folder
        self._disk = make_disk(os.path.join(folder, f"{name}.disk"))
        self._log_path = os.path.join(folder, f"{name}.log")
        self._log = open(self._log_path, "wb")
        self._process = subprocess.Popen(
            ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(cpus), "-m", str(memory),
             "-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot",
             "-kernel", kernel.image, "-initrd", initramfs, "-append",
             "console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check rdinit=/init " +
             " ".join(f"{key}={value}" for key, value in parameters.items()),
             "-drive", f"file={self._disk},if=virtio,format=raw,cache=unsafe", *devices],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True)

    def ended(self):
        """Whether it came to its end by itself."""
        return self._process.poll() is not None

    def output(self):
        with open(self._log_path, encoding="utf-8", errors="replace") as log:
            return log.read().replace("\r", "")

    def end(self):
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()
        if os.path.exists(self._disk):
            os.unlink(self._disk)


class Pair:
    """What joins two guests, a and b: a network, and a serial line on which they tell each other where they are.

    Sockets in the guests' folder, named without it, as the path of a Unix socket is short.
    """

    def __init__(self, folder, name):
        self._paths = {end: f"{name}.{end}" for end in ("net-a", "net-b", "line")}
        self._folder = folder
        self.end()

    def devices(self, end):
        """QEMU's arguments for that end. Guest a is started first, and listens when await_line() returns."""
        other = "b" if end == "a" else "a"
        line = "server=on,wait=off" if end == "a" else "reconnect=1"
        return ["-netdev", f"dgram,id=n0,local.type=unix,local.path={self._paths[f'net-{end}']},"
                f"remote.type=unix,remote.path={self._paths[f'net-{other}']}",
                "-device", f"virtio-net-pci,netdev=n0,mac=52:54:00:00:00:0{end}",
                "-chardev", f"socket,id=line,path={self._paths['line']},{line}", "-serial", "chardev:line"]

    def await_line(self):
        until = time.monotonic() + 30
        while not os.path.exists(os.path.join(self._folder, self._paths["line"])):
            if time.monotonic() > until:
                raise RuntimeError("QEMU does not start")
            time.sleep(0.05)

    def end(self):
        for path in self._paths.values():
            if os.path.exists(os.path.join(self._folder, path)):
                os.unlink(os.path.join(self._folder, path))
