# SPDX-License-Identifier: Apache-2.0
"""Whether linearize.py tells histories that no order explains from those that one does. Needs no mount."""
from coherence_models import Attributes, Names, Page, Replaced, Size, Small, Stored
from linearize import Call, Failed, linearize, overlapping, shrink, until
from volume import check


def history(*lines):
    """Calls of (name, arguments, result, began, ended), of a process each."""
    return [Call(number, *line) for number, line in enumerate(lines)]


def holds(expected, model, *lines, most_steps=1000):
    verdict = linearize(history(*lines), model, most_steps)
    check(verdict.holds is expected, f"{verdict} of {lines}")


def write(value, began, ended, part=0):
    return "write", ((part, value),), None, began, ended


def read(value, began, ended, name="read"):
    return name, (0,), ((0, value),), began, ended


def case_linearize_pages(_):
    page = Page([0])
    holds(True, page)
    holds(True, page, write(1, 0, 5), read(0, 1, 2), read(1, 3, 4))
    holds(False, page, write(1, 0, 1), read(0, 2, 3))
    holds(False, page, read(1, 0, 1), write(1, 2, 3))
    holds(False, page, write(1, 0, 9), read(1, 1, 2), read(0, 3, 4))  # new, and then old
    holds(True, page, write(1, 0, 5), write(2, 1, 6), read(2, 7, 8), read(2, 9, 10))
    holds(False, page, write(1, 0, 5), write(2, 1, 6), read(2, 7, 8), read(1, 9, 10))
    holds(False, page, write(1, 0, 1), write(2, 2, 3), write(3, 0, 9), read(3, 4, 5), read(1, 6, 7))
    # The same value again is a change, though nothing differs at first.
    holds(True, page, write(1, 0, 5), write(0, 4, 9), read(0, 10, 11))
    holds(None, page, *[write(i, 0, 100) for i in range(12)], read(99, 101, 102), most_steps=500)
    torn = Page([0, 0])
    both = ("write", ((0, 1), (1, 1)), None, 0, 9)
    holds(False, torn, both, ("read", (0, 1), ((0, 1), (1, 0)), 1, 2))
    holds(True, torn, write(1, 0, 9), write(1, 0, 9, part=1), ("read", (0, 1), ((0, 1), (1, 0)), 1, 2))


def case_linearize_stores(_):
    """A store may put back what its mount had read, beside another write and before it happens itself."""
    def stored(expected, *lines):
        verdict = linearize(Stored.with_doubts(history(*lines)), Stored([0]), 1000)
        check(verdict.holds is expected, f"{verdict} of {lines}")

    def store(value, began, ended):
        return "store", ((0, value),), None, began, ended

    stored(True, write(1, 2, 3), store(2, 1, 9), read(0, 4, 5), read(2, 10, 11))
    stored(True, write(1, 2, 3), store(2, 1, None), read(0, 4, 5))
    stored(False, write(1, 0, 1), store(2, 2, 9), read(0, 4, 5))  # what had been there before
    stored(False, write(1, 2, 3), store(2, 1, 4), read(0, 5, 6))  # it has happened
    stored(False, write(1, 2, 3), store(2, 1, 9), read(2, 4, 5), read(0, 6, 7))
    stored(False, write(1, 2, 3), store(2, 1, 9), read(0, 4, 5), read(1, 6, 7), read(0, 7, 8))
    stored(True, write(1, 1, 8), write(3, 2, 3), store(2, 4, 9), read(3, 4, 5), read(1, 6, 7), read(3, 8, 8))
    stored(False, write(3, 2, 3), store(2, 4, 9), read(0, 5, 6))
    # One changes a byte, one another, both at once: 0x202 is neither's.
    stored(True, write(0x101, 0, 1), write(0x102, 3, 5), store(0x201, 2, 4), read(0x202, 6, 7))
    stored(False, write(0x101, 0, 1), write(0x102, 3, 5), store(0x201, 6, 7), read(0x202, 8, 9))
    stored(False, write(0x101, 0, 1), write(0x102, 3, 5), store(0x203, 2, 4), read(0x102, 6, 7), read(0x202, 8, 9))


