# SPDX-License-Identifier: Apache-2.0
"""Servers, administrators and mounts on different hosts. Hosts are network namespaces; where it does not matter, this
host's loopback interface is the network."""
import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import time
import zlib

from cases_reconnect import WORKER, check_work, logged
from cases_service import failure
from tcp_proxy import TcpProxy
from volume import WAIT, Skip, check, ended, eventually, free_port, need, run

PORT = 4794
TRANSPORTS = {None: "softnic (iWARP over TLS)", "plain": "softnic (iWARP over TCP)", "roce": "softnic (RoCEv2 over UDP), sealed RPCs"}


def over(wire, case):
    """The same case with mounts that speak something else: see Site.wire."""

    def wrapped(site):
        site.wire = wire
        try:
            case(site)
        finally:
            site.wire = None

    wrapped.__doc__ = f"Over {TRANSPORTS[wire]}: {case.__doc__}"
    return wrapped


def copy_secret(site, volume):
    """As an administrator would carry it to another host."""
    secret = os.path.join(site.scratch, f"secret{site.next_number()}")
    shutil.copy(os.path.join(volume.path, "secret"), secret)
    os.chmod(secret, 0o600)
    return secret


def case_network_administration(site):
    """status, stats and set over TCP do what they do on the server's own host."""
    volume = site.volume("64M")
    m = volume.mount()
    check(not os.path.exists(os.path.join(volume.path, "secret")), "no secret without --listen")
    volume.umount(m)
    for family, host, shown in ((socket.AF_INET, "127.0.0.1", "127.0.0.1"), (socket.AF_INET6, "::1", "[::1]")):
        try:
            address = f"{shown}:{free_port(family, host)}"
        except OSError as error:
            print(f"     network_administration: not over {shown}: {error}", flush=True)
            continue
        volume.stop()
        volume.serve("--listen", address)
        own = os.path.join(volume.path, "secret")
        check(stat.S_IMODE(os.stat(own).st_mode) == 0o600, "the secret is its owner's")
        secret = copy_secret(site, volume)
        near = json.loads(run(site.termfs, "status", "--json", volume.path))
        far = json.loads(run(site.termfs, "status", "--json", "--secret", secret, address))
        check(far["uuid"] == near["uuid"] and far["sessions"] == [], f"the same volume: {far}")
        check(address in run(site.termfs, "status", "--secret", secret, address), "status names the address")
        run(site.termfs, "set", "--secret", secret, address, "dram-ratio=0.25")
        check(json.loads(run(site.termfs, "status", "--json", volume.path))["dram_ratio"] == 0.25, "set")
        check("region_pages" in run(site.termfs, "stats", "--json", "--count", "1", "--secret", secret, address), "stats")
        m = volume.mount()
        sessions = json.loads(run(site.termfs, "status", "--json", "--secret", secret, address))["sessions"]
        check([(s["from"], s["transport"]) for s in sessions] == [("", "softnic (shared memory)")], f"{sessions}")
        volume.umount(m)
        volume.kill()
        check("Connection refused" in failure(site, 1, "status", "--secret", secret, address), "nobody is there")
        volume.serve()
        check("refused" in failure(site, 1, "status", "--secret", secret, address), "it listens when it is told to")


