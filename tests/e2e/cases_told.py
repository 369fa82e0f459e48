# SPDX-License-Identifier: Apache-2.0
"""A process changes a file on one mount and tells others of it, who read it on another mount by descriptors that they have
held all the time: what they were told of is there. The work is done by told_changes (told_changes_main.cc), which counts.
See docs/posix.md."""
import subprocess

from cases_stores import over_network
from volume import check

CHANGES = 12  # of a file: it is cached until it has changed a few times
FILES = 3
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
