# SPDX-License-Identifier: Apache-2.0
"""POSIX access control lists: who is let in, what new files inherit, and what other mounts see; and who may keep a file's
set-group-id bit."""
import errno
import os
import stat
import struct

from cases_posix import error_of, refuses, write_file
from volume import check, need, run

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
NO_ID = 0xFFFFFFFF
ANN, BOB = 1000, 1001
TAGS = {"user": 1, "named user": 2, "group": 4, "named group": 8, "mask": 16, "other": 32}


def acl(*entries):
    """Entries are (tag, rights) or (tag, rights, id), in the kernel's order."""
    packed = (struct.pack("<HHI", TAGS[tag], rights, *(ids or (NO_ID,))) for tag, rights, *ids in entries)
    return struct.pack("<I", 2) + b"".join(packed)


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def error_as(user, mount, call, *arguments):
    """The errno that a call of `user`, in the mount, fails with; 0: it does not."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            os.chdir(mount.path)  # the way there is root's alone
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            code = error_of(call, *arguments)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def opens(mount, name, user):
    """Whether `user` may read the file."""
    error = error_as(user, mount, os.open, name, os.O_RDONLY)
    check(error in (0, errno.EACCES), f"{name} as {user}: {error}")
    return error == 0


def case_acl_lets_in_and_keeps_out(site):
    volume = site.volume("64M")
    a, b = volume.mount(), volume.mount()
    write_file(a / "f", b"secret")
    os.chmod(a / "f", 0o600)
    check(not opens(a, "f", ANN) and not opens(b, "f", ANN), "root's alone")
    os.setxattr(a / "f", ACCESS, acl(("user", 6), ("named user", 4, ANN), ("group", 0), ("mask", 4), ("other", 0)))
    check(opens(a, "f", ANN) and opens(b, "f", ANN), "one user is let in, by each mount")
    check(not opens(a, "f", BOB) and not opens(b, "f", BOB), "and no other")
    check(mode(a / "f") == 0o640 and mode(b / "f") == 0o640, "the mode's group bits are the mask")
    os.chmod(b / "f", 0o614)
    check(not opens(a, "f", ANN) and not opens(b, "f", ANN), "the mask takes away what the entry gives")
    check(opens(a, "f", BOB), "others may")
    check(os.getxattr(a / "f", ACCESS) ==
          acl(("user", 6), ("named user", 4, ANN), ("group", 0), ("mask", 1), ("other", 4)), "chmod changes the list")
    os.removexattr(b / "f", ACCESS)
    refuses(errno.ENODATA, os.getxattr, a / "f", ACCESS)
    check(opens(a, "f", ANN) and mode(a / "f") == 0o614, "others' bits count for the user again")
    os.setxattr(a / "f", ACCESS, acl(("user", 6), ("group", 4), ("other", 0)))
    refuses(errno.ENODATA, os.getxattr, b / "f", ACCESS)
    check(mode(b / "f") == 0o640 and os.listxattr(b / "f") == [], "a list that is a mode is a mode")


def case_acl_of_an_open_file(site):
    """A kernel keeps a list without a time: also one that it was given when it held nothing else of the file."""
    volume = site.volume("64M")
    a, b = volume.mount(), volume.mount()
    write_file(a / "f", b"")
    fd = os.open(b / "f", os.O_RDONLY)
    for rights in (4, 6, 2, 7):
        wanted = acl(("user", 6), ("named user", rights, ANN), ("group", 4), ("mask", 7), ("other", 4))
        os.setxattr(a / "f", ACCESS, wanted)
        check(os.getxattr(fd, ACCESS) == wanted, f"rights of {rights}")
        check(os.getxattr(fd, ACCESS) == wanted, f"rights of {rights}, again")
    os.chmod(a / "f", 0o640)
    check(os.getxattr(fd, ACCESS) ==
          acl(("user", 6), ("named user", 7, ANN), ("group", 4), ("mask", 4), ("other", 0)), "chmod changes it")
    os.removexattr(a / "f", ACCESS)
    refuses(errno.ENODATA, os.getxattr, fd, ACCESS)
    os.close(fd)


def case_acl_not_wanted(site):
    """A mount with noacl goes by modes, and keeps no lists; those of other mounts are as they were."""
    volume = site.volume("64M")
    a, b = volume.mount(), volume.mount("noacl")
    write_file(a / "f", b"")
    wanted = acl(("user", 6), ("named user", 4, ANN), ("group", 0), ("mask", 4), ("other", 0))
    os.setxattr(a / "f", ACCESS, wanted)
    check(opens(a, "f", ANN) and not opens(b, "f", ANN), "only the list lets her in")
    refuses(errno.EOPNOTSUPP, os.getxattr, b / "f", ACCESS)
    refuses(errno.EOPNOTSUPP, os.setxattr, b / "f", ACCESS, wanted)
    umask = os.umask(0o027)
    try:
        write_file(b / "g", b"")
    finally:
        os.umask(umask)
    check(mode(b / "g") == 0o640 and os.getxattr(a / "f", ACCESS) == wanted, "umasks count")


def case_acl_is_inherited(site):
    volume = site.volume("64M")
    a, b = volume.mount(), volume.mount()
    inherited = acl(("user", 7), ("named user", 7, ANN), ("group", 5), ("mask", 7), ("other", 5))
    os.mkdir(a / "d")
    os.setxattr(a / "d", DEFAULT, inherited)
    umask = os.umask(0o077)
    try:
        os.close(os.open(b / "d/f", os.O_WRONLY | os.O_CREAT, 0o666))
        os.mkdir(b / "d/e", 0o750)
        os.mkfifo(b / "d/fifo", 0o666)
        os.symlink("f", b / "d/link")
        write_file(a / "outside", b"")
        os.mkdir(a / "plain")
    finally:
        os.umask(umask)
    check(mode(a / "d/f") == 0o664, f"the umask does not count: {mode(a / 'd/f'):o}")
    check(os.getxattr(a / "d/f", ACCESS) ==
          acl(("user", 6), ("named user", 7, ANN), ("group", 5), ("mask", 6), ("other", 4)), "limited by the mode")
    check(error_as(ANN, a, os.open, "d/f", os.O_RDWR) == 0, "who is named may write")
    check(error_as(BOB, a, os.open, "d/f", os.O_RDWR) == errno.EACCES, "others may not")
    check(mode(a / "d/e") == 0o750 and os.getxattr(a / "d/e", DEFAULT) == inherited, "directories hand it on")
    check(mode(a / "d/fifo") == 0o664, "special files inherit")
    check(os.listxattr(a / "d/link", follow_symlinks=False) == [], "links do not")
    refuses(errno.ENODATA, os.getxattr, a / "d/f", DEFAULT)
    check(mode(b / "outside") == 0o600 and mode(b / "plain") == 0o700, "elsewhere the umask counts")
    refuses(errno.EACCES, os.setxattr, a / "d/f", DEFAULT, inherited)
    os.removexattr(a / "d", DEFAULT)
    write_file(b / "d/g", b"")
    check(mode(b / "d/g") == 0o644 and os.listxattr(b / "d/g") == [], "no longer")


def case_acl_refuses_nonsense(site):
    m = site.mounted("64M")
    write_file(m / "f", b"")
    before = os.stat(m / "f")
    good = acl(("user", 6), ("group", 4), ("other", 4))
    for bad in (b"1", struct.pack("<I", 1) + good[4:], good[:-1], acl(("user", 6), ("other", 4)),
                acl(("user", 6), ("group", 9), ("other", 4)), acl(("group", 4), ("user", 6), ("other", 4)),
                acl(("user", 6), ("named user", 4, ANN), ("group", 4), ("other", 4)),
                acl(("user", 6), ("user", 6), ("group", 4), ("other", 4))):
        try:
            os.setxattr(m / "f", ACCESS, bad)
        except OSError as error:
            check(error.errno in (errno.EINVAL, errno.EOPNOTSUPP), f"{bad}: {error}")
        else:
            check(False, f"{bad} was taken")
    check(os.stat(m / "f") == before and os.listxattr(m / "f") == [], "and nothing changed")
    check(error_as(ANN, m, os.setxattr, "f", ACCESS, good) == errno.EPERM, "the owner's business")


def case_acl_takes_the_group_id_bit(site):
    m = site.mounted("64M")
    for name, group, kept in (("mine", ANN, True), ("theirs", BOB, False)):
        write_file(m / name, b"")
        os.chown(m / name, ANN, group)
        os.chmod(m / name, 0o2775)
        wanted = acl(("user", 7), ("named user", 5, BOB), ("group", 5), ("mask", 5), ("other", 5))
        check(error_as(ANN, m, os.setxattr, name, ACCESS, wanted) == 0, "its owner sets it")
        check(bool(os.stat(m / name).st_mode & stat.S_ISGID) == kept, f"{name}: {os.stat(m / name).st_mode:o}")


def case_posix_group_id_at_chown(site):
    """Who is outside of a file's group cannot keep its set-group-id bit, not even where the group may not execute."""
    m = site.mounted("64M")
    for name, bits, group, after in (("theirs", 0o2644, BOB, 0o644), ("mine", 0o2644, ANN, 0o2644),
                                     ("program", 0o6755, ANN, 0o755)):
        write_file(m / name, b"")
        os.chown(m / name, ANN, group)
        os.chmod(m / name, bits)
        check(error_as(ANN, m, os.chown, name, -1, ANN) == 0, "its owner gives it to a group of his")
        check(mode(m / name) == after, f"{name}: {mode(m / name):o}")


def case_acl_survives_and_is_copied(site):
    need("getfacl")
    need("setfacl")
    volume = site.volume("64M")
    m = volume.mount()
    write_file(m / "f", b"")
    run("setfacl", "-m", f"u:{ANN}:rw,g:{BOB}:r", str(m / "f"))
    run("cp", "-a", str(m / "f"), str(m / "copy"))
    volume.kill()
    volume.serve()
    for name in ("f", "copy"):
        shown = run("getfacl", "-nc", str(m / name)).split()
        check(f"user:{ANN}:rw-" in shown and f"group:{BOB}:r--" in shown, f"{name}: {shown}")