def case_linearize_unknown_outcomes(_):
    page = Page([0])
    holds(True, page, write(1, 0, None), read(0, 1, 2), read(0, 8, 9))
    holds(True, page, write(1, 0, None), read(0, 1, 2), read(1, 8, 9))
    holds(False, page, write(1, 0, None), read(1, 1, 2), read(0, 8, 9))
    holds(False, page, write(1, 5, None), read(1, 1, 2))
    holds(True, Names(), ("create", ("d/x",), None, 0, None), ("look", ("d/x",), 7, 1, 2), ("look", ("d/x",), 7, 3, 4))
    holds(False, Names(), ("create", ("d/x",), None, 0, None), ("look", ("d/x",), 7, 1, 2), ("look", ("d/x",), 8, 3, 4))


def case_linearize_cached_reads(_):
    """They may show the old when another one has shown the new already, but not once the call has returned."""
    page = Page([0])
    holds(True, page, write(1, 0, 9), read(1, 1, 2), read(0, 3, 4, "load"))
    holds(False, page, write(1, 0, 3), read(1, 1, 2), read(0, 4, 5, "load"))
    holds(False, page, write(1, 0, 9), read(1, 1, 2), read(0, 3, 4))
    holds(False, page, write(1, 5, 9), read(1, 1, 2, "load"))
    renamed, there = ("rename", ("d/x", "d/y"), None, 2, 9), ("create", ("d/x",), 7, 0, 1)
    holds(True, Names(), there, renamed, ("create", ("d/x",), 8, 3, 4), ("look", ("d/y",), Failed("ENOENT"), 5, 6))
    holds(False, Names(), there, renamed, ("create", ("d/x",), 8, 3, 4), ("look", ("d/x",), Failed("ENOENT"), 5, 6))


def case_linearize_files(_):
    small, size = Small(), Size()
    appended = [("append", (b"a",), None, 0, 5), ("append", (b"b",), None, 1, 6)]
    holds(True, small, *appended, ("content", (), b"ba", 7, 8))
    holds(False, small, *appended, ("content", (), b"b", 7, 8))
    holds(False, small, *appended, ("content", (), b"ab", 7, 8), ("content", (), b"ba", 7, 8))
    holds(True, small, *appended, ("cut", (4,), None, 7, 8), ("content", (), b"ab\0\0", 9, 10), ("size", (), 4, 9, 10))
    holds(True, small, ("put", (2, b"xy"), None, 0, 1), ("content", (), b"\0\0xy", 2, 3))
    across = [("put_inside", (1, b"xy"), None, 7, 9), ("put", (1, b"xy"), None, 7, 9), ("content", (), b"ax", 8, 8)]
    holds(True, small, *appended, *across, ("content", (), b"axy", 10, 11))
    holds(False, small, *appended, *across, ("content", (), b"ax", 10, 11))
    holds(True, size, ("append", (10,), None, 0, 1), ("put", (5, 2), None, 2, 3), ("size", (), 10, 4, 5))
    holds(False, size, ("append", (10,), None, 0, 1), ("cut", (3,), None, 2, 3), ("size", (), 10, 4, 5))
    facts = Attributes({"time": 0, "mode": 1})
    change = ("set", ("time", 5), None, 0, 1)
    holds(True, facts, change, ("get", (), (("time", 5), ("mode", 1)), 2, 3))
    holds(False, facts, change, ("get", (), (("time", 0), ("mode", 1)), 2, 3))


def in_doubt(*calls):
    return [call[1:] for call in Names.with_doubts(history(*calls))]


