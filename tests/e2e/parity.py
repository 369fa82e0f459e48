# SPDX-License-Identifier: Apache-2.0
"""Random calls on two directories, of two file systems, that must answer alike. An episode is a list of calls that its
seed decides; two Workers (parity_calls.py) make them, and what they return is compared. A list that
shows a difference is cut down to the calls that it takes."""
import multiprocessing
import os
import random
import stat
import struct
import time

from parity_calls import (AT_EACCESS, AT_EMPTY_PATH, AT_SYMLINK_FOLLOW, AT_SYMLINK_NOFOLLOW, CALLERS, PAGE, SLOTS,
                          STATX_BASIC, STATX_BTIME, UTIME_NOW, UTIME_OMIT, Seen, serve)

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
        "user." + "k" * 251, "nothing.a", "plain", "system.posix_acl_access", "system.posix_acl_default")
# Of access control lists: tags, what has no id, and who is named.
ACL_USER_OBJ, ACL_USER, ACL_GROUP_OBJ, ACL_GROUP, ACL_MASK, ACL_OTHER = 1, 2, 4, 8, 16, 32
NO_ID = 0xFFFFFFFF
NAMED = (1000, 1001, 1002, 2000)


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
        flags = self.random.choice((os.O_RDONLY, os.O_WRONLY) + 5 * (os.O_RDWR,) + (os.O_ACCMODE,))
        for flag, chance in ((os.O_CREAT, 0.6), (os.O_EXCL, 0.1), (os.O_TRUNC, 0.15), (os.O_APPEND, 0.15),
                             (os.O_DIRECTORY, 0.06), (os.O_NOFOLLOW, 0.1), (os.O_SYNC, 0.04), (os.O_DSYNC, 0.02),
                             (os.O_NOATIME, 0.02), (os.O_PATH, 0.03)):
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
        place = self.random.choice((-5, 1 << 62, (1 << 63) - 1)) if self.random.random() < 0.05 else self.place()
        return self.slot(), self.letter(), self.length(), place

    # Without RWF_NOWAIT, RWF_NOAPPEND and RWF_DONTCACHE: the kernel's FUSE has none of them. 1 << 30: nobody has.
    def for_pwritev(self):
        flags = self.random.choice((0, 1, 2, 4, 0x10, 0x10, 0x10, 0x12, 0x40, 1 << 30))
        return self.slot(), self.letter(), self.length(), self.random.choice((0, self.place(), -1, -2)), flags

    def for_preadv(self):
        return self.slot(), self.length(), self.random.choice((self.place(), -1, -2)), \
            self.random.choice((0, 1, 2, 4, 1 << 30))

    def for_setfl(self):
        return self.slot(), self.random.choice((0, 0, os.O_APPEND, os.O_APPEND, os.O_NOATIME, os.O_SYNC))

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
        at, to = (self.place() if self.random.random() < 0.95 else -1 for _ in range(2))
        return self.slot(), at, self.slot(), to, self.length(), self.random.choice(9 * (0,) + (1,))

    def for_fsync(self):
        return self.slot(), self.random.random() < 0.5

    def for_map(self):
        return self.slot(), self.place(), self.letter(), self.random.choice((1, 100, PAGE))

    def for_map_cut(self):
        return self.slot(), self.place(), self.letter(), self.place()

    def for_beside(self):
        kind = self.random.choice(("pwrite", "pwrite", "pwrite", "ftruncate", "punch", "zero", "allocate", "copy", "copy"))
        return self.slot(), kind, self.slot(), self.place(), max(self.length(), 1), self.letter(), self.random.random() < 0.5

    def for_map_read(self):
        return (self.slot(),)

    def for_publish(self):
        return self.slot(), self.path()

    def for_mkdir(self):
        return self.path(), self.mode()

    def for_mkdir_at(self):
        return self.slot(), b"\1" + self.random.choice((b"a", b"b"))

    def name_at(self):
        return b"\1" + self.random.choice((b"a", b"b", b"e"))

    def for_open_at(self):
        return self.slot(), self.name_at(), self.random.choice((os.O_RDONLY, os.O_RDWR | os.O_CREAT, os.O_DIRECTORY))

    def for_unlink_at(self):
        return self.slot(), self.name_at(), self.random.choice((0, 0, 0x200, 1))

    def for_rename_at(self):
        return self.slot(), self.name_at(), self.slot(), self.name_at(), self.random.choice((0, 0, 1, 2))

    def for_list_at(self):
        return (self.slot(),)

    def for_rmdir(self):
        return (self.path(),)

    for_unlink = for_rmdir

    def for_rename(self):
        return self.path(), self.path(), self.random.choice((0, 0, 0, 0, 1, 2, 2, 3, 6, 8))

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
        # Not both -1: FUSE does not let it come to a refusal; see case_posix_chown_of_nothing.
        uid, gid = self.random.choice([(uid, gid) for uid in IDS for gid in IDS if uid != -1 or gid != -1])
        return self.path(), uid, gid, self.random.random() < 0.7

    def for_fchown(self):
        return self.slot(), self.random.choice(IDS), self.random.choice(IDS[1:])

    def when(self):
        return self.random.choice(((0, UTIME_NOW), (0, UTIME_OMIT), (10 ** 9, 5), (0, 0), (1, 999_999_999),
                                    (5, 10 ** 9), (-100, 1), (-2 ** 31, 7), (-2 ** 40, 7)))

    def for_utimens(self):
        return self.path(), self.when(), self.when(), self.random.random() < 0.7

    def for_futimens(self):
        return self.slot(), self.when(), self.when()

    def for_access(self):
        flags = self.random.choice((0, AT_EACCESS, AT_EACCESS, AT_EACCESS | AT_SYMLINK_NOFOLLOW, 1))
        return self.path(), self.random.choice((0, 1, 2, 4, 7, 8)), flags

    def for_stat(self):
        return self.path(), self.random.random() < 0.5

    def for_fstat(self):
        return (self.slot(),)

    def for_statx(self):
        flags = self.random.choice((AT_SYMLINK_NOFOLLOW, AT_SYMLINK_NOFOLLOW, 0, AT_EMPTY_PATH, 0x2000, 0x6000, 1))
        wanted = self.random.choice((STATX_BASIC | STATX_BTIME, STATX_BASIC, STATX_BTIME, 0, 1 << 31))
        return self.path(), flags, wanted

    def key(self):
        return self.random.choice(KEYS)

    # Another one each time: ext4 leaves ctime alone when the value is the same again.
    def value(self, length):
        return self.random.randbytes(8).ljust(length, b"\1")

    def for_setxattr(self):
        flags = self.random.choice((0, 0, 0, 1, 2, 3))
        value = self.value(self.random.choice((8, 50, 8, 50, 65537)))
        value = b"" if flags == 1 and self.random.random() < 0.5 else value
        return self.path(), self.key(), value, flags, self.random.random() < 0.7

    def acl(self):
        """An access control list; now and then one that says no more than a mode, or means nothing."""
        def rights():
            return self.random.choice((0, 4, 5, 6, 7))

        entries = [(ACL_USER_OBJ, rights(), NO_ID)]
        named = [(ACL_USER, rights(), user) for user in sorted(self.random.sample(NAMED, self.random.randrange(3)))]
        groups = [(ACL_GROUP, rights(), self.random.choice(NAMED))] if self.random.random() < 0.3 else []
        entries += [*named, (ACL_GROUP_OBJ, rights(), NO_ID), *groups]
        if named or groups or self.random.random() < 0.3:
            entries.append((ACL_MASK, rights(), NO_ID))
        entries.append((ACL_OTHER, rights(), NO_ID))
        if self.random.random() < 0.08:
            del entries[self.random.randrange(len(entries))]
        return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)

    def for_setacl(self):
        name = "system.posix_acl_" + self.random.choice(("access", "access", "default"))
        return self.path(), name, self.acl(), 0, self.random.random() < 0.9

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

    def for_fgetxattr(self):
        return self.slot(), self.key()

    def for_flistxattr(self):
        return (self.slot(),)

    for_fremovexattr = for_fgetxattr


