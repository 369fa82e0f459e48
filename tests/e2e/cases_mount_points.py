# SPDX-License-Identifier: Apache-2.0
"""Where a mount is, and what is there beside it: it ends where it is, and nothing else ends with it."""
import contextlib
import errno
import mmap
import os
import signal
import subprocess

from cases_posix import error_of, read_file, write_file
from volume import Mount, Volume, alone, check, ended, eventually, need, run, umount


def end(mount):
    os.kill(mount.pid, signal.SIGTERM)
    eventually(lambda: ended(mount.pid), "the mount's process ends after SIGTERM")


def mount_on(site, volume, path):
    run(site.termfs, "mount", volume.path, path, "-o", f"fuse={site.fuse}")
    return volume.mounted(path)


@contextlib.contextmanager
def a_private_tmpfs(site):
    path = os.path.join(site.scratch, f"tmpfs{site.next_number()}")
    os.mkdir(path)
    run("mount", "-t", "tmpfs", "none", path)
    try:
        run("mount", "--make-private", path)  # otherwise nothing in it may be moved
        yield path
    finally:
        subprocess.run(["umount", "-R", "-l", path], stderr=subprocess.DEVNULL, check=False)
        os.rmdir(path)


def case_ended_mount_leaves_a_later_one(site):
    """One that was detached lazily and is still in use is told to end: what is mounted there by then stays."""
    volume = site.volume("64M")
    first = volume.mount()
    user = site.start("sleep", "1000", cwd=first.path)
    run(site.termfs, "umount", "--lazy", first.path)
    volume.mounts.remove(first)
    second = mount_on(site, volume, first.path)
    check(not ended(first.pid) and second.pid != first.pid, "the first goes on for its user")
    end(first)
    check(os.path.ismount(second.path), "the second is still mounted")
    write_file(second / "f", b"x")
    user.kill()
    user.wait()


def case_ended_mount_leaves_what_covers_it(site):
    volume = site.volume("64M")
    m = volume.mount()
    volume.mounts.remove(m)
    run("mount", "-t", "tmpfs", "none", m.path)
    try:
        write_file(m / "f", b"x")
        end(m)
        check(read_file(m / "f") == b"x", "what was mounted over it")
    finally:
        run("umount", m.path)
    eventually(lambda: error_of(os.stat, m / "not known") == errno.ENOTCONN, "the kernel knows that it has ended")
    run(site.termfs, "umount", m.path)
    os.rmdir(m.path)


def case_ended_mount_is_unmounted_where_it_is(site):
    """Moved, or with a directory above it that was: what programs have mapped is written, and nothing dead remains."""
    volume = site.volume("64M")
    with a_private_tmpfs(site) as place:
        for way in ("rename", "move"):
            old, new = os.path.join(place, way, "m"), os.path.join(place, way + " to", "m")
            os.makedirs(old)
            m = mount_on(site, volume, old)
            if way == "rename":
                os.rename(os.path.dirname(old), os.path.dirname(new))
            else:
                os.makedirs(new)
                run("mount", "--move", old, new)
            with open(os.path.join(new, way), "wb+") as file:
                file.write(bytes(4096))
                file.flush()
                with mmap.mmap(file.fileno(), 4096) as memory:
                    memory[:4] = b"abcd"
            volume.mounts.remove(m)
            end(m)
            check(not os.path.ismount(new) and os.listdir(new) == [], f"{way}: something is mounted there")
    m = volume.mount()
    check([read_file(m / way)[:4] for way in ("rename", "move")] == [b"abcd"] * 2, "what was mapped")


# Keeps the mount on $1, but none of others.
HOLD = """
grep -F ' - fuse.termfs ' /proc/self/mountinfo | cut -d ' ' -f 5 | grep -vxF "$1" | while read -r place; do
  umount -l "$place"
done
echo held
exec sleep 1000
"""


@alone
def case_umount_says_where_it_is_mounted_still(site):
    """It does not wait for a process that goes on, and does not say that the server is gone."""
    volume = site.volume("64M")
    other = os.path.join(site.scratch, "second-place")
    os.mkdir(other)
    m = volume.mount()
    write_file(m / "f", b"x")
    volume.mounts.remove(m)
    run("mount", "--bind", m.path, other)
    try:
        said = umount(site.termfs, m.path)
        check(f"mounted on {other} and goes on" in said, said)
        check(read_file(os.path.join(other, "f")) == b"x", "it goes on there")
    finally:
        run("umount", other)
    eventually(lambda: ended(m.pid), "it ends with the last mount")
    m = mount_on(site, volume, m.path)
    volume.mounts.remove(m)
    holder = site.start("unshare", "--mount", "--propagation", "private", "sh", "-c", HOLD, "sh", m.path)
    check(holder.stdout.readline() == "held\n", "another mount namespace")
    said = umount(site.termfs, m.path)
    check(f"mounted on {m.path} in the mount namespace of process {holder.pid} and goes on" in said, said)
    check(not ended(m.pid), "it goes on there")
    holder.kill()
    eventually(lambda: ended(m.pid), "it ends with the last mount namespace")
    os.rmdir(m.path)
    os.rmdir(other)


