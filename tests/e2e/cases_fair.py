# SPDX-License-Identifier: Apache-2.0
"""What clients that are slow, frozen or greedy cost the others of a server. See "Shares of a worker" in docs/design_notes.md."""
import mmap
import os
import threading
import time

from cases_network import through_a_proxy
from volume import check

MOUNTS = 6  # of one host
WRITERS = 48  # more than workers have buffers for bytes of clients
MIB = 1 << 20


def direct_write(path, buffer, offset=0):
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
    try:
        os.pwrite(fd, buffer, offset)
    finally:
        os.close(fd)


def case_fair_frozen_client(site):
    """Clients on another host whose bytes stop coming in the middle of many writes: others do not wait for them."""
    with through_a_proxy(site) as (volume, proxy):
        frozen = [volume.mount() for _ in range(MOUNTS)]
        address, volume.address = volume.address, [volume.path]
        near = volume.mount()
        volume.address = address
        buffer = mmap.mmap(-1, MIB)
        direct_write(near / "near", buffer)  # what the other knows of the directory is asked back for no name
        ending = threading.Event()

        def write_on(number):
            while not ending.is_set():
                direct_write(frozen[number % MOUNTS] / f"frozen{number}", buffer)

        writers = [threading.Thread(target=write_on, args=(number,)) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        slowest = 0
        try:
            time.sleep(1)
            proxy.stopped.add("to server")
            time.sleep(0.5)
            until = time.monotonic() + 4
            while time.monotonic() < until:
                began = time.monotonic()
                direct_write(near / "near", buffer)
                with open(near / "near", "rb", buffering=0) as file:
                    check(len(file.read(MIB)) == MIB, "it is read")
                slowest = max(slowest, time.monotonic() - began)
        finally:
            proxy.stopped.clear()
            ending.set()
            for writer in writers:
                writer.join()
        print(f"     fair_frozen_client: the slowest write and read of another took {slowest:.2f} s", flush=True)
        check(slowest < 2, f"another client waited for {slowest:.1f} s")