def case_network_refuses(site):
    volume = site.volume("64M")
    address = f"127.0.0.1:{free_port(socket.AF_INET, '127.0.0.1')}"
    volume.stop()
    volume.serve("--listen", address)
    secret = copy_secret(site, volume)
    for command in (["status", address], ["stats", "--count", "1", address], ["set", address, "dram-ratio=0.5"]):
        with_secret = [command[0], "--secret", secret, *command[1:]]
        check("--secret is missing" in failure(site, 2, *command), f"{command[0]}: no secret")
        os.chmod(secret, 0o640)
        check("chmod 600" in failure(site, 1, *with_secret), f"{command[0]}: others may read the secret")
        os.chmod(secret, 0o600)
        run(site.termfs, *with_secret)
    other = os.path.join(site.scratch, "other")
    with open(other, "w", encoding="ascii") as file:
        file.write("00" * 32 + "\n")
    os.chmod(other, 0o600)
    check("volume's secret" in failure(site, 1, "status", "--secret", other, address), "another secret")
    with open(other, "w", encoding="ascii") as file:
        file.write("listen\n")
    check("holds no secret" in failure(site, 1, "status", "--secret", other, address), "a file that is none")
    for wrong in ("host:", "host:0", "[::1", "host:99999"):
        failure(site, 2, "serve", volume.path, "--listen", wrong)
    mountpoint = os.path.join(site.scratch, "m")
    os.mkdir(mountpoint)
    check("--secret is missing" in failure(site, 2, "mount", address, mountpoint), "a mount without a secret")
    check("another host" in failure(site, 1, "mount", address, mountpoint, "--secret", secret, "-o", "bitmap=live"),
          "a bitmap that cannot be looked into")
    check("RDMA" in failure(site, 1, "mount", address, mountpoint, "--secret", secret, "-o", "rdma=none0"),
          "an RDMA device that is not there")
    check("on a network" in failure(site, 2, "mount", volume.path, mountpoint, "-o", "rdma=none0"),
          "an RDMA device for a volume of this host")
    failure(site, 2, "mount", address, mountpoint, "--secret", secret, "-o", "rdma=")
    os.rmdir(mountpoint)
    second = site.volume("64M")
    second.stop()
    check("Address already in use" in failure(site, 1, "serve", second.path, "--listen", address), "a port in use")
    second.serve()


def new_host(site):
    """A network namespace, as a command that runs others in it. It lasts as long as the process that has it."""
    holder = site.start("unshare", "--net", "sh", "-c", "echo here; exec sleep 3600")
    if holder.stdout.readline() != "here\n":
        raise Skip("no network namespaces")
    return ("nsenter", "--target", str(holder.pid), "--net")


class Hosts:
    """Two of them, joined by a link: commands that run another one there, and the server's address."""

    def __init__(self, site, ipv6=False):
        need("ip")
        self.server, self.client = new_host(site), new_host(site)
        self.address = "fd00:7e::1" if ipv6 else "10.234.0.1"
        run(*self.server, "ip", "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", self.client[2])
        addresses = ("fd00:7e::1/64", "fd00:7e::2/64") if ipv6 else ("10.234.0.1/24", "10.234.0.2/24")
        for host, address in zip((self.server, self.client), addresses):
            run(*host, "ip", "address", "add", address, "dev", "veth0", *(["nodad"] if ipv6 else []))
            run(*host, "ip", "link", "set", "veth0", "up")

    def place(self):
        return f"[{self.address}]:{PORT}" if ":" in self.address else f"{self.address}:{PORT}"

    def set_link(self, state):
        run(*self.client, "ip", "link", "set", "veth0", state)

    def serve(self, site, volume):
        run(*self.server, site.termfs, "serve", volume.path, "--listen", self.place(), "--rnic-threads", "3",
            *(["--tls", "off"] if site.wire == "plain" else []))
        volume.server = site.find_process("serve", volume.path)
        volume.address = [self.place(), "--secret", os.path.join(volume.path, "secret")]


@contextlib.contextmanager
def two_hosts(site, ipv6=False):
    yield Hosts(site, ipv6)
    for volume in site.volumes:  # while there is a way between them
        for mount in list(volume.mounts):
            volume.umount(mount)
        if volume.server is not None:
            volume.stop()


def case_network_two_hosts(site):
    """Across two network stacks; and when the link is cut a command fails, in a bounded time, and works again."""
    volume = site.volume("64M")
    volume.stop()
    with two_hosts(site) as hosts:
        hosts.serve(site, volume)
        secret = copy_secret(site, volume)
        ask = ("status", "--secret", secret, hosts.place())
        there = (*hosts.client, site.termfs, *ask)
        check("health     ok" in run(*there), "from the other host")
        failure(site, 1, *ask)  # from this one there is no way
        hosts.set_link("down")
        run(*there, code=1, seconds=100)
        hosts.set_link("up")
        eventually(lambda: subprocess.run(there, capture_output=True, check=False).returncode == 0, "it is back")


