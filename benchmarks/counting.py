# SPDX-License-Identifier: Apache-2.0
"""What can be known of a hot set by counting: the misses of a memory that holds the pages which were accessed most often,
where nothing else tells the pages apart. No policy that begins with nothing has fewer on average."""
import math

SAME_BELOW = 64  # ranks that are looked at one by one; above, those within a sixty-fourth of each other together
SURE = 700  # of accesses to a page on average, none has as few as matter; e^-SURE is still a number


def rank_groups(pages):
    """(ranks in it, a rank in its middle), from the most probable on."""
    first = 1
    while first <= pages:
        count = min(max(1, first // SAME_BELOW), pages - first + 1)
        yield count, first + (count - 1) / 2
        first += count


def counted_misses(pages, share, theta, accesses):
    """Misses of an access, as a multiple of the oracle's, once each page was accessed `accesses` times on average: Zipf
    with that theta, `share` of the pages in memory. Counts are Poisson's; of those alike some are in memory, by chance."""
    groups = [(count, rank**-theta) for count, rank in rank_groups(pages)]
    total = sum(count * weight for count, weight in groups)
    groups = [(count, weight / total) for count, weight in groups]
    frames = pages * share
    oracle, left = 1.0, frames
    for count, probability in groups:
        oracle -= min(count, left) * probability
        left -= min(count, left)
    # Of each group: the part that was accessed more than `times`, and the part that was just as often.
    means = [probability * pages * accesses for _, probability in groups]
    alike = [math.exp(-mean) if mean < SURE else 0.0 for mean in means]
    more = [1 - part for part in alike]
    times = 0
    while sum(count * part for (count, _), part in zip(groups, more)) > frames:
        times += 1
        alike = [part * mean / times for part, mean in zip(alike, means)]
        more = [part - equal for part, equal in zip(more, alike)]
    left = frames - sum(count * part for (count, _), part in zip(groups, more))
    chance = left / sum(count * part for (count, _), part in zip(groups, alike))
    hits = sum(count * probability * (part + chance * equal)
               for (count, probability), part, equal in zip(groups, more, alike))
    return (1 - hits) / oracle
