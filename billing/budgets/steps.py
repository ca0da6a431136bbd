"""What a budget does as money is spent: pure functions and frozen values. The clock and all sums come in as arguments.

At 50, 80 and 100 per cent of its amount a budget tells, each once a month, and again when a raised amount has put it off. When
it is used up it goes on as far as its policy says: block new runs, then stop services, then stop everything. Each of these is
announced, and done when the time that was announced is over; then the next one is announced. What stands is taken back as soon
as its reason is gone: the amount was raised, the policy is milder, the budget was paused, or an administrator lifted it for the
rest of the month. A month begins with nothing, so nothing of the one before stands any more.
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
State = Literal[
    "on track", "tight", "used up", "blocked", "services stopped", "stopped", "lifted", "paused"
]  # fmt: skip

POLICIES: tuple[Policy, ...] = get_args(Policy)
# In the order in which they are taken: a policy takes all up to the one of its own name.
MEASURES: tuple[Measure, ...] = get_args(Measure)
MARKS: dict[Mark, int] = {"spent_50": 50, "spent_80": 80, "spent_100": 100}
MIN_COUNTDOWN, MAX_COUNTDOWN = dt.timedelta(minutes=1), dt.timedelta(days=7)
# The mean of these days, today's part included, is what a forecast goes on with.
MEAN_DAYS = 7
HOUR = dt.timedelta(hours=1)


@dataclass(frozen=True)
class Terms:
    """A budget as it holds now, since `set_at`. `lifted`: it tells and takes no measures until the month is over; `paused`: it
    does nothing."""

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
    """One thing that was told or taken in a month: `done_at` None while it is only announced, `lifted_at` when taken back."""

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
    """What is to be written now. "note" is done without a word: a mark that a higher one, passed in the same moment, tells
    about, and one that lies ahead again."""

    verb: Verb
    step: Step


def next_steps(terms: Terms, spent: Decimal, steps: Iterable[Step], now: dt.datetime) -> list[Change]:
    """What is due at `now`, when `steps` are those of this month so far. With the same facts and their results it is nothing."""
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
    # Money that is corrected puts nothing off: what runs is corrected all the time.
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
    """The steps of a month once the changes are written."""
    known = {step.kind: step for step in steps}
    known.update((change.step.kind, change.step) for change in changes)
    return list(known.values())


def forecast(
    spent: Decimal, lately: Mapping[dt.date, Decimal], now: dt.datetime, *, lasting: Decimal, passing: Decimal
) -> Decimal:
    """What the month will have cost when it is over, if it goes on as it does.

    `spent` so far and, for what remains of the month, the mean of `lately`: what each of the last seven days cost, today as far
    as it has come. They are counted from the first that cost anything; less than a day counts as one. What runs now, at so
    much an hour, is the least that comes: `lasting` until the month is over, because it ends only when somebody ends it, and
    `passing`, which ends by itself, for an hour.
    """
    rest = periods.month(now).until - now
    used = [day for day, cost in lately.items() if cost]
    mean = Decimal(0)
    if used:
        since = dt.datetime.combine(min(used), dt.time(), dt.UTC)
        mean = sum(lately.values(), Decimal(0)) / max(Decimal(1), _days(now - since))
    running = lasting * _days(rest) + passing * _days(min(rest, HOUR))
    return spent + max(mean * _days(rest), running * 24)


def first_mean_day(now: dt.datetime) -> dt.date:
    """The first of the days of which `forecast` takes the mean."""
    return now.date() - (MEAN_DAYS - 1) * periods.DAY


def state(terms: Terms, spent: Decimal, expected: Decimal, steps: Iterable[Step]) -> State:
    """How a budget is, in a word or two."""
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
    """Whole per cent, rounded down, so that 100 is never said too early."""
    return int(part * 100 / amount)


# In words. `who` is an appcode or a business line.


def will(kind: Measure, who: str) -> str:
    """What is announced."""
    what, _, done = _words(kind, who)
    return f"{what} will be {done}"


def does(kind: Measure, who: str) -> str:
    """What holds."""
    return " ".join(_words(kind, who))


def does_not(kind: Measure, who: str) -> str:
    """What was taken back."""
    what, are, done = _words(kind, who)
    # "Everything is not stopped" would leave open whether something is.
    return f"{who if kind == 'stop_all' else what} {are} not {done}"


def _words(kind: Measure, who: str) -> tuple[str, str, str]:
    """What a measure is about, whether it is one or many, and what is done to it."""
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
