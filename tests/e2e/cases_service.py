# SPDX-License-Identifier: Apache-2.0
"""The command, and the life and death of servers and mounts."""
import errno
import json
import os
import re
import signal
import subprocess
import time

from cases_posix import MIB, error_of, read_file, refuses, write_file
from volume import WAIT, alone, check, ended, eventually, need, need_less_than, run


def failure(site, code, *arguments):
    done = subprocess.run([site.termfs, *arguments], capture_output=True, text=True, timeout=60, check=False)
    check(done.returncode == code, f"termfs {' '.join(arguments)}: {done.returncode}, not {code}: {done.stderr}")
    return done.stderr + done.stdout


def case_command_help(site):
    check(run(site.termfs, "--version").startswith("termfs "), "--version")
    for command in ("format", "serve", "mount", "umount", "status", "stats", "set", "quota", "quota set", "quota get", "quota list", "fsck"):
        said = run(site.termfs, *command.split(), "--help")
        check("Usage" in said and said.count("Exit codes: 0 ok, 1 failed, 2 bad usage.") == 1, f"{command} --help: {said}")
    for command, says in (("serve", "SIGTERM"), ("format", "a file, which is made"), ("format", "with --device: overwrite"),
                          ("serve", "1 to 64; this time, instead of the volume's setting"),
                          ("umount", "With --lazy it never waits"), ("mount", "relatime, atime"), ("mount", "silent, comment=")):
        check(says in run(site.termfs, command, "--help"), f"{command} --help says: {says}")
    for option in ("-h", "--help"):
        check(run(site.helper, option).startswith("usage: mount.termfs ADDR MOUNTPOINT"), f"mount.termfs {option}")
    wrong = subprocess.run([site.helper, "--bogus"], capture_output=True, text=True, timeout=60, check=False)
    check(wrong.returncode == 1 and "--bogus" in wrong.stderr and "\nusage: mount.termfs ADDR" in wrong.stderr,
          f"mount.termfs --bogus: {wrong.returncode}: {wrong.stderr}")
    check(re.search(r"\n  cache=granted\|none      attributes", run(site.termfs, "mount", "--help")), "columns of mount --help")
    failure(site, 2)
    failure(site, 2, "frobnicate")
    failure(site, 2, "format", os.path.join(site.scratch, "x"), "--capacity", "-1")
    failure(site, 2, "format", os.path.join(site.scratch, "x"), "--capacity", "8X")
    failure(site, 2, "format", os.path.join(site.scratch, "x"))
    failure(site, 2, "format", os.path.join(site.scratch, "x"), "--capacity", "1G", "--dram-ratio", "2")
    failure(site, 1, "status", "/nonexistent")
    failure(site, 1, "fsck", "/tmp")
    check("--secret is missing" in failure(site, 2, "status", "host:4000"), "an address over a network")


def case_command_mount_errors(site):
    volume = site.volume("64M")
    empty = os.path.join(site.scratch, "empty")
    full = os.path.join(site.scratch, "full")
    os.mkdir(empty)
    os.makedirs(os.path.join(full, "something"))
    check("wombat" in failure(site, 2, "mount", volume.path, empty, "-o", "rw,wombat"), "the unknown option is named")
    failure(site, 2, "mount", volume.path, empty, "-o", "bitmap=perhaps")
    failure(site, 1, "mount", volume.path, os.path.join(site.scratch, "none"))
    check("empty" in failure(site, 1, "mount", volume.path, full), "a mount point in use")
    failure(site, 1, "mount", volume.path, "/dev/null")
    failure(site, 1, "umount", empty)
    failure(site, 1, "serve", volume.path)
    failure(site, 1, "fsck", volume.path)
    failure(site, 1, "format", volume.path, "--capacity", "64M")
    volume.stop()
    failure(site, 1, "mount", volume.path, empty)
    failure(site, 1, "status", volume.path)
    with open(os.path.join(volume.path, "termfs.toml"), "a", encoding="ascii") as file:
        file.write("\nno-such-key = 1\n")
    check("no-such-key" in failure(site, 1, "serve", volume.path), "an unknown key of termfs.toml is named")
    text = read_file(os.path.join(volume.path, "termfs.toml")).decode().replace("\nno-such-key = 1\n", "")
    write_file(os.path.join(volume.path, "termfs.toml"), text.encode())
    os.rmdir(empty)


