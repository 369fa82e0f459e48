# SPDX-License-Identifier: Apache-2.0
"""What counting can tell of a hot set."""
import os
import random
import sys
import unittest

BENCHMARKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "benchmarks")
sys.path.insert(0, BENCHMARKS)
sys.dont_write_bytecode = True
import counting  # noqa: E402


def simulated(pages, share, theta, accesses):
    """The same, by counting accesses that are drawn."""
    source = random.Random(1)
    weights = [(rank + 1)**-theta for rank in range(pages)]
    counts = [0] * pages
    for page in source.choices(range(pages), weights, k=int(pages * accesses)):
        counts[page] += 1
    frames = int(pages * share)
    kept = sorted(range(pages), key=lambda page: (-counts[page], source.random()))[:frames]
    total = sum(weights)
    return (total - sum(weights[page] for page in kept)) / (total - sum(weights[:frames]))


class CountingTest(unittest.TestCase):

    def test_groups_are_all_ranks(self):
        for pages in (1, 63, 64, 65, 1000, 1 << 20):
            groups = list(counting.rank_groups(pages))
            self.assertEqual(sum(count for count, _ in groups), pages)
            self.assertLess(len(groups), 2000)

    def test_as_simulated(self):
        for share, theta, accesses in ((0.5, 0.99, 5), (0.2, 0.99, 2), (0.5, 0.5, 20), (0.9, 1.2, 10)):
            expected = simulated(20000, share, theta, accesses)
            self.assertAlmostEqual(counting.counted_misses(20000, share, theta, accesses) / expected, 1, delta=0.02)

    def test_nothing_counted_is_chance(self):
        self.assertAlmostEqual(counting.counted_misses(1000, 0.5, 0, 0), 1)
        self.assertGreater(counting.counted_misses(1000, 0.5, 0.99, 0), 5)


if __name__ == "__main__":
    unittest.main()
