"""Decides whether a revision is worse than the one before it, from the routers' counters of both in the same minutes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

# A revision is worse with an error rate more than MORE_ERRORS higher and at least LEAST_ERRORS errors, or with a p99 above
# SLOWER times the old one plus SLOWER_MS, if both have LEAST_ANSWERS: of 50 answers the p99 is the slowest, of 300 the third.
MORE_ERRORS, LEAST_ERRORS = 0.01, 5
SLOWER, SLOWER_MS, LEAST_ANSWERS = 1.5, 10.0, 300


@dataclass(frozen=True)
class Sums:
    """Counters of one revision. `p99_ms` is None without answers."""

    requests: int = 0
    errors: int = 0
    p99_ms: float | None = None

    @property
    def rate(self) -> float:
        return self.errors / self.requests if self.requests else 0.0

    @property
    def document(self) -> dict[str, float | int | None]:
        return {"requests": self.requests, "errors": self.errors, "p99Ms": self.p99_ms}


@dataclass(frozen=True)
class Pair:
    before: Sums
    after: Sums


def why_worse(pair: Pair) -> str:
    """A sentence on how it is worse; "" if it is not, or too little is known."""
    before, after = pair.before, pair.after
    if after.errors >= LEAST_ERRORS and after.rate > before.rate + MORE_ERRORS:
        return (
            f"{after.errors:,} of its {after.requests:,} requests failed ({after.rate:.1%}), and {before.rate:.1%} of those to "
            "the one before it."
        )
    if min(before.requests, after.requests) < LEAST_ANSWERS or before.p99_ms is None or after.p99_ms is None:
        return ""
    if after.p99_ms > SLOWER * before.p99_ms + SLOWER_MS:
        return (
            f"99 of 100 requests took up to {after.p99_ms:,.0f} ms, and {before.p99_ms:,.0f} ms by the one before it."
        )
    return ""
