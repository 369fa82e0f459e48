# SPDX-License-Identifier: Apache-2.0
"""The calls of a parity test, and the process that makes them: a Worker is confined (chroot) to one directory, makes a
list of calls there and returns what each of them said and did, in terms that two file systems can be compared by."""
import collections
import ctypes
import errno
import fcntl
import mmap
import os
import stat
import struct
import threading
import time
import zlib

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, AT_SYMLINK_NOFOLLOW, AT_SYMLINK_FOLLOW, AT_EMPTY_PATH = -100, 0x100, 0x400, 0x1000
AT_EACCESS = 0x200
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
STATX_BASIC, STATX_BTIME = 0x7ff, 0x800
FALLOC_PUNCH_HOLE = 2
OLD = 1_500_000_000 * 10 ** 9  # times before it were set by a call and are compared as they are
SLOTS = 5
PAGE = 4096
STORED = 64  # bytes that are stored beside a call
# Who makes a call: user, group, other groups; "fs": by setfsuid, which leaves what is no file's capability.
CALLERS = {
    "root": None,
    "ann": (1000, 1000, [2000], "e"),
    "bob": (1001, 1001, [1000], "e"),
    "eve": (1002, 1002, [], "e"),
    "fs-ann": (1000, 1000, [2000], "fs"),
}


# Of an inode: facts(), and which times the call has moved (changes(), or "new").
Seen = collections.namedtuple("Seen", ("facts", "moved"))
# Of a tree: `first`: the first name of the same inode; `empty`: a file without blocks, None where either may be.
Entry = collections.namedtuple("Entry", ("facts", "content", "attributes", "first", "empty"))


class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class Dirent(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_uint64), ("offset", ctypes.c_int64), ("length", ctypes.c_uint16),
                ("kind", ctypes.c_uint8), ("name", ctypes.c_char * 256)]


LIBC.fdopendir.restype = ctypes.c_void_p
LIBC.readdir.restype = ctypes.POINTER(Dirent)
LIBC.telldir.restype = ctypes.c_long
for function in ("readdir", "telldir", "closedir"):
    getattr(LIBC, function).argtypes = [ctypes.c_void_p]
LIBC.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def libc(name, *arguments):
    result = getattr(LIBC, name)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def brief(data):
    """Bytes, or their length and checksum where they are many."""
    return bytes(data) if len(data) <= 64 else (len(data), zlib.crc32(data))


def time_of(nanoseconds):
    return nanoseconds if nanoseconds < OLD else "now"


def has_idle_group_id(st):
    """A set-group-id bit of a file that its group may not execute: a write by somebody outside of the group clears it,
    and a FUSE server is not told the groups of who writes."""
    return stat.S_ISREG(st.st_mode) and st.st_mode & (stat.S_ISGID | stat.S_IXGRP) == stat.S_ISGID


def mode_of(st):
    return oct(st.st_mode & ~stat.S_ISGID if has_idle_group_id(st) else st.st_mode)


def clear_idle_group_id(path):
    """Before a call that lets the group execute a file, and leaves the bit as it is."""
    try:
        st = os.stat(path)
        if has_idle_group_id(st):
            os.chmod(path, stat.S_IMODE(st.st_mode) & ~stat.S_ISGID)
    except (OSError, ValueError):
        pass  # the call will say


def facts(st):
    """What of a stat must be the same on both. A directory's size is the file system's own affair."""
    size = None if stat.S_ISDIR(st.st_mode) else st.st_size
    return (mode_of(st), st.st_nlink, st.st_uid, st.st_gid, size, st.st_rdev,
            time_of(st.st_atime_ns), time_of(st.st_mtime_ns), time_of(st.st_ctime_ns))


def changes(before, after):
    """Which times moved, and whether a change of the data came after the last of the inode."""
    names = ("st_atime_ns", "st_mtime_ns", "st_ctime_ns")
    moved = tuple(name[3] for name in names if getattr(before, name) != getattr(after, name))
    return moved, "m" in moved and after.st_mtime_ns > after.st_ctime_ns


def facts_of(fd):
    try:
        return facts(os.fstat(fd))
    except OSError as error:
        return errno.errorcode[error.errno]


