# SPDX-License-Identifier: Apache-2.0
"""Random calls on two directories, of two file systems, that must answer alike. An episode is a list of calls that its
seed decides; two Workers (parity_calls.py) make them, and what they return is compared. A list that
shows a difference is cut down to the calls that it takes."""
import multiprocessing
import os
import random
import stat
import time

from parity_calls import (AT_EMPTY_PATH, AT_SYMLINK_FOLLOW, CALLERS, PAGE, SLOTS, UTIME_NOW, UTIME_OMIT, serve)

CALLS = 150  # of an episode
ANSWER = 120  # seconds that an episode may take
SHRINKING = 60  # seconds
DIRECTORIES = (b"d", b"sticky", b"sgid", b"ann", b"d/e", b"sgid/e", b"link")
NAMES = (b"a", b"b", b"c", b"e", b"link")
ODD = (b"", b".", b"..", b"a/", b"d/", b"link/", b"new/", b"a/.", b"a/x", b"d/.", b"d/..", b"none/x", b"x" * 255,
       b"x" * 256, b"\xff\xfe\n ", b"y" * 254 + b"/z", b"loop", b"loop/x", b"a\tb", b"/", b"./" * 2050, b"sticky/../a")
MODES = (0, 0o400, 0o600, 0o644, 0o700, 0o755, 0o777, 0o1777, 0o2775, 0o4755, 0o6777, 0o6664, 0o2644, 0o070, 0o007)
IDS = (-1, 0, 1000, 1001, 1002, 2000)
KEYS = ("user.a", "user.b", "user.a", "trusted.t", "security.s", "system.s", "user.", "user." + "k" * 250,
        "user." + "k" * 251, "nothing.a", "plain")


class Difference(Exception):
    """What the two said differently."""


