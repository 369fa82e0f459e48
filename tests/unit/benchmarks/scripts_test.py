# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/filesystem.py asks fio for, and what the page of benchmarks/growth says of starts."""
import json
import os
import sys
import types
import unittest
from unittest import mock

BENCHMARKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "benchmarks")
sys.path.insert(0, BENCHMARKS)
sys.dont_write_bytecode = True
import filesystem  # noqa: E402
import growth_page  # noqa: E402


class FilesystemTest(unittest.TestCase):

    def mebibytes(self, job_file, quick):
        """Of the job's file, and of memory."""
        arguments = types.SimpleNamespace(mebibytes=32 if quick else 256, seconds=1, filter="none of them", build="build")
        with mock.patch.object(filesystem, "output_of", return_value='{"jobs": []}') as fio:
            filesystem.run_fio(job_file, arguments, [])
        size = next(word for word in fio.call_args[0][1] if word.startswith("--size="))
        with mock.patch.object(filesystem, "Mounts") as mounts, mock.patch.object(filesystem.os.path, "exists",
                                                                                 return_value=False), \
                mock.patch("builtins.print"):
            filesystem.measure(arguments, None)
        capacity, ratio = mounts.call_args[0][2:4]
        return int(size[len("--size="):-1]), float(ratio) * (int(capacity[:-1]) << 10)

    def test_mixed_is_larger_than_memory(self):
        for quick in (False, True):
            file, memory = self.mebibytes("mixed", quick)
            self.assertGreater(file, 1.2 * memory)
            file, memory = self.mebibytes("direct-4k", quick)
            self.assertLess(file, memory)


class GrowthTest(unittest.TestCase):

    def test_starts(self):
        with open(os.path.join(BENCHMARKS, "..", "docs", "results", "growth.json"), encoding="utf-8") as file:
            stored = json.load(file)
        settings = stored["result"]["settings"]
        settings.update(starts=3, warm_up_starts=1)
        self.assertIn("the median of 3 counts, after 1 of each kind that does not.", growth_page.render(stored))
        del settings["warm_up_starts"]
        self.assertIn("the median of 3 counts, the first of all included.", growth_page.render(stored))


if __name__ == "__main__":
    unittest.main()