def case_command_json(site):
    volume = site.volume("64M", 0.5)
    m = volume.mount()
    write_file(m / "f", b"x" * MIB)
    read_file(m / "f")
    status = volume.status()
    check(status["capacity_bytes"] == 64 * MIB and status["dram_ratio"] == 0.5 and status["health"] == "ok", str(status))
    check([session["pid"] for session in status["sessions"]] == [m.pid], str(status["sessions"]))
    check(status["pid"] == volume.server, f"the server's process: {status}")
    people = run(site.termfs, "status", volume.path)
    check(volume.path in people and f"(pid {volume.server}), up " in people, f"status for people: {people}")
    check(json.loads(run(site.termfs, "status", m.path, "--json"))["server"]["pid"] == volume.server, "asked by the mount")
    samples = run(site.termfs, "stats", m.path, "--json", "--count", "2", "--interval", "0.1").splitlines()
    check(len(samples) == 2 and all({"mount", "server"} <= json.loads(line).keys() for line in samples), samples[0])


def case_set_takes_a_mount_point(site):
    volume = site.volume("64M", 0.5)
    m = volume.mount()
    run(site.termfs, "set", m.path, "dram-ratio=0.25")
    check(volume.status()["dram_ratio"] == 0.25, "the volume that is mounted there")


def case_log_tells_lost_clients_from_others(site):
    need_less_than(site.scratch, 3 << 40)
    volume = site.volume("64M")
    m = volume.mount()
    for command in (["status", volume.path], ["stats", m.path, "--count", "1"], ["set", volume.path, "promoter=recent"]):
        run(site.termfs, *command)
    failure(site, 1, "set", volume.path, "capacity=3T")  # answered with an error
    other = volume.mount()
    volume.umount(other)
    eventually(lambda: len(volume.status()["sessions"]) == 1, "the second mount's session has gone")
    log = read_file(os.path.join(volume.path, "log")).decode()
    check("session" not in log and "not connected" not in log, f"nothing is wrong: {log}")
    os.kill(m.pid, signal.SIGKILL)
    eventually(lambda: f"(pid {m.pid}) is lost" in read_file(os.path.join(volume.path, "log")).decode(),
               "the log tells of a mount that was killed")
    volume.abandon(m)


def case_command_names_the_transport(site):
    volume = site.volume("64M")
    expected = "io_uring" if site.fuse == "io_uring" else "/dev/fuse"
    m = volume.mount()
    described = m.describe()
    check(described["fuse"] == expected and described["libfuse"][:2] == "3.", str(described))
    rings = int(described["fuse_ring_requests_total"])
    check((rings > 0) == (site.fuse == "io_uring"), str(described))
    session = volume.status()["sessions"][0]
    check((session["fuse"], session["libfuse"], session["mountpoint"]) == (expected, described["libfuse"], m.path),
          str(session))
    people = run(site.termfs, "status", volume.path)
    check(f"fuse: {expected}, libfuse {described['libfuse']}" in people, people)
    sample = json.loads(run(site.termfs, "stats", m.path, "--json", "--count", "1"))
    check((sample["fuse"], sample["libfuse"]) == (expected, described["libfuse"]), str(sample))
    other = os.path.join(site.scratch, "logged")
    log = other + ".log"
    os.mkdir(other)
    run(site.termfs, "mount", volume.path, other, "--log", log, "-o", f"fuse={site.fuse}")
    volume.mounted(other)
    lines = read_file(log).decode().splitlines()
    check(any(f"fuse: {expected}, libfuse" in line for line in lines), "the log names the transport")
    check(lines and all(f" {other}: " in line for line in lines), f"each line is the mount's: {lines}")
    device = volume.mount("fuse=device")
    check(device.describe()["fuse"] == "/dev/fuse", "the device was asked for")
    check("fuse=" in failure(site, 2, "mount", volume.path, other, "-o", "fuse=pigeon"), "an unknown transport")


def case_mount_read_only(site):
    volume = site.volume("64M")
    m = volume.mount()
    write_file(m / "f", b"x")
    volume.umount(m)
    m = volume.mount("ro")
    check(read_file(m / "f") == b"x", "reading")
    refuses(errno.EROFS, os.unlink, m / "f")


def case_mount_dev_suid(site):
    volume = site.volume("64M")
    m = volume.mount("dev,suid")
    flags = os.statvfs(m.path).f_flag
    check(flags & os.ST_NOSUID == 0 and flags & os.ST_NODEV == 0, "options dev and suid")
    volume.umount(m)
    flags = os.statvfs(volume.mount().path).f_flag
    check(flags & os.ST_NOSUID and flags & os.ST_NODEV, "nodev and nosuid unless told otherwise")


def case_remount_and_restart_see_data(site):
    volume = site.volume("512M", 0.2)
    m = volume.mount()
    data = {f"f{i}": os.urandom((i + 1) * 777_777) for i in range(20)}
    for name, content in data.items():
        write_file(m / name, content)
    volume.umount(m)
    m = volume.mount()
    check(all(read_file(m / name) == content for name, content in data.items()), "after a remount")
    volume.umount(m)
    volume.stop()
    volume.fsck()
    volume.serve()
    m = volume.mount()
    check(all(read_file(m / name) == content for name, content in data.items()), "after a restart of the server")