def case_linearize_names(_):
    make = ("create", ("d/x",), 7, 0, 1)
    gone, there = Failed("ENOENT"), Failed("EEXIST")
    holds(True, Names(), make, ("create", ("d/x",), there, 2, 3), ("list", ("d",), ("x",), 2, 3), ("list", ("e",), (), 2, 3))
    holds(False, Names(), make, ("create", ("d/x",), 8, 2, 3))
    holds(False, Names(), make, ("unlink", ("d/x",), None, 2, 3), ("unlink", ("d/x",), None, 2, 3))
    holds(True, Names(), make, ("unlink", ("d/x",), None, 2, 3), ("unlink", ("d/x",), gone, 2, 3))
    moved = (make, ("rename", ("d/x", "e/x"), None, 2, 9))
    holds(True, Names(), *moved, ("list", ("d",), (), 3, 4), ("look", ("e/x",), 7, 10, 11))
    holds(False, Names(), *moved, ("list", ("d",), (), 3, 4), ("list", ("e",), (), 5, 6))
    holds(False, Names(), *moved, ("list", ("d",), ("x", "x"), 3, 4))
    linked = (make, ("link", (7, "d/y"), None, 2, 3))
    holds(True, Names(), *linked, ("rename", ("d/x", "d/y"), None, 4, 5), ("list", ("d",), ("x", "y"), 6, 7))
    holds(True, Names(), *linked, ("create", ("e/x",), 8, 4, 5), ("exchange", ("d/y", "e/x"), None, 6, 7),
          ("look", ("e/x",), 7, 8, 9))
    holds(False, Names(), *linked, ("unlink", ("d/x",), None, 4, 5), ("link", (7, "d/x"), gone, 6, 7))
    beside = history(*linked, ("rename", ("d/x", "d/y"), None, 4, 9), ("rename", ("d/y", "d/x"), None, 5, 6))
    names = [call.name for call in Names.with_doubts(beside)]
    check(names == ["create", "link", "rename_or_not", "rename_or_not"], f"doubts: {names}")
    names = [call.name for call in Names.with_doubts(history(*moved, ("unlink", ("d/y",), None, 3, 4)))]
    check(names == ["create", "rename", "unlink"], f"doubts: {names}")
    # What is not done, because a kernel takes both names for one inode's, is a look at what that kernel keeps.
    slow = (make, ("rename", ("d/x", "e/x"), None, 2, 19), ("unlink", ("d/x",), gone, 3, 4))
    idle = (*slow, ("rename", ("d/x", "e/x"), None, 5, 6))
    holds(True, Names(), *in_doubt(*idle, ("look", ("d/x",), 7, 7, 8)))
    holds(False, Names(), *in_doubt(*idle, ("look", ("d/x",), 7, 20, 21)))
    linking = (make, ("link", (7, "e/x"), None, 2, 19), ("rename", ("d/x", "e/x"), None, 3, 4))
    holds(True, Names(), *in_doubt(*linking, ("look", ("e/x",), gone, 5, 6), ("look", ("d/x",), 7, 20, 21)))
    across = (("create_across", ("d/x",), 8, 0, 20), ("look", ("d/x",), 7, 1, 2), ("unlink", ("d/x",), None, 3, 4))
    holds(True, Names(), *in_doubt(*across))
    holds(False, Names(), *in_doubt(*across[:2], ("look", ("d/x",), 8, 5, 6)))
    holds(False, Names(), *in_doubt(*across, ("look", ("d/x",), 7, 5, 6)))
    holds(False, Names(), *in_doubt(("create_across", ("d/x",), there, 0, 20), *across[1:]))
    holds(False, Names(), *in_doubt(*across[:2]))  # nobody has removed it


def case_linearize_shrinks(_):
    calls = history(write(1, 0, 1), read(1, 2, 3), write(2, 4, 6), read(1, 7, 8), read(2, 9, 10), write(3, 11, 12))
    fewer = shrink(calls, Page([0]))
    check([call.process for call in fewer] == [0, 2, 3], f"left: {fewer}")
    check([call.ended for call in until(calls, 5)] == [1, 3, None], "a history until 5")
    check([call.process for call in overlapping(calls[2], calls)] == [], "beside a call")


def case_linearize_cut_files(_):
    """A file that is cut has zeros first where bytes go; afterwards it does not."""
    def cut(began, ended):
        return [(kind, (2,), None, began, ended) for kind in ("blank", "cut")]

    file = Small(b"abcd")
    holds(True, file, *cut(0, 9), ("content", (), b"abcd", 1, 2), ("content", (), b"ab\0\0", 3, 4), ("content", (), b"ab", 5, 6))
    holds(False, file, *cut(0, 1), ("content", (), b"ab\0\0", 2, 3))
    holds(False, file, *cut(0, 9), ("content", (), b"a\0\0\0", 1, 2))
    holds(False, file, ("append", (b"e",), None, 0, 9), ("content", (), b"abcd\0", 1, 2))


def case_linearize_replaced(_):
    """A name that always leads to an inode: no call may fail for it."""
    name = Replaced(7)

    def replace(inode, began, ended):
        return "replace", (inode,), None, began, ended

    holds(True, name, replace(8, 0, 5), ("look", (), 7, 1, 2), ("look", (), 8, 6, 7))
    holds(False, name, replace(8, 0, 1), ("look", (), 7, 2, 3))
    holds(True, name, replace(8, 0, 1), ("use", ("chmod",), None, 2, 3))
    holds(False, name, replace(8, 0, 5), ("use", ("chmod",), Failed("ENOENT"), 2, 3))
    holds(False, name, replace(8, 0, 5), ("look", (), Failed("ENOENT"), 2, 3))