WEIGHTS = {"open": 30, "close": 5, "read": 4, "pread": 6, "write": 8, "pwrite": 10, "pwritev": 5, "preadv": 2,
           "lseek": 3, "seek_sparse": 4, "setfl": 4, "map_cut": 3, "open_at": 3, "unlink_at": 3, "rename_at": 4,
           "list_at": 3, "futimens": 2, "fgetxattr": 1, "flistxattr": 2, "fremovexattr": 1,
           "ftruncate": 6, "truncate": 4, "fallocate": 8, "copy": 5, "fsync": 1, "map": 4, "beside": 8, "map_read": 2, "publish": 4,
           "mkdir": 10, "mkdir_at": 3, "rmdir": 6, "unlink": 10, "rename": 22, "link": 8, "symlink": 6, "readlink": 2,
           "mknod": 8, "list": 3, "seek_directory": 3, "chmod": 10, "fchmod": 4, "chown": 8, "fchown": 3, "utimens": 6,
           "access": 4, "stat": 3, "fstat": 2, "statx": 2, "setxattr": 10, "setacl": 10, "getxattr": 4, "getxattr_short": 2,
           "listxattr": 3, "removexattr": 4, "fsetxattr": 3}


class Pair:
    """A Worker in each of the two directories."""

    def __init__(self, ours, theirs):
        self.roots = {"termfs": ours, "ext4": theirs}
        self.workers = {}
        self.number = 0
        self.fine_times = has_fine_times(theirs)

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
                worker.kill()  # see Process.end in coherence.py
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
        return compare(calls, answers["termfs"], answers["ext4"], self.fine_times)


