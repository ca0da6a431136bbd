"""The terms of an appcode, in numbers and words: pure. Days are UTC; the last day is included.

An expiry is announced some days before. Each notice is a *mark*, the number of days before the end, 0 once it is over.
After a notice larger marks are skipped, so that a portal that was off for a week sends one mail instead of three.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import astuple, dataclass, replace
from decimal import Decimal

MARKS = (14, 3, 1)
# Owners are offered a renewal from the first notice on.
SOON = MARKS[0]
MAX_DAYS = 3653


@dataclass(frozen=True)
class Terms:
    """GPUs at one time, GiB of all volumes together, money a month (None: no budget), the last day (None: no end)."""

    gpus: int
    storage: int
    budget: Decimal | None = None
    expires: dt.date | None = None

    def words(self, currency: str, without: str = "no budget") -> str:
        """ "16 GPUs, 2,048 GiB of volumes, 500.00 USD a month, until 2027-03-31"; `without` replaces a budget of None."""
        return ", ".join([
            f"{self.gpus:,} {'GPU' if self.gpus == 1 else 'GPUs'}",
            f"{self.storage:,} GiB of volumes",
            without if self.budget is None else f"{self.budget:,.2f} {currency} a month",
            "without end" if self.expires is None else f"until {self.expires}",
        ])  # fmt: skip


def followed(asked: Terms, before: Terms, now: Terms) -> Terms:
    """The open request `asked` after the terms changed from `before` to `now`: fields that it would have changed stay,
    the others become those of `now`. Its budget always stays, because None means no change."""
    fields = zip(astuple(asked), astuple(before), astuple(now), strict=True)
    return replace(Terms(*(new if wanted == old else wanted for wanted, old, new in fields)), budget=asked.budget)


def day(now: dt.datetime) -> dt.date:
    return now.astimezone(dt.UTC).date()


def days_left(expires: dt.date, now: dt.datetime) -> int:
    """0 on the last day, negative afterwards."""
    return (expires - day(now)).days


def is_over(expires: dt.date | None, now: dt.datetime) -> bool:
    return expires is not None and days_left(expires, now) < 0


def is_soon(expires: dt.date | None, now: dt.datetime) -> bool:
    """True if the end was announced or has come."""
    return expires is not None and days_left(expires, now) <= SOON


def mark(expires: dt.date | None, now: dt.datetime) -> int | None:
    """The current notice: the nearest of MARKS, 0 after the end, None if the end is far away or there is none."""
    if expires is None:
        return None
    left = days_left(expires, now)
    return 0 if left < 0 else min((each for each in MARKS if left <= each), default=None)


def due(expires: dt.date | None, told: int | None, now: dt.datetime) -> int | None:
    """The notice to send now, if `told` was the last one."""
    holds = mark(expires, now)
    return holds if holds is not None and (told is None or holds < told) else None


def when(expires: dt.date, now: dt.datetime) -> str:
    """ "expires in 14 days", "has expired"."""
    left = days_left(expires, now)
    if left < 0:
        return "has expired"
    return "expires today" if left == 0 else f"expires in {left} {'day' if left == 1 else 'days'}"
