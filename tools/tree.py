# SPDX-License-Identifier: Apache-2.0
"""The files of the tree, for the checks: what git tracks or would track."""

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CXX = (".h", ".cc", ".c")


def _git(root, *arguments):
    done = subprocess.run(["git", "-c", "safe.directory=*", "-C", root, *arguments], capture_output=True, text=True)
    return done.stdout.split("\0") if done.returncode == 0 else None


def files(root=ROOT):
    """Paths below `root`, sorted. Outside of a git checkout: every file that is not below build*/ or .git/."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is None:
        listed = []
        for folder, folders, names in os.walk(root):
            folders[:] = [f for f in folders if f != ".git" and not f.startswith("build")]
            listed += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted({f for f in listed if f and os.path.isfile(os.path.join(root, f))})


def changed_files(root=ROOT):
    """Paths that differ from the upstream branch, or from the commit before the last one where there is none."""
    base = _git(root, "merge-base", "HEAD", "@{upstream}") or _git(root, "rev-parse", "HEAD~1")
    if base is None:
        return files(root)
    differ = _git(root, "diff", "--name-only", "-z", base[0].strip()) or []
    new = _git(root, "ls-files", "-z", "--others", "--exclude-standard") or []
    return sorted({f for f in differ + new if f and os.path.isfile(os.path.join(root, f))})


def check_main(usage, check, clean, self_test, tested):
    """The main function of a check. `check(root)` returns (what is wrong, files seen), `self_test()` what is wrong with
    the check; `clean` follows the number of files and `tested` stands alone where nothing is. Returns the exit code."""
    arguments = sys.argv[1:]
    if arguments not in ([], ["--self-test"]):
        print(usage)
        return 0 if arguments == ["--help"] else 2
    if arguments:
        wrong, summary = self_test(), tested
    else:
        wrong, seen = check(ROOT)
        summary = f"{seen} files {clean}"
    print("\n".join(wrong) or summary)
    return 1 if wrong else 0
