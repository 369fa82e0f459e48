# SPDX-License-Identifier: Apache-2.0
"""Whether calls that overlapped could have happened one by one: linearizability, by the search of Wing and Gong with
Lowe's memory of where it has been. Each object is searched by itself, for a history is linearizable if and only if that
of each object is. What an object is and does, says a model: `initial`, its state; `step(state, call)`, the state
afterwards, or REFUSED if the call cannot have this result then; `READS`, names of calls that never change it. States are
hashable. A call whose outcome nobody knows (`ended` is None) may have happened at any time since it began, or never.

`CACHED` names those of the reads that a kernel answers from what it keeps; calls that failed are taken for such, too. What
has returned binds them as it binds others, if it changes what they ask for: `touched(call)` tells both, as a set. But of a
change that has not returned they may still show what was before when another read has shown it already, and the other way
round (a register that is read so is called regular). `IDLE` names calls that may as well have done
nothing, because of what a kernel keeps: then they are such reads."""
import collections
import math

# `process`: who made it; `began`, `ended`: nanoseconds of CLOCK_MONOTONIC.
Call = collections.namedtuple("Call", ("process", "name", "arguments", "result", "began", "ended"))
Failed = collections.namedtuple("Failed", ("errno",))  # the result of a call that failed and did nothing, with its errno
# `holds`: True, False, or None when the search was given up; `trouble`: what cannot be put in order.
Verdict = collections.namedtuple("Verdict", ("holds", "trouble", "steps"))
REFUSED = object()
MOST_STEPS = 100_000


class Search:
    """One history of one object."""

    def __init__(self, calls, model):
        self.model = model
        ordered = sorted(calls, key=lambda call: call.began)
        self.known = [call for call in ordered if call.ended is not None]
        # One that may have read is as good as one that did not.
        self.unknown = [call for call in ordered if call.ended is None and call.name not in model.READS]
        self.before = [self.mask(call, self.binds) for call in self.known]  # of each: which ones must come before, as bits
        self.before_idle = {index: self.mask(call, self.binds_idle) for index, call in enumerate(self.known)
                            if call.name in model.IDLE}
        self.deepest = (-1, None, None)  # how many, which, the state then

    def run(self, most_steps):
        every = (1 << len(self.known)) - 1
        stack, seen = [(0, 0, self.model.initial)], set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            if len(seen) == most_steps:
                return Verdict(None, f"given up after {most_steps} steps", most_steps)
            seen.add(node)
            done, _, state = node
            if done == every:
                return Verdict(True, "", len(seen))
            depth = done.bit_count()
            if depth > self.deepest[0]:
                self.deepest = (depth, done, state)
            stack += self.following(*node)
        return Verdict(False, self.describe(), len(seen))

    def mask(self, call, binds):
        bits = 0
        for index, other in enumerate(self.known):
            if other.began >= call.began:
                break
            if other.ended < call.began and binds(other, call):
                bits |= 1 << index
        return bits

    def binds(self, former, call):
        """What was seen or done by a former call is there for this one."""
        if self.looks_only(former) and self.looks_only(call):
            return not self.cached(former) and not self.cached(call)
        return not self.cached(call) or bool(self.model.touched(former) & self.model.touched(call))

    def binds_idle(self, former, call):
        return not self.looks_only(former) and bool(self.model.touched(former) & self.model.touched(call))

    def cached(self, call):
        return call.name in self.model.CACHED or isinstance(call.result, Failed)

    def looks_only(self, call):
        """It never changes anything, in whichever order; unlike a write of what is there already."""
        return call.name in self.model.READS or isinstance(call.result, Failed)

    def first(self, done):
        """Indices of known calls, not done, that none of the others must come before; and when the first of all these
        ended."""
        left = [index for index in range(len(self.known)) if not done >> index & 1]
        limit = min((self.known[index].ended for index in left), default=math.inf)
        return [index for index in left if self.before[index] & ~done == 0], limit

    def following(self, done, maybe, state):
        """Where the search may go on, the likeliest last."""
        indices, limit = self.first(done)
        nodes = [(done | 1 << index, maybe, state) for index, before in self.before_idle.items()
                 if not done >> index & 1 and before & ~done == 0]
        for index in sorted(indices, key=lambda index: self.known[index].ended):
            after = self.model.step(state, self.known[index])
            if after is REFUSED:
                continue
            node = (done | 1 << index, maybe, after)
            if after == state and self.looks_only(self.known[index]):
                return [node]  # it may as well be first: no order of the others is lost by it
            nodes.append(node)
        for index, call in enumerate(self.unknown):
            if call.began > limit:
                break
            if not maybe >> index & 1:
                after = self.model.step(state, call)
                if after is not REFUSED and after != state:
                    nodes.append((done, maybe | 1 << index, after))
        return nodes[::-1]

    def describe(self):
        _, done, state = self.deepest
        left = [self.known[index] for index in self.first(done)[0]]
        return f"of state {state!r} none of these can be next: " + "; ".join(f"{c.name}{c.arguments}" for c in left)


def linearize(calls, model, most_steps=MOST_STEPS):
    return Search(calls, model).run(most_steps)


def overlapping(call, calls):
    """Those of the others that had neither ended before it began nor began after it had ended."""

    def end(one):
        return math.inf if one.ended is None else one.ended

    return [other for other in calls if other is not call and other.began <= end(call) and call.began <= end(other)]


def until(calls, time):
    """What had begun by then; of what had not ended, the outcome is not known. What happened until a time is
    linearizable if all of it is."""
    return [call if call.ended is not None and call.ended <= time else call._replace(result=None, ended=None)
            for call in calls if call.began <= time]


def shrink(calls, model, most_steps=MOST_STEPS):
    """Fewer calls of a history that is not linearizable, which are not either: nothing that came later, no reads that do
    not matter."""

    def fails(some):
        return linearize(some, model, most_steps).holds is False

    ends = sorted(call.ended for call in calls if call.ended is not None)
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(until(calls, ends[middle])) else (middle + 1, high)
    fewer = until(calls, ends[high])
    fewer = fewer if fails(fewer) else list(calls)
    for call in [call for call in fewer if call.name in model.READS]:
        less = [other for other in fewer if other is not call]
        fewer = less if call.ended is None or fails(less) else fewer
    return sorted(fewer, key=lambda call: call.began)


def shown(calls):
    """A line for each, times in microseconds since the first."""
    text, zero = "", min((call.began for call in calls), default=0)
    for call in calls:
        end = "?" if call.ended is None else f"{(call.ended - zero) / 1000:.1f}"
        outcome = "outcome unknown" if call.ended is None else repr(call.result)
        text += f"\n         {(call.began - zero) / 1000:9.1f} .. {end:>9}  {call.process}: {call.name}{call.arguments}" \
            f" -> {outcome}"
    return text
