# SPDX-License-Identifier: Apache-2.0
"""Debian's kernel for the guest, and RNIC drivers built for it: as they are shipped, and with our change.

Packages are fetched by name with apt, unpacked below one folder and never installed. What is there is used again.
"""
import glob
import lzma
import os
import re
import shutil
import subprocess
from typing import NamedTuple, Optional

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
METAPACKAGE = "linux-image-6.12-cloud-amd64"
SOURCE = "linux-source-6.12"
# In the kernel's sources.
RXE, SIW, MLX5 = "drivers/infiniband/sw/rxe", "drivers/infiniband/sw/siw", "drivers/infiniband/hw/mlx5"
ABI = "driver/kernel/abi/term_mr_abi.h"
CHECKPATCH = ("scripts/checkpatch.pl", "scripts/spelling.txt", "scripts/const_structs.checkpatch")  # the first, with the others
# In the order in which they are loaded.
MODULES = ("virtio_blk", "failover", "net_failover", "virtio_net", "ib_core", "ib_uverbs", "configfs", "ib_cm", "iw_cm",
           "rdma_cm", "rdma_ucm", "udp_tunnel", "ip6_udp_tunnel", "crc32_generic", "dummy", "veth")


class Driver(NamedTuple):
    """A driver that is built, and how."""

    source: str  # folder in the kernel's sources
    module: str
    option: str  # that makes it a module
    change: Optional[str]  # folder of driver/kernel and of its patches/ that has our change; None: as it is shipped
    abi_version: Optional[int] = None  # another one than that of driver/kernel


DRIVERS = {
    "rxe-patched": Driver(RXE, "rdma_rxe", "CONFIG_RDMA_RXE", "rxe"),
    # It is built where the one before was, as but one of its sources differs.
    "rxe-of-another-version": Driver(RXE, "rdma_rxe", "CONFIG_RDMA_RXE", "rxe", abi_version=99),
    "rxe-stock": Driver(RXE, "rdma_rxe", "CONFIG_RDMA_RXE", None),
    "siw-stock": Driver(SIW, "siw", "CONFIG_RDMA_SIW", None),
    "mlx5-patched": Driver(MLX5, "mlx5_ib", "CONFIG_MLX5_INFINIBAND", "mlx5"),
}


