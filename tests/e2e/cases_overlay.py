# SPDX-License-Identifier: Apache-2.0
"""A mount as the upper layer of overlayfs, beside an ext4 in the same place."""
import errno
import os
import pathlib
import stat

from cases_posix import error_of, read_file, renameat2, write_file
from volume import Skip, check, run

RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4


def case_overlay_rename_leaves_a_whiteout(site):
    volume = site.volume()
    m, other = volume.mount(), volume.mount()
    write_file(m / "f", b"x")
    os.mkdir(m / "d")
    write_file(m / "g", b"y")
    check(error_of(renameat2, str(m / "f"), str(m / "g"), RENAME_WHITEOUT | RENAME_NOREPLACE) == errno.EEXIST, "no replace")
    check(error_of(renameat2, str(m / "f"), str(m / "g"), RENAME_WHITEOUT | RENAME_EXCHANGE) == errno.EINVAL, "exchange")
    os.stat(other / "f")
    renameat2(str(m / "f"), str(m / "g"), RENAME_WHITEOUT)
    renameat2(str(m / "d"), str(m / "e"), RENAME_WHITEOUT)
    for mount in m, other:
        for name in "f", "d":
            found = os.lstat(mount / name)
            check(found.st_mode == stat.S_IFCHR and found.st_rdev == 0, f"{name} is {found}")
        check(read_file(mount / "g") == b"x" and os.path.isdir(mount / "e"), "what was moved")
        check(sorted(os.listdir(mount.path)) == ["d", "e", "f", "g"], "all names")
    os.unlink(m / "f")
    check(not os.path.lexists(other / "f"), "a whiteout can be removed")


def need_overlay():
    if "overlay" not in pathlib.Path("/proc/filesystems").read_text().split():
        raise Skip("no overlayfs in this kernel")


class Overlay:
    """The lower directory below the upper one, whose work directory is beside it."""

    def __init__(self, directory, lower, upper, options):
        self.path, self.upper, self.lower = pathlib.Path(directory), pathlib.Path(upper) / "upper", lower
        self.options = f"lowerdir={lower},upperdir={self.upper},workdir={upper}/work{options}"

    def __enter__(self):
        for made in self.path, self.upper, self.upper.parent / "work":
            made.mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "overlay", "overlay", "-o", self.options, self.path)
        return self.path

    def __exit__(self, *_):
        run("umount", self.path)


def make_lower(lower):
    for directory in "d/sub", "moved/sub", "opaque":
        os.makedirs(f"{lower}/{directory}")
    for name in "removed", "changed", "chmodded", "linked", "renamed", "d/file", "d/sub/file", "moved/file", "opaque/old":
        write_file(f"{lower}/{name}", f"lower {name}".encode() * 1000)
    os.symlink("d/file", f"{lower}/symlink")
    os.mkfifo(f"{lower}/fifo")


def change(top):
    os.unlink(top / "removed")
    os.unlink(top / "symlink")
    with open(top / "changed", "ab") as file:
        file.write(b", changed above")
    os.chmod(top / "chmodded", 0o600)
    os.link(top / "linked", top / "d/link")
    os.rename(top / "renamed", top / "d/renamed")
    run("mv", top / "moved", top / "moved on")  # copies where directories are not redirected
    run("mv", top / "d/sub", top / "sub")
    run("rm", "-r", top / "opaque")
    os.mkdir(top / "opaque")
    write_file(top / "opaque/new", b"new")
    write_file(top / "d/file", b"over the lower one")
    os.rename(top / "fifo", top / "d/fifo")
    os.setxattr(top / "changed", "user.k", b"v")
    os.mkdir(top / "new")
    os.rmdir(top / "new")
    write_file(top / "removed", b"made again")
    os.unlink(top / "removed")


def tree(top):
    """What is there, by path: mode, names, owner, device, contents, and the attributes that overlayfs stores."""
    found = {}
    for directory, directories, files in os.walk(top):
        for name in directories + files:
            path = os.path.join(directory, name)
            st = os.lstat(path)
            contents = None
            if stat.S_ISREG(st.st_mode):
                contents = read_file(path)
            elif stat.S_ISLNK(st.st_mode):
                contents = os.readlink(path)
            attributes = {key: os.getxattr(path, key, follow_symlinks=False)
                          for key in os.listxattr(path, follow_symlinks=False)}
            for key in "trusted.overlay.origin", "trusted.overlay.uuid", "trusted.overlay.upper":  # handles of inodes
                attributes.pop(key, None)
            links = 1 if stat.S_ISDIR(st.st_mode) else st.st_nlink  # of directories ext4 and overlayfs count their own way
            device = st.st_rdev if stat.S_ISCHR(st.st_mode) else 0
            found[os.path.relpath(path, top)] = (st.st_mode, st.st_uid, st.st_gid, links, device, contents, attributes)
    return found


def compare(plain, ours, what):
    for path in sorted(plain.keys() | ours.keys()):
        # Whiteouts are links of one inode, where that works; how many there are depends on what was removed before.
        a, b = plain.get(path), ours.get(path)
        if a is not None and b is not None and stat.S_ISCHR(a[0]) and a[4] == 0:
            a, b = a[:3] + a[4:], b[:3] + b[4:]
        check(a == b, f"{what}, {path}: on ext4 {a}, on the mount {b}")


def overlay_as_on_ext4(site, options):
    need_overlay()
    volume = site.volume()
    m = volume.mount()
    here = f"{site.scratch}/overlay{site.next_number()}"  # the case before may have left its trees
    lower = f"{here}/lower"
    make_lower(lower)
    merged, again, uppers = [], [], []
    for number, upper in enumerate((f"{here}/plain", f"{m.path}/top")):
        overlay = Overlay(f"{here}/merged{number}", lower, upper, options)
        with overlay as top:
            change(top)
            merged.append(tree(top))
        uppers.append(tree(overlay.upper))
        if number == 1:
            volume.umount(m)
            m = volume.mount()
            overlay = Overlay(f"{here}/merged{number}", lower, f"{m.path}/top", options)
        with overlay as top:
            again.append(tree(top))
    compare(merged[0], merged[1], "merged")
    compare(uppers[0], uppers[1], "the upper layer")
    check(again[0].keys() == again[1].keys() == merged[0].keys(), "the same names when it is mounted again")
    compare(again[0], again[1], "merged, mounted again")


def case_overlay_upper_layer(site):
    overlay_as_on_ext4(site, "")


def case_overlay_upper_layer_with_redirects_and_index(site):
    overlay_as_on_ext4(site, ",redirect_dir=on,index=on,nfs_export=on")
