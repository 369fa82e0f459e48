#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""packet_path.py SERVER_PID CLIENT_PID: the way between two hosts, which are the network namespaces of two processes. Each
gets an interface, `path0`; what one sends the other receives, but for what the path is told to do to packets. It works on
single packets, so that losses, a small MTU or a forgotten translation look to both kernels as they do on a real network,
and needs no queueing discipline, filter or connection tracking of the kernel's.

A line of JSON on standard input changes settings or asks for something; each is answered by a line, see Path.

A connection is of the kind "control" or "data": its first message, which is TLS's, says in the clear which."""
import ctypes
import fcntl
import heapq
import json
import os
import random
import selectors
import struct
import subprocess
import sys
import time

SYN, FIN, RST, ACK = 0x02, 0x01, 0x04, 0x10
TCP = 6
OTHER = {"server": "client", "client": "server"}


class Path:
    """The path as cases see it: a process."""

    def __init__(self, site, server_pid, client_pid):
        self.child = site.start(sys.executable, os.path.abspath(__file__), server_pid, client_pid, stdin=subprocess.PIPE)
        self.ask()

    def ask(self, **words):
        self.child.stdin.write(json.dumps(words) + "\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())

    def set(self, **settings):
        """mtu: larger packets vanish. loss, reordering: a share of packets, of the latter so many ms late: late_ms.
        delay_ms: of all. cut: pairs (kind or "all", "server" or "client"): what is on the way there vanishes.
        idle_seconds: a connection without packets for that long is forgotten, and what it sends vanishes."""
        return self.ask(do="set", **settings)

    def forget(self):
        """All connections, as a translator of addresses does that is started again."""
        return self.ask(do="forget")

    def reset(self, kind, most=1 << 30):
        """So many connections of that kind, and both of their ends get a reset; how many there were."""
        return self.ask(do="reset", kind=kind, most=most)["reset"]

    def counts(self):
        """Since the last time: passed, largest (bytes), too_large, lost, late, cut, forgotten."""
        return self.ask(do="counts")

    def connections(self):
        """Of those that are open: their kinds."""
        return self.ask(do="connections")["kinds"]


class Packet:
    """What the path looks at, of IPv4 or IPv6 without extension headers."""

    def __init__(self, data):
        self.data = data
        version6 = data[0] >> 4 == 6
        self.at = 40 if version6 else (data[0] & 15) * 4
        self.tcp = (data[6] if version6 else data[9]) == TCP
        if self.tcp:
            self.addresses = (data[8:24], data[24:40]) if version6 else (data[12:16], data[16:20])
            (self.source, self.target, self.sequence, self.acknowledged, offset,
             self.flags) = struct.unpack_from(">HHIIBB", data, self.at)
            self.payload = data[self.at + (offset >> 4) * 4:]

    def end(self):
        """The sequence number after it."""
        length = len(self.payload) + bool(self.flags & SYN) + bool(self.flags & FIN)
        return (self.sequence + length) & 0xffffffff


def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def make_reset(source, target, sequence):
    """`source`, `target`: pairs of address and port."""
    header = struct.pack(">HHIIBBHHH", source[1], target[1], sequence, 0, 5 << 4, RST, 0, 0, 0)
    pseudo = source[0] + target[0] + struct.pack(">II", len(header), TCP)
    header = header[:16] + struct.pack(">H", checksum(pseudo + header)) + header[18:]
    if len(source[0]) == 16:
        return struct.pack(">IHBB", 6 << 28, len(header), TCP, 64) + source[0] + target[0] + header
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(header), 0, 0x4000, 64, TCP, 0) + source[0] + target[0]
    return ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:] + header


class Connection:
    def __init__(self, packet):
        self.ends = {"client": (packet.addresses[0], packet.source), "server": (packet.addresses[1], packet.target)}
        self.kind = None
        self.last = time.monotonic()
        self.reset = self.forgotten = self.ended = False
        self.expects = {}  # by end: the sequence numbers that it may expect next

    def note(self, packet, to, now):
        self.last = now
        if self.kind is None and to == "server" and packet.payload:
            self.kind = next((kind for kind in ("control", "data") if b"termfs-" + kind.encode() in packet.payload), None)
        if packet.flags & ACK:
            self.expects.setdefault(OTHER[to], {})["acknowledged"] = packet.acknowledged
        self.expects.setdefault(to, {})["sent"] = packet.end()
        self.ended = self.ended or bool(packet.flags & (FIN | RST))

    def resets_for(self, end):
        return [make_reset(self.ends[OTHER[end]], self.ends[end], sequence)
                for sequence in set(self.expects.get(end, {}).values())]


class Interfaces:
    def __init__(self, pids):
        self.fds = {}
        libc = ctypes.CDLL(None, use_errno=True)
        for name, pid in pids.items():
            with open(f"/proc/{pid}/ns/net", "rb") as namespace:
                if libc.setns(namespace.fileno(), 0) != 0:
                    raise OSError(ctypes.get_errno(), "enter a network namespace")
            fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            tun, no_information, set_interface = 0x0001, 0x1000, 0x400454ca
            fcntl.ioctl(fd, set_interface, struct.pack("16sH22x", b"path0", tun | no_information))
            self.fds[name] = fd

    def send(self, to, data):
        try:
            os.write(self.fds[to], data)
        except OSError:  # the interface is down, or its queue full: the packet is lost
            pass


