# SPDX-License-Identifier: Apache-2.0
"""Several processes on several mounts of one volume make random calls on the same few files and names; what they noted
must be linearizable, object by object. It goes in episodes, each with files of its own, so that every search is small."""
import collections
import multiprocessing
import os
import random
import shutil
import time

from coherence_calls import MAPPINGS, Caller, Run, old_news, prepare
from coherence_models import Names
from linearize import linearize, shown, shrink

CALLERS = 2  # processes for each mount
CALLS = 150  # of a process in an episode
SHOWN = 30  # of the calls that no order explains, the last ones
ANSWER = 300  # seconds that an episode may take


class Violation(Exception):
    """What no order of the calls explains."""


class Process:
    """A caller in a process of its own, so that calls overlap as those of programs do."""

    def __init__(self, context, number, mount, gate, old):
        self.number, self.mount, self.old = number, mount, old
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=self.serve, args=(there, gate), daemon=True)
        self.process.start()
        there.close()

    def serve(self, pipe, gate):
        while True:
            try:
                root, seed, count, left_out = pipe.recv()
            except EOFError:
                return
            try:
                caller = Caller(self.number, root, seed, left_out)
                gate.wait(ANSWER)
                run = caller.run(count)
                caller.close()
                pipe.send(old_news(run) if self.old else run)
            except Exception as error:  # pylint: disable=broad-except
                pipe.send(repr(error))

    def result(self):
        if not self.pipe.poll(ANSWER):
            raise Violation(f"process {self.number}: no answer after {ANSWER} s")
        try:
            run = self.pipe.recv()
        except EOFError:
            self.process.join()
            raise Violation(f"process {self.number} ended with {self.process.exitcode}") from None
        if not isinstance(run, Run):
            raise Violation(f"process {self.number}: {run}")
        return run

    def end(self):
        self.pipe.close()
        self.process.kill()  # other signals are exceptions here, which a process that is just starting loses
        self.process.join()


class Episodes:
    """Runs episodes and verifies them. `left_out`: kinds of calls. `liar`: the number of a process that notes old results."""

    def __init__(self, mounts, seed, left_out=(), liar=None):
        self.seed, self.left_out, self.liar, self.number = seed, left_out, liar, 0
        self.calls, self.undecided = 0, 0
        self.processes = []
        self.begin_on(mounts)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end_processes()

    def begin_on(self, mounts):
        """New processes, on these mounts."""
        self.end_processes()
        self.mounts = mounts
        context = multiprocessing.get_context("fork")
        numbers = range(len(mounts) * CALLERS)
        self.gate = context.Barrier(len(numbers) + 1)
        self.processes = [Process(context, number, mounts[number % len(mounts)], self.gate, number == self.liar)
                          for number in numbers]

    def end_processes(self):
        for process in self.processes:
            process.end()
        self.processes = []

    def run(self, meanwhile=None, lost=None, count=CALLS):
        """One episode. `meanwhile()` is called while calls are made; it returns since when the mount `lost` is dead, or
        between which times the server died. Processes on `lost` have no mappings, which would end them."""
        self.number += 1
        name = f"episode{os.getpid()}-{self.number}"
        root = self.mounts[0] / name
        os.mkdir(root)
        models = prepare(root)
        for process in self.processes:
            seed = self.seed * 1_000_003 + self.number * 1009 + process.number
            left_out = (*self.left_out, *(MAPPINGS if process.mount is lost else ()))
            process.pipe.send((process.mount / name, seed, count, left_out))
        self.gate.wait(ANSWER)
        since = meanwhile() if meanwhile else None
        histories = collections.defaultdict(list)
        for process in self.processes:
            run = process.result()
            gone = process.mount is lost
            if run.stopped and not gone:
                raise Violation(f"process {process.number} on {process.mount.path} failed with {run.stopped}:"
                                f"{shown([call for _, call in run.calls[-5:]])}")
            for thing, call in run.calls:
                if since is not None and lost is None and call.began < since[1] and call.ended > since[0]:
                    histories[thing] += second_time(call)
                    call = call._replace(name=call.name + Names.ACROSS) if call.name == "create" else call
                # What a dead mount still shows, its kernel shows by itself: that is not compared.
                if not gone or call.ended is None or call.ended < since or call.name not in models[thing].READS:
                    histories[thing].append(call)
        self.verify(models, histories)
        if lost is not self.mounts[0]:
            shutil.rmtree(root)

    def verify(self, models, histories):
        for thing, calls in histories.items():
            self.calls += len(calls)
            calls = models[thing].with_doubts(calls)
            verdict = linearize(calls, models[thing])
            if verdict.holds is None:
                self.undecided += 1
                print(f"     coherence: seed {self.seed}, episode {self.number}, {thing}: {verdict.trouble}", flush=True)
            elif not verdict.holds:
                fewer = shrink(calls, models[thing])
                trouble = linearize(fewer, models[thing]).trouble
                who = ", ".join(f"{process.number} on {process.mount.path}" for process in self.processes)
                raise Violation(f"seed {self.seed}, episode {self.number}: no order explains these calls on "
                                f"{thing}; {trouble}. Processes: {who}. Microseconds:{shown(fewer[-SHOWN:])}")

    def tell(self, name):
        print(f"     {name}: {self.number} episodes, {self.calls} calls on objects, {self.undecided} searches given up",
              flush=True)


def second_time(call):
    """What a call may do once more when the server was killed before it had ended. See "Once" in the design notes."""
    return [call._replace(ended=None)] if call.name in ("write", "put") else []


def seconds_of(seconds):
    """Yields until so many have gone by; at least once."""
    deadline = time.monotonic() + seconds
    yield
    while time.monotonic() < deadline:
        yield


def pause(seed, longest):
    time.sleep(random.Random(seed).uniform(0, longest))
