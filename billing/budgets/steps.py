"""The rules of a budget, as pure functions and frozen values. The clock and all sums are arguments.

At 50, 80 and 100 per cent of its amount a budget sends a notification, once a month each; a mark that a raised amount has put
out of reach is notified again when it is reached again. A used-up budget takes measures as far as its policy allows: block new
runs, then stop services, then stop everything. Each measure is announced and taken when its countdown is over; only then is the
next one announced. Measures are taken back as soon as their reason is gone: the amount was raised, the policy became milder,
the budget was paused, or an administrator lifted it for the rest of the month. Every month starts without any step.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal, get_args

from billing import periods

Policy = Literal["notify", "block", "stop_services", "stop_all"]
Mark = Literal["spent_50", "spent_80", "spent_100"]
Measure = Literal["block", "stop_services", "stop_all"]
Kind = Mark | Measure
Verb = Literal["note", "tell", "announce", "act", "take_back"]
Level = Literal["", "near", "over"]
State = Literal[
    "on track", "tight", "used up", "blocked", "services stopped", "stopped", "lifted", "paused"
]  # fmt: skip

POLICIES: tuple[Policy, ...] = get_args(Policy)
# In the order in which they are taken. A policy takes all up to the one of the same name.
MEASURES: tuple[Measure, ...] = get_args(Measure)
MARKS: dict[Mark, int] = {"spent_50": 50, "spent_80": 80, "spent_100": 100}
MAX_COUNTDOWN = dt.timedelta(days=7)
# The forecast extrapolates the mean of this many days, today included.
MEAN_DAYS = 7
HOUR = dt.timedelta(hours=1)


@dataclass(frozen=True)
class Terms:
    """The terms in force since `set_at`. A lifted budget notifies but takes no measures until the month is over; a
    paused one does neither."""

    amount: Decimal
    policy: Policy
    countdown: dt.timedelta
    lifted: bool = False
    paused: bool = False
    set_at: dt.datetime | None = None

    @property
    def measures(self) -> tuple[Measure, ...]:
        return MEASURES[: POLICIES.index(self.policy)]


@dataclass(frozen=True)
class Step:
    """One notification or measure of a month. `done_at` is None while it is only announced; `lifted_at` is set once it
    is taken back."""

    kind: Kind
    announced_at: dt.datetime
    due_at: dt.datetime
    done_at: dt.datetime | None = None
    lifted_at: dt.datetime | None = None

    @property
    def stands(self) -> bool:
        return self.lifted_at is None


@dataclass(frozen=True)
class Change:
    """A step to write now. "note" sends nothing: it marks a threshold that was passed together with a higher one, or
    one that is ahead again."""

    verb: Verb
    step: Step


def next_steps(terms: Terms, spent: Decimal, steps: Iterable[Step], now: dt.datetime) -> list[Change]:
    """The changes due at `now`, given this month's `steps` so far. Once they are written, the same arguments give no changes."""
    known = {step.kind: step for step in steps}
    changes = [] if terms.paused else _marks(terms, spent, known, now)
    taken = terms.measures if spent >= terms.amount and not terms.paused and not terms.lifted else ()
    for kind in reversed(MEASURES):
        step = known.get(kind)
        if step is not None and step.stands and kind not in taken:
            changes.append(Change("take_back", replace(step, lifted_at=now)))
    for kind in taken:
        step = known.get(kind)
        if step is None or not step.stands:
            changes.append(Change("announce", Step(kind, now, now + terms.countdown)))
            break
        if step.done_at is None:
            if step.due_at > now:
                break
            changes.append(Change("act", replace(step, done_at=now)))
    return changes


def _marks(terms: Terms, spent: Decimal, known: dict[Kind, Step], now: dt.datetime) -> list[Change]:
    told = {mark: step for mark in MARKS if (step := known.get(mark)) and step.stands}
    reached = [mark for mark, percent in MARKS.items() if spent * 100 >= terms.amount * percent]
    # Only new terms reset a mark. Spending that was corrected downwards does not: running usage is corrected all the time.
    again = [
        Change("note", replace(step, lifted_at=now))
        for mark, step in told.items()
        if mark not in reached and terms.set_at and terms.set_at > step.announced_at
    ]
    passed = [mark for mark in reached if mark not in told]
    return again + [
        Change("tell" if mark == passed[-1] else "note", Step(mark, now, now, done_at=now)) for mark in passed
    ]


