# SPDX-License-Identifier: Apache-2.0
"""Stores through a shared mapping beside calls that change other bytes of the same page: neither may be lost. The work is
done by stores_beside (stores_beside_main.cc), which counts. See docs/posix.md."""
import subprocess

from volume import check

READERS = ("mapping", "rdwr", "rdonly", "open", "other")
STATES = ("hole", "filled", "hot")
SHORT = "0.05s"  # for a cell, in `./dev test`
LONGEST = 7200  # seconds that a cell may take


def over_network(site):
    """A volume whose mounts reach it over the loopback interface; softnic goes by UDP there."""
    volume = site.volume()
    volume.stop()
    return volume.serve("--listen", volume.listen_at("127.0.0.1"))


def cells(site, calls, thin):
    """Of (call, reader, state) those to run: all of them when asked for long runs, otherwise each call with each reader, the
    states in turn; with `thin`, each call once."""
    for index, call in enumerate(calls):
        if thin and not site.stores_rounds:
            yield call, READERS[index % len(READERS)], STATES[index % len(STATES)]
            continue
        for number, reader in enumerate(READERS):
            states = STATES if site.stores_rounds else (STATES[(index + number) % len(STATES)],)
            yield from ((call, reader, state) for state in states)


def run_cells(site, volume, options, thin=True):
    """All faults are collected before the case fails, because which calls lose says more than that one does."""
    a, b = volume.mount(options), volume.mount(options)
    calls = subprocess.run([site.stores_beside, "list"], capture_output=True, text=True, check=True).stdout.split()
    faults = []
    for call, reader, state in cells(site, calls, thin):
        if site.stores_calls and not any(text in call for text in site.stores_calls):
            continue
        name = f"{call}-{reader}-{state}"
        command = [site.stores_beside, a / name, call, reader, state, str(site.stores_rounds or SHORT), b / name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
        said = (done.stdout + done.stderr).strip()
        if site.stores_rounds:
            print(f"     {options or 'default'}: {said.splitlines()[-1] if said else done.returncode}", flush=True)
        if done.returncode != 0:
            faults.append(f"{call} {reader} {state}: {done.returncode}: {said}")
    check(not faults, f"{len(faults)} cells at fault:\n" + "\n".join(faults))


def case_stores_beside_calls(site):
    run_cells(site, site.volume(), "", thin=False)


def case_stores_beside_calls_without_cache(site):
    run_cells(site, site.volume(), "cache=none")


def case_stores_beside_calls_by_device(site):
    run_cells(site, site.volume(), "fuse=device")


def case_stores_beside_calls_over_network(site):
    run_cells(site, over_network(site), "")