class Unavailable(Exception):
    """The guest's kernel cannot be had here."""


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(str(word) for word in command)}: exit code {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


class Kernel:
    """A kernel's release, its image and modules, and what modules are built with."""

    def __init__(self, folder):
        self.folder = folder
        self.packages = os.path.join(folder, "packages")
        self.root = os.path.join(folder, "root")
        os.makedirs(self.packages, exist_ok=True)
        found = re.search(r"Depends: linux-image-(\S+)-cloud-amd64\s", run("apt-cache", "depends", METAPACKAGE))
        if not found:
            raise Unavailable(f"apt knows no package {METAPACKAGE}")
        self.version = found.group(1)
        self.release = f"{self.version}-cloud-amd64"
        self.headers = os.path.join(self.root, "usr/src", f"linux-headers-{self.release}")
        self.image = os.path.join(self.root, "boot", f"vmlinuz-{self.release}")

    def prepare(self):
        self._unpack()
        self._take_source()
        return self

    def _fetch(self, name):
        """The path of a package of this name in the version that apt would install."""
        version = re.search(r"Candidate: (\S+)", run("apt-cache", "policy", name))
        if not version:
            raise Unavailable(f"apt knows no package {name}")
        pattern = os.path.join(self.packages, f"{name}_{version.group(1).replace(':', '%3a')}_*.deb")
        if not glob.glob(pattern):
            try:
                # apt's own user may not write here; root may.
                run("apt-get", "-o", "APT::Sandbox::User=root", "download", name, cwd=self.packages)
            except RuntimeError as error:
                raise Unavailable(f"apt cannot download {name}: {error}") from None
        return glob.glob(pattern)[0]

    def _unpack(self):
        done = os.path.join(self.folder, f"unpacked-{self.release}")
        if os.path.exists(done):
            return
        shutil.rmtree(self.root, ignore_errors=True)
        for name in (f"linux-image-{self.release}", f"linux-headers-{self.release}", f"linux-headers-{self.version}-common",
                     f"linux-kbuild-{self.version}"):
            run("dpkg-deb", "-x", self._fetch(name), self.root)
        makefile = os.path.join(self.headers, "Makefile")
        with open(makefile, encoding="utf-8") as file:
            text = file.read()
        with open(makefile, "w", encoding="utf-8") as file:
            file.write(text.replace("include /usr/src/", f"include {self.root}/usr/src/"))
        open(done, "w", encoding="utf-8").close()

    def _take_source(self):
        """What is needed of the kernel's sources: the drivers' folders, and checkpatch."""
        self.source = os.path.join(self.folder, f"sources-{self.release}")
        if all(os.path.exists(os.path.join(self.source, driver.source)) for driver in DRIVERS.values()):
            return
        package = self._fetch(SOURCE)
        taken = self.source + ".part"
        shutil.rmtree(taken, ignore_errors=True)
        os.makedirs(taken)
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as unpacking, \
                subprocess.Popen(["tar", "-xO", f"./usr/src/{SOURCE}.tar.xz"], stdin=unpacking.stdout,
                                 stdout=subprocess.PIPE) as picking, \
                subprocess.Popen(["xz", "-dc", "-T0"], stdin=picking.stdout, stdout=subprocess.PIPE) as plain:
            run("tar", "-x", "--strip-components=1", "--wildcards", "-C", taken,
                *(f"*/{wanted}" for wanted in (f"{RXE}/*", f"{SIW}/*", f"{MLX5}/*", *CHECKPATCH)), stdin=plain.stdout)
        shutil.rmtree(self.source, ignore_errors=True)  # of before, when fewer drivers were needed
        os.rename(taken, self.source)

    def _lay_out(self, driver, folder):
        """The driver's sources, with our change where it has it."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(os.path.join(self.source, driver.source), os.path.join(folder, driver.source))
        if driver.change is None:
            return
        ours = os.path.join(ROOT, "driver/kernel")
        for patch in sorted(glob.glob(os.path.join(ours, "patches", driver.change, "*.patch"))):
            run("patch", "-p1", "--no-backup-if-mismatch", "-d", folder, "-i", patch)
        target = os.path.join(folder, driver.source)
        for source in (*glob.glob(os.path.join(ours, driver.change, "*.[ch]")), os.path.join(ROOT, ABI)):
            shutil.copy(source, target)
        if driver.abi_version is not None:
            path = os.path.join(target, os.path.basename(ABI))
            with open(path, encoding="utf-8") as file:
                text, changes = re.subn(r"(define TERM_MR_ABI_VERSION\s+)\d+", rf"\g<1>{driver.abi_version}", file.read())
            if changes != 1:
                raise RuntimeError(f"{ABI} has no version")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

    def build(self, name):
        """The path of the driver of that name in DRIVERS, built; without its debugging information."""
        driver = DRIVERS[name]
        folder = os.path.join(self.folder, f"{driver.module}-{'stock' if driver.change is None else 'patched'}-{self.release}")
        # Into a fresh copy, so that what has been compiled is older only where something has changed.
        fresh = folder + ".part"
        self._lay_out(driver, fresh)
        shutil.copytree(fresh, folder, dirs_exist_ok=True, copy_function=copy_if_other)
        shutil.rmtree(fresh)
        output = run("make", "-C", self.headers, f"-j{os.cpu_count()}", f"M={os.path.join(folder, driver.source)}",
                     f"{driver.option}=m", "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules")
        warnings = [line for line in output.splitlines() if "warning:" in line]
        if warnings:
            raise RuntimeError(f"{name} compiles with warnings:\n" + "\n".join(warnings))
        small = os.path.join(self.folder, f"{name}.ko")
        run("strip", "--strip-debug", "-o", small, os.path.join(folder, driver.source, driver.module + ".ko"))
        return small

    def checkpatch(self):
        """(file of driver/kernel, what the kernel's own checker of style says of it or None) of each."""
        ours = os.path.join(ROOT, "driver/kernel")
        patches = sorted(glob.glob(os.path.join(ours, "patches/*/*.patch")))
        sources = [os.path.join(ROOT, ABI), *sorted(glob.glob(os.path.join(ours, "rxe/*.[ch]")) +
                                                    glob.glob(os.path.join(ours, "mlx5/*.[ch]")))]
        results = []
        for path in (*patches, *sources):
            # Nobody has signed the patches off; BIT() is not for user space.
            done = subprocess.run(["perl", os.path.join(self.source, CHECKPATCH[0]), "--no-tree", "--strict", "--no-signoff",
                                   "--ignore", "BIT_MACRO", "--terse", *([] if path in patches else ["-f"]), path],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            results.append((os.path.relpath(path, ours), done.stdout if done.returncode != 0 else None))
        return results

    def compare_with_dkms(self):
        """How what dkms would build differs from the driver that is tested, or None."""
        scripts = os.path.join(ROOT, "driver/kernel/dkms")
        tree = os.path.join(self.folder, "dkms")
        shutil.rmtree(tree, ignore_errors=True)
        os.makedirs(tree)
        package = run(os.path.join(scripts, "install"), tree).strip().replace("/", "-")
        archive = os.path.join(tree, "source.tar.xz")
        run("tar", "-cJf", archive, "--transform", f"s|^|{SOURCE}/|", "-C", self.source, RXE)
        run("./prepare", self.release, cwd=os.path.join(tree, package), env={**os.environ, "LINUX_SOURCE": archive})
        self._lay_out(DRIVERS["rxe-patched"], os.path.join(tree, "tested"))
        done = subprocess.run(["diff", "-r", os.path.join(tree, "tested", RXE), os.path.join(tree, package)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        # dkms's own files are there only.
        differences = [line for line in done.stdout.splitlines()
                       if not re.match(rf"Only in {re.escape(os.path.join(tree, package))}: (change|dkms\.conf|prepare)$", line)]
        return "\n".join(differences) or None

    def needed_by(self, path):
        """Modules of the kernel's own that a module needs, in the order in which they are loaded."""
        needed = []
        with (lzma.open if path.endswith(".xz") else open)(path, "rb") as file:
            depends = re.search(rb"\0depends=([^\0]*)\0", file.read())
        for name in depends.group(1).decode().split(",") if depends else ():
            if name and name not in needed:
                needed += [other for other in self.needed_by(self._path_of(name)) if other not in needed] + [name]
        return needed

    def _path_of(self, name):
        spellings = (name, name.replace("_", "-"))
        paths = [path for spelling in spellings for path in
                 glob.glob(os.path.join(self.root, "lib/modules", self.release, "kernel/**", f"{spelling}.ko*"), recursive=True)]
        if not paths:
            raise Unavailable(f"the guest's kernel has no module {name}")
        return paths[0]

    def module(self, name):
        """The bytes of a module of the kernel's own."""
        path = self._path_of(name)
        with (lzma.open if path.endswith(".xz") else open)(path, "rb") as file:
            return file.read()


def copy_if_other(source, target):
    """So that make sees no change where there is none."""
    with open(source, "rb") as file:
        wanted = file.read()
    if os.path.exists(target):
        with open(target, "rb") as file:
            if file.read() == wanted:
                return target
    with open(target, "wb") as file:
        file.write(wanted)
    return target
