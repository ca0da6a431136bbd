"""Counters of a router: latency histograms that can be added up, and the average number of requests in flight.
Pure: callers pass the time, from a monotonic clock.

Bucket bounds grow by a constant factor of 1.35, so a quantile read from them is off by at most that factor, for 2 ms as for a
minute. Rows store counts without bounds, so the bounds must never change.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import ceil

# Upper bounds of all buckets but the last, from 1 ms to 120 s. The last bucket counts everything slower.
BOUNDS_MS: tuple[float, ...] = tuple(round(120_000 ** (n / 39), 2) for n in range(40))
BUCKETS = len(BOUNDS_MS) + 1
# Seconds of the autoscaler's two windows: one long enough to be calm, one short enough to see a rush.
STABLE, PANIC = 60, 6


def bucket(ms: float) -> int:
    """Returns the index of the bucket for a latency of `ms` milliseconds."""
    return bisect_left(BOUNDS_MS, ms)


def add(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Returns the sum of two histograms. An empty list, as in a row that has counted nothing, means all zeros."""
    return [a + b for a, b in zip(_whole(one), _whole(other), strict=True)]


def total(counts: Iterable[Sequence[int]]) -> list[int]:
    found = [0] * BUCKETS
    for each in counts:
        found = add(found, each)
    return found


def quantile(counts: Sequence[int], q: float) -> float | None:
    """Returns the `q` quantile (0 to 1) of the latency in milliseconds, or None without answers. Interpolates linearly within a
    bucket; for the last bucket it returns the lower bound."""
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
    """The number of requests in flight, now and on average over the last seconds.

    Each second has a bucket that sums requests × seconds, so a request of 10 ms counts a hundredth of one that takes the whole
    second. Time before `began` was not observed, which differs from nothing in flight: averages cover observed time only.
    """

    def __init__(self, began: float) -> None:
        self.now = 0
        self._began = self._at = began
        self._sums = [0.0] * (STABLE + 1)

    def change(self, by: int, now: float) -> None:
        """Adds `by` requests from `now` on. A `now` before the last call counts as the time of the last call."""
        self._reach(now)
        self.now += by

    def average(self, seconds: int, now: float) -> float:
        """Returns the mean over the last `seconds`, at most STABLE."""
        self._reach(now)
        since = max(self._began, self._at - seconds)
        if self._at <= since:
            return float(self.now)
        first = int(since)
        found = sum(self._sums[each % len(self._sums)] for each in range(first + 1, ceil(self._at)))
        # The window may begin inside a second: count that second's sum in proportion.
        whole = min(first + 1.0, self._at) - max(float(first), self._began)
        part = min(first + 1.0, self._at) - since
        found += self._sums[first % len(self._sums)] * (part / whole if whole > 0 else 0.0)
        return found / (self._at - since)

    def _reach(self, now: float) -> None:
        """Brings the sums up to `now`."""
        if now <= self._at:
            return
        if now - self._at > len(self._sums):
            # Every stored second is older than the longest window.
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