def write_and_check(m, megabytes=40):
    """More than the DRAM tier holds, read back by other ways than it was written; its digest."""
    data = os.urandom(megabytes << 20)
    with open(m / "big", "wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    descriptor = os.open(m / "big", os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 1 << 20)
    digest = hashlib.sha256()
    while (got := os.readv(descriptor, [buffer])) != 0:
        digest.update(buffer[:got])
    os.close(descriptor)
    check(digest.digest() == hashlib.sha256(data).digest(), "what was written is what is read")
    return digest.hexdigest()


def read_direct(path):
    """A page, past the kernel's cache."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        return os.readv(descriptor, [mmap.mmap(-1, 4096)]) == 4096
    finally:
        os.close(descriptor)


def case_network_mount(site):
    """A volume on another host, over IPv4 and IPv6: its transport has a name, misses and hits are what they are."""
    for ipv6 in (False, True):
        volume = site.volume("64M", 0.25)
        volume.stop()
        with two_hosts(site, ipv6) as hosts:
            hosts.serve(site, volume)
            m = volume.mount(at=hosts.client)
            digest = write_and_check(m)
            second = volume.mount(at=hosts.client)
            with open(second / "big", "rb") as file:
                check(hashlib.sha256(file.read()).hexdigest() == digest, "on another mount")
            near = json.loads(run(*hosts.client, site.termfs, "status", "--json", m.path))
            check(near["mount"]["transport"] == TRANSPORTS[site.wire], f"{near['mount']}")
            sessions = near["server"]["sessions"]
            check(len(sessions) == 2 and all(s["transport"] == TRANSPORTS[site.wire] for s in sessions), f"{sessions}")
            check(all(s["bitmap"] == "pulled" for s in sessions), f"{sessions}")
            check(int(m.describe()["rpc_read_pages_total"]) > 0, "what is absent comes by RPC")
            eventually(lambda m=m: read_direct(m / "big") and int(m.describe()["read_hit_pages_total"]) > 0, "READs")
            def metrics(at=(*hosts.client, site.termfs), path=m.path):
                return json.loads(run(*at, "stats", "--json", "--count", "1", path))["server"]

            eventually(lambda ask=metrics: ask()["heat_reads_total"] > 0, "the server READs what was accessed")
            metrics = metrics()
            if site.wire == "roce":
                check(metrics["network_packets_received_total"] > 1000, "packets are counted")
                check(metrics["network_packets_wrong_crc_total"] == 0, "every CRC is right")
            else:
                check(metrics["network_packets_received_total"] == 0, "no datagrams")
                check(metrics["network_stream_received_bytes_total"] > 40 << 20, "what was written is counted")


READER = """
import mmap, os, random, sys, time
path, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
random.seed(seed)
pages = os.stat(path).st_size // 4096
descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
buffer = mmap.mmap(-1, 16 * 4096)
end = time.monotonic() + seconds
newest = [0] * pages
reads = 0
while time.monotonic() < end:
    first = random.choice((random.randrange(64), random.randrange(pages)))
    count = min(random.choice((1, 1, 1, 16)), pages - first)
    got = os.preadv(descriptor, [memoryview(buffer)[:count * 4096]], first * 4096)
    assert got == count * 4096, got
    for i in range(count):
        page = buffer[i * 4096:(i + 1) * 4096]
        number, version = page[:8], page[8:16]
        assert page == page[:16] * 256, f"page {first + i} is a mixture"
        assert int.from_bytes(number, "little") == first + i, f"page {first + i} is page {number}"
        version = int.from_bytes(version, "little")
        assert version >= newest[first + i], f"page {first + i} went back"
        newest[first + i] = version
        reads += 1
print(reads, "pages")
"""


def case_network_validated(site):
    """A server whose RNIC knows no page table, as it were: a mount on another host reads frames and validates them, every
    byte is compared, while a second mount writes, the tier shrinks and grows, and the server is killed and served again."""
    os.environ["TERMFS_VALIDATED_READS"] = "1"
    try:
        volume = site.volume("128M", 0.5)
        volume.stop()
        with two_hosts(site, ipv6=True) as hosts:
            hosts.serve(site, volume)
            m, writer = (volume.mount(at=hosts.client) for _ in range(2))
            check([s["reads"] for s in volume.status()["sessions"]] == ["validated", "validated"], "both validate")
            check("validated READs" in run(*hosts.client, site.termfs, "status", m.path), "status says so")
            write_and_check(m)
            pages, version = 10240, [0] * 10240
            page_of = lambda page: (page.to_bytes(8, "little") + version[page].to_bytes(8, "little")) * 256
            with open(writer / "pages", "wb") as file:
                for page in range(pages):
                    file.write(page_of(page))
                os.fsync(file.fileno())
            seconds = site.size(12, 6)
            readers = [site.start("python3", "-c", READER, m / "pages", seed, seconds) for seed in range(2)]
            descriptor = os.open(writer / "pages", os.O_WRONLY)
            end, turn = time.monotonic() + seconds, 0
            while time.monotonic() < end:
                for page in (turn * 7 % 64, turn * 1237 % pages):
                    version[page] += 1
                    os.pwrite(descriptor, page_of(page), page * 4096)
                if turn % 100 == 50:
                    run(site.termfs, "set", volume.path,
                        "dram-ratio=" + ("0.1" if turn // 100 % 2 == 0 else "0.5"))
                turn += 1
            os.close(descriptor)
            for reader in readers:
                check(reader.wait(timeout=200) == 0, f"a reader: {reader.stdout.read()[-600:]}")
            counters = {name: int(m.describe()[name]) for name in ("read_hit_pages_total", "validation_misses_total")}
            print(f"     network_validated: {counters}, {turn} turns of the writer", flush=True)
            check(counters["read_hit_pages_total"] > 1000, "pages are READ")
            check(counters["validation_misses_total"] > 0, "and found to have changed")
            volume.kill()
            hosts.serve(site, volume)
            with open(m / "pages", "rb") as file:
                for page in range(pages):
                    check(file.read(4096) == page_of(page), f"page {page} after the server was killed")
    finally:
        del os.environ["TERMFS_VALIDATED_READS"]


def case_network_wires(site):
    """A server and a mount may each insist on a wire; where they do not agree the message says what to do."""
    volume = site.volume("64M")
    volume.stop()
    port = free_port(socket.AF_INET6, "::1")
    place = [f"[::1]:{port}", "--secret", os.path.join(volume.path, "secret")]
    check("rdma-wire" in failure(site, 2, "serve", volume.path, "--listen", place[0], "--rdma-wire", "tcp"), "no such wire")
    check("tls" in failure(site, 2, "serve", volume.path, "--listen", place[0], "--tls", "maybe"), "no such setting")
    for flags, wanted, spoken in (((), "plain", None), (("--tls", "off"), None, None), (("--tls", "off"), "plain", "plain")):
        volume.serve("--listen", place[0], *flags)
        volume.address, site.wire = place, wanted
        m = volume.mount()
        check(m.describe()["transport"] == TRANSPORTS[spoken], f"{flags}, {wanted}: TLS is left out where both ends ask for it")
        check(TRANSPORTS[spoken] in run(site.termfs, "status", volume.path), "status names it")
        volume.umount(m)
        site.wire = None
        volume.stop()
    for served, wanted, spoken in (("roce", None, "roce"), ("roce", "iwarp", None), ("iwarp", None, None), ("iwarp", "roce", None)):
        volume.serve("--listen", place[0], "--rdma-wire", served)
        volume.address, site.wire = place, wanted
        if wanted is not None and wanted != served:
            mountpoint = os.path.join(site.scratch, f"none{served}")
            os.mkdir(mountpoint)
            said = failure(site, 1, "mount", place[0], mountpoint, "--secret", place[2], "-o", f"rdma-wire={wanted}")
            check("this server speaks" in said, said)
            os.rmdir(mountpoint)
        else:
            m = volume.mount()
            check(m.describe()["transport"] == TRANSPORTS[spoken], f"{served}, {wanted}")
            volume.umount(m)
        site.wire = None
        volume.stop()
    volume.address = [volume.path]
    volume.serve()


def case_network_and_here(site):
    """A mount on the server's own host goes through memory, one that names its address over the network; both see the
    same, and a secret that is not the volume's opens nothing."""
    volume = site.volume("64M")
    volume.stop()
    port = free_port(socket.AF_INET6, "::1")
    volume.serve("--listen", f"[::1]:{port}")
    near = volume.mount()
    other = os.path.join(site.scratch, "other")
    with open(other, "w", encoding="ascii") as file:
        file.write("00" * 32 + "\n")
    os.chmod(other, 0o600)
    mountpoint = os.path.join(site.scratch, "m")
    os.mkdir(mountpoint)
    check("volume's secret" in failure(site, 1, "mount", f"[::1]:{port}", mountpoint, "--secret", other), "wrong secret")
    os.rmdir(mountpoint)
    volume.address = [f"[::1]:{port}", "--secret", copy_secret(site, volume)]
    far = volume.mount()
    transports = sorted(s["transport"] for s in volume.status()["sessions"])
    check(transports == sorted([TRANSPORTS[site.wire], "softnic (shared memory)"]), f"{transports}")
    for one, two in ((near, far), (far, near)):
        for number in range(50):
            with open(one / "shared", "w", encoding="ascii") as file:
                file.write(f"{one.path} {number}")
            with open(two / "shared", encoding="ascii") as file:
                check(file.read() == f"{one.path} {number}", "the other mount sees it at once")


def case_network_bad_link(site):
    """Packets are lost, doubled, late, out of order, changed and replayed, both ways: nothing but time is lost."""
    site.wire = "roce"
    os.environ["TERMFS_NETWORK_FAULTS"] = "loss=0.01,duplication=0.01,reordering=0.02,corruption=0.005,replay=0.01,seed=5"
    try:
        for host in ("::1", "127.0.0.1"):
            site.network = host
            volume = site.volume("64M", 0.25)
            m = volume.mount()
            write_and_check(m, site.size(40, 20))
            workers = [site.start("python3", "-c", WORKER, m.path, site.scratch, f"{len(host)}{i}", 40) for i in range(2)]
            for i, worker in enumerate(workers):
                check(worker.wait(timeout=280) == 0, f"worker {i}: {worker.stdout.read()[-600:]}")
                check_work(m, int(f"{len(host)}{i}"), 40)
            metrics = volume.metrics()
            check(metrics["network_retransmissions_total"] > 0 and metrics["network_packets_wrong_crc_total"] > 0,
                  "the link was as bad as it was told to be")
    finally:
        site.network = site.wire = None
        del os.environ["TERMFS_NETWORK_FAULTS"]


def check_runs(worker, when):
    if worker.poll() is not None:
        raise AssertionError(f"{when}: the program ended with {worker.returncode}: {worker.stdout.read()[-600:]}")


def case_network_cut_link(site):
    """The link is cut, both ways and one way, for a moment and for longer than a session lives: programs wait, and go on
    within seconds once it is back."""
    volume = site.volume("64M", 0.25)
    volume.stop()
    with two_hosts(site) as hosts:
        hosts.serve(site, volume)
        m = volume.mount(at=hosts.client)
        one_way = ("ip", "route", "add", "blackhole", "10.234.0.2/32")
        cuts = (("a moment", 2, lambda: hosts.set_link("down"), lambda: hosts.set_link("up")),
                ("long", 15, lambda: hosts.set_link("down"), lambda: hosts.set_link("up")),
                ("one way", 15, lambda: run(*hosts.server, *one_way),
                 lambda: run(*hosts.server, "ip", "route", "del", *one_way[3:])))
        for number, (name, seconds, cut, mend) in enumerate(cuts):
            worker = site.start("python3", "-c", WORKER, m.path, site.scratch, number, 150, 0.02)
            eventually(lambda n=number: len(logged(site, n)) > 5, "the program works")
            cut()
            if name == "long":
                time.sleep(7.5)
                up, sessions = m.describe()["link_up"], len(volume.status()["sessions"])
                check((up, sessions) == ("0", 1), f"the client is the first to know: {up}, {sessions}")
                eventually(lambda: not volume.status()["sessions"], "the server gives up on the session")
                seconds = max(seconds, 8)
                time.sleep(seconds - 8)
            else:
                time.sleep(seconds)
            done = len(logged(site, number))
            check_runs(worker, f"{name}, while the link was cut")
            mend()
            began = time.monotonic()
            while len(logged(site, number)) == done:
                check_runs(worker, f"{name}, once the link was back")
                check(time.monotonic() < began + WAIT, f"{name}: the program goes on, not after {WAIT} s: {m.describe()}")
                time.sleep(0.05)
            print(f"     network_cut_link: {name}: on again {time.monotonic() - began:.1f} s after {seconds} s", flush=True)
            check(worker.wait(timeout=200) == 0, f"{name}: {worker.stdout.read()[-600:]}")
            check_work(m, number, 150)
        check(int(m.describe()["link_reconnections_total"]) >= 2, "sessions were lost and made anew")


def case_network_server_restarts(site):
    """kill -9 of the server, and it is served again: programs of a mount over the network go on."""
    site.network = "::1"
    try:
        volume = site.volume("64M", 0.25)
        m = volume.mount()
        worker = site.start("python3", "-c", WORKER, m.path, site.scratch, 0, 200)
        for _ in range(3):
            before = len(logged(site, 0))
            eventually(lambda b=before: len(logged(site, 0)) > b + 3 or "done" in logged(site, 0), "the program goes on")
            volume.kill()
            volume.serve()
        check(worker.wait(timeout=200) == 0, worker.stdout.read()[-600:])
        check_work(m, 0, 200)
    finally:
        site.network = None


def case_network_killed_mount(site):
    """A mount that is killed on the other host: what it had is given up, the others go on within seconds, long before it
    could come back no more."""
    volume = site.volume("64M")
    volume.stop()
    with two_hosts(site) as hosts:
        hosts.serve(site, volume)
        first, second = (volume.mount("reconnect=300", at=hosts.client) for _ in range(2))
        with open(first / "f", "w", encoding="ascii") as file:
            file.write("before")
        locked = os.open(first / "f", os.O_RDWR)
        fcntl.flock(locked, fcntl.LOCK_EX)
        os.kill(first.pid, signal.SIGKILL)
        eventually(lambda: ended(first.pid), "it is dead")
        began = time.monotonic()
        with open(second / "f", "w", encoding="ascii") as file:
            file.write("after")
            fcntl.flock(file, fcntl.LOCK_EX)
        check(time.monotonic() - began < 30, "a dead client delays others by seconds")
        with contextlib.suppress(OSError):
            os.close(locked)
        volume.abandon(first)
        eventually(lambda: len(volume.status()["sessions"]) == 1, "its session ends")


@contextlib.contextmanager
def through_a_proxy(site):
    """A volume and a proxy before it, whose address is all that mounts know: as behind a translation of addresses."""
    volume = site.volume("64M", 0.25)
    volume.stop()
    port = free_port(socket.AF_INET, "127.0.0.1")
    volume.serve("--listen", f"127.0.0.1:{port}")
    proxy = TcpProxy(("127.0.0.1", port))
    try:
        volume.address = [f"127.0.0.1:{proxy.port}", "--secret", copy_secret(site, volume)]
        yield volume, proxy
        for mount in list(volume.mounts):
            volume.umount(mount)
    finally:
        proxy.end()


def case_network_proxy(site):
    """Through a proxy, which delays what it passes on: everything works, and every connection goes through it."""
    with through_a_proxy(site) as (volume, proxy):
        m = volume.mount()
        check(m.describe()["transport"] == TRANSPORTS[None], "iWARP")
        write_and_check(m, 40)
        check(proxy.accepted > 2, f"{proxy.accepted} connections through the proxy")
        proxy.delay = 0.01
        worker = site.start("python3", "-c", WORKER, m.path, site.scratch, 0, 40)
        check(worker.wait(timeout=280) == 0, worker.stdout.read()[-600:])
        check_work(m, 0, 40)


def case_network_connections_break(site):
    """Single connections of a mount are reset, half closed, or held up for a while one way or both: programs wait, and
    every call that returned has been done."""
    with through_a_proxy(site) as (volume, proxy):
        m = volume.mount()
        workers = []

        def start():
            workers.append(site.start("python3", "-c", WORKER, m.path, site.scratch, len(workers), 150, 0.02))

        def ends():
            check(workers[-1].wait(timeout=280) == 0, workers[-1].stdout.read()[-600:])
            check_work(m, len(workers) - 1, 150)

        def goes_on(what):
            number = len(workers) - 1
            done = len(logged(site, number))
            eventually(lambda: len(logged(site, number)) > done + 3 or workers[-1].poll() is not None,
                       f"it goes on after {what}")
            if workers[-1].poll() is not None:
                ends()
                start()

        start()
        for turn in range(4):
            check(proxy.reset_one(), "there is a connection")
            goes_on(f"reset {turn}")
            proxy.half_close_one()
            goes_on(f"half close {turn}")
        for ways, seconds in (({"to server"}, 2), ({"to client"}, 2), ({"to server"}, 8), ({"to client"}, 8),
                              ({"to server", "to client"}, 8)):
            proxy.stopped = ways
            time.sleep(seconds)
            proxy.stopped = set()
            goes_on(f"{seconds} s without bytes {ways}")
        ends()
        check(int(m.describe()["link_reconnections_total"]) >= 3, "sessions were lost and connected again")


def right_crc(packet):
    """Whether a captured datagram from its IP header on ends with the invariant CRC, by what the specification says."""
    header = 40 if packet[0] >> 4 == 6 else 20
    length = struct.unpack_from(">H", packet, header + 4)[0]
    covered = bytearray(b"\xff" * 8 + packet[:header + length])
    ip, udp = 8, 8 + header
    masked = (ip, ip + 1, ip + 2, ip + 3, ip + 7) if header == 40 else (ip + 1, ip + 8, ip + 10, ip + 11)
    for place in (*masked, udp + 6, udp + 7, udp + 8 + 4):  # and the UDP checksum, and BTH's congestion bits
        covered[place] = covered[place] | 0x0f if place == ip and header == 40 else 0xff
    return struct.pack("<I", zlib.crc32(covered[:-4])) == bytes(covered[-4:])


def packets_of(path):
    """Of a pcap file with Ethernet frames: from the IP header on."""
    with open(path, "rb") as file:
        check(file.read(24)[20:24] == b"\x01\0\0\0", "a capture of Ethernet")
        while record := file.read(16):
            yield file.read(struct.unpack_from("<I", record, 8)[0])[14:]


def capture_roce(site):
    """What a mount and its server send is RoCEv2: a dissector knows every packet, and every CRC is right."""
    need("tshark")
    need("ethtool")
    for ipv6 in (False, True):
        volume = site.volume("64M", 0.25)
        volume.stop()
        with two_hosts(site, ipv6) as hosts:
            for host in (hosts.server, hosts.client):  # else a capture shows what is cut into packets behind it
                run(*host, "ethtool", "-K", "veth0", "gso", "off", "gro", "off", "tso", "off", "tx-udp-segmentation", "off")
            capture = os.path.join(site.scratch, "capture")
            tshark = site.start(*hosts.server, "tshark", "-q", "-i", "veth0", "-f", "udp", "-F", "pcap", "-w", capture)
            eventually(lambda path=capture: os.path.exists(path) and os.path.getsize(path) >= 24, "tshark captures")
            hosts.serve(site, volume)
            m = volume.mount(at=hosts.client)
            write_and_check(m, 4)
            volume.umount(m)
            time.sleep(1)
            tshark.send_signal(signal.SIGINT)
            check(tshark.wait(timeout=60) == 0, "tshark ends")
            packets = list(packets_of(capture))
            check(len(packets) > 2000, f"{len(packets)} packets")
            wrong = sum(not right_crc(packet) for packet in packets)
            check(wrong == 0, f"{wrong} of {len(packets)} packets have another CRC")
            for shown, count in (("infiniband", len(packets)), ("_ws.malformed", 0), ("_ws.expert.severity >= 6291456", 0)):
                # What messages carry is ours: the dissector is not to take it for Ethernet frames.
                seen = run("tshark", "-o", "infiniband.identify_payload:FALSE", "-r", capture, "-Y", shown, "-T", "fields",
                           "-e", "frame.number").split()
                check(len(seen) == count, f"{shown}: {len(seen)} packets, not {count}; the first: {seen[:5]}")
        os.unlink(capture)


def capture_iwarp(site):
    """What a mount and its server send is iWARP: a dissector knows every unit, and every CRC is right."""
    need("tshark")
    check_iwarp(os.path.join(os.path.dirname(__file__), "../../docs/results/iwarp_capture.pcap"), 1)
    for ipv6 in (False, True):
        volume = site.volume("64M", 0.25)
        volume.stop()
        with two_hosts(site, ipv6) as hosts:
            capture = os.path.join(site.scratch, "capture")
            tshark = site.start(*hosts.server, "tshark", "-q", "-i", "veth0", "-f", "tcp", "-F", "pcap", "-B", "64", "-w",
                                capture)
            eventually(lambda path=capture: os.path.exists(path) and os.path.getsize(path) >= 24, "tshark captures")
            hosts.serve(site, volume)
            m = volume.mount(at=hosts.client)
            write_and_check(m, 4)
            volume.umount(m)
            time.sleep(1)
            tshark.send_signal(signal.SIGINT)
            check(tshark.wait(timeout=60) == 0, "tshark ends")
            check_iwarp(capture, 10)
        os.unlink(capture)


def check_iwarp(capture, least):
    """Units of each kind are there, `least` of each, and none that the dissector complains about."""

    def seen(what, *fields):
        return run("tshark", "-r", capture, "-Y", what, "-T", "fields", *(word for f in fields for word in ("-e", f)))

    opcodes = [int(code, 0) for line in seen("iwarp_rdma", "iwarp_rdma.opcode").split() for code in line.split(",")]
    for opcode, name in ((0, "WRITE"), (1, "READ request"), (2, "READ response"), (3, "SEND")):
        check(opcodes.count(opcode) >= least, f"{opcodes.count(opcode)} units are a {name}")
    check(7 not in opcodes, "no Terminate")
    for complaint in ("_ws.malformed", "iwarp_mpa.bad_length", "iwarp_mpa.markers"):
        wrong = seen(complaint, "frame.number").split()
        check(not wrong, f"{complaint}: {wrong[:5]}")
    checks = [line for line in run("tshark", "-r", capture, "-Y", "iwarp_mpa.fpdu", "-O", "iwarp_mpa").splitlines()
              if "CRC check:" in line]
    bad = [line for line in checks if "Good CRC32" not in line]
    check(len(checks) >= 4 * least and not bad, f"{len(checks)} CRCs, wrong: {bad[:3]}")


def capture_in_tls(site):
    """What a mount and its server send by default tells a listener neither data nor names; a dissector sees TLS 1.3."""
    need("tshark")
    volume = site.volume("64M", 0.25)
    volume.stop()
    words = b"words of a file that nobody else is to read " * 2000
    with two_hosts(site) as hosts:
        capture = os.path.join(site.scratch, "capture")
        tshark = site.start(*hosts.server, "tshark", "-q", "-i", "veth0", "-F", "pcap", "-B", "64", "-w", capture)
        eventually(lambda: os.path.exists(capture) and os.path.getsize(capture) >= 24, "tshark captures")
        hosts.serve(site, volume)
        m = volume.mount(at=hosts.client)
        with open(m / "a_name_that_is_secret", "wb") as file:
            file.write(words)
            os.fsync(file.fileno())
        descriptor = os.open(m / "a_name_that_is_secret", os.O_RDONLY | os.O_DIRECT)
        check(os.pread(descriptor, 4096, 4096) == words[4096:8192], "what was written")
        os.close(descriptor)
        volume.umount(m)
        time.sleep(1)
        tshark.send_signal(signal.SIGINT)
        check(tshark.wait(timeout=60) == 0, "tshark ends")
    with open(capture, "rb") as file:
        captured = file.read()
    check(len(captured) > len(words), f"{len(captured)} bytes were captured")
    for seen in (words[:40], b"a_name_that_is_secret", b"iWAR", b"MPA ID"):
        check(seen not in captured, f"{seen} can be read on the way")

    def fields(shown, field):
        return run("tshark", "-d", f"tcp.port=={PORT},tls", "-r", capture, "-Y", shown, "-T", "fields", "-e", field).split()

    check(len(fields("tls.handshake.type==1", "frame.number")) >= 3, "handshakes of the control channel and of queue pairs")
    versions = fields("tls.handshake.type==2", "tls.handshake.extensions.supported_version")
    check(versions and set(versions) == {"0x0304"}, f"versions: {versions}")
    check(set(fields("tls.handshake.type==2", "tls.handshake.ciphersuite")) == {"0x1301"}, "AES-128-GCM")
    check(not fields("udp.port==4791", "frame.number"), "no RoCE")
    check(not fields("_ws.malformed", "frame.number"), "no malformed packet")
    os.unlink(capture)


case_network_mount_plain = over("plain", case_network_mount)
case_network_validated_plain = over("plain", case_network_validated)
case_network_and_here_plain = over("plain", case_network_and_here)
case_network_cut_link_plain = over("plain", case_network_cut_link)
case_network_server_restarts_plain = over("plain", case_network_server_restarts)
case_network_killed_mount_plain = over("plain", case_network_killed_mount)
case_network_capture = over("plain", capture_iwarp)
case_network_mount_roce = over("roce", case_network_mount)
case_network_validated_roce = over("roce", case_network_validated)
case_network_and_here_roce = over("roce", case_network_and_here)
case_network_cut_link_roce = over("roce", case_network_cut_link)
case_network_server_restarts_roce = over("roce", case_network_server_restarts)
case_network_killed_mount_roce = over("roce", case_network_killed_mount)
case_network_capture_roce = over("roce", capture_roce)
case_network_capture_tls = capture_in_tls
