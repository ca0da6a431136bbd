"""Why a run may start within the quota of its appcode, waits, or never can, in a sentence that a person can act on. Pure.

Two limits stand between a run and its GPUs: the quota, kept by the portal and judged here, before submit (preview) and in the
queue; and the machines that exist, kept by the cloud, which `clouds/drivers/base/fit.py` judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusters.clouds.drivers.base.fit import Judgement


@dataclass(frozen=True)
class Quota:
    """`held` are the GPUs of admitted runs; `queue` the GPUs of each run that waits before this one, oldest first."""

    appcode: str
    limit: int
    held: int
    queue: Sequence[int] = ()


def judge_quota(gpus: int, quota: Quota) -> Judgement:
    """First come, first served: a run waits behind older ones of its appcode even when it alone would fit."""
    if gpus == 0:
        return Judgement("now", "", "")
    if gpus > quota.limit:
        return Judgement(
            "never",
            "QuotaExceeded",
            f"It needs {_gpus(gpus)}, and the quota of {quota.appcode} is {quota.limit}. Ask for fewer, or let an "
            "owner request a larger quota.",
        )
    free = quota.limit - quota.held
    if quota.queue or gpus > free:
        place = f" It is number {len(quota.queue) + 1} in the queue." if quota.queue else ""
        return Judgement(
            "waits",
            "QuotaExceeded",
            f"Waiting for quota: needs {_gpus(gpus)}, {max(free, 0)} of {quota.limit} of {quota.appcode} are free."
            + place,
        )
    return Judgement("now", "", "")


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
