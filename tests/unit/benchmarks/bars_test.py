# SPDX-License-Identifier: Apache-2.0
"""Verdicts of benchmarks/run, and what it says of what was not run."""
import importlib.machinery
import os
import subprocess
import sys
import types
import unittest
from unittest import mock

BENCHMARKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "benchmarks")
sys.path.insert(0, BENCHMARKS)
sys.dont_write_bytecode = True
import bars  # noqa: E402


def load_run():
    loader = importlib.machinery.SourceFileLoader("benchmarks_run", os.path.join(BENCHMARKS, "run"))
    module = types.ModuleType(loader.name)
    module.__file__ = loader.path
    loader.exec_module(module)
    return module


class BarTest(unittest.TestCase):

    def verdict(self, *ratios, lower_is_better=False):
        return bars.Bar("a bar", 2.0, ratios, lower_is_better).verdict()

    def test_verdict(self):
        self.assertEqual(self.verdict(1.0, 2.0, 9.0), "met")
        self.assertEqual(self.verdict(1.95), "noise")
        self.assertEqual(self.verdict(1.8), "MISSED")
        self.assertEqual(self.verdict(2.0, lower_is_better=True), "met")
        self.assertEqual(self.verdict(2.05, lower_is_better=True), "noise")
        self.assertEqual(self.verdict(2.2, lower_is_better=True), "MISSED")

    def test_nothing_is_missed(self):
        for lower_is_better in (False, True):
            self.assertEqual(self.verdict(0, 0, 3.0, lower_is_better=lower_is_better), "MISSED")

    def test_summary(self):
        met, near, missed = (bars.Bar("a bar", 1.0, [ratio]) for ratio in (1.1, 0.96, 0.5))
        self.assertEqual(bars.summary([met, near, missed, met], []), "2 hold, 1 within noise, 1 missed")
        self.assertEqual(bars.summary([near], [bars.NotRun("sshfs", "why"), bars.NotRun("mount", "why")]),
                         "0 hold, 1 within noise, 0 missed; not run: sshfs, mount")
        self.assertFalse(bars.fails([met, near]))
        self.assertTrue(bars.fails([met, missed]))
        self.assertTrue(bars.fails([]))


class RunTest(unittest.TestCase):

    def test_filter_without_a_group(self):
        done = subprocess.run([sys.executable, os.path.join(BENCHMARKS, "run"), "build", "--filter", "no-such-group"],
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no group has 'no-such-group' in its name", done.stderr)

    def test_what_is_not_run_is_known(self):
        run = load_run()
        missing = [*run.ON_FUSE, "network"]
        with mock.patch.object(run.os.path, "exists", return_value=False), \
                mock.patch.object(run.network, "bench", return_value=[]), mock.patch("builtins.print"):
            done = [run.run_groups(types.SimpleNamespace(filter=name, build="build", quick=True, rings=False))
                    for name in missing]
        self.assertEqual([found for found, _ in done], [[]] * len(missing))
        self.assertEqual([not_run[0].name for _, not_run in done], [*run.ON_FUSE, "mounts over a network"])


if __name__ == "__main__":
    unittest.main()
