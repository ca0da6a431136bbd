"""Use that fades: GPU-seconds of which half counts after a week. Pure; exact for any stretches, because constant use fades in
closed form and nothing is sampled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import expm1, fsum, log

HALF_LIFE = 7 * 86400
# Seconds: one GPU that is held for ever has a decayed use of this many GPU-seconds.
LIFE = round(HALF_LIFE / log(2))


@dataclass(frozen=True)
class Stretch:
    """`gpus` held from `start` to `end`, in seconds of any one clock."""

    start: int
    end: int
    gpus: int


def decayed(used: int, at: int, stretches: Iterable[Stretch], now: int) -> int:
    """GPU-seconds at `now`: those that were `used` at `at`, and the stretches, which may overlap and lie before `at`, too. Of a
    stretch only what lies before `now` counts."""
    seconds = HALF_LIFE / log(2)
    parts = [used * 0.5 ** ((now - at) / HALF_LIFE)]
    for each in stretches:
        start, end = min(each.start, now), min(each.end, now)
        # The share that is left of the stretch's end, less that of its start; expm1 keeps the digits of short stretches.
        left = 0.5 ** ((now - end) / HALF_LIFE)
        parts.append(each.gpus * seconds * left * -expm1((start - end) / seconds))
    return round(fsum(parts))
