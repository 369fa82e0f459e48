# SPDX-License-Identifier: Apache-2.0
"""The calls of a coherence test, and the process that makes them on one mount and notes what each returned and when."""
import collections
import contextlib
import ctypes
import errno
import mmap
import os
import random
import time

from coherence_models import Attributes, Born, Names, Page, Replaced, Size, Small, Stored
from linearize import Call, Failed

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
AT_FDCWD, AT_EMPTY_PATH, RENAME_EXCHANGE = -100, 0x1000, 2
PUNCH_HOLE, ZERO_RANGE = 3, 0x11
PAGE = 4096
PAGES = 3  # of the file "data", and of "stored"
CUTS = (0, 777, 2049, 3001)  # where the parts of a page begin, in each of which there is one value
NAMES = [f"{directory}/{name}" for directory in ("d", "e") for name in "xyz"]
BORN = 100  # files that are made in an episode
BORN_TIME = 4_000_000  # ns for each: all look at it while it is made
GROWN = 12  # files that grow and are cut behind descriptors that stay open for reading; few calls each, so they are cached
GROWN_TIME = 8_000_000  # ns for each: all look at it then
KEPT = ("x", "y")  # names that are there all the time, of one file after another
DUE = {errno.ENOENT, errno.EEXIST}

# How often; the names of methods of Caller.
WEIGHTS = {"write": 14, "read": 14, "zero": 2, "load": 5, "store": 4, "write_word": 4, "read_word": 6,
           "append": 6, "cut": 2, "put": 2, "content": 8, "small_size": 4,
           "extend": 5, "cut_big": 2, "put_big": 3, "big_size": 8,
           "set_time": 3, "set_mode": 3, "set_label": 3, "drop_label": 3, "get_attributes": 5, "get_label": 6,
           "create": 8, "open_there": 4, "unlink": 8, "rename": 8, "exchange": 3, "link": 5, "look": 12, "listing": 8,
           "grow": 7, "shrink": 3, "rewrite": 2, "held_content": 18, "held_size": 3,
           "replace": 6, "look_kept": 6, "open_kept": 6, "use_kept": 12,
           "bear": 8, "weigh": 12, "taste": 6,
           "open_again": 2}
MAPPINGS = ("load", "store")
# A mount that is killed has answered what it may not have sent: see "The first write does not wait".
BIRTHS = ("bear", "weigh", "taste")
# Left out unless they are asked for: the kernel of a mount that zeroes a range also zeroes what it caches of the two pages
# at its ends, after the reply. What another mount has written there since is not seen through mappings on that mount.
# Exchanges make frequent that a change which has not returned is seen on one mount, and on another later not yet.
FAULTY = ("zero", "exchange")

# What a run of calls was: `stopped`: the errno that ended it, which the model does not know.
Run = collections.namedtuple("Run", ("calls", "stopped"))


def prepare(root):
    """The objects of an episode: {name: model}. All values are 0 at first."""
    for directory in ("d", "e", "born", "grown", "kept"):
        os.mkdir(os.path.join(root, directory))
    for name, size in (("data", PAGES * PAGE), ("stored", PAGES * PAGE), ("small", 0), ("big", 0), ("facts", 0)):
        with open(os.path.join(root, name), "xb", buffering=0) as file:
            file.write(bytes(size))
    facts = os.path.join(root, "facts")
    os.utime(facts, ns=(0, 0))
    os.chmod(facts, 0o600)
    models = {"small": Small(), "big": Size(), "names": Names(),
              "facts": Attributes({"time": 0, "mode": 0o600}), "label": Attributes({"label": None})}
    for page in range(PAGES):
        models[f"data {page}"] = Page([0] * len(CUTS))
        models[f"stored {page}"] = Stored([0])
    models.update((f"born/{number}", Born()) for number in range(BORN))
    for number in range(GROWN):
        models[f"grown/{number}"] = Small()
        os.mknod(os.path.join(root, f"grown/{number}"))
    for name in KEPT:
        path = os.path.join(root, "kept", name)
        os.mknod(path)
        models[f"kept/{name}"] = Replaced(os.stat(path).st_ino)
    return models


def place(border):
    """The offset where a part begins, parts counted through all pages."""
    return border // len(CUTS) * PAGE + CUTS[border % len(CUTS)]


def part_size(border):
    return place(border + 1) - place(border)


