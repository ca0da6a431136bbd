"""Which runs give their GPUs back for another. Pure.

A run yields to runs of other appcodes that have a higher level, and to those of its own that have a higher class. So what runs
inside its quota is never taken by others, and no two runs can take from each other in turn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    """A run with places. `nodes`: what it holds or was promised on each. `lost`: the GPU-seconds of work that it would lose now.
    `is_protected`: it began too recently to be taken; `until`: for how long, in seconds since 1970. `gone`: when it has ended at
    the latest if it is taken now; 0 if unknown."""

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


def cheapest(able: Sequence[Holding], fits: Callable[[Sequence[Holding]], bool]) -> Sequence[Holding]:
    """Returns runs without which the taker fits, none of them in vain; none if it does not fit without all."""
    ordered = sorted(able, key=lambda each: each.price)[:MOST_CONSIDERED]
    if not fits(ordered):
        return ()
    count = bisect_left(range(len(ordered)), True, key=lambda count: fits(ordered[:count]))
    found = ordered[:count]
    for each in reversed(found[:-1]):
        if fits(fewer := [other for other in found if other is not each]):
            found = fewer
    return found
