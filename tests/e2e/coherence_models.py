# SPDX-License-Identifier: Apache-2.0
"""What the objects of a volume are and do, for linearize.py: pages, small files, sizes, attributes, names."""
from linearize import REFUSED, Failed, overlapping

UNBORN = "inode of a call that did not tell"  # of a create whose outcome is not known


def mix(taken, written, stored):
    """The bytes of numbers of eight bytes: those stored where the store has changed what it took, else those written."""
    parts = zip(*(number.to_bytes(8, "little") for number in (taken, written, stored)))
    return int.from_bytes(bytes(was if now == old else now for old, was, now in parts), "little")


class Model:
    """Of an object that is looked at and changed as a whole."""
    CACHED = IDLE = ()

    def touched(self, _):
        return {0}

    @staticmethod
    def with_doubts(calls):
        """The history, with what calls may have done beside what they say."""
        return calls


class Page(Model):
    """A part of a file that is read and written at once, in `parts`; the state is what is in each of them.

    write(((part, value), ...)) -> None; read((part, ...)), load((part, ...)) -> ((part, value), ...); load reads from a
    mapping."""
    READS, CACHED = ("read", "load"), ("load",)

    def __init__(self, values):
        self.initial = tuple(values)

    def step(self, state, call):
        if call.name in self.READS:
            return state if all(state[part] == value for part, value in call.result) else REFUSED
        after = list(state)
        for part, value in call.arguments:
            after[part] = value
        return tuple(after)


class Stored(Page):
    """A page that is also stored to through mappings: store(((part, value),)) -> None, beside Page's calls.

    A kernel takes the page for changed from the moment in which it lets a store happen. If the page is written back before
    the store has happened, because somebody else wants it dropped, or another process of the mount syncs it, then what the
    mount had read is written once more. So beside other writes a store may take the page as it is (dirty), and put it back
    (spill), before its own value gets there. Or its mount finds out byte by byte what was stored and what another call has
    written meanwhile, and takes a byte that the store leaves as it was for one that is not stored (mix). The state: what is
    in each part, what was taken for which stores, and which stores have happened."""
    IDLE = ("dirty", "spill", "mix")

    def __init__(self, values):
        super().__init__(values)
        self.initial = (tuple(values), frozenset(), frozenset())

    @staticmethod
    def with_doubts(calls):
        doubtful = []
        for call in [call for call in calls if call.name == "store"]:
            beside = [other.began for other in overlapping(call, calls) if other.name in ("store", "write")]
            if beside:
                dirty = call._replace(name="dirty", began=min(call.began, *beside))
                doubtful += [dirty, call._replace(name="spill"), call._replace(name="mix")]
        return [*calls, *doubtful]

    def step(self, state, call):
        values, taken, stored = state
        if call.name in self.READS:
            return state if super().step(values, call) is values else REFUSED
        if call.name == "write":
            return super().step(values, call), taken, stored
        before = [one for one in taken if one[0] == call.arguments]
        left = taken.difference(before)
        if call.name == "store":
            after = values if call.arguments in stored else super().step(values, call)  # else it was mixed
            return after, left, stored | {call.arguments}
        if call.arguments in stored or bool(before) != (call.name != "dirty"):
            return REFUSED
        if call.name == "mix":
            ((part, value),) = call.arguments
            mixed = call._replace(arguments=((part, mix(before[0][1][part], values[part], value)),))
            return super().step(values, mixed), left, stored | {call.arguments}
        return (values, taken | {(call.arguments, values)}, stored) if not before else (before[0][1], left, stored)