def case_sigterm_flushes(site):
    volume = site.volume("256M")
    m = volume.mount()
    write_file(m / "f", b"x" * (16 * MIB))
    os.kill(m.pid, signal.SIGTERM)
    eventually(lambda: ended(m.pid), "the mount ends after SIGTERM")
    check(not os.path.ismount(m.path), "it is unmounted")
    volume.mounts.remove(m)
    check(read_file(volume.mount() / "f") == b"x" * (16 * MIB), "its data")


def case_server_outlives_the_reader_of_its_log(site):
    """serve --foreground 2>&1 | tee log, and Ctrl-C: tee has ended before the server has written what is in memory."""
    volume = site.volume("64M")
    m = volume.mount()
    write_file(m / "f", b"x" * MIB)
    volume.umount(m)
    volume.stop()
    server = subprocess.Popen([site.termfs, "serve", volume.path, "--foreground"], stderr=subprocess.PIPE)
    site.remember(server.pid)
    check(any(b"serving" in line for line in server.stderr), "it serves")
    server.stderr.close()
    check(not read_file(os.path.join(volume.path, "kept")).endswith(b" 0\n"), "it uses its memory")
    server.send_signal(signal.SIGTERM)
    check(server.wait(WAIT) == 0, f"exit code {server.returncode}")
    check(read_file(os.path.join(volume.path, "kept")).endswith(b" 0\n"), "a clean stop")
    volume.serve()
    check(read_file(volume.mount() / "f") == b"x" * MIB, "its data")


def case_kill_client(site):
    volume = site.volume("256M")
    victim, witness = volume.mount(), volume.mount()
    writer = site.start("dd", "if=/dev/zero", f"of={victim / 'f'}", "bs=64k", "count=100000")
    eventually(lambda: os.path.exists(witness / "f") and os.stat(witness / "f").st_size > 0, "the writer writes")
    os.kill(victim.pid, signal.SIGKILL)
    writer.wait(timeout=60)
    # What was under way when the process died is aborted; from then on there is nobody to ask.
    eventually(lambda: error_of(os.listdir, victim.path) == errno.ENOTCONN, "the mount is dead")
    write_file(witness / "g", b"still here")
    check(read_file(witness / "g") == b"still here", "the other mount goes on")
    eventually(lambda: [s["pid"] for s in volume.status()["sessions"]] == [witness.pid], "the dead session is gone")
    run(site.termfs, "umount", victim.path)
    volume.mounts.remove(victim)
    volume.umount(witness)
    eventually(lambda: volume.status()["sessions"] == [], "no session is left")
    volume.stop()
    volume.fsck()


def case_kill_server(site):
    volume = site.volume("64M")
    m = volume.mount("timeout=5,reconnect=1")
    write_file(m / "f", b"x")
    fd = os.open(m / "f", os.O_RDONLY)
    os.kill(volume.server, signal.SIGKILL)
    eventually(lambda: ended(volume.server), "the server is dead")
    volume.server = None
    began = time.monotonic()
    for call in (lambda: os.stat(m / "f"), lambda: os.pread(fd, 1, 0), lambda: os.listdir(m.path)):
        try:
            call()
            raise AssertionError("an operation succeeded without a server")
        except OSError as error:
            check(error.errno == errno.EIO, f"{errno.errorcode[error.errno]}")
    check(time.monotonic() - began < 20, "operations answer promptly without a server")
    os.close(fd)
    volume.umount(m)
    volume.serve()


@alone
def case_ratio_change_under_load(site):
    need("fio")
    volume = site.volume("512M", 0.5)
    m = volume.mount()
    load = site.start("fio", "--name=load", f"--directory={m.path}", "--size=64m", "--numjobs=2", "--rw=randrw",
                      "--bs=4k", "--direct=1", "--verify=crc32c", "--verify_fatal=1", "--verify_backlog=128",
                      "--fallocate=none", "--minimal", cwd=site.scratch)
    ratios = (0.05, 0.8, 0.1, 1, 0.3)
    for ratio in ratios:
        run(site.termfs, "set", volume.path, f"dram-ratio={ratio}")
        check(abs(volume.status()["dram_ratio"] - ratio) < 1e-6, f"dram-ratio={ratio}")
    run(site.termfs, "set", volume.path, "pattern=random", "promoter=recent")
    run(site.termfs, "set", volume.path, "promoter=heat")
    failure(site, 2, "set", volume.path, "dram-ratio=7")
    failure(site, 2, "set", volume.path, "colour=blue")
    output, _ = load.communicate(timeout=300)
    check(load.returncode == 0, f"fio: {output[-500:]}")
    tier = volume.status()
    check(tier["tier_used_bytes"] <= 0.31 * 512 * MIB, f"the tier keeps its budget: {tier['tier_used_bytes']}")
