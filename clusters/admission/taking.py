"""Which runs give their GPUs back for another. Pure.

A run yields to runs of other appcodes that have a higher level, and to those of its own that have a higher class. So what runs
inside its quota is never taken by others, and no two runs can take from each other in turn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from clusters.admission.order import FIRST, Level, PriorityClass
from clusters.admission.packing import Sizes

# Seconds that programs have to end unless they say otherwise, and that they may have at most.
GRACE_SECONDS, MAX_GRACE_SECONDS = 10, 600
# Seconds of work that count at most. A run whose checkpoints are unknown counts as if it had none, so it is taken last, but it
# must not be safe for ever.
MOST_LOST = 4 * 3600
# Runs that are considered, those that lose least first.
MOST_CONSIDERED = 200


class Taker(Protocol):
    @property
    def appcode(self) -> str: ...
    @property
    def priority_class(self) -> PriorityClass: ...


@dataclass(frozen=True)
class Holding:
    """A run with places. `gpus`: whole ones, or slices where it has none. `nodes`: what it holds or was promised on each. `lost`:
    the GPU-seconds of work that it would lose now. `is_protected`: it began too recently to be taken; `until`: for how long, in
    seconds since 1970. `gone`: when it has ended at the latest if it is taken now; 0 if unknown."""

    run: str
    appcode: str
    gpus: int
    nodes: Mapping[str, Sizes]
    level: Level
    priority_class: PriorityClass = "normal"
    lost: int = 0
    is_protected: bool = False
    until: int = 0
    gone: int = 0

    def yields_to(self, taker: Taker, level: Level) -> bool:
        if self.is_protected or not self.gpus:
            return False
        if taker.appcode == self.appcode:
            return FIRST[taker.priority_class] < FIRST[self.priority_class]
        return self.level < level

    @property
    def price(self) -> tuple[Level, int, str]:
        """Spare runs are first, then those that lose least for each GPU."""
        return self.level, self.lost // max(1, self.gpus), self.run


class Leaving(Protocol):
    """What becomes of the taker as runs leave. `may_fit`: it does unless its tasks compete; `is_exact`: they do not."""

    @property
    def is_exact(self) -> bool: ...
    @property
    def may_fit(self) -> bool: ...
    def add(self, holding: Holding) -> None: ...
    def remove(self, holding: Holding) -> None: ...
    def may_fit_after(self, more: Mapping[str, Sizes]) -> bool: ...


@dataclass(frozen=True)
class Able:
    """Runs that yield to a taker, in order of price."""

    holdings: Sequence[Holding]

    @cached_property
    def sizes(self) -> Mapping[str, Sizes]:
        """What they hold together on each node."""
        found: dict[str, Sizes] = {}
        for each in self.holdings:
            for name, sizes in each.nodes.items():
                found[name] = found[name] + sizes if name in found else sizes
        return found


def cheapest(able: Able, leaving: Leaving, fits: Callable[[Sequence[Holding]], bool]) -> Sequence[Holding]:
    """Returns runs without which the taker fits, none of them in vain; none if it does not fit without all."""
    if not leaving.may_fit_after(able.sizes):
        return ()
    found = list[Holding]()
    for each in able.holdings:
        leaving.add(each)
        found.append(each)
        if leaving.may_fit and leaving.is_exact:
            break
    if not (leaving.is_exact or fits(found)):
        return ()
    if not leaving.is_exact:
        count = bisect_left(range(len(found)), True, key=lambda count: fits(found[:count]))
        for each in found[count:]:
            leaving.remove(each)
        found = found[:count]
    for each in reversed(found[:-1]):
        leaving.remove(each)
        fewer = [other for other in found if other is not each]
        if leaving.may_fit and (leaving.is_exact or fits(fewer)):
            found = fewer
        else:
            leaving.add(each)
    return found