class Storing:
    """A thread that stores a letter to each byte of a range of a mapping, one by one; it has ended with the context."""

    def __init__(self, memory, first, last, letter):
        self.begun = threading.Event()
        self.thread = threading.Thread(target=self.store, args=(memory, range(first, last), letter[0]))

    def store(self, memory, places, letter):
        self.begun.set()
        for place in places:
            memory[place] = letter
            time.sleep(0)  # lets the other thread run

    def __enter__(self):
        self.thread.start()
        self.begun.wait()

    def __exit__(self, *_):
        self.thread.join()


class Calls:
    """One method for each call; what they return is compared. Open files are in numbered slots."""

    def __init__(self):
        self.slots = [None] * SLOTS
        # Inodes with a hole that was punched beyond their size, of which kernels free more or less, and those that a
        # hole was perhaps copied to, for which ext4 takes space.
        self.vague = set()

    def fd(self, slot):
        if self.slots[slot] is None:
            raise OSError(errno.EBADF, "nothing in this slot")
        return self.slots[slot]

    def put(self, slot, fd):
        if self.slots[slot] is not None:
            os.close(self.slots[slot])
        self.slots[slot] = fd

    def is_directory(self, slot):
        return stat.S_ISDIR(os.fstat(self.fd(slot)).st_mode)

    # --- open files ---

    def open(self, slot, path, flags, mode):
        if flags & os.O_PATH:  # not kept: FUSE is not told of it, so the file could go meanwhile
            fd = os.open(path, flags, mode)
            try:
                return facts_of(fd)
            finally:
                os.close(fd)
        self.put(slot, os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, mode))

    def close(self, slot):
        fd, self.slots[slot] = self.fd(slot), None
        os.close(fd)

    def read(self, slot, length):
        return brief(os.read(self.fd(slot), length))

    def pread(self, slot, length, offset):
        return brief(os.pread(self.fd(slot), length, offset))

    def fd_to_write(self, slot):
        """Not of a pipe: FUSE is not told of what passes through it, so its times stay."""
        fd = self.fd(slot)
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            raise OSError(errno.EPIPE, "a pipe")
        return fd

    def write(self, slot, letter, length):
        return os.write(self.fd_to_write(slot), letter * length)

    def pwrite(self, slot, letter, length, offset):
        return os.pwrite(self.fd(slot), letter * length, offset)

    def pwritev(self, slot, letter, length, offset, flags):
        return os.pwritev(self.fd_to_write(slot), [letter * length, letter], offset, flags)

    def preadv(self, slot, length, offset, flags):
        parts = [bytearray(length), bytearray(3)]
        count = os.preadv(self.fd(slot), parts, offset, flags)
        return count, brief(b"".join(parts)[:count])

    def setfl(self, slot, flags):
        fcntl.fcntl(self.fd(slot), fcntl.F_SETFL, flags | os.O_NONBLOCK)
        return fcntl.fcntl(self.fd(slot), fcntl.F_GETFL)

    def lseek(self, slot, offset, whence):
        """In directories, offsets are the file system's own."""
        return None if self.is_directory(slot) else os.lseek(self.fd(slot), offset, whence)

    def seek_sparse(self, slot, offset, whence):
        """What counts as data is the file system's affair, so long as bytes that are not zero do."""
        fd = self.fd(slot)
        if self.is_directory(slot):
            return None
        size = os.fstat(fd).st_size
        place = os.lseek(fd, 0, os.SEEK_CUR)
        try:
            found = os.lseek(fd, offset, whence)
        except OSError as error:
            if error.errno != errno.ENXIO or offset >= size or offset < 0:
                raise
            found = size
        os.lseek(fd, place, os.SEEK_SET)
        if whence == os.SEEK_DATA:
            return not os.pread(fd, found - offset, offset).strip(b"\0")
        return offset <= found <= size

    def ftruncate(self, slot, size):
        os.ftruncate(self.fd(slot), size)

    def truncate(self, path, size):
        os.truncate(path, size)

    def fallocate(self, slot, mode, offset, length):
        fd = self.fd(slot)
        libc("fallocate", fd, mode, offset, length)
        st = os.fstat(fd)
        if mode & FALLOC_PUNCH_HOLE and offset + length > st.st_size:
            self.vague.add(st.st_ino)

    def copy(self, source, at, target, to, length, flags):
        places = ctypes.c_long(at), ctypes.c_long(to)
        count = libc("copy_file_range", self.fd(source), ctypes.byref(places[0]), self.fd(target),
                     ctypes.byref(places[1]), ctypes.c_size_t(length), flags)
        self.vague.add(os.fstat(self.fd(target)).st_ino)
        return count, places[0].value - at, places[1].value - to

    def fsync(self, slot, data_only):
        (os.fdatasync if data_only else os.fsync)(self.fd(slot))

    def mapped(self, slot):
        """A mapping to store through: ext4 may give blocks to all of a large folio that is stored to."""
        fd = self.fd(slot)
        self.vague.add(os.fstat(fd).st_ino)
        return mmap.mmap(fd, 0)

    def map(self, slot, offset, letter, length):
        """Stores through a mapping, and what read says of it then."""
        fd = self.fd(slot)
        memory = self.mapped(slot)
        length = min(length, max(len(memory) - offset, 0))
        memory[offset:offset + length] = letter * length
        seen = os.pread(fd, length + 2, offset)
        memory.flush()
        memory.close()
        return brief(seen)

    def map_cut(self, slot, offset, letter, size):
        """Stores through a mapping, cuts the file and gives it its size again; what the mapping and read say then."""
        fd = self.fd(slot)
        memory = self.mapped(slot)
        length = len(memory)
        at, size = offset % length, size % length
        memory[at:at + 1] = letter
        os.ftruncate(fd, size)
        os.ftruncate(fd, length)
        seen = brief(memory[:]), brief(os.pread(fd, length, 0))
        memory.close()
        return seen

    def beside(self, slot, kind, source, offset, length, letter, after):
        """Makes a call that changes bytes from `offset` on while a thread stores through a mapping to the bytes before it,
        or after what it changes; what the call returned, and what read and the mapping say then."""
        fd = self.fd(slot)
        if kind == "copy" and os.fstat(fd).st_ino == os.fstat(self.fd(source)).st_ino:
            raise OSError(errno.EINVAL, "a copy within a file could read what is stored")
        memory = self.mapped(slot)
        size = len(memory)
        begin = size if kind == "pwrite" and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND else offset
        end = size if kind == "ftruncate" else begin + length
        after = after and kind != "ftruncate"  # there is nothing after what that changes
        first = end if after else max(begin - STORED, 0)
        last = min(end + STORED if after else begin, size)
        with Storing(memory, first, last, letter.upper()):
            try:
                result = self.BESIDE[kind](self, slot, source, offset, length, letter)
            except OSError as error:
                result = errno.errorcode[error.errno]
        stored = bytes(memory[first:last])
        memory.flush()
        memory.close()
        return result, stored, brief(os.pread(fd, os.fstat(fd).st_size, 0))

    BESIDE = {
        "pwrite": lambda self, slot, _, offset, length, letter: self.pwrite(slot, letter, length, offset),
        "ftruncate": lambda self, slot, _, offset, *__: self.ftruncate(slot, offset),
        "punch": lambda self, slot, _, offset, length, __: self.fallocate(slot, 3, offset, length),
        "zero": lambda self, slot, _, offset, length, __: self.fallocate(slot, 0x10, offset, length),
        "allocate": lambda self, slot, _, offset, length, __: self.fallocate(slot, 0, offset, length),
        "copy": lambda self, slot, source, offset, length, _: self.copy(source, 0, slot, offset, length, 0),
    }

    def map_read(self, slot):
        memory = mmap.mmap(self.fd(slot), 0, prot=mmap.PROT_READ)
        data = brief(memory[:])
        memory.close()
        return data

    def publish(self, slot, path):
        """linkat of an open file, with or without a name."""
        libc("linkat", self.fd(slot), b"", AT_FDCWD, path, AT_EMPTY_PATH)

    # --- names ---

    def mkdir(self, path, mode):
        os.mkdir(path, mode)

    def mkdir_at(self, slot, name):
        os.mkdir(name, 0o777, dir_fd=self.fd(slot))

    def open_at(self, slot, name, flags):
        fd = os.open(name, flags | os.O_NONBLOCK, 0o666, dir_fd=self.fd(slot))
        try:
            return facts_of(fd)
        finally:
            os.close(fd)

    def unlink_at(self, slot, name, flags):
        libc("unlinkat", self.fd(slot), name, flags)

    def rename_at(self, slot, name, target, new, flags):
        libc("renameat2", self.fd(slot), name, self.fd(target), new, flags)

    def list_at(self, slot):
        return sorted(os.listdir(self.fd(slot)))

    def rmdir(self, path):
        os.rmdir(path)

    def unlink(self, path):
        os.unlink(path)

    def rename(self, old, new, flags):
        libc("renameat2", AT_FDCWD, old, AT_FDCWD, new, flags)

    def link(self, old, new, flags):
        libc("linkat", AT_FDCWD, old, AT_FDCWD, new, flags)

    def symlink(self, target, path):
        os.symlink(target, path)

    def readlink(self, path):
        return os.readlink(path)

    def mknod(self, path, mode, device):
        os.mknod(path, mode, device)

    def list(self, path):
        return sorted(os.listdir(path))

    def seek_directory(self, path, count):
        """Names and types by readdir; and that a listing goes on from where telldir was."""
        stream = LIBC.fdopendir(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        entries, places = [], [LIBC.telldir(stream)]
        while entry := LIBC.readdir(stream):
            entries.append((entry.contents.name, entry.contents.kind))
            places.append(LIBC.telldir(stream))
        start = count % len(places)
        LIBC.seekdir(stream, places[start])
        rest = []
        while entry := LIBC.readdir(stream):
            rest.append((entry.contents.name, entry.contents.kind))
        LIBC.closedir(stream)
        return sorted(entries), rest == entries[start:]

    # --- attributes ---

    def chmod(self, path, mode):
        os.chmod(path, mode)

    def fchmod(self, slot, mode):
        os.fchmod(self.fd(slot), mode)

    def chown(self, path, uid, gid, follow):
        os.chown(path, uid, gid, follow_symlinks=follow)

    def fchown(self, slot, uid, gid):
        os.fchown(self.fd(slot), uid, gid)

    def utimens(self, path, atime, mtime, follow):
        times = (Timespec * 2)(Timespec(*atime), Timespec(*mtime))
        libc("utimensat", AT_FDCWD, path, ctypes.byref(times), 0 if follow else AT_SYMLINK_NOFOLLOW)

    def futimens(self, slot, atime, mtime):
        times = (Timespec * 2)(Timespec(*atime), Timespec(*mtime))
        libc("futimens", self.fd(slot), ctypes.byref(times))

    def access(self, path, mode, flags):
        libc("faccessat", AT_FDCWD, path, mode, flags)

    def stat(self, path, follow):
        return facts(os.stat(path, follow_symlinks=follow))

    def fstat(self, slot):
        return facts(os.fstat(self.fd(slot)))

    def statx(self, path, flags, wanted):
        """Of the fields that are wanted, which there are, and whether the birth is not after the last change."""
        buffer = ctypes.create_string_buffer(256)
        libc("statx", AT_FDCWD, path, flags, ctypes.c_uint(wanted), buffer)
        mask, = struct.unpack_from("<I", buffer, 0)
        links, uid, gid, mode = struct.unpack_from("<IIIH", buffer, 16)
        born, changed = struct.unpack_from("<qI", buffer, 80), struct.unpack_from("<qI", buffer, 96)
        if wanted & STATX_BASIC == 0:
            return oct(mask & wanted)
        return oct(mask & wanted), links, uid, gid, stat.S_IFMT(mode), wanted & STATX_BTIME and born <= changed

    def setxattr(self, path, name, value, flags, follow):
        os.setxattr(path, name, value, flags, follow_symlinks=follow)

    setacl = setxattr

    def getxattr(self, path, name, follow):
        return os.getxattr(path, name, follow_symlinks=follow)

    def getxattr_short(self, path, name, room):
        buffer = ctypes.create_string_buffer(room + 1)
        return libc("getxattr", path, name, buffer, room)

    def listxattr(self, path, follow):
        return sorted(os.listxattr(path, follow_symlinks=follow))

    def removexattr(self, path, name, follow):
        os.removexattr(path, name, follow_symlinks=follow)

    def fsetxattr(self, slot, name, value):
        os.setxattr(self.fd(slot), name, value)

    def fgetxattr(self, slot, name):
        return os.getxattr(self.fd(slot), name)

    def flistxattr(self, slot):
        return sorted(os.listxattr(self.fd(slot)))

    def fremovexattr(self, slot, name):
        os.removexattr(self.fd(slot), name)


def become(caller):
    """The effective user; as root again: become("root")."""
    who = CALLERS[caller]
    if who is None:
        LIBC.setfsuid(0)  # first: with the others it would change nothing, and bring no capabilities back
        LIBC.setfsgid(0)
        os.seteuid(0)
        os.setegid(0)
        os.setgroups([])
        return
    uid, gid, groups, how = who
    os.setgroups(groups)
    if how == "fs":
        LIBC.setfsgid(gid)
        LIBC.setfsuid(uid)
    else:
        os.setegid(gid)
        os.seteuid(uid)


class Worker:
    """Runs in a process of its own. run() makes calls, (caller, umask, name, arguments) each, in a new directory,
    confined to it. It returns for each call the result and what became of the objects that it names; and the tree at
    the end."""

    def __init__(self, root):
        self.root = os.open(root, os.O_RDONLY)
        self.calls = Calls()

    def run(self, episode, calls):
        os.fchdir(self.root)
        os.umask(0)
        os.makedirs(os.path.join(episode, "home"))
        os.chroot(episode)
        os.chdir("/home")
        self.calls.vague.clear()
        outcomes = [self.step(*call) for call in calls]
        opened = [self.describe(fd) if fd is not None else None for fd in self.calls.slots]
        for slot, fd in enumerate(self.calls.slots):
            if fd is not None:
                self.calls.close(slot)
        return outcomes, opened, self.tree()

    def step(self, caller, umask, name, arguments):
        if name == "setacl":
            clear_idle_group_id(arguments[0])
        watched = self.watched(arguments)
        before = {what: self.look(what) for what in watched}
        os.umask(umask)
        become(caller)
        try:
            result = ("ok", getattr(self.calls, name)(*arguments))
        except OSError as error:
            result = ("error", errno.errorcode.get(error.errno, error.errno))
        except ValueError as error:  # of mmap, for what is empty
            result = ("error", str(error))
        finally:
            become("root")
        seen = {}
        for what in watched:
            now = self.look(what)
            if isinstance(now, os.stat_result):
                moved = changes(before[what], now) if isinstance(before[what], os.stat_result) and \
                    before[what].st_ino == now.st_ino else "new"
                now = Seen(facts(now), moved)
            seen[what] = now
        return result, seen

    @staticmethod
    def watched(arguments):
        """Paths among the arguments, the directories they are in, and the slots."""
        found = {}
        for argument in arguments:
            if isinstance(argument, bytes) and argument[:1] not in (b"", b"\1"):
                found[argument] = None
                found[os.path.dirname(argument.rstrip(b"/")) or b"."] = None
        found["slots"] = None
        return list(found)

    def look(self, what):
        if what == "slots":
            return tuple(None if fd is None else facts_of(fd) for fd in self.calls.slots)
        try:
            return os.stat(what, follow_symlinks=False)
        except OSError as error:
            return errno.errorcode[error.errno]
        except ValueError:
            return "no path"

    @staticmethod
    def describe(fd):
        try:
            st = os.fstat(fd)
            if not stat.S_ISREG(st.st_mode):
                return facts(st)
            return facts(st), brief(os.pread(fd, st.st_size, 0))
        except OSError as error:
            return errno.errorcode[error.errno]

    def tree(self):
        """Everything below the current directory, by name; which names are of one inode."""
        found, inodes = {}, {}
        for folder, folders, files in os.walk(b"."):
            folders.sort()
            for name in sorted([b"."] * (folder == b".") + folders + files):
                path = os.path.join(folder, name)
                st = os.stat(path, follow_symlinks=False)
                content = None
                if stat.S_ISREG(st.st_mode):
                    with open(path, "rb") as file:
                        content = brief(file.read())
                elif stat.S_ISLNK(st.st_mode):
                    content = os.readlink(path)
                attributes = {}
                for key in sorted(os.listxattr(path, follow_symlinks=False)):
                    attributes[key] = os.getxattr(path, key, follow_symlinks=False)
                first = inodes.setdefault(st.st_ino, path)
                empty = stat.S_ISREG(st.st_mode) and st.st_blocks == 0 and not attributes
                if st.st_ino in self.calls.vague:
                    empty = None
                found[path] = Entry(facts(st), content, attributes, first, empty)
        return found


def serve(root, pipe):
    """The process of a Worker: lists of calls come through the pipe, outcomes go back, or what has failed."""
    worker = Worker(root)
    while (job := pipe.recv()) is not None:
        try:
            pipe.send(worker.run(*job))
        except Exception as error:  # pylint: disable=broad-except
            frames = []
            trace = error.__traceback__
            while trace is not None:
                frames.append(f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}")
                trace = trace.tb_next
            pipe.send(f"{error!r} in {' '.join(frames)}")
