# SPDX-License-Identifier: Apache-2.0
"""What RDMA over TCP and over UDP costs beside TCP, between two hosts made of network namespaces; and such hosts."""
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys

import neighbours
from mounts import DEADLINE, Mounts, end, scratch_directory, wait_for

PORT = 4797


class Hosts:
    """Two network namespaces, joined by a link: commands that run others there."""
    IPV6 = ("fd00:7e::1", "fd00:7e::2")
    IPV4 = ("10.234.0.1", "10.234.0.2")

    def __init__(self, stack, mtu):
        self.server, self.client = (self.new(stack) for _ in range(2))
        run(*self.server, "ip", "link", "add", "veth0", "mtu", mtu, "type", "veth", "peer", "name", "veth0", "mtu", mtu,
            "netns", self.client[2])
        for host, ipv6, ipv4 in zip((self.server, self.client), self.IPV6, self.IPV4):
            run(*host, "ip", "address", "add", f"{ipv6}/64", "dev", "veth0", "nodad")
            run(*host, "ip", "address", "add", f"{ipv4}/24", "dev", "veth0")
            run(*host, "ip", "link", "set", "veth0", "up")

    @staticmethod
    def new(stack):
        holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo here; exec sleep infinity"],
                                  stdout=subprocess.PIPE, text=True)
        stack.callback(end, holder)
        if holder.stdout.readline() != "here\n":
            sys.exit("benchmarks/run: no network namespaces can be made here")
        return ("nsenter", "--target", str(holder.pid), "--net")


def run(*command):
    subprocess.run([str(word) for word in command], check=True, timeout=DEADLINE)


def bench(build, quick, bar):
    """Bars for a link with jumbo frames, as RDMA networks have, and for one without. `bar` makes one."""
    if shutil.which("ip") is None:
        sys.exit("benchmarks/run: ip is not installed; ./dev bench installs it")
    bars = []
    binary = os.path.join(build, "benchmarks", "network_bench")
    for mtu in (9000, 1500):
        with contextlib.ExitStack() as stack:
            hosts = Hosts(stack, mtu)
            server = subprocess.Popen([*hosts.server, binary, "serve", hosts.IPV6[0], str(PORT)],
                                      stdout=subprocess.PIPE, text=True)
            stack.callback(end, server)
            if server.stdout.readline() != "ready\n":
                sys.exit("benchmarks/run: network_bench ended by itself")
            output = subprocess.run([*hosts.client, binary, "measure", hosts.IPV6[0], str(PORT), "7" if quick else "11"],
                                    check=True, capture_output=True, timeout=DEADLINE * 3).stdout
        turns = json.loads(output)
        for wire, reference, names in (("iwarp_tls", "tls", "iWARP inside TLS / a request over TLS"),
                                       ("iwarp", "tcp_crc", "iWARP / a request over TCP with CRC32C")):
            bars.append(bar(f"one READ of 4 KiB by {names}, time, MTU {mtu}", 1.3,
                            [turn[reference][0] / turn[wire][0] for turn in turns["one_4k"]], lower_is_better=True))
        for kind, what, bound in (("requests_4k", "READs of 4 KiB, depth 32", 0.9), ("stream_1m", "READs of 1 MiB", 0.85)):
            for wire, reference, names in (("iwarp_tls", "tls", "iWARP inside TLS / the same by requests over TLS"),
                                           ("iwarp", "tcp_crc", "iWARP / the same by requests over TCP with CRC32C")):
                ratios = [turn[wire][1] / turn[reference][1] for turn in turns[kind]]
                bars.append(bar(f"{what}, by {names}, bytes per CPU s, MTU {mtu}", bound, ratios))
            beside = statistics.median(turn["iwarp_tls"][1] / turn["iwarp"][1] for turn in turns[kind])
            print(f"no bar: {kind} by iWARP inside TLS / outside, bytes per CPU s, MTU {mtu}: {beside:.2f}")
            for wire, reference in (("iwarp", "tcp"), ("rdma", "tcp")):
                ratio = statistics.median(turn[wire][1] / turn[reference][1] for turn in turns[kind])
                print(f"no bar: {kind} by {'RoCE' if wire == 'rdma' else 'iWARP'} / TCP without a CRC, bytes per CPU s, "
                      f"MTU {mtu}: {ratio:.2f}")
        most = statistics.median(turn["datagrams"][1] / turn["tcp"][1] for turn in turns["requests_4k"])
        print(f"no bar: bare datagrams as RoCE's, neither checked nor repeated, / TCP requests, MTU {mtu}: {most:.2f}")
    return bars


SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/lib/ssh/sftp-server")


def sshfs(mounts, hosts):
    """A mount of the server's files by sshfs, without ssh: its cipher is not what is compared. None: not installed.

    It speaks IPv4 only, without ssh."""
    server = next((path for path in SFTP_SERVERS if os.path.exists(path)), None)
    if server is None or shutil.which("sshfs") is None or shutil.which("socat") is None:
        return None
    files = os.path.join(mounts.scratch, "sftp")
    os.mkdir(files)
    listener = mounts.processes.start([*hosts.server, "socat", f"TCP4-LISTEN:{PORT + 1},fork,reuseaddr,nodelay",
                                       f"EXEC:{server}"], mounts.log)
    wait_for(lambda: neighbours.listening(PORT + 1, hosts.server), "socat", listener)
    return mounts.mount("sshfs", *hosts.client, "sshfs", "-f", "-o", f"directport={PORT + 1},allow_other",
                        f"{hosts.IPV4[0]}:{files}", "MOUNTPOINT")


def mounts_between_hosts(build, fuse):
    """A mount of ours between two hosts, inside TLS, and one after the other those of others over the same link: a name,
    our mount point and theirs, which is None where that is not installed."""
    with contextlib.ExitStack() as stack:
        hosts = Hosts(stack, 9000)
        place = f"[{hosts.IPV6[0]}]:{PORT}"
        scratch = stack.enter_context(scratch_directory())
        mounts = stack.enter_context(Mounts(build, scratch, before=hosts.server, serve_options=("--listen", place)))
        ours = mounts.mount("termfs", *hosts.client, mounts.termfs, "mount", place, "--secret",
                            os.path.join(mounts.volume, "secret"), "MOUNTPOINT", "--foreground", "-o", f"fuse={fuse}")
        for name, mount in (
            ("GlusterFS", lambda: neighbours.gluster(mounts, wait_for, hosts.IPV4[0], hosts.server, hosts.client)),
            ("GlusterFS with its TLS",
             lambda: neighbours.gluster(mounts, wait_for, hosts.IPV4[0], hosts.server, hosts.client, tls=True)),
            ("sshfs without ssh", lambda: sshfs(mounts, hosts))):
            yield name, ours, mount()
