"""What a front counts: how long answers took, in buckets that can be added up, and how many requests are in flight on average.
Pure: the time is given, from a clock that never jumps.

Bounds of buckets grow by the same factor, 1.35, so a quantile that is read from them is wrong by that factor at most, whether
an answer takes two milliseconds or a minute. Rows keep counts without their bounds, so these never change.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import ceil

# The upper bounds of all buckets but the last, which has what took longer: from 1 ms to 120 s.
BOUNDS_MS: tuple[float, ...] = tuple(round(120_000 ** (n / 39), 2) for n in range(40))
BUCKETS = len(BOUNDS_MS) + 1
# Seconds over which an autoscaler looks: long enough to be calm, and short enough to see a rush.
STABLE, PANIC = 60, 6


def bucket(ms: float) -> int:
    """The index of the bucket that an answer after `ms` milliseconds belongs to."""
    return bisect_left(BOUNDS_MS, ms)


def add(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Both together. An empty one, as a row has it that has counted nothing, is all zeros."""
    return [a + b for a, b in zip(_whole(one), _whole(other), strict=True)]


def total(counts: Iterable[Sequence[int]]) -> list[int]:
    found = [0] * BUCKETS
    for each in counts:
        found = add(found, each)
    return found


def quantile(counts: Sequence[int], q: float) -> float | None:
    """The milliseconds within which the share `q` (0 to 1) of the answers came, None where there were none. Within a bucket
    answers are taken to be spread evenly; of those in the last one only its lower bound is known."""
    wanted, seen = q * sum(counts), 0
    if not any(counts):
        return None
    for at, count in enumerate(counts):
        if count and seen + count >= wanted:
            low = BOUNDS_MS[at - 1] if at else 0.0
            high = BOUNDS_MS[at] if at < len(BOUNDS_MS) else low
            return low + (high - low) * max(0.0, wanted - seen) / count
        seen += count
    return BOUNDS_MS[-1]


def _whole(counts: Sequence[int]) -> Sequence[int]:
    return counts or [0] * BUCKETS


class InFlight:
    """How many requests are in flight, now and on average over the seconds before.

    A second has a bucket with the sum of (requests × seconds) in it, so a request of 10 ms counts for a hundredth of one that
    takes the whole second. Before `began` there was nothing to see, which is not the same as nothing in flight: an
    average is over what was seen.
    """

    def __init__(self, began: float) -> None:
        self.now = 0
        self._began = self._at = began
        self._sums = [0.0] * (STABLE + 1)

    def change(self, by: int, now: float) -> None:
        """`by` more are in flight from `now` on; a time before the last one is taken for that."""
        self._reach(now)
        self.now += by

    def average(self, seconds: int, now: float) -> float:
        """Over the last `seconds`, STABLE at most."""
        self._reach(now)
        since = max(self._began, self._at - seconds)
        if self._at <= since:
            return float(self.now)
        first = int(since)
        found = sum(self._sums[each % len(self._sums)] for each in range(first + 1, ceil(self._at)))
        # Of the second in which it begins only a part counts, as large as that second's part of the time.
        whole = min(first + 1.0, self._at) - max(float(first), self._began)
        part = min(first + 1.0, self._at) - since
        found += self._sums[first % len(self._sums)] * (part / whole if whole > 0 else 0.0)
        return found / (self._at - since)

    def _reach(self, now: float) -> None:
        """Brings the sums up to `now`."""
        if now <= self._at:
            return
        if now - self._at > len(self._sums):
            # All that it has is older than what anybody asks for.
            self._sums = [float(self.now)] * len(self._sums)
            self._sums[int(now) % len(self._sums)] = 0.0
            self._at = float(int(now))
        while self._at < now:
            second = int(self._at)
            until = min(now, second + 1.0)
            if self._at == second:
                self._sums[second % len(self._sums)] = 0.0
            self._sums[second % len(self._sums)] += self.now * (until - self._at)
            self._at = until
