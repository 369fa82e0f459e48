# SPDX-License-Identifier: Apache-2.0
"""What goes wrong on the way between two hosts: packets that are too large, lost or late, translations of addresses that are
forgotten, connections that are cut or reset, a server that does not read. The way is a process, see packet_path.py, so
nothing of the kernel's is needed to lose, delay or filter packets. Programs on a mount compare every byte, and another mount
on the server's own host tries to lock what is locked.

cases_network.py has what an Ethernet link of the kernel's can do, and connections that break at random."""
import contextlib
import os
import signal
import time

from cases_network import Hosts, check_runs, copy_secret, new_host, write_and_check
from packet_path import Path
from tcp_proxy import TcpProxy
from volume import Skip, check, eventually, free_port, need, run, stop

# Holds a lock, and reads and writes pages at random, past the kernel's cache: every byte has to be what was written last.
# Logs when each operation ended, and how long it took. Until there is a file STOP; then it compares everything once
# more, also through another mount.
CHECKER = """
import fcntl, mmap, os, random, sys, time
mount, other, log, seed, stop = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]
random.seed(seed)
PAGES = 2048
held = os.open(os.path.join(mount, f"held{seed}"), os.O_RDWR | os.O_CREAT)
fcntl.flock(held, fcntl.LOCK_EX)
fd = os.open(os.path.join(mount, f"checked{seed}"), os.O_RDWR | os.O_CREAT | os.O_DIRECT)
os.ftruncate(fd, PAGES * 4096)
version = [0] * PAGES
buffer = mmap.mmap(-1, 16 * 4096)

def expected(page):
    return (page.to_bytes(8, "little") + version[page].to_bytes(8, "little")) * 256 if version[page] else bytes(4096)

def compare(fd, first, count):
    got = os.preadv(fd, [memoryview(buffer)[:count * 4096]], first * 4096)
    assert got == count * 4096, got
    for i in range(count):
        assert buffer[i * 4096:(i + 1) * 4096] == expected(first + i), f"page {first + i}"

with open(log, "w", buffering=1) as lines:
    while not os.path.exists(stop):
        count = random.choice((1, 16))
        first = random.randrange(PAGES - count)
        began = time.monotonic()
        if random.random() < 0.5:
            for i in range(count):
                version[first + i] += 1
                buffer[i * 4096:(i + 1) * 4096] = expected(first + i)
            put = os.pwrite(fd, memoryview(buffer)[:count * 4096], first * 4096)
            assert put == count * 4096, put
        else:
            compare(fd, first, count)
        lines.write(f"{time.monotonic()} {time.monotonic() - began}\\n")
os.fsync(fd)
again = os.open(os.path.join(other, f"checked{seed}"), os.O_RDONLY | os.O_DIRECT)
for one in (fd, again):
    for first in range(0, PAGES, 16):
        compare(one, first, 16)
print("right")
"""

# Tries for what the other mount has locked. Is never to get it.
LOCKER = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
while not os.path.exists(sys.argv[2]):
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        sys.exit("it was granted")
    except BlockingIOError:
        print("refused", flush=True)
        time.sleep(0.1)
print("refused")
"""


class PathHosts(Hosts):
    """Two hosts with a packet path in between."""

    def __init__(self, site, ipv6=False, mtu=1500):  # pylint: disable=super-init-not-called
        need("ip")
        if not os.path.exists("/dev/net/tun"):
            raise Skip("no /dev/net/tun")
        self.server, self.client = new_host(site), new_host(site)
        self.address = "fd00:7e::1" if ipv6 else "10.234.0.1"
        self.path = Path(site, self.server[2], self.client[2])
        addresses = ("fd00:7e::1/64", "fd00:7e::2/64") if ipv6 else ("10.234.0.1/24", "10.234.0.2/24")
        for host, address in zip((self.server, self.client), addresses):
            run(*host, "ip", "address", "add", address, "dev", "path0", *(["nodad"] if ipv6 else []))
            run(*host, "ip", "link", "set", "path0", "txqueuelen", "10000", "mtu", mtu, "up")


class Scene:
    """A mount behind the path, another one on the server's host; a checker on the former, a locker on the latter."""

    def __init__(self, site, hosts, volume):
        self.site, self.hosts, self.path, self.volume = site, hosts, hosts.path, volume
        self.far = volume.mount(at=hosts.client)
        volume.address = [volume.path]
        self.near = volume.mount()
        self.log, self.stop = (os.path.join(site.scratch, name) for name in ("checked", "stop"))
        for path in (self.log, self.stop):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        self.checker = site.start("python3", "-c", CHECKER, self.far.path, self.near.path, self.log, 1, self.stop)
        self.goes_on("it began", 20, 20)
        self.locker = site.start("python3", "-c", LOCKER, self.near / "held1", self.stop)
        # Its open has asked the far mount for what that had not written yet; a mount that does not answer is expelled.
        check(self.locker.stdout.readline() == "refused\n", "the lock is held")

    def done(self):
        """(when it ended, how long it took) of each operation."""
        with open(self.log, encoding="ascii") as lines:
            return [tuple(map(float, line.split())) for line in lines if line.endswith("\n")]

    def goes_on(self, what, seconds, operations=20):
        """So many more operations are done within that time; how long that took."""
        began = time.monotonic()
        before = len(self.done()) if os.path.exists(self.log) else 0

        def have_been_done():
            check_runs(self.checker, what)
            return os.path.exists(self.log) and len(self.done()) >= before + operations
        eventually(have_been_done, f"{what}: the checker goes on", seconds)
        return time.monotonic() - began

    def survives(self, what, fault, seconds, repair, within):
        """The fault lasts for `seconds`; then the checker goes on `within` so many."""
        before = self.reconnections()
        fault()
        try:
            time.sleep(seconds)
            check_runs(self.locker, f"{what}: the lock")
        finally:  # or nothing can be unmounted
            repair()
        took = self.goes_on(what, within)
        check_runs(self.locker, f"{what}: the lock")
        print(f"     {what}: on again after {took:.1f} s, {self.reconnections() - before} reconnections", flush=True)

    def reconnections(self):
        return int(self.far.describe()["link_reconnections_total"])

    def slowest(self, since):
        return max((took for ended, took in self.done() if ended >= since), default=0)

    def end_programs(self):
        """Every byte is right, the lock was never granted, and is when its holder has ended."""
        if self.checker.stdout.closed:
            return
        with open(self.stop, "w", encoding="ascii"):
            pass
        for program, said in ((self.checker, "right"), (self.locker, "refused")):
            output, _ = program.communicate(timeout=60)
            check(program.returncode == 0 and said in output, f"{said}? {output[-600:]}")
        run("flock", "--exclusive", "--timeout", "10", self.near / "held1", "true")