def after(steps: Iterable[Step], changes: Iterable[Change]) -> list[Step]:
    """The steps of a month after `changes` are written."""
    known = {step.kind: step for step in steps}
    known.update((change.step.kind, change.step) for change in changes)
    return list(known.values())


@dataclass(frozen=True)
class Forecast:
    """The expected cost of a whole month. `per_day` is the daily mean that it goes on with, and None where what runs now costs
    more than that; `mean_days` are the days behind it."""

    total: Decimal
    per_day: Decimal | None
    mean_days: int = 0


def forecast(
    spent: Decimal, lately: Mapping[dt.date, Decimal], now: dt.datetime, *, lasting: Decimal, passing: Decimal
) -> Forecast:
    """The expected cost of the whole month.

    It is `spent` plus the larger of two estimates for the rest of the month. The first is the mean of `lately`, the
    cost of each of the last seven days including today so far, counted from the first day with any cost and over at
    least one day. The second is what runs now, per hour: `lasting` to the end of the month, because only a person ends
    it, and `passing`, which ends by itself, for one hour.
    """
    rest = periods.month(now).until - now
    used = [day for day, cost in lately.items() if cost]
    mean = Decimal(0)
    if used:
        since = dt.datetime.combine(min(used), dt.time(), dt.UTC)
        mean = sum(lately.values(), Decimal(0)) / max(Decimal(1), _days(now - since))
    running = (lasting * _days(rest) + passing * _days(min(rest, HOUR))) * 24
    if running > mean * _days(rest):
        return Forecast(spent + running, None)
    return Forecast(spent + mean * _days(rest), mean, (now.date() - min(used)).days + 1 if used else 0)


def first_mean_day(now: dt.datetime) -> dt.date:
    """The first day of the mean that `forecast` uses."""
    return now.date() - (MEAN_DAYS - 1) * periods.DAY


def state(terms: Terms, spent: Decimal, expected: Decimal, steps: Iterable[Step]) -> State:
    """The budget's state in a word or two."""
    if terms.paused:
        return "paused"
    if terms.lifted:
        return "lifted"
    done = {step.kind for step in steps if step.stands and step.done_at}
    words: tuple[tuple[Measure, State], ...] = (
        ("stop_all", "stopped"), ("stop_services", "services stopped"), ("block", "blocked"),
    )  # fmt: skip
    for kind, word in words:
        if kind in done:
            return word
    if spent >= terms.amount:
        return "used up"
    return "tight" if expected > terms.amount else "on track"


def percent(part: Decimal, amount: Decimal) -> int:
    """Whole per cent, rounded down, so that 100 is never shown too early."""
    return int(part * 100 / amount)


def percent_words(part: Decimal, amount: Decimal) -> str:
    """The same to read: little is not nothing."""
    whole = percent(part, amount)
    return f"{whole} %" if whole or part <= 0 else "< 1 %"


def level(spent: int) -> Level:
    """How loudly pages show these per cent of a budget: "near" from the mark before the last, "over" from the last."""
    return "over" if spent >= MARKS["spent_100"] else "near" if spent >= MARKS["spent_80"] else ""


# Sentences. `who` is an appcode or a business line.


def will(kind: Measure, who: str) -> str:
    """Announces a measure."""
    what, _, done = _words(kind, who)
    return f"{what} will be {done}"


def does(kind: Measure, who: str) -> str:
    """States a measure in force."""
    return " ".join(_words(kind, who))


def does_not(kind: Measure, who: str) -> str:
    """States that a measure was taken back."""
    what, are, done = _words(kind, who)
    # "Everything is not stopped" would be ambiguous.
    return f"{who if kind == 'stop_all' else what} {are} not {done}"


def _words(kind: Measure, who: str) -> tuple[str, str, str]:
    """Subject, verb and participle of a measure."""
    return {
        "block": (f"New runs of {who}", "are", "blocked"),
        "stop_services": (f"Services of {who}", "are", "stopped"),
        "stop_all": (f"Everything of {who}", "is", "stopped"),
    }[kind]


def used_up(whose: str, month: dt.date, amount: Decimal, currency: str) -> str:
    """ "the budget of ops-demo for November (500.00 USD) is used up"."""
    return f"the budget of {whose} for {month:%B} ({amount:,.2f} {currency}) is used up"


def _days(span: dt.timedelta) -> Decimal:
    return Decimal(span // dt.timedelta(microseconds=1)) / Decimal(periods.DAY // dt.timedelta(microseconds=1))
