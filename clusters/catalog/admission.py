"""Why a run may start within the quota of its appcode, waits, or never can, in a sentence that users can act on. Pure.

A run needs room within two limits. The portal enforces the quota, which is judged here before submit (preview) and in the
queue. The capacity of machines is judged by `clusters/admission`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusters.admission.judgement import Judgement

# Number of runs named among those that hold GPUs.
MOST_NAMED = 3


@dataclass(frozen=True)
class Holder:
    """A run by its name (`train/3`), and the GPUs that it holds."""

    run: str
    gpus: int


@dataclass(frozen=True)
class Held:
    """GPUs of all admitted runs of an appcode, the largest holders, and the number of other holders."""

    gpus: int = 0
    largest: tuple[Holder, ...] = ()
    others: int = 0

    def __add__(self, new: Holder) -> Held:
        holders = sorted((*self.largest, new), key=lambda each: -each.gpus) if new.gpus else self.largest
        largest = tuple(holders[:MOST_NAMED])
        return Held(self.gpus + new.gpus, largest, self.others + len(holders) - len(largest))

    @property
    def words(self) -> str:
        """ "train/3 (4 GPUs), eval/1 (2 GPUs) and 2 more runs"."""
        named = ", ".join(f"{each.run} ({_gpus(each.gpus)})" for each in self.largest)
        return f"{named} and {self.others} more run{'s' if self.others > 1 else ''}" if self.others else named


@dataclass(frozen=True)
class Quota:
    """`queue` has the GPUs of each run that waits before this one, oldest first. `borrow`: the part of `limit`
    beyond the quota."""

    appcode: str
    limit: int
    held: Held = Held()
    queue: Sequence[int] = ()
    borrow: int = 0

    @property
    def parts(self) -> str:
        return f"{self.limit - self.borrow} of its quota and {self.borrow} borrowed"


def judge_quota(gpus: int, quota: Quota) -> Judgement:
    """First come, first served: a run that would fit by itself waits behind older ones of its appcode, unless all of them
    fit. Of many that come at once, workers may judge a later one first."""
    if gpus == 0:
        return Judgement("now", "", "")
    if gpus > quota.limit:
        most = f"the quota of {quota.appcode} is {quota.limit}"
        if quota.borrow:
            most = f"{quota.appcode} may hold {quota.limit} at most, {quota.parts}"
        return Judgement(
            "never",
            "QuotaExceeded",
            f"It needs {_gpus(gpus)}, and {most}. Ask for fewer, or let an owner request a larger quota.",
        )
    free = quota.limit - quota.held.gpus
    if gpus > free - sum(quota.queue):
        by = f"; held by {quota.held.words}" if quota.held.largest else ""
        place = f" It is number {len(quota.queue) + 1} in the queue." if quota.queue else ""
        if gpus <= free:
            place = f"{place} It would fit, and the runs before it come first."
        of = f"{quota.limit} of {quota.appcode} are free"
        if quota.borrow:
            of = f"the {quota.limit} that {quota.appcode} may hold are free ({quota.parts})"
        said = f"Waiting for quota: needs {_gpus(gpus)}, {max(free, 0)} of {of}{by}.{place}"
        return Judgement("waits", "QuotaExceeded", said)
    return Judgement("now", "", "")


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