class Middle:
    """The process itself."""

    def __init__(self, pids):
        self.interfaces = Interfaces(pids)
        self.random = random.Random(1)
        self.settings = {"mtu": 1 << 16, "loss": 0, "reordering": 0, "late_ms": 5, "delay_ms": 0, "cut": [],
                         "idle_seconds": None}
        self.connections = {}  # by the client's address and port
        self.waiting = []  # (time, number, to, packet)
        self.number = 0
        self.count = {}
        self.ending = False

    def run(self):
        selector = selectors.DefaultSelector()
        selector.register(sys.stdin, selectors.EVENT_READ, None)
        for name, fd in self.interfaces.fds.items():
            selector.register(fd, selectors.EVENT_READ, OTHER[name])
        while not self.ending:
            timeout = max(0, self.waiting[0][0] - time.monotonic()) if self.waiting else None
            for key, _ in selector.select(timeout):
                if key.data is None:
                    self.command()
                else:
                    self.take(key.fd, key.data)
            now = time.monotonic()
            while self.waiting and self.waiting[0][0] <= now:
                _, _, to, data = heapq.heappop(self.waiting)
                self.interfaces.send(to, data)

    def command(self):
        line = sys.stdin.readline()
        if not line:
            self.ending = True
            return
        words = json.loads(line)
        answer = getattr(self, "do_" + words.pop("do", "nothing"))(**words)
        print(json.dumps(answer or {}), flush=True)

    def do_nothing(self):
        pass

    def do_set(self, **settings):
        assert settings.keys() <= self.settings.keys(), settings
        self.settings.update(settings)

    def do_forget(self):
        for connection in self.connections.values():
            connection.forgotten = True

    def do_reset(self, kind, most):
        found = [one for one in self.connections.values() if one.kind == kind and self.alive(one)]
        found = self.random.sample(found, min(most, len(found)))
        for connection in found:
            connection.reset = True
            for end in ("server", "client"):
                for data in connection.resets_for(end):
                    self.interfaces.send(end, data)
        return {"reset": len(found)}

    def do_counts(self):
        count, self.count = self.count, {}
        return {name: count.get(name, 0) for name in ("passed", "largest", "too_large", "lost", "late", "cut", "forgotten")}

    def do_connections(self):
        return {"kinds": [one.kind for one in self.connections.values() if self.alive(one)]}

    @staticmethod
    def alive(connection):
        return not (connection.reset or connection.ended or connection.forgotten)

    def add(self, name):
        self.count[name] = self.count.get(name, 0) + 1

    def take(self, fd, to):
        for _ in range(64):
            try:
                data = os.read(fd, 1 << 16)
            except BlockingIOError:
                return
            self.pass_on(Packet(data), to)

    def pass_on(self, packet, to):
        now = time.monotonic()
        connection = self.connection_of(packet, to) if packet.tcp else None
        fate = self.fate(packet, connection, to, now)
        if fate is not None:
            self.add(fate)
            return
        if connection is not None:
            connection.note(packet, to, now)
        self.add("passed")
        self.count["largest"] = max(self.count.get("largest", 0), len(packet.data))
        at = now + self.settings["delay_ms"] / 1000
        if self.random.random() < self.settings["reordering"]:
            self.add("late")
            at += self.settings["late_ms"] / 1000
        if at == now and not self.waiting:
            self.interfaces.send(to, packet.data)
            return
        self.number += 1
        heapq.heappush(self.waiting, (at, self.number, to, packet.data))

    def connection_of(self, packet, to):
        at_client = 0 if to == "server" else 1
        place = (packet.addresses[at_client], (packet.source, packet.target)[at_client])
        if to == "server" and packet.flags & (SYN | ACK) == SYN:
            known = self.connections.get(place)
            if known is None or not self.alive(known):
                self.connections[place] = Connection(packet)
        return self.connections.get(place)

    def fate(self, packet, connection, to, now):
        """Why a packet does not arrive; None: it does."""
        idle = self.settings["idle_seconds"]
        if packet.tcp and connection is None:
            return "forgotten"
        if connection is not None:
            if connection.reset:
                self.interfaces.send(OTHER[to], make_reset(connection.ends[to], connection.ends[OTHER[to]],
                                                           packet.acknowledged))
                return "cut"
            connection.forgotten = connection.forgotten or (idle is not None and now - connection.last > idle)
            if connection.forgotten:
                return "forgotten"
        kinds = ("all", connection.kind if connection is not None else None)
        if any(kind in kinds and where == to for kind, where in self.settings["cut"]):
            return "cut"
        if len(packet.data) > self.settings["mtu"]:
            return "too_large"
        return "lost" if self.random.random() < self.settings["loss"] else None


if __name__ == "__main__":
    Middle({"server": int(sys.argv[1]), "client": int(sys.argv[2])}).run()
