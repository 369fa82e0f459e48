# SPDX-License-Identifier: Apache-2.0
"""A process changes a file on one mount and tells others of it, who read it on another mount by descriptors that they have
held all the time: what they were told of is there. The work is done by told_changes (told_changes_main.cc), which counts;
and by shown_sizes (shown_sizes_main.cc), whose readers read all the time and check sizes. See docs/posix.md."""
import ctypes
import os
import struct
import subprocess

from cases_stores import over_network
from parity_calls import libc
from volume import check, run

CHANGES = 12  # of a file: it is cached until it has changed a few times
FILES = 3
SECONDS = 2  # of shown_sizes, for each way to change a file
AT_EMPTY_PATH, AT_STATX_DONT_SYNC, STATX_SIZE, SIZE_OFFSET = 0x1000, 0x4000, 0x200, 40
PACES = (0, 200, 2000)  # microseconds


def run_told(site, volume, modes=("free", "turns")):
    """With each pace when asked for long runs, otherwise the paces in turn."""
    a, b = volume.mount(), volume.mount()
    changes = subprocess.run([site.told_changes, "list"], capture_output=True, text=True, check=True).stdout.split()
    faults, number = [], 0
    for change in changes:
        for mode in modes:
            for readers in (1, 2):
                number += 1
                for pace in PACES if site.told_files else (PACES[number % len(PACES)],):
                    command = [site.told_changes, a / change, b / change, change, mode, str(readers), str(CHANGES), str(pace),
                               str(site.told_files or FILES)]
                    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
                    said = (done.stdout + done.stderr).strip()
                    if site.told_files:
                        print(f"     {said}", flush=True)
                    if done.returncode != 0:
                        faults.append(said)
    check(not faults, f"{len(faults)} runs at fault:\n" + "\n".join(faults))


def case_told_changes(site):
    run_told(site, site.volume())


def case_told_changes_over_network(site):
    run_told(site, over_network(site))


def size_in_kernel(fd):
    """What the kernel goes by, without asking."""
    buffer = ctypes.create_string_buffer(256)
    libc("statx", fd, b"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_SIZE, buffer)
    return struct.unpack_from("<Q", buffer, SIZE_OFFSET)[0]


def check_cuts_are_shown(a, b):
    """Also where no program asks its kernel; see "The size that a reader is shown" in docs/design_notes.md."""
    writer = os.open(a / "cut", os.O_CREAT | os.O_RDWR)
    os.pwrite(writer, b"x" * 10000, 0)
    reader = os.open(b / "cut", os.O_RDONLY)
    try:
        for size in (9000, 4096, 1, 0):
            check(len(os.pread(reader, 20000, 0)) > size, "the file is there")
            os.ftruncate(writer, size)
            check(size_in_kernel(reader) == size, f"a kernel goes by {size_in_kernel(reader)} bytes of {size}")
            os.pwrite(writer, b"x" * 10, size)
        os.close(os.open(a / "cut", os.O_WRONLY | os.O_TRUNC))
        check(size_in_kernel(reader) == 0, "O_TRUNC")
    finally:
        os.close(writer)
        os.close(reader)


def run_shown(site, a, b):
    check_cuts_are_shown(a, b)
    for how in ("append", "cut", "both"):
        run(site.shown_sizes, a / how, b / how, how, "2", str(site.told_files or SECONDS), seconds=7200)


def run_followed(site, volume):
    """A reader beside a writer that appends, on the same mount or another one, as `tail -f` is, sees nothing that was never
    written; nor when the file is emptied now and then."""
    a, b = volume.mount(), volume.mount()
    for other in (a, b):
        for records in (0, 600):  # after which the file is emptied
            name = f"log{records}{other is a}"
            done = subprocess.run([site.followed_file, a / name, other / name, str(site.size(4, 2)), str(records)],
                                  capture_output=True, text=True, check=False)
            print(f"     {'one mount' if other is a else 'two mounts'}, emptied after {records or 'no'} records: "
                  f"{done.stdout.strip()}", flush=True)
            check(done.returncode == 0, f"{done.stdout}{done.stderr}")


def case_followed_file(site):
    run_followed(site, site.volume("256M"))


def case_followed_file_over_network(site):
    run_followed(site, over_network(site))


def case_shown_sizes(site):
    volume = site.volume()
    run_shown(site, volume.mount(), volume.mount())


def case_shown_sizes_over_network(site):
    volume = over_network(site)
    run_shown(site, volume.mount(), volume.mount())