class Small(Model):
    """A file of less than a page: its bytes.

    append(bytes), cut(size), put(offset, bytes) -> None; content() -> bytes; size() -> bytes' number. A put across the
    end is two changes, as on other file systems: put_inside(offset, bytes) of what is there, and then the rest. A cut inside
    a page is two for a kernel that caches it, too: blank(size), zeros in place of what goes, and then the size."""
    READS = CACHED = ("content", "size")  # a read looks where the file ends, and then takes the bytes

    def __init__(self, content=b""):
        self.initial = content

    def step(self, state, call):
        if call.name == "content":
            return state if call.result == state else REFUSED
        if call.name == "size":
            return state if call.result == len(state) else REFUSED
        if call.name == "append":
            return state + call.arguments[0]
        if call.name == "cut":
            return state[:call.arguments[0]].ljust(call.arguments[0], b"\0")
        if call.name == "blank":
            return state[:call.arguments[0]].ljust(len(state), b"\0")
        offset, data = call.arguments
        after = state[:offset].ljust(offset, b"\0") + data + state[offset + len(data):]
        return after[:len(state)] if call.name == "put_inside" else after


class Born(Model):
    """A file that is made once, and written once by who has made it: make() -> None or EEXIST; fill(bytes) -> None;
    content() -> bytes or ENOENT; size() -> bytes' number or ENOENT."""
    READS, CACHED = ("content", "size"), ("size",)
    initial = None

    def step(self, state, call):
        if call.name == "make":
            return (b"" if state is None else state) if call.ended is None or (
                call.result == (None if state is None else Failed("EEXIST"))) else REFUSED
        if call.name == "fill":
            return call.arguments[0] if state == b"" else REFUSED
        there = Failed("ENOENT") if state is None else state if call.name == "content" else len(state)
        return state if call.result == there else REFUSED


class Replaced(Model):
    """A name that leads to one inode after another, and always to one: replace(inode) -> None; look() -> inode; use(what)
    -> None, of a call that takes the name and cannot fail."""
    READS = CACHED = ("look", "use")

    def __init__(self, inode):
        self.initial = inode

    def step(self, state, call):
        if isinstance(call.result, Failed):
            return REFUSED
        if call.name == "replace":
            return call.arguments[0]
        return state if call.name == "use" or call.result == state else REFUSED


class Size(Model):
    """A file's size: append(length), cut(size), put(offset, length) -> None; size() -> size."""
    READS = CACHED = ("size",)

    def __init__(self, size=0):
        self.initial = size

    def step(self, state, call):
        if call.name == "size":
            return state if call.result == state else REFUSED
        if call.name == "append":
            return state + call.arguments[0]
        if call.name == "cut":
            return call.arguments[0]
        return max(state, sum(call.arguments))


class Attributes(Model):
    """Named values that are set one by one and read at once: set(name, value) -> None; drop(name) -> whether there was one;
    get() -> ((name, value), ...). None is no value."""
    READS = CACHED = ("get",)

    def __init__(self, values):
        self.initial = tuple(sorted(values.items()))

    def step(self, state, call):
        if call.name == "get":
            return state if set(call.result) <= set(state) else REFUSED
        name, value = call.arguments[0], call.arguments[1] if call.name == "set" else None
        if call.name == "drop" and call.ended is not None and call.result != (dict(state)[name] is not None):
            return REFUSED
        return tuple(sorted({**dict(state), name: value}.items()))