@contextlib.contextmanager
def scene(site, ipv6=False, mtu=1500, **settings):
    """`mtu`: of the hosts' interfaces. `settings`: of the path."""
    volume = site.volume("64M", 0.25)
    volume.stop()
    hosts = PathHosts(site, ipv6, mtu)
    hosts.path.set(**settings)
    hosts.serve(site, volume)
    one = Scene(site, hosts, volume)
    yield one
    one.end_programs()
    for mount in list(volume.mounts):
        volume.umount(mount)
    volume.stop()


def mtu_falls(site, ipv6, before):
    """Packets above 1280 bytes vanish all at once, and nothing reports it: the mount connects again with small segments."""
    with scene(site, ipv6, before) as one:
        one.path.counts()
        one.goes_on("with large packets", 20)
        check(one.path.counts()["largest"] > 1280, "packets were large")
        began = time.monotonic()
        one.path.set(mtu=1280)
        one.goes_on("the MTU has fallen", 40, 50)
        took, slowest = time.monotonic() - began, one.slowest(began)
        check(one.path.counts()["too_large"] > 0, "packets were too large")
        one.goes_on("small segments", 20, 100)
        counts = one.path.counts()
        check(counts["too_large"] == 0 and 1200 < counts["largest"] <= 1280, f"segments are small: {counts}")
        print(f"     mtu_falls from {before}: on again after {took:.1f} s, the slowest operation took {slowest:.1f} s",
              flush=True)


def case_path_mtu_is_small(site):
    """Packets above 1280 bytes vanish from the beginning: mounts and commands need a few seconds, and work."""
    volume = site.volume("64M", 0.25)
    volume.stop()
    hosts = PathHosts(site, ipv6=True)
    hosts.path.set(mtu=1280)
    hosts.serve(site, volume)
    began = time.monotonic()
    m = volume.mount(at=hosts.client)
    took = time.monotonic() - began
    check(took < 10, f"the mount took {took:.1f} s")
    write_and_check(m, 8)
    began = time.monotonic()
    run(*hosts.client, site.termfs, "stats", "--count", "1", *volume.address)
    print(f"     path_mtu_is_small: mount {took:.1f} s, stats {time.monotonic() - began:.1f} s", flush=True)
    check(time.monotonic() - began < 3, "a command is not held up")
    volume.umount(m)
    volume.stop()


def case_path_mtu_falls(site):
    mtu_falls(site, True, 1500)


def case_path_mtu_falls_from_jumbo(site):
    mtu_falls(site, False, 9000)