class Generator:
    """The calls of an episode; the same seed, the same calls."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def calls(self, count):
        return self.beginning() + [self.one() for _ in range(count)]

    def beginning(self):
        """Directories of several kinds and owners, files, links."""
        made = [("mkdir", (b"d", 0o777)), ("mkdir", (b"sticky", 0o777)), ("chmod", (b"sticky", 0o1777)),
                ("mkdir", (b"sgid", 0o777)), ("chown", (b"sgid", -1, 2000, True)), ("chmod", (b"sgid", 0o2777)),
                ("mkdir", (b"ann", 0o755)), ("chown", (b"ann", 1000, 1000, True)), ("mkdir", (b"d/e", 0o755)),
                ("symlink", (b"d", b"link")), ("symlink", (b"loop", b"loop")),
                ("open", (0, b"a", os.O_RDWR | os.O_CREAT, 0o666)), ("write", (0, b"a", 3 * PAGE + 5)),
                ("open", (1, b"sticky/b", os.O_RDWR | os.O_CREAT, 0o640)), ("chown", (b"sticky/b", 1000, 1000, True))]
        return [("root", 0, name, arguments) for name, arguments in made]

    def one(self):
        caller = self.random.choices(list(CALLERS), (6, 3, 2, 1, 1))[0]
        umask = self.random.choice((0, 0, 0o22, 0o27, 0o77))
        kinds, weights = zip(*WEIGHTS.items())
        name = self.random.choices(kinds, weights)[0]
        return caller, umask, name, getattr(self, "for_" + name)()

    # --- arguments ---

    def path(self):
        pick = self.random.random()
        if pick < 0.08:
            return self.random.choice(ODD)
        if pick < 0.35:
            return self.random.choice(NAMES)
        if pick < 0.5:
            return self.random.choice(DIRECTORIES)
        return self.random.choice(DIRECTORIES) + b"/" + self.random.choice(NAMES)

    def slot(self):
        return self.random.randrange(SLOTS)

    def letter(self):
        return bytes([self.random.randrange(97, 123)])

    def place(self):
        """Offsets near page borders and at odd places, some far away."""
        base = self.random.choice((0, 0, PAGE, 2 * PAGE, 7 * PAGE, 100 * PAGE, 1 << 20, 3 << 20))
        return max(base + self.random.choice((0, 0, 1, -1, 100, self.random.randrange(PAGE))), 0)

    def length(self):
        return self.random.choice((0, 1, 10, 100, PAGE, PAGE + 1, self.random.randrange(3 * PAGE), 1 << 17))

    def mode(self):
        return self.random.choice(MODES)

    # --- calls ---

    def for_open(self):
        flags = self.random.choice((os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR, os.O_RDWR))
        for flag, chance in ((os.O_CREAT, 0.6), (os.O_EXCL, 0.1), (os.O_TRUNC, 0.15), (os.O_APPEND, 0.15),
                             (os.O_DIRECTORY, 0.06), (os.O_NOFOLLOW, 0.1), (os.O_SYNC, 0.02), (os.O_NOATIME, 0.02),
                             (os.O_PATH, 0.03)):
            flags |= flag if self.random.random() < chance else 0
        return self.slot(), self.path(), flags, self.mode()

    def for_close(self):
        return (self.slot(),)

    def for_read(self):
        return self.slot(), self.length()

    def for_pread(self):
        return self.slot(), self.length(), self.random.choice((self.place(), self.place(), -1))

    def for_write(self):
        return self.slot(), self.letter(), self.length()

    def for_pwrite(self):
        return self.slot(), self.letter(), self.length(), self.place() if self.random.random() < 0.97 else -5

    for_append = for_write

    def for_lseek(self):
        return self.slot(), self.random.choice((0, 5, -5, PAGE, self.place())), self.random.choice((0, 0, 1, 2, 9))

    def for_seek_sparse(self):
        return self.slot(), self.random.choice((0, self.place(), -1)), self.random.choice((os.SEEK_DATA, os.SEEK_HOLE))

    def for_ftruncate(self):
        return self.slot(), self.random.choice((0, self.place(), self.place(), -1, 1 << 62))

    def for_truncate(self):
        return self.path(), self.random.choice((0, self.place(), self.place(), -1))

    def for_fallocate(self):
        mode = self.random.choice((0, 1, 3, 3, 0x10, 0x11, 2, 0x13, 0x40 << 8))
        return self.slot(), mode, self.random.choice((self.place(), self.place(), -1)), \
            self.random.choice((self.length(), self.length(), 5 * PAGE, -1))

    def for_copy(self):
        return self.slot(), self.place(), self.slot(), self.place(), self.length()

    def for_fsync(self):
        return self.slot(), self.random.random() < 0.5

    def for_map(self):
        return self.slot(), self.place(), self.letter(), self.random.choice((1, 100, PAGE))

    def for_map_read(self):
        return (self.slot(),)

    def for_publish(self):
        return self.slot(), self.path()

    def for_mkdir(self):
        return self.path(), self.mode()

    def for_mkdir_at(self):
        return self.slot(), b"\1" + self.random.choice((b"a", b"b"))

    def for_rmdir(self):
        return (self.path(),)

    for_unlink = for_rmdir

    def for_rename(self):
        return self.path(), self.path(), self.random.choice((0, 0, 0, 0, 1, 2, 2, 3, 16))

    def for_link(self):
        return self.path(), self.path(), self.random.choice((0, 0, AT_SYMLINK_FOLLOW, AT_EMPTY_PATH, 1))

    def for_symlink(self):
        target = self.random.choice((b"a", b"d", b"../a", b".", b"..", b"none", b"/", b"e/a", b"t" * 4095,
                                     b"t" * 4096, b"", b"link", b"s" * 60))
        return target, self.path()

    def for_readlink(self):
        return (self.path(),)

    def for_mknod(self):
        kind = self.random.choice((stat.S_IFIFO, stat.S_IFIFO, stat.S_IFREG, 0, stat.S_IFSOCK, stat.S_IFCHR,
                                   stat.S_IFBLK, stat.S_IFDIR, 0o170000))
        return self.path(), kind | self.mode(), os.makedev(*self.random.choice(((1, 3), (259, 300000), (0, 0))))

    for_list = for_readlink

    def for_seek_directory(self):
        return self.path(), self.random.randrange(12)

    def for_chmod(self):
        return self.path(), self.mode()

    def for_fchmod(self):
        return self.slot(), self.mode()

    def for_chown(self):
        # Not both -1: for files with set-id bits, FUSE does not let it come to a refusal.
        uid, gid = self.random.choice([(uid, gid) for uid in IDS for gid in IDS if uid != -1 or gid != -1])
        return self.path(), uid, gid, self.random.random() < 0.7

    def for_fchown(self):
        return self.slot(), self.random.choice(IDS), self.random.choice(IDS[1:])

    def for_utimens(self):
        def when():
            return self.random.choice(((0, UTIME_NOW), (0, UTIME_OMIT), (10 ** 9, 5), (0, 0), (1, 999_999_999),
                                        (5, 10 ** 9), (-100, 1)))
        return self.path(), when(), when(), self.random.random() < 0.7

    def for_access(self):
        return self.path(), self.random.choice((0, 1, 2, 4, 7, 8)), self.random.random() < 0.7

    def for_stat(self):
        return self.path(), self.random.random() < 0.5

    def for_fstat(self):
        return (self.slot(),)

    def for_statx(self):
        return (self.path(),)

    def key(self):
        return self.random.choice(KEYS)

    # Another one each time: ext4 leaves ctime alone when the value is the same again.
    def value(self, length):
        return self.random.randbytes(8).ljust(length, b"\1")

    def for_setxattr(self):
        flags = self.random.choice((0, 0, 0, 1, 2, 3))
        value = b"" if flags == 1 and self.random.random() < 0.5 else self.value(self.random.choice((8, 50)))
        return self.path(), self.key(), value, flags, self.random.random() < 0.7

    def for_getxattr(self):
        return self.path(), self.key(), self.random.random() < 0.7

    def for_getxattr_short(self):
        return self.path(), b"user.a", self.random.choice((0, 1, 20, 60))

    def for_listxattr(self):
        return self.path(), self.random.random() < 0.7

    def for_removexattr(self):
        return self.path(), self.key(), self.random.random() < 0.7

    def for_fsetxattr(self):
        return self.slot(), self.key(), self.value(8)


WEIGHTS = {"open": 30, "close": 5, "read": 4, "pread": 6, "write": 8, "pwrite": 10, "append": 2, "lseek": 3,
           "seek_sparse": 4,
           "ftruncate": 6, "truncate": 4, "fallocate": 8, "copy": 5, "fsync": 1, "map": 4, "map_read": 2, "publish": 4,
           "mkdir": 10, "mkdir_at": 3, "rmdir": 6, "unlink": 10, "rename": 22, "link": 8, "symlink": 6, "readlink": 2,
           "mknod": 8, "list": 3, "seek_directory": 3, "chmod": 10, "fchmod": 4, "chown": 8, "fchown": 3, "utimens": 6,
           "access": 4, "stat": 3, "fstat": 2, "statx": 2, "setxattr": 10, "getxattr": 4, "getxattr_short": 2,
           "listxattr": 3, "removexattr": 4, "fsetxattr": 3}


class Pair:
    """A Worker in each of the two directories."""

    def __init__(self, ours, theirs):
        self.roots = {"termfs": ours, "ext4": theirs}
        self.workers = {}
        self.number = 0

    def __enter__(self):
        context = multiprocessing.get_context("fork")
        for name, root in self.roots.items():
            here, there = context.Pipe()
            worker = context.Process(target=serve, args=(root, there), daemon=True)
            worker.start()
            there.close()
            self.workers[name] = (worker, here)
        return self

    def __exit__(self, *unused):
        for worker, pipe in self.workers.values():
            if worker.is_alive():
                worker.terminate()
            worker.join()
            pipe.close()

    def difference(self, calls):
        """Makes the calls in a new directory of each; (how many calls it took, what differed), or None."""
        self.number += 1
        episode = f"{os.getpid()}-{self.number}"
        for _, pipe in self.workers.values():
            pipe.send((episode, calls))
        answers = {}
        for name, (worker, pipe) in self.workers.items():
            if not pipe.poll(ANSWER):
                raise Difference(f"{name}: no answer after {ANSWER} s to one of {shown(calls)}")
            try:
                answers[name] = pipe.recv()
            except EOFError:
                worker.join()
                answers[name] = f"the caller ended with {worker.exitcode}"
            if isinstance(answers[name], str):
                raise Difference(f"{name}: {answers[name]}, in one of {shown(calls)}")
        for root in self.roots.values():
            remove(os.path.join(root, episode))
        return compare(calls, answers["termfs"], answers["ext4"])


def remove(path):
    """Of a directory whose names are any bytes; paths of its own would be too long."""
    for name in os.listdir(os.fsencode(path)):
        entry = os.path.join(os.fsencode(path), name)
        if os.path.isdir(entry) and not os.path.islink(entry):
            remove(os.fsdecode(entry))
        else:
            os.unlink(entry)
    os.rmdir(path)


def compare(calls, ours, theirs):
    for index, (call, mine, its) in enumerate(zip(calls, ours[0], theirs[0])):
        if mine[0] != its[0]:
            return index + 1, f"termfs said {mine[0]}, ext4 {its[0]} to {call[2]}"
        for what, is_here in mine[1].items():
            if is_here != its[1][what]:
                return index + 1, f"then {what} was {is_here} on termfs, {its[1][what]} on ext4"
    if ours[1] != theirs[1]:
        return len(calls), f"open files at the end: {ours[1]} on termfs, {theirs[1]} on ext4"
    for path in sorted(ours[2].keys() | theirs[2].keys()):
        if ours[2].get(path) != theirs[2].get(path):
            return len(calls), f"{path} at the end: {ours[2].get(path)} on termfs, {theirs[2].get(path)} on ext4"
    return None


def shrink(pair, calls, deadline):
    """Fewer calls that still show a difference (maybe another one), by leaving out ever smaller parts."""
    part = len(calls) // 2
    while part >= 1 and time.monotonic() < deadline:
        begin = 0
        while begin < len(calls) and time.monotonic() < deadline:
            fewer = calls[:begin] + calls[begin + part:]
            found = pair.difference(fewer)
            if found:
                calls = fewer[:found[0]]
            else:
                begin += part
        part //= 2
    return calls


def shown(calls):
    text = ""
    for caller, umask, name, arguments in calls:
        words = (repr(word) if len(repr(word)) < 50 else f"{word[:3]!r} * {len(word) // 3}" for word in arguments)
        text += f"\n         {caller}, umask {umask:03o}: {name}({', '.join(words)})"
    return text


def check_alike(ours, theirs, seconds, seed=None):
    """Episodes for so long; Difference says what to do to see it again. Returns how many there were."""
    seed = random.randrange(1 << 32) if seed is None else seed
    deadline = time.monotonic() + seconds
    done = 0
    with Pair(ours, theirs) as pair:
        while time.monotonic() < deadline:
            calls = Generator(seed + done).calls(CALLS)
            found = pair.difference(calls)
            if found:
                calls = shrink(pair, calls[:found[0]], time.monotonic() + SHRINKING)
                again = pair.difference(calls)
                raise Difference(f"seed {seed + done}: {(again or found)[1]}; the last of these calls "
                                 f"{'shows it' if again else 'showed it, and then not'}:{shown(calls[-40:])}")
            done += 1
    return done