class Names(Model):
    """The names in some directories, and which inode each of them is. A name is directory/name.

    create(name): an inode or EEXIST. look(name), with stat or open: an inode or ENOENT.
    unlink(name); rename(old, new), exchange(old, new), link(inode, new) -> None or an errno; list(directory): the names in
    it.

    Linux looks up both names of a rename before it asks for it. If by then another rename, or a link, has made the one name
    the other's inode, both are the same and nothing is done: so a rename beside one is a rename_or_not, an exchange
    likewise.

    A create during which the server was killed is a create_across. If the file is removed before the answer, that tells of
    another inode, which no name leads to."""
    READS, CACHED = ("look", "list"), ("look",)
    ACROSS = "_across"
    IDLE = ("rename_or_not", "exchange_or_not")

    def __init__(self):
        self.initial = frozenset()

    def touched(self, call):
        """Of a call that failed: the name that it failed for. Which one it was an exchange does not tell."""
        if not isinstance(call.result, Failed):
            return set(call.arguments)
        if call.name == "exchange":
            return set()
        return {call.arguments[-1 if call.name == "link" and call.result.errno == "EEXIST" else 0]}

    @staticmethod
    def with_doubts(calls):
        """The history, with those named that may have done nothing, or have made another inode than they say."""
        known = {call.result for call in calls if call.name == "look"} | {
            call.arguments[0] for call in calls if call.name == "link" and call.result is None}

        def settled(call):
            """The inode may be another one if nobody knows of it, and its name was taken away before the answer."""
            taken = any(other.name in ("unlink", "rename", "exchange") and other.result is None
                        for other in overlapping(call, calls))
            name = call.name if taken and call.result not in known else call.name.removesuffix(Names.ACROSS)
            return call._replace(name=name)

        def doubtful(call):
            if call.name not in ("rename", "exchange") or call.result is not None:
                return False
            beside = [other for other in overlapping(call, calls) if not isinstance(other.result, Failed)]
            moved = [name for other in beside if other.name in ("rename", "exchange") for name in other.arguments]
            linked = [other.arguments[1] for other in beside if other.name == "link"]
            return all(name in moved + linked for name in call.arguments) or any(
                name in linked for name in call.arguments)

        return [call._replace(name=call.name + "_or_not") if doubtful(call) else settled(call) for call in calls]

    def step(self, state, call):
        return getattr(self, call.name.removesuffix("_or_not"))(state, dict(state), call)

    @staticmethod
    def done(call, outcome, names):
        """The state when the call ends with this outcome."""
        return frozenset(names.items()) if call.ended is None and outcome is None or call.result == outcome else REFUSED

    @staticmethod
    def same(state, names, name, inode):
        """The state, if this may be the inode of the name."""
        if names[name] == inode:
            return state
        if not isinstance(names[name], tuple) or inode in names.values():
            return REFUSED
        return frozenset((other, inode if number == names[name] else number) for other, number in state)

    def create(self, state, names, call):
        name = call.arguments[0]
        if name in names:
            return state if call.result == Failed("EEXIST") else REFUSED
        if call.ended is None:
            return state | {(name, (UNBORN, call.process, call.began))}
        return REFUSED if isinstance(call.result, Failed) or call.result in names.values() else state | {(name, call.result)}

    def create_across(self, state, names, call):
        return self.create(state, names, call if isinstance(call.result, Failed) else call._replace(ended=None))

    def look(self, state, names, call):
        name = call.arguments[0]
        if isinstance(call.result, Failed) or name not in names:
            return state if call.result == Failed("ENOENT") and name not in names else REFUSED
        return self.same(state, names, name, call.result)

    def list(self, state, _, call):
        begin = call.arguments[0] + "/"
        there = {name[len(begin):] for name, _ in state if name.startswith(begin)}
        return state if set(call.result) == there and len(call.result) == len(there) else REFUSED

    def unlink(self, state, names, call):
        if names.pop(call.arguments[0], None) is None:
            return self.done(call, Failed("ENOENT"), names)
        return self.done(call, None, names)

    def rename(self, state, names, call):
        old, new = call.arguments
        if old not in names:
            return self.done(call, Failed("ENOENT"), names)
        if names[old] != names.get(new):  # two names of the same inode stay
            names[new] = names.pop(old)
        return self.done(call, None, names)

    def exchange(self, state, names, call):
        old, new = call.arguments
        if old not in names or new not in names:
            return self.done(call, Failed("ENOENT"), names)
        names[old], names[new] = names[new], names[old]
        return self.done(call, None, names)

    def link(self, state, names, call):
        inode, new = call.arguments
        if new in names:
            return self.done(call, Failed("EEXIST"), names)
        if inode not in names.values():
            return self.done(call, Failed("ENOENT"), names)
        names[new] = inode
        return self.done(call, None, names)
