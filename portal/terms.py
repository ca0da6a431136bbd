"""What an appcode may have and until when, in numbers and in words: pure. A day is a day of UTC, and the last one counts whole.

An end is announced some days before it. Each notice is a *mark*, the number of days before the end, 0 when it has come; who was
told of one is not told of a larger one, so that a portal that was off for a week sends one mail and not three.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import astuple, dataclass, replace
from decimal import Decimal

MARKS = (14, 3, 1)
# A renewal is asked for from the first notice on.
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
        """ "16 GPUs, 2,048 GiB of volumes, 500.00 USD a month, until 2027-03-31"; `without` is said of a budget of None."""
        return ", ".join([
            f"{self.gpus:,} {'GPU' if self.gpus == 1 else 'GPUs'}",
            f"{self.storage:,} GiB of volumes",
            without if self.budget is None else f"{self.budget:,.2f} {currency} a month",
            "without end" if self.expires is None else f"until {self.expires}",
        ])  # fmt: skip


def followed(asked: Terms, before: Terms, now: Terms) -> Terms:
    """What is still asked for of somebody who has `now` instead of `before`: what was to change, and in the rest what they have.
    The budget that is asked for says so by itself."""
    fields = zip(astuple(asked), astuple(before), astuple(now), strict=True)
    return replace(Terms(*(new if wanted == old else wanted for wanted, old, new in fields)), budget=asked.budget)


def day(now: dt.datetime) -> dt.date:
    return now.astimezone(dt.UTC).date()


def days_left(expires: dt.date, now: dt.datetime) -> int:
    """0 on the last day, less when it is over."""
    return (expires - day(now)).days


def is_over(expires: dt.date | None, now: dt.datetime) -> bool:
    return expires is not None and days_left(expires, now) < 0


def is_soon(expires: dt.date | None, now: dt.datetime) -> bool:
    """Whether the end was announced, or has come."""
    return expires is not None and days_left(expires, now) <= SOON


def mark(expires: dt.date | None, now: dt.datetime) -> int | None:
    """The notice that holds now: the nearest of MARKS, 0 after the end, None while it is far away or there is none."""
    if expires is None:
        return None
    left = days_left(expires, now)
    return 0 if left < 0 else min((each for each in MARKS if left <= each), default=None)


def due(expires: dt.date | None, told: int | None, now: dt.datetime) -> int | None:
    """The notice to be sent now, when `told` is the last one that was."""
    holds = mark(expires, now)
    return holds if holds is not None and (told is None or holds < told) else None


def when(expires: dt.date, now: dt.datetime) -> str:
    """ "expires in 14 days", "has expired"."""
    left = days_left(expires, now)
    if left < 0:
        return "has expired"
    return "expires today" if left == 0 else f"expires in {left} {'day' if left == 1 else 'days'}"