def case_umount_of_another_pid_namespace(site):
    """The number by which the mount knows itself is another process's here."""
    volume = site.volume("64M")
    path = os.path.join(site.scratch, "m")
    os.mkdir(path)
    inner = 'termfs=$1; shift; "$termfs" mount "$@" && echo mounted; exec sleep 1000'
    apart = site.start("unshare", "--pid", "--fork", "--kill-child", "sh", "-c", inner, "sh", site.termfs, volume.path, path,
                       "-o", f"fuse={site.fuse}")
    check(apart.stdout.readline() == "mounted\n", "a mount in another PID namespace")
    pid = int(Mount(path, 0).describe()["pid"])
    check(pid < 100, f"its own number there: {pid}")
    said = umount(site.termfs, path)
    check("its process is in another PID namespace" in said, said)
    eventually(lambda: not volume.status()["sessions"], "its process ends")
    apart.kill()
    apart.wait()
    os.rmdir(path)


def case_volume_with_a_line_end_in_its_name(site):
    volume = Volume(site, "a\nb\\n c", "64M", 0.5)
    site.volumes.append(volume)
    volume.serve()
    m = volume.mount()
    write_file(m / "f", b"x")
    run(site.termfs, "status", m.path)
    run(site.termfs, "stats", m.path, "--json", "--count", "1")
    run(site.termfs, "set", m.path, "dram-ratio=0.25")
    check(volume.status()["dram_ratio"] == 0.25, "set by the mount point")


def closing(numbers):
    """The words before a command that gets these standard descriptors closed."""
    return ["sh", "-c", 'exec "$@" ' + " ".join(f"{number}>&-" for number in numbers), "sh"]


def case_standard_descriptors_may_be_closed(site):
    """Whichever are: nothing else that the service opens takes their place."""
    volume = site.volume("64M")
    volume.stop()
    path = os.path.join(site.scratch, "place")
    os.mkdir(path)
    for numbers in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)):
        log = os.path.join(volume.path, "log")
        logged = os.path.getsize(log)
        run(*closing(numbers), site.termfs, "serve", volume.path, seconds=120)
        volume.server = site.find_process("serve", volume.path)
        check(b"serving" in read_file(log)[logged:], f"{numbers} closed: the log")
        check(volume.status()["health"] == "ok", f"{numbers} closed: it serves")
        run(*closing(numbers), site.termfs, "mount", volume.path, path, "-o", f"fuse={site.fuse}", seconds=120)
        m = volume.mounted(path)
        write_file(m / "f", b"x" * 4096)
        volume.mounts.remove(m)
        run(*closing(numbers), site.termfs, "umount", path)
        volume.stop()
        foreground = site.start(*closing(numbers), site.termfs, "serve", volume.path, "--foreground")
        eventually(lambda: subprocess.run([site.termfs, "status", volume.path], capture_output=True, timeout=60,
                                          check=False).returncode == 0, f"{numbers} closed: it serves in the foreground")
        for number in numbers:
            check(os.readlink(f"/proc/{foreground.pid}/fd/{number}") == "/dev/null", f"{numbers} closed: {number}")
        foreground.terminate()
        check(foreground.wait(300) == 0, f"{numbers} closed: it ends in the foreground")
    os.rmdir(path)
    volume.serve()


def mask(pid, name):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1], 16) for line in status if line.startswith(name + ":"))


def case_ignored_signals_end_no_service(site):
    """As nohup wants it. SIGTERM ends one in any case; SIGHUP has a log file opened again, in any case, too."""
    need("nohup")
    volume = site.volume("64M")
    volume.stop()
    ignoring = ["sh", "-c", 'trap "" HUP INT TERM; exec "$@"', "sh"]
    run(*ignoring, site.termfs, "serve", volume.path)
    volume.server = site.find_process("serve", volume.path)
    m = volume.mount(at=ignoring)
    for pid in (volume.server, m.pid):
        check(mask(pid, "SigBlk") & 1 << signal.SIGINT - 1 == 0, f"SIGINT of {pid} is taken although it was ignored")
        for number in (signal.SIGHUP, signal.SIGINT):
            os.kill(pid, number)
    write_file(m / "f", b"x")
    check(not ended(m.pid) and volume.status()["health"] == "ok", "they go on")
    volume.mounts.remove(m)
    end(m)
    os.rmdir(m.path)
    volume.stop()
    run("nohup", site.termfs, "serve", volume.path, stdin=subprocess.DEVNULL)
    volume.server = site.find_process("serve", volume.path)
    os.kill(volume.server, signal.SIGHUP)
    check(volume.status()["health"] == "ok", "it goes on")
    os.kill(volume.server, signal.SIGINT)
    eventually(lambda: ended(volume.server), "one that nobody ignores ends it")
    volume.serve()


