# SPDX-License-Identifier: Apache-2.0
"""Random locks of ranges of a file by several owners on two mounts: each is granted or refused as on a local file."""
import errno
import fcntl
import os
import random
import struct

from cases_posix import write_file
from volume import check

OFD_GETLK, OFD_SETLK = 36, 37
OWNERS = 6  # open files; locks of open files conflict within a process
STEPS = 1500


def lock(fd, command, kind, start, length):
    """What is said: an errno, or for OFD_GETLK whether some lock is in the way."""
    request = struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)
    try:
        answer = fcntl.fcntl(fd, command, request)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "ok" if command == OFD_SETLK else struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK


def case_locks_random(site):
    volume = site.volume("64M")
    mounts = [volume.mount(), volume.mount()]
    write_file(mounts[0] / "f", b"x")
    local = os.path.join(site.scratch, "locked")
    write_file(local, b"x")
    places = [mount / "f" for mount in mounts]
    owners = [[os.open(places[number % 2], os.O_RDWR) for number in range(OWNERS)],
              [os.open(local, os.O_RDWR) for _ in range(OWNERS)]]
    chosen = random.Random(site.new_coherence_seed)
    history, granted = [], 0
    for _ in range(site.size(STEPS, STEPS // 3)):
        owner = chosen.randrange(OWNERS)
        command = chosen.choice((OFD_SETLK, OFD_SETLK, OFD_SETLK, OFD_GETLK))
        kind = chosen.choice((fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK) if command == OFD_SETLK else
                             (fcntl.F_RDLCK, fcntl.F_WRLCK))
        start = chosen.randrange(40)
        length = chosen.choice((0, 1, 1, 2, 5, chosen.randrange(1, 40)))
        said = [lock(group[owner], command, kind, start, length) for group in owners]
        history.append((owner, command, kind, start, length, said[0]))
        granted += said[0] == "ok"
        check(said[0] == said[1], f"seed {site.new_coherence_seed}: {said[0]} on termfs, {said[1]} on a local file, in "
              f"the last of {history[-12:]}")
        if chosen.random() < 0.02:  # its locks end with it
            for group, places_of in ((owners[0], places), (owners[1], [local] * 2)):
                os.close(group[owner])
                group[owner] = os.open(places_of[owner % 2], os.O_RDWR)
            # A close of termfs gives locks back a moment later: see "Not as ext4" in docs/posix.md.
            whole = (OFD_GETLK, fcntl.F_WRLCK, 0, 0)
            for other in range(OWNERS):
                for _ in range(2000):
                    if lock(owners[0][other], *whole) == lock(owners[1][other], *whole):
                        break
                    os.sched_yield()
    check(granted > 100, f"only {granted} were granted")
    for group in owners:
        for fd in group:
            os.close(fd)
