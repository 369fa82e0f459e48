# SPDX-License-Identifier: Apache-2.0
"""Two mounts of one volume, one of which is stopped or killed; or the server is: what the other one sees, and when."""
import os
import signal
import subprocess
import time

from cases_coherence import two_mounts
from cases_posix import refuses, write_file
from volume import WAIT, check, eventually, stop

LEASE = 15  # seconds: a lease of ten, its margin, and the call before


def case_stopped_holder(site):
    """A mount that is stopped delays others until its leases have ended, and has nothing old to tell afterwards."""
    a, b = two_mounts(site)
    write_file(a / "f", b"old")
    write_file(a / "g", b"old")
    check(os.stat(b / "f").st_size == 3 and os.stat(b / "g").st_size == 3, "looked at")
    refuses(2, os.stat, b / "missing")
    stop(b.pid)
    try:
        began = time.monotonic()
        os.chmod(a / "f", 0o600)
        os.unlink(a / "g")
        write_file(a / "missing", b"there")
        took = time.monotonic() - began
    finally:
        os.kill(b.pid, signal.SIGCONT)
    check(took < LEASE + WAIT, f"the others were delayed by {took:.1f} s")
    for name, wrong in (("f", lambda s: s.st_mode & 0o777 != 0o600), ("g", lambda s: True)):
        try:
            check(not wrong(os.stat(b / name)), f"{name} as it was before")
        except OSError as error:
            check(error.errno in (2, 107), f"{name}: {error}")
    try:
        check(os.stat(b / "missing").st_size == 5, "missing")
    except OSError as error:
        check(error.errno == 107, f"a name that was made meanwhile: {error}")
    check(os.stat(a / "f").st_mode & 0o777 == 0o600, "the other mount goes on")
    site.volumes[0].abandon(b)


def case_stopped_mount_is_asked(site):
    """Whoever asks a mount that is stopped is told so; whoever asks for the volume is told of the other mounts."""
    a, b = two_mounts(site)
    volume = site.volumes[0]
    stop(b.pid)
    try:
        began = time.monotonic()
        points = [session.get("mountpoint") for session in volume.status()["sessions"]]
        took = time.monotonic() - began
        asked = subprocess.run([site.termfs, "status", b.path], capture_output=True, text=True, timeout=120, check=False)
    finally:
        os.kill(b.pid, signal.SIGCONT)
    check(a.path in points and b.path not in points, f"described: {points}")
    check(took < 60, f"status took {took:.1f} s")
    check(asked.returncode == 1 and "does not answer" in asked.stderr, f"{asked.returncode}: {asked.stderr}")
    eventually(lambda: b.path in [session.get("mountpoint") for session in volume.status()["sessions"]], "it answers again")


def case_killed_holder(site):
    """Nobody waits for the leases of a mount that was killed. It is dead; what it still shows, it shows for a lease."""
    a, b = two_mounts(site)
    write_file(a / "f", b"old")
    os.stat(b / "f")
    os.kill(b.pid, signal.SIGKILL)
    began = time.monotonic()
    os.chmod(a / "f", 0o600)
    took = time.monotonic() - began
    check(took < LEASE - 5, f"the other was delayed by {took:.1f} s")

    def dead():
        try:
            os.close(os.open(b / "f", os.O_RDONLY))
        except OSError as error:
            return error.errno == 107  # 103, ECONNABORTED, while its last threads end
        return False

    eventually(dead, "a mount that was killed lives")

    def forgotten():
        try:
            return os.stat(b / "f").st_mode & 0o777 == 0o600
        except OSError as error:
            return error.errno == 107

    eventually(forgotten, "a mount that was killed shows what was, for longer than a lease")
    check(os.stat(a / "f").st_mode & 0o777 == 0o600, "the other mount goes on")
    site.volumes[0].abandon(b)


SHOW_MODE = "import os, sys; print(oct(os.stat(sys.argv[1]).st_mode & 0o777))"


def case_grants_of_a_killed_server_stopped_holder(site):
    """A restarted server does not know who was granted what: nothing returns while a kernel may show what was before."""
    a, b = two_mounts(site)
    volume = site.volumes[0]
    write_file(a / "f", b"x")
    os.chmod(a / "f", 0o644)
    check(os.stat(b / "f").st_mode & 0o777 == 0o644, "looked at")
    stop(b.pid)
    try:
        volume.kill()
        volume.serve()
        began = time.monotonic()
        os.chmod(a / "f", 0o600)
        took = time.monotonic() - began
        look = site.start("python3", "-c", SHOW_MODE, b / "f")
        time.sleep(1)  # what the kernel knows it shows at once; for the rest it waits for the mount
    finally:
        os.kill(b.pid, signal.SIGCONT)
    shown, _ = look.communicate(timeout=120)
    check(shown.strip() == "0o600", f"the other mount shows {shown.strip()}, after {took:.1f} s")
    check(took < LEASE + WAIT, f"the change was delayed by {took:.1f} s")


def case_grants_of_a_killed_server(site):
    """Mounts that come back have dropped what they were granted, also for what is open; nobody waits for a lease."""
    a, b = two_mounts(site)
    volume = site.volumes[0]
    write_file(a / "f", b"x")
    os.chmod(a / "f", 0o644)
    held = os.open(b / "f", os.O_RDONLY)
    try:
        volume.kill()
        volume.serve()
        for m, mode in ((a, 0o600), (b, 0o640), (a, 0o604)):
            os.fstat(held)
            began = time.monotonic()
            os.chmod(m / "f", mode)
            took = time.monotonic() - began
            check(os.fstat(held).st_mode & 0o777 == mode, "an open file shows what was before")
            check(os.stat(b / "f").st_mode & 0o777 == mode, "a name shows what was before")
            check(took < 10, f"the change was delayed by {took:.1f} s, a lease")
    finally:
        os.close(held)