def log_of(path):
    return read_file(path).decode(errors="replace") if os.path.exists(path) else ""


def rotate(pid, log):
    """As logrotate does: what was logged goes away, and SIGHUP says so."""
    os.rename(log, log + ".1")
    os.kill(pid, signal.SIGHUP)
    eventually(lambda: "SIGHUP" in log_of(log), f"{log} is opened again")
    check("SIGHUP" not in log_of(log + ".1"), "the old one stays as it is")


def case_logs_are_rotated(site):
    volume = site.volume("64M")
    log = os.path.join(volume.path, "log")
    rotate(volume.server, log)
    run(site.termfs, "set", volume.path, "capacity=80M")
    check("80 MiB" in log_of(log) and "80 MiB" not in log_of(log + ".1"), "what is logged from then on")

    path = os.path.join(site.scratch, f"mnt{site.next_number()}")
    os.mkdir(path)
    mount_log = path + ".log"
    run(site.termfs, "mount", volume.path, path, "-o", f"fuse={site.fuse}", "--log", mount_log)
    m = volume.mounted(path)
    rotate(m.pid, mount_log)
    write_file(m / "f", b"x")
    check(not ended(m.pid) and not ended(volume.server), "both go on")
    volume.umount(m)
    check("unmounted" in log_of(mount_log), "the end of a mount")

    # Where others may write, a symbolic link is followed no more than at the start.
    elsewhere = os.path.join(site.scratch, "elsewhere")
    os.chmod(volume.path, 0o777)
    os.rename(log, log + ".2")
    os.symlink(elsewhere, log)
    os.kill(volume.server, signal.SIGHUP)
    eventually(lambda: "symbolic link" in log_of(log + ".2"), "it says why the log goes on where it was")
    check(not os.path.lexists(elsewhere), "it wrote where a link leads")
    os.chmod(volume.path, 0o755)
    os.unlink(log)
    os.kill(volume.server, signal.SIGHUP)
    eventually(lambda: "SIGHUP" in log_of(log), "the next one works")
    volume.stop()
    check("everything is on the SSD" in log_of(log), "the end of a server")


def case_hangup_ends_what_logs_to_its_terminal(site):
    volume = site.volume("64M")
    volume.stop()
    server = site.start(site.termfs, "serve", volume.path, "--foreground")
    eventually(lambda: subprocess.run([site.termfs, "status", volume.path], capture_output=True,
                                      check=False).returncode == 0, "it serves in the foreground")
    path = os.path.join(site.scratch, f"mnt{site.next_number()}")
    os.mkdir(path)
    mount = site.start(site.termfs, "mount", volume.path, path, "-o", f"fuse={site.fuse}", "--foreground")
    eventually(lambda: os.path.ismount(path), "it is mounted in the foreground")
    for process in (mount, server):
        process.send_signal(signal.SIGHUP)
        check(process.wait(60) == 0, "SIGHUP ends it in order")
    os.rmdir(path)
    volume.serve()


# In the place of fusermount3: somebody else is quicker.
LATE = """#!/bin/sh
touch "$ASKED"
while grep -qF " $MOUNTED " /proc/self/mountinfo; do sleep 0.05; done
echo "fusermount3: entry for $MOUNTED not found in /etc/mtab" >&2
exit 1
"""


def case_umount_where_somebody_else_was_quicker(site):
    need("setpriv")
    volume = site.volume("64M")
    m = volume.mount()
    programs = os.path.join(site.scratch, "late")
    os.mkdir(programs)
    asked = os.path.join(site.scratch, "asked")
    write_file(os.path.join(programs, "fusermount3"), LATE.encode())
    os.chmod(os.path.join(programs, "fusermount3"), 0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "ASKED": asked, "MOUNTED": m.path}
    late = site.start("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", site.termfs, "umount", m.path,
                      env=environment)
    eventually(lambda: os.path.exists(asked), "it asks fusermount3")
    run("umount", m.path)
    said = late.communicate(timeout=60)[0]
    check(late.returncode == 0 and "could not" not in said, f"what was to go has gone: {late.returncode}: {said}")
    check(ended(m.pid), "its process has ended")
    volume.mounts.remove(m)
    run(site.termfs, "umount", m.path, code=1)  # nothing is mounted there
    os.rmdir(m.path)