def case_path_forgets_idle_connections(site):
    """What has been idle for 8 s is forgotten, as by a translation of addresses; the mount is idle for longer, and nothing
    is lost: all connections are kept alive. Then all of them are forgotten at once, in use and idle."""
    volume = site.volume("64M", 0.25)
    volume.stop()
    hosts = PathHosts(site)
    hosts.serve(site, volume)
    hosts.path.set(idle_seconds=8)
    m = volume.mount("reconnect=60", at=hosts.client)
    data = os.urandom(1 << 20)

    def reads(what, within):
        began = time.monotonic()
        run("dd", f"of={m / 'f'}", "bs=64k", "oflag=direct", input=None, stdin=open(content, "rb"))  # pylint: disable=R1732
        with open(m / "f", "rb", buffering=0) as file:
            check(file.read(1 << 20) == data, f"{what}: bytes")
        took = time.monotonic() - began
        print(f"     path_forgets_idle_connections: {what}: {took:.1f} s", flush=True)
        check(took < within, f"{what}: {took:.1f} s")

    content = os.path.join(site.scratch, "content")
    with open(content, "wb") as file:
        file.write(data)
    reads("before", 5)
    kinds = hosts.path.connections()
    check("control" in kinds and kinds.count("data") >= 3, f"{kinds}")
    hosts.path.counts()
    time.sleep(20)
    counts = hosts.path.counts()
    check(counts["forgotten"] == 0 and counts["passed"] < 1000, f"all are kept alive, by few packets: {counts}")
    reads("after 20 s", 2)
    check(m.describe()["link_reconnections_total"] == "0", "nothing was lost")
    hosts.path.forget()
    reads("all forgotten, in use", 15)
    hosts.path.forget()
    eventually(lambda: m.describe()["link_reconnections_total"] == "2", "it connects again while idle", 20)
    reads("all forgotten, idle", 2)
    volume.umount(m)
    volume.stop()


def case_path_lossy(site):
    """A hundredth of the packets is lost, a twentieth late and out of order: nothing but time."""
    with scene(site, delay_ms=1, loss=0.01, reordering=0.05) as one:
        one.path.counts()
        time.sleep(site.size(15, 8))
        counts = one.path.counts()
        check(counts["lost"] > 20 and counts["late"] > 100, f"the path was bad: {counts}")
        check(one.reconnections() == 0, "no connection was lost")
        print(f"     path_lossy: {len(one.done())} operations, the slowest {one.slowest(0):.1f} s: {counts}", flush=True)


def cut(site, kind):
    """What is on its way in one direction vanishes, or in both, on connections of one kind: for a moment, and for longer
    than a session lives."""
    with scene(site) as one:
        for seconds, within in ((2, 10), (13, 15)):
            for ends in (("server",), ("client",), ("server", "client")):
                one.survives(f"{kind} cut for {seconds} s, to {' and '.join(ends)}",
                             lambda e=ends: one.path.set(cut=[(kind, end) for end in e]), seconds,
                             lambda: one.path.set(cut=[]), within)
        check(one.reconnections() >= 3, "sessions were lost")


def case_path_cut_control(site):
    cut(site, "control")


def case_path_cut_data(site):
    cut(site, "data")


def case_path_resets(site):
    """Resets of a connection for data, of all of them, of the one for control, also while the server asks the mount for
    something: that is no silence of the mount's, which would cost it its lock."""
    with scene(site) as one:
        slowest = 0
        for kind, most in (("data", 1), ("data", 100), ("control", 1)) * site.size(15, 6):
            before = one.reconnections()
            check(one.path.reset(kind, most) >= 1, f"there are connections for {kind}")
            took = one.goes_on(f"reset of {kind}, {most}", 10)
            if (kind, most) != ("data", 1):  # a single one may be one that nothing was on
                eventually(lambda b=before: one.reconnections() > b, "the session was made again", 10)
            slowest = max(slowest, took)
        print(f"     path_resets: {one.reconnections()} reconnections, on again after {slowest:.1f} s at most", flush=True)


def case_path_half_closed(site):
    """One end of a connection hears that the other has closed it, which it has not."""
    volume = site.volume("64M", 0.25)
    volume.stop()
    hosts = PathHosts(site)
    port = free_port(2, "127.0.0.1")
    volume.serve("--listen", f"127.0.0.1:{port}")
    proxy = TcpProxy(("127.0.0.1", port))
    try:
        volume.address = [f"127.0.0.1:{proxy.port}", "--secret", copy_secret(site, volume)]
        hosts.client = ()  # the proxy is on this host
        one = Scene(site, hosts, volume)
        for kind in ("data", "control"):
            for end in ("client", "server"):
                before = one.reconnections()
                closed = eventually(lambda k=kind, e=end: proxy.half_close(k, e), f"there is a connection for {kind}")
                took = one.goes_on(f"{kind}: {end} was told of a close", 15)
                eventually(lambda c=closed: not proxy.is_open(c), "both ends have closed it", 15)
                if kind == "control":  # one for data may have been one that was being made, and was made again
                    eventually(lambda b=before: one.reconnections() > b, "the session was made again", 15)
                took = max(took, one.goes_on(f"{kind}: {end} was told of a close, again", 15))
                print(f"     path_half_closed: {kind}, {end}: on again after {took:.1f} s", flush=True)
        one.end_programs()
        for mount in list(volume.mounts):
            volume.umount(mount)
    finally:
        proxy.end()


def case_path_stopped_server(site):
    """The server's process is stopped, so nothing is read: for a moment, which costs no session, and for longer."""
    with scene(site) as one:
        for seconds, lost in ((3, 0), (20, 1)):
            before = one.reconnections()
            one.survives(f"server stopped for {seconds} s", lambda: stop(one.volume.server), seconds,
                         lambda: os.kill(one.volume.server, signal.SIGCONT), 10)
            eventually(lambda b=before, n=lost: one.reconnections() >= b + n, "the session was made again", 10)
            check(lost or one.reconnections() == before, "no session was lost")
