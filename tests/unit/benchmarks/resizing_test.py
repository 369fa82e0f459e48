# SPDX-License-Identifier: Apache-2.0
"""The worst second of a change, from what fio logs."""
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "benchmarks"))
sys.dont_write_bytecode = True
import resizing  # noqa: E402


class WorstSecondTest(unittest.TestCase):

    def test_steady_reads_lose_nothing(self):
        self.assertEqual(resizing.worst_second([500] * 100, 4.0, 5.0), 1.0)

    def test_a_stop_within_the_change_counts(self):
        reads = [500] * 100
        reads[42:47] = [0] * 5
        self.assertEqual(resizing.worst_second(reads, 4.0, 5.0), 0.5)

    def test_a_stop_soon_after_it_counts(self):
        reads = [500] * 100
        reads[52:60] = [0] * 8
        self.assertAlmostEqual(resizing.worst_second(reads, 4.0, 5.0), 0.2)

    def test_a_stop_elsewhere_does_not(self):
        reads = [500] * 100
        reads[2:10] = reads[90:98] = [0] * 8
        self.assertEqual(resizing.worst_second(reads, 4.0, 5.0), 1.0)

    def test_a_smaller_tier_is_compared_with_itself(self):
        self.assertEqual(resizing.worst_second([500] * 45 + [200] * 55, 4.0, 5.0), 1.0)


class SamplesTest(unittest.TestCase):

    def test_jobs_are_added_up(self):
        with tempfile.TemporaryDirectory() as logs:
            for job, rate in ((1, 1000), (2, 50)):
                with open(os.path.join(logs, f"reads_iops.{job}.log"), "w", encoding="utf-8") as file:
                    file.writelines(f"{at}, {rate}, 0, 0\n" for at in (100, 200, 301, 399))
            self.assertEqual([round(reads) for reads in resizing.samples(logs)], [0, 105, 105, 105])


if __name__ == "__main__":
    unittest.main()
