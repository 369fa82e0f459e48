# SPDX-License-Identifier: Apache-2.0
"""Random calls on three mounts of one volume, and whether they could have happened one by one. See docs/posix.md."""
import os
import signal
import time

from coherence import CALLS, Episodes, Violation, pause, seconds_of
from coherence_calls import BIRTHS, FAULTY, MAPPINGS
from volume import check, ended, eventually

OPTIONS = ("", "bitmap=pulled", "")  # of the mounts


def begin(site, name, share):
    """A seed that no run had before, or the one that was asked for; the seconds that this case has; what is left out."""
    seed = site.new_coherence_seed if site.coherence_seed is None else site.coherence_seed
    print(f"     {name}: seed {seed}", flush=True)
    return seed, site.coherence_seconds * share, () if site.coherence_all else FAULTY


def finish(episodes, name):
    episodes.tell(name)
    check(episodes.undecided * 50 <= episodes.number, f"{episodes.undecided} searches were given up")


def case_coherence_random(site):
    seed, seconds, left_out = begin(site, "coherence_random", 0.5)
    volume = site.volume("256M")
    with Episodes([volume.mount(options) for options in OPTIONS], seed, left_out) as episodes:
        for _ in seconds_of(seconds):
            episodes.run()
        finish(episodes, "coherence_random")


def case_coherence_killed_mount(site):
    """What a mount that is killed had begun may have happened or not, and nothing else is otherwise."""
    seed, seconds, left_out = begin(site, "coherence_killed_mount", 0.25)
    volume = site.volume("256M")
    mounts = [volume.mount(options) for options in OPTIONS]
    with Episodes(mounts, seed, (*left_out, *BIRTHS)) as episodes:
        for _ in seconds_of(seconds):
            lost = mounts[-1]

            def kill(lost=lost):
                pause(seed + episodes.number, 0.2)
                os.kill(lost.pid, signal.SIGKILL)
                since = time.monotonic_ns()
                eventually(lambda: ended(lost.pid), "the mount's process ends")
                return since

            episodes.run(kill, lost)
            eventually(lambda lost=lost: ended(lost.pid), "the mount is dead")
            episodes.end_processes()
            volume.abandon(lost)
            mounts = mounts[:-1] + [volume.mount()]
            episodes.begin_on(mounts)
        finish(episodes, "coherence_killed_mount")


def case_coherence_killed_server(site):
    """No call fails, and none happens twice, when the server is killed and started again. Without mappings: mounts that
    store through them in the same file wait for one another, and may be expelled by a server that has just begun."""
    seed, seconds, left_out = begin(site, "coherence_killed_server", 0.25)
    volume = site.volume("256M")
    with Episodes([volume.mount(options) for options in OPTIONS], seed, (*left_out, *MAPPINGS)) as episodes:

        def restart():
            pause(seed + episodes.number, 0.2)
            began = time.monotonic_ns()
            volume.kill()
            died = time.monotonic_ns()
            volume.serve()
            return began, died

        for _ in seconds_of(seconds):
            episodes.run(restart, count=2 * CALLS)
        finish(episodes, "coherence_killed_server")


def case_coherence_old_news(site):
    """A test of the test: one of the processes notes what it was told the time before."""
    volume = site.volume("256M")
    with Episodes([volume.mount(), volume.mount()], site.new_coherence_seed, liar=2) as episodes:
        try:
            for _ in range(20):
                episodes.run()
        except Violation as violation:
            check("no order explains" in str(violation), str(violation))
            return
    raise AssertionError("old results were not noticed")