def pattern(value, size):
    return (value.to_bytes(8, "little") * (size // 8 + 1))[:size]


def value_of(data):
    """What is in a part; bytes as they are, if they are not one value's."""
    value = int.from_bytes(data[:8], "little")
    return value if pattern(value, len(data)) == data else bytes(data)


def libc(name, *arguments):
    result = getattr(LIBC, name)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def entry_names(buffer):
    """Of what getdents64 has filled."""
    names, at = [], 0
    while at < len(buffer):
        length = int.from_bytes(buffer[at + 16:at + 18], "little")
        names.append(buffer[at + 19:at + length].split(b"\0", 1)[0].decode())
        at += length
    return tuple(name for name in names if name not in (".", ".."))


class Caller:
    """Makes random calls on the objects below `root`. One method for each kind."""

    def __init__(self, process, root, seed, left_out):
        self.process, self.root, self.random = process, root, random.Random(seed)
        self.weights = {name: weight for name, weight in WEIGHTS.items() if name not in left_out}
        self.maps = not set(MAPPINGS) & set(left_out)
        self.calls = []  # (object, Call)
        self.stopped = None
        self.number = 0
        self.files, self.mappings, self.created = {}, {}, collections.deque(maxlen=3)
        self.held = {}  # (name, flags): a descriptor that stays open to the end
        self.open_all()

    def path(self, name):
        return os.path.join(self.root, name)

    def open_all(self):
        for name in ("data", "stored", "small", "big", "facts"):
            self.files[name] = os.open(self.path(name), os.O_RDWR | (os.O_APPEND if name == "facts" else 0))
        for name in ("small", "big"):
            self.files[f"{name} end"] = os.open(self.path(name), os.O_WRONLY | os.O_APPEND)
        for name in ("data", "stored") if self.maps else ():
            self.mappings[name] = mmap.mmap(self.files[name], PAGES * PAGE)

    def close_all(self):
        for mapping in self.mappings.values():
            mapping.close()
        for fd in self.files.values():
            with contextlib.suppress(OSError):
                os.close(fd)
        self.files, self.mappings = {}, {}

    def close(self):
        self.close_all()
        for fd in self.held.values():
            with contextlib.suppress(OSError):
                os.close(fd)
        for fd, _ in self.created:
            with contextlib.suppress(OSError):
                os.close(fd)

    def run(self, count):
        kinds, weights = list(self.weights), list(self.weights.values())
        for _ in range(count):
            try:
                getattr(self, self.random.choices(kinds, weights)[0])()
            except OSError as error:  # outside of what is compared, such as an open
                self.stopped = errno.errorcode[error.errno]
            if self.stopped:
                break
        return Run(self.calls, self.stopped)

    def make(self, notes, function, *arguments):
        """Makes a call; notes what it did as `notes`: [(object, name, arguments, what its result becomes)]."""
        failed = None
        began = time.monotonic_ns()
        try:
            result = function(*arguments)
        except OSError as error:
            failed = error.errno
        ended = time.monotonic_ns()
        for thing, name, what, becomes in notes:
            if failed is None:
                call = Call(self.process, name, what, becomes(result) if becomes else None, began, ended)
            elif failed in DUE:
                call = Call(self.process, name, what, Failed(errno.errorcode[failed]), began, ended)
            else:
                call = Call(self.process, name, what, None, began, None)
            self.calls.append((thing, call))
        if failed not in DUE and failed is not None:
            self.stopped = errno.errorcode[failed]
        return result if failed is None else None

    def value(self):
        """One that nobody else writes."""
        self.number += 1
        return (self.process + 1) << 32 | self.number

    # --- pages ---

    def range(self):
        """Some parts, one after the other, and for each page which."""
        begin = self.random.randrange(PAGES * len(CUTS))
        count = self.random.choice((1, 2, 4, 4, 5, 8))
        begin = begin // 4 * 4 if count % 4 == 0 and self.random.random() < 0.7 else begin
        parts = range(begin, min(begin + count, PAGES * len(CUTS)))
        pages = collections.defaultdict(list)
        for part in parts:
            pages[part // len(CUTS)].append(part % len(CUTS))
        return parts, pages

    def note_writes(self, pages, value):
        return [(f"data {page}", "write", tuple((part, value) for part in parts), None) for page, parts in pages.items()]

    def write(self):
        parts, pages = self.range()
        value = self.value()
        data = b"".join(pattern(value, part_size(part)) for part in parts)
        self.make(self.note_writes(pages, value), self.write_all, self.files["data"], data, place(parts[0]))

    @staticmethod
    def write_all(fd, data, offset):
        if os.pwrite(fd, data, offset) != len(data):
            raise OSError(errno.EIO, "a write was cut short")

    def zero(self):
        parts, pages = self.range()
        begin = place(parts[0])
        self.make(self.note_writes(pages, 0), libc, "fallocate", self.files["data"],
                  self.random.choice((PUNCH_HOLE, ZERO_RANGE)), begin, place(parts[-1] + 1) - begin)

    def read(self):
        parts, pages = self.range()
        begin, end = place(parts[0]), place(parts[-1] + 1)

        def becomes(page):
            def values(data):
                borders = [page * len(CUTS) + part for part in pages[page]]
                pieces = [data[place(border) - begin:place(border + 1) - begin] for border in borders]
                return tuple(zip(pages[page], map(value_of, pieces)))

            return values

        self.make([(f"data {page}", "read", tuple(pages[page]), becomes(page)) for page in pages],
                  os.pread, self.files["data"], end - begin, begin)

    def load(self):
        page = self.random.randrange(PAGES)
        self.make([(f"data {page}", "load", (0,), lambda value: ((0, value),))], self.word_of, "data", page)

    def word_of(self, name, page):
        with memoryview(self.mappings[name]) as view, view.cast("Q") as words:
            return words[page * PAGE // 8]

    # --- words at the beginning of pages, which are also stored through mappings ---

    def store(self):
        page, value = self.random.randrange(PAGES), self.value()
        self.make([(f"stored {page}", "store", ((0, value),), None)], self.store_and_sync, page, value)

    def store_and_sync(self, page, value):
        with memoryview(self.mappings["stored"]) as view, view.cast("Q") as words:
            words[page * PAGE // 8] = value
        self.mappings["stored"].flush(page * PAGE, PAGE)

    def write_word(self):
        page, value = self.random.randrange(PAGES), self.value()
        data = value.to_bytes(8, "little").ljust(self.random.choice((8, PAGE)), b"\0")
        self.make([(f"stored {page}", "write", ((0, value),), None)], self.write_all, self.files["stored"], data, page * PAGE)

    def read_word(self):
        page = self.random.randrange(PAGES)
        self.make([(f"stored {page}", "read", (0,), lambda data: ((0, int.from_bytes(data, "little")),))],
                  os.pread, self.files["stored"], 8, page * PAGE)

    # --- files that grow and are cut ---

    def record(self):
        return b"<%d.%d>" % (self.process, self.value() & 0xffff)

    def append(self):
        data = self.record()
        self.make([("small", "append", (data,), None)], os.write, self.files["small end"], data)

    def cut(self):
        size = self.random.choice((0, self.random.randrange(300)))
        self.make([("small", "cut", (size,), None)], os.ftruncate, self.files["small"], size)

    def put(self):
        offset, data = self.random.randrange(400), self.record()
        self.make([("small", name, (offset, data), None) for name in ("put_inside", "put")], self.write_all, self.files["small"], data, offset)

    def content(self):
        self.make([("small", "content", (), lambda data: data)], os.pread, self.files["small"], 2 * PAGE, 0)

    def ask_size(self, name):
        """Not by lseek: it takes the kernel's own idea of the size, also when the answer to its question came too late."""
        self.make([(name, "size", (), lambda st: st.st_size)],
                  os.stat, self.random.choice((self.path(name), self.files[name])))

    def small_size(self):
        self.ask_size("small")

    def extend(self):
        length = self.random.randrange(1, 3 * PAGE)
        self.make([("big", "append", (length,), None)], os.write, self.files["big end"], bytes(length))

    def cut_big(self):
        size = self.random.choice((0, self.random.randrange(40 * PAGE)))
        self.make([("big", "cut", (size,), None)], os.ftruncate, self.files["big"], size)

    def put_big(self):
        offset, length = self.random.randrange(40 * PAGE), self.random.randrange(1, 3 * PAGE)
        self.make([("big", "put", (offset, length), None)], self.write_all, self.files["big"], bytes(length), offset)

    def big_size(self):
        self.ask_size("big")

    # --- new files ---

    @staticmethod
    def born():
        return f"born/{time.monotonic_ns() // BORN_TIME % BORN}"

    def bear(self):
        name = self.born()
        flags = os.O_CREAT | os.O_EXCL | self.random.choice((os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND))
        fd = self.make([(name, "make", (), lambda _: None)], os.open, self.path(name), flags, 0o600)
        if fd is not None:
            data = pattern(self.value(), self.random.choice((8, 800, PAGE, 3 * PAGE)))
            self.make([(name, "fill", (data,), None)], os.write, fd, data)
            os.close(fd)

    def weigh(self):
        name = self.born()
        self.make([(name, "size", (), lambda st: st.st_size)], os.stat, self.path(name))

    def taste(self):
        def content(path):
            fd = os.open(path, os.O_RDONLY)
            try:
                return os.read(fd, 4 * PAGE)
            finally:
                os.close(fd)

        name = self.born()
        self.make([(name, "content", (), lambda data: data)], content, self.path(name))

    # --- files that change behind descriptors that were opened before and stay open ---

    @staticmethod
    def grown():
        return f"grown/{time.monotonic_ns() // GROWN_TIME % GROWN}"

    def hold(self, name, flags):
        if (name, flags) not in self.held:
            self.held[name, flags] = os.open(self.path(name), flags)
        return self.held[name, flags]

    def grow(self):
        name, data = self.grown(), self.record()
        self.make([(name, "append", (data,), None)], os.write, self.hold(name, os.O_WRONLY | os.O_APPEND), data)

    @staticmethod
    def note_cut(name, size):
        return [(name, kind, (size,), None) for kind in (("blank", "cut") if size > 0 else ("cut",))]

    def shrink(self):
        """Or makes it longer."""
        name, size = self.grown(), self.random.choice((0, self.random.randrange(60), self.random.randrange(300)))
        self.make(self.note_cut(name, size), os.ftruncate, self.hold(name, os.O_WRONLY), size)

    def rewrite(self):
        name, data = self.grown(), self.record()
        fd = self.make(self.note_cut(name, 0), os.open, self.path(name), os.O_WRONLY | os.O_TRUNC | os.O_APPEND)
        if fd is not None:
            self.make([(name, "append", (data,), None)], os.write, fd, data)
            os.close(fd)

    def held_content(self):
        name = self.grown()
        self.make([(name, "content", (), lambda data: data)], os.pread, self.hold(name, os.O_RDONLY), PAGE, 0)

    def held_size(self):
        name = self.grown()
        self.make([(name, "size", (), lambda st: st.st_size)], os.fstat, self.hold(name, os.O_RDONLY))

    # --- names that lead to one file after another, and always to one ---

    def kept(self):
        return f"kept/{self.random.choice(KEPT)}"

    def replace(self):
        name, new = self.kept(), self.path(f"kept/new{self.value()}")
        fd = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        inode = os.fstat(fd).st_ino
        os.close(fd)
        self.make([(name, "replace", (inode,), None)], os.rename, new, self.path(name))

    def look_kept(self):
        name = self.kept()
        self.make([(name, "look", (), lambda st: st.st_ino)], os.stat, self.path(name))

    def open_kept(self):
        name = self.kept()
        fd = self.make([(name, "look", (), lambda fd: os.fstat(fd).st_ino)], os.open, self.path(name),
                       self.random.choice((os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC)))
        if fd is not None:
            os.close(fd)

    @staticmethod
    def link_again(path, other):
        """Linux looks the file up first; if it has no name any more by then, it fails with ENOENT, on any file system. A mount
        may take the former file for the name's until the rename returns."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                return os.link(path, other)
        return os.link(path, other)

    def use_kept(self):
        name = self.kept()
        path, other = self.path(name), self.path(f"kept/link{self.value()}")
        call = self.random.choice((
            (os.chmod, path, 0o600), (os.truncate, path, 10), (os.access, path, os.R_OK), (os.utime, path),
            (os.chown, path, 0, 0), (os.setxattr, path, "user.kept", b"1"),
            (self.or_no_data, None, os.getxattr, path, "user.kept"), (os.listxattr, path), (self.link_again, path, other)))
        what = next(word for word in call if callable(word) and word is not self.or_no_data).__name__
        self.make([(name, "use", (what,), lambda _: None)], *call)
        if what == "link_again":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(other)

    # --- attributes ---

    def set_time(self):
        value = self.value()
        self.make([("facts", "set", ("time", value), None)], lambda: os.utime(self.path("facts"), ns=(value, value)))

    def set_mode(self):
        mode = self.random.randrange(0o1000)
        self.make([("facts", "set", ("mode", mode), None)], os.chmod, self.path("facts"), mode)

    def set_label(self):
        label = b"%d" % self.value()
        self.make([("label", "set", ("label", label), None)], os.setxattr, self.path("facts"), "user.label", label)

    @staticmethod
    def or_no_data(value, function, *arguments):
        """What the function returns; `value`, where there is no such extended attribute."""
        try:
            return function(*arguments)
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise
            return value

    def drop_label(self):
        self.make([("label", "drop", ("label",), lambda absent: not absent)],
                  self.or_no_data, True, os.removexattr, self.path("facts"), "user.label")

    def get_attributes(self):
        self.make([("facts", "get", (), lambda st: (("time", st.st_mtime_ns), ("mode", st.st_mode & 0o7777)))],
                  os.stat, self.random.choice((self.path("facts"), self.files["facts"])))

    def get_label(self):
        self.make([("label", "get", (), lambda label: (("label", label),))],
                  self.or_no_data, None, os.getxattr, self.random.choice((self.path("facts"), self.files["facts"])),
                  "user.label")

    # --- names ---

    def name_call(self, kind, function, arguments, names, becomes=None):
        return self.make([("names", kind, names, becomes)], function, *arguments)

    def keep(self, fd):
        """An open file that can be given names."""
        if fd is not None:
            if len(self.created) == self.created.maxlen:
                os.close(self.created.popleft()[0])
            self.created.append((fd, os.fstat(fd).st_ino))

    def opened(self, kind, flags):
        name = self.random.choice(NAMES)
        # By number: one file is one inode, which does not change, so it may be asked for later.
        self.keep(self.name_call(kind, os.open, (self.path(name), os.O_RDWR | flags, 0o600), (name,),
                                 lambda fd: os.fstat(fd).st_ino))

    def create(self):
        self.opened("create", os.O_CREAT | os.O_EXCL)

    def open_there(self):
        self.opened("look", 0)

    def unlink(self):
        name = self.random.choice(NAMES)
        self.name_call("unlink", os.unlink, (self.path(name),), (name,))

    def two_names(self, kind, function):
        old, new = self.random.sample(NAMES, 2)
        self.name_call(kind, function, (self.path(old), self.path(new)), (old, new))

    def rename(self):
        self.two_names("rename", os.rename)

    def exchange(self):
        self.two_names("exchange", lambda old, new: libc("renameat2", AT_FDCWD, old.encode(), AT_FDCWD, new.encode(),
                                                         RENAME_EXCHANGE))

    def link(self):
        """Of an open file: a path to it would be looked up before the link is made, which are two moments. Linux refuses it by
        the number of links that it has counted itself, and may have counted one twice, until it asks for the number."""
        def link(fd, name):
            while True:
                try:
                    return libc("linkat", fd, b"", AT_FDCWD, self.path(name).encode(), AT_EMPTY_PATH)
                except FileNotFoundError:
                    if os.fstat(fd).st_nlink == 0:
                        raise

        if self.created:
            fd, inode = self.random.choice(self.created)
            name = self.random.choice(NAMES)
            self.name_call("link", link, (fd, name), (inode, name), lambda _: None)

    def look(self):
        name = self.random.choice(NAMES)
        self.name_call("look", os.stat, (self.path(name),), (name,), lambda st: st.st_ino)

    def listing(self):
        directory = self.random.choice(("d", "e"))
        fd = os.open(self.path(directory), os.O_RDONLY | os.O_DIRECTORY)
        buffer = ctypes.create_string_buffer(8 * PAGE)
        try:
            self.name_call("list", libc, ("getdents64", fd, buffer, len(buffer)), (directory,),
                           lambda length: entry_names(buffer.raw[:length]))
        finally:
            os.close(fd)

    def open_again(self):
        self.close_all()
        self.open_all()


def old_news(run):
    """A run of a caller that is told of each object what it should have been told the time before: what a test of the
    test needs."""
    told, calls = {}, []
    for thing, call in run.calls:
        key = (thing, call.name, call.arguments)
        if call.ended is not None and call.name in ("read", "load", "content", "size", "get", "look", "list"):
            told[key], call = call.result, call._replace(result=told.get(key, call.result))
        calls.append((thing, call))
    return run._replace(calls=calls)
