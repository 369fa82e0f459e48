# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy between a client and a server, whose connections can be delayed, held up, cut in several ways."""
import contextlib
import random
import selectors
import socket
import struct
import threading
import time


class Direction:
    """Bytes from one socket to the other; those that wait for their time."""

    def __init__(self, source, target):
        self.source, self.target = source, target
        self.waiting = []  # (time, bytes)
        self.ended = False

    def queued(self):
        return sum(len(data) for _, data in self.waiting)


class TcpProxy:
    """Listens on a port of its own, `port`; each connection is passed on to `target`."""
    MOST = 1 << 20  # bytes in a direction

    def __init__(self, target, seed=1):
        self.target = target
        self.random = random.Random(seed)
        self.delay = 0.0  # up to so many seconds for each piece
        self.stopped = set()  # of "to server" and "to client": nothing is read or written that way
        self.lock = threading.Lock()
        self.pairs = []  # (client, server, {"to server": Direction, "to client": Direction})
        self.kinds = {}  # by socket of the client's end
        self.accepted = 0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.listener.getsockname()[1]
        self.ending = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        self.listener.setblocking(False)
        while not self.ending:
            with self.lock, selectors.DefaultSelector() as selector:
                selector.register(self.listener, selectors.EVENT_READ)
                for _, _, directions in self.pairs:
                    for name, way in directions.items():
                        if name not in self.stopped and not way.ended and way.queued() < self.MOST:
                            with contextlib.suppress(KeyError, ValueError):
                                selector.register(way.source, selectors.EVENT_READ)
                ready = selector.select(0)
                self.step({key.fileobj for key, _ in ready})
            time.sleep(0.0005 if ready else 0.001)

    def step(self, readable):
        if self.listener in readable:
            self.accept()
        now = time.monotonic()
        for pair in list(self.pairs):
            try:
                for name, way in pair[2].items():
                    if name not in self.stopped:
                        self.move(way, now, way.source in readable)
            except OSError:
                self.close(pair)
                continue
            if all(way.ended and not way.waiting for way in pair[2].values()):
                self.close(pair)

    def accept(self):
        client, _ = self.listener.accept()
        try:
            server = socket.create_connection(self.target, timeout=5)
        except OSError:
            client.close()
            return
        for one in (client, server):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.accepted += 1
        self.pairs.append((client, server, {"to server": Direction(client, server), "to client": Direction(server, client)}))

    def move(self, way, now, readable):
        if readable and not way.ended:
            data = way.source.recv(1 << 16)
            if data:
                if way.source not in self.kinds:  # TLS's first message names the protocol inside
                    self.kinds[way.source] = next((kind for kind in ("control", "data") if b"termfs-" + kind.encode() in data),
                                                  None)
                last = way.waiting[-1][0] if way.waiting else 0
                way.waiting.append((max(last, now + self.random.random() * self.delay), data))
            else:
                way.ended = True
        while way.waiting and way.waiting[0][0] <= now:
            when, data = way.waiting[0]
            try:
                sent = way.target.send(data)
            except BlockingIOError:
                return
            if sent < len(data):
                way.waiting[0] = (when, data[sent:])
                return
            way.waiting.pop(0)
        if way.ended and not way.waiting:
            with contextlib.suppress(OSError):
                way.target.shutdown(socket.SHUT_WR)

    def close(self, pair, reset=False):
        self.pairs.remove(pair)
        for one in pair[:2]:
            self.kinds.pop(one, None)
        for one in pair[:2]:
            if reset:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()

    def reset_one(self):
        """A connection of those that there are ends by resets at both ends; False: there is none."""
        with self.lock:
            if self.pairs:
                self.close(self.random.choice(self.pairs), reset=True)
                return True
        return False

    def half_close(self, kind, end):
        """To "client" or "server" it looks as if the other end of a connection of that kind, "control" or "data", had said
        all that it had to say. The last one that was made, for `is_open`; None: there is none."""
        with self.lock:
            found = [pair for pair in self.pairs if self.kinds.get(pair[0]) == kind]
            if not found:
                return None
            with contextlib.suppress(OSError):
                found[-1][("client", "server").index(end)].shutdown(socket.SHUT_WR)
            return found[-1]

    def is_open(self, pair):
        with self.lock:
            return any(one is pair for one in self.pairs)

    def half_close_one(self):
        """To one end of a connection it looks as if the other one had said all that it had to say."""
        with self.lock:
            if self.pairs:
                with contextlib.suppress(OSError):
                    self.random.choice(self.pairs)[self.random.randrange(2)].shutdown(socket.SHUT_WR)

    def end(self):
        self.ending = True
        self.thread.join()
        for pair in list(self.pairs):
            self.close(pair)
        self.listener.close()
