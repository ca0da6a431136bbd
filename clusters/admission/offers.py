"""Smallest changes: what a run could ask for instead, to start now or sooner. Pure.

The idea: ways are tried in the order of what they cost the user, each with as little of a change as is enough, and what is found
is decided as if it had been asked for. So an offer that is taken at once keeps its word. A search asks the decision a bounded
number of times; most questions are about what the runs before this one leave, which is computed once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from math import inf
from typing import Literal

from clusters.admission.decision import Ask, Prospect, Verdict
from clusters.admission.order import PriorityClass
from clusters.admission.packing import Tasks

# From the least to the largest sacrifice.
Kind = Literal["fewer", "split", "model", "timeLimit", "spare"]
ORDER: Sequence[Kind] = ("fewer", "split", "model", "timeLimit", "spare")
# Offers that are shown.
MOST = 3
# Splits or models that are tried.
MOST_TRIED = 12
# Of those that do not start now, so many are decided to find one that starts sooner.
MOST_WAITING = 2
# Smaller counts than this are all tried: packing is not quite monotone.
FEW = 16


@dataclass(frozen=True)
class Change:
    """What a run would ask for. `seconds`: its time limit. `way`: which of its caller's ways this is."""

    kind: Kind
    tasks: tuple[Tasks, ...]
    priority_class: PriorityClass = "normal"
    seconds: int | None = None
    way: int = 0

    @property
    def gpus(self) -> int:
        return sum(each.count * each.whole_gpus for each in self.tasks)

    @property
    def counted(self) -> int:
        """GPUs that count against the quota."""
        return 0 if self.priority_class == "spare" else self.gpus


@dataclass(frozen=True)
class Terms:
    """What decides about changes. `ask_of`: the run that a change asks for, `prospect`: on its nodes. `quota`: GPUs for which the
    limit of its appcode has room now, and the limit. `price`: of an hour."""

    prospect: Callable[[Change], Prospect]
    ask_of: Callable[[Change], Ask]
    quota: Callable[[Change], tuple[int, int]]
    price: Callable[[Change], Decimal]


@dataclass(frozen=True)
class Offer:
    """`starts`: at once; otherwise `latest` may say when at the latest, in seconds since 1970."""

    change: Change
    starts: bool
    latest: int | None
    price: Decimal

    @property
    def when(self) -> _When:
        return 0 if self.starts else self.latest or inf


# When a run starts: 0 for now, a time at the latest, inf for later, None for never.
_When = float


def offers(
    terms: Terms, was: Change, ways: Iterable[Change] = (), limits: Iterable[int] = (), *, may_be_spare: bool = False
) -> list[Offer]:
    """At most three offers, each of another kind, from the smallest sacrifice on. `was`: what is asked for, which does not start
    now. `ways`: its splits and other models, in the order in which they are tried. `limits`: time limits, the longest
    first."""
    search, of_kind = _Search(terms, was), dict[Kind, list[Change]]()
    for each in ways:
        of_kind.setdefault(each.kind, []).append(each)
    of_kind["timeLimit"] = [
        replace(was, kind="timeLimit", seconds=each) for each in limits if each < (was.seconds or inf)
    ]
    if may_be_spare and was.priority_class != "spare":
        of_kind["spare"] = [replace(was, kind="spare", priority_class="spare")]
    found = [search.fewer(), *(search.first(of_kind.get(kind, [])) for kind in ORDER)]
    return _best([each for each in found if each])[:MOST]