def remove(path):
    """Of a directory whose names are any bytes; paths of its own would be too long."""
    for name in os.listdir(os.fsencode(path)):
        entry = os.path.join(os.fsencode(path), name)
        if os.path.isdir(entry) and not os.path.islink(entry):
            remove(os.fsdecode(entry))
        else:
            os.unlink(entry)
    os.rmdir(path)


def has_fine_times(directory):
    """Whether two changes always have different times, which ext4's have since Linux 6.13."""
    path = os.path.join(directory, "times")
    os.mknod(path)
    times = {os.stat(path).st_ctime_ns}
    for mode in 50 * (0o600, 0o644):
        os.chmod(path, mode)
        times.add(os.stat(path).st_ctime_ns)
    os.unlink(path)
    return len(times) == 101


def compare(calls, ours, theirs, fine_times):
    """`fine_times`: also which times each call has moved."""
    for index, (call, mine, its) in enumerate(zip(calls, ours[0], theirs[0])):
        if mine[0] != its[0]:
            return index + 1, f"termfs said {mine[0]}, ext4 {its[0]} to {call[2]}"
        for what, here in mine[1].items():
            there = its[1][what]
            if not fine_times and isinstance(here, Seen) and isinstance(there, Seen):
                here, there = here.facts, there.facts
            if here != there:
                return index + 1, f"then {what} was {here} on termfs, {there} on ext4"
    if ours[1] != theirs[1]:
        return len(calls), f"open files at the end: {ours[1]} on termfs, {theirs[1]} on ext4"
    for path in sorted(ours[2].keys() | theirs[2].keys()):
        here, there = ours[2].get(path), theirs[2].get(path)
        if here and there and None in (here.empty, there.empty):
            here, there = here._replace(empty=None), there._replace(empty=None)
        if here != there:
            return len(calls), f"{path} at the end: {here} on termfs, {there} on ext4"
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


def check_alike(ours, theirs, seconds, seed):
    """Episodes for so long; Difference says what to do to see it again. Returns how many there were."""
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
