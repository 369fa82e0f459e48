# SPDX-License-Identifier: Apache-2.0
"""Debian's kernel for the guest, and the RNIC driver built for it: as it is shipped, and with our change.

Packages are fetched by name with apt, unpacked below one folder and never installed. What is there is used again.
"""
import glob
import lzma
import os
import re
import shutil
import subprocess
import tarfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
METAPACKAGE = "linux-image-6.12-cloud-amd64"
SOURCE = "linux-source-6.12"
RXE = "drivers/infiniband/sw/rxe/"
# In the order in which they are loaded.
MODULES = ("virtio_blk", "failover", "net_failover", "virtio_net", "ib_core", "ib_uverbs", "configfs", "ib_cm", "iw_cm",
           "rdma_cm", "rdma_ucm", "udp_tunnel", "ip6_udp_tunnel", "crc32_generic", "dummy", "veth")
# Of Soft-RoCE, by name: whether with our change.
DRIVERS = {"rxe-patched": True, "rxe-stock": False}


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
        """The driver's folder out of the kernel's sources, which are read no further than that."""
        self.stock = os.path.join(self.folder, f"stock-{self.release}")
        if os.path.exists(self.stock):
            return
        package = self._fetch(SOURCE)
        taken = self.stock + ".part"
        shutil.rmtree(taken, ignore_errors=True)
        os.makedirs(taken)
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as unpacking, \
                subprocess.Popen(["tar", "-xO", "--wildcards", f"./usr/src/{SOURCE}.tar.xz"], stdin=unpacking.stdout,
                                 stdout=subprocess.PIPE) as picking, lzma.open(picking.stdout) as plain, \
                tarfile.open(fileobj=plain, mode="r|") as archive:
            for member in archive:
                path = member.name.partition("/")[2]
                if path.startswith(RXE) and member.isfile():
                    with open(os.path.join(taken, path[len(RXE):]), "wb") as file:
                        file.write(archive.extractfile(member).read())
                elif os.listdir(taken) and not path.startswith(RXE.rstrip("/")):
                    break
            picking.kill()
            unpacking.kill()
        os.rename(taken, self.stock)

    def build(self, name):
        """The path of the driver of that name in DRIVERS, built; without its debugging information."""
        folder = os.path.join(self.folder, f"{name}-{self.release}")
        # Into a fresh copy, so that what has been compiled is older only where something has changed.
        fresh = folder + ".part"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(self.stock, fresh)
        if DRIVERS[name]:
            ours = os.path.join(ROOT, "driver/kernel")
            for patch in sorted(glob.glob(os.path.join(ours, "patches/rxe/*.patch"))):
                run("patch", "-p5", "--no-backup-if-mismatch", "-d", fresh, "-i", patch)
            for source in glob.glob(os.path.join(ours, "rxe/*.[ch]")):
                shutil.copy(source, fresh)
        shutil.copytree(fresh, folder, dirs_exist_ok=True, copy_function=copy_if_other)
        shutil.rmtree(fresh)
        output = run("make", "-C", self.headers, f"-j{os.cpu_count()}", f"M={folder}", "CONFIG_RDMA_RXE=m",
                     "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules")
        warnings = [line for line in output.splitlines() if "warning:" in line]
        if warnings:
            raise RuntimeError("the driver compiles with warnings:\n" + "\n".join(warnings))
        module = os.path.join(folder, "rdma_rxe.ko")
        run("strip", "--strip-debug", "-o", module + ".small", module)
        return module + ".small"

    def module(self, name):
        """The bytes of a module of the kernel's own."""
        paths = glob.glob(os.path.join(self.root, "lib/modules", self.release, "kernel/**", f"{name}.ko*"), recursive=True)
        if not paths:
            raise Unavailable(f"the guest's kernel has no module {name}")
        with (lzma.open if paths[0].endswith(".xz") else open)(paths[0], "rb") as file:
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