class _Search:
    """`before`: when the run starts as it is; None for never."""

    def __init__(self, terms: Terms, was: Change) -> None:
        self._terms, self._was = terms, was
        self._prospect, self._ask = terms.prospect(was), terms.ask_of(was)
        self._before = self._decided(was)[0]

    def fewer(self) -> Offer | None:
        """The most tasks of its largest role that start now."""
        largest = max(self._was.tasks, key=lambda each: (each.count * each.gpus, each.count), default=None)
        if largest is None or largest.count < 2:
            return None

        def with_(count: int) -> Change:
            tasks = tuple(replace(each, count=count) if each is largest else each for each in self._was.tasks)
            return replace(self._was, kind="fewer", tasks=tasks)

        def ask(count: int) -> Ask:
            return self._terms.ask_of(with_(count))

        # The fewer it asks for, the better its right may be, and the earlier its turn.
        prospect, all_but_one = self._prospect, largest.count - 1
        better = bisect_left(
            range(1, largest.count), True, key=lambda n: prospect.level(ask(n)) != prospect.level(ask(1))
        )
        for low, high in ((better, all_but_one), (0, better)):
            like = self._ask if prospect.level(ask(high)) == prospect.level(self._ask) else ask(high)
            count = _most(low, high, lambda n, like=like: self._seems_to_start(with_(n), like))  # type: ignore[misc]
            for each in range(count, max(low, count - MOST_WAITING), -1):
                if (offer := self._offer(with_(each))) and offer.starts:
                    return offer
        if self._before is not None:
            return self._offer(with_(largest.count // 2))
        _, most = self._terms.quota(self._was)
        able = _most(0, all_but_one, lambda n: with_(n).counted <= most and prospect.is_possible(ask(n)))
        return self._offer(with_(able)) if able else None

    def first(self, changes: Sequence[Change]) -> Offer | None:
        """The first that starts now, or else one that starts sooner than what is asked for."""
        for each in changes[:MOST_TRIED]:
            ask = self._terms.ask_of(each)
            like = self._ask if self._has_its_turn(each) else ask
            if self._seems_to_start(each, like) and (offer := self._offer(each)) and offer.starts:
                return offer
        sooner = [offer for each in changes[:MOST_WAITING] if (offer := self._offer(each))]
        return min(sooner, key=lambda offer: offer.when, default=None)

    def _has_its_turn(self, change: Change) -> bool:
        """Whether the change starts after the same runs."""
        same = (change.gpus, change.priority_class) == (self._was.gpus, self._was.priority_class)
        return same and self._terms.prospect(change) is self._prospect

    def _seems_to_start(self, change: Change, like: Ask) -> bool:
        now, _ = self._terms.quota(change)
        return change.counted <= now and self._terms.prospect(change).starts(self._terms.ask_of(change), like)

    def _offer(self, change: Change) -> Offer | None:
        """None if nothing is gained."""
        when, verdict = self._decided(change)
        if when is None or (self._before is not None and when >= self._before):
            return None
        latest = int(verdict.values.get("latest", 0)) if 0 < when < inf else None
        return Offer(change, when == 0, latest, self._terms.price(change))

    def _decided(self, change: Change) -> tuple[_When | None, Verdict]:
        now, most = self._terms.quota(change)
        verdict = self._terms.prospect(change).verdict(self._terms.ask_of(change))
        if verdict.code.fits == "never" or change.counted > most:
            return None, verdict
        if change.counted > now:
            return inf, verdict
        return (0 if verdict.code.fits == "now" else int(verdict.values.get("latest", 0)) or inf), verdict


def _most(low: int, high: int, is_enough: Callable[[int], bool]) -> int:
    """The largest number above `low`, up to `high`, that is enough; `low` if there is none."""
    if high - low <= FEW:
        return next((each for each in range(high, low, -1) if is_enough(each)), low)
    return low + bisect_left(range(low + 1, high + 1), True, key=lambda each: not is_enough(each))


def _best(found: Sequence[Offer]) -> list[Offer]:
    """Without those that another beats."""
    return [each for each in found if not any(_beats(other, each) for other in found if other is not each)]


def _beats(one: Offer, other: Offer) -> bool:
    """Whether it is a smaller sacrifice that starts no later, with as many GPUs and for no more money, and better in one."""
    if ORDER.index(one.change.kind) > ORDER.index(other.change.kind) or one.change.gpus < other.change.gpus:
        return False
    return (one.when, one.price) != (other.when, other.price) and one.when <= other.when and one.price <= other.price
