"""What each appcode deserves of a pool now: its quota first, and of the rest a part by weight, less for who used much lately.

Water filling from business lines to appcodes, as KAI does it. All sums are integers (GPUs in fixed point until the last step), so
equal input gives equal output in any order. Whole GPUs go by largest remainder, to lines first, then within each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from billing.sums.decay import LIFE

# A GPU is divided into this many parts.
PARTS = 1 << 32
# How strongly past use counts against the weight.
USE_FACTOR = 1
# The least weight, as a part of one millionth: who has no weight, or used far too much, gets what nobody else wants.
LEAST = 1_000_000


@dataclass(frozen=True)
class Want:
    """An appcode: GPUs that its runs hold and wait for (`asked`), and its decayed use in GPU-seconds (`used`)."""

    line: str
    quota: int
    limit: int
    weight: int
    used: int
    asked: int

    @property
    def most(self) -> int:
        return max(0, min(self.asked, self.limit))

    @property
    def guaranteed(self) -> int:
        return min(self.quota, self.most)


@dataclass(frozen=True)
class _Side:
    """A line or an appcode, in whole GPUs."""

    name: str
    guaranteed: int
    most: int
    weight: int
    used: int


def deserved(wants: Mapping[str, Want], capacity: int) -> dict[str, int]:
    """GPUs of `capacity` that each appcode deserves: at most what it asks for and its limit. If quotas are oversold, in
    proportion to what each would have of its quota.

    A line weighs as much as all of its appcodes that are given, also those that ask for nothing."""
    lines = defaultdict[str, list[_Side]](list)
    for code, want in wants.items():
        lines[want.line].append(_Side(code, want.guaranteed, want.most, want.weight, want.used))
    sides = [_together(line, members) for line, members in lines.items()]
    amounts = _divide(sides, capacity * PARTS, capacity)
    whole = _whole(sides, amounts, min(capacity, sum(side.most for side in sides)))
    found: dict[str, int] = {}
    for side, amount, gpus in zip(sides, amounts, whole, strict=True):
        members = lines[side.name]
        parts = _divide(members, amount, capacity)
        found |= zip((each.name for each in members), _whole(members, parts, gpus), strict=True)
    return {code: found[code] for code in wants}


def _together(line: str, members: Sequence[_Side]) -> _Side:
    return _Side(
        line,
        sum(each.guaranteed for each in members),
        sum(each.most for each in members),
        sum(each.weight for each in members),
        sum(each.used for each in members),
    )


def _divide(sides: Sequence[_Side], amount: int, capacity: int) -> list[int]:
    """Divides `amount` parts of GPUs; a few of them remain from rounding."""
    promised = PARTS * sum(side.guaranteed for side in sides)
    if promised > amount:
        return [amount * PARTS * side.guaranteed // promised for side in sides]
    got = [PARTS * side.guaranteed for side in sides]
    rest = amount - promised
    while unsatisfied := [at for at, side in enumerate(sides) if got[at] < PARTS * side.most]:
        if rest < len(unsatisfied):
            break
        weights = _weights([sides[at] for at in unsatisfied], capacity)
        total, given = sum(weights), 0
        for at, weight in zip(unsatisfied, weights, strict=True):
            more = min(PARTS * sides[at].most - got[at], rest * weight // total)
            got[at] += more
            given += more
        rest -= given
    return got


def _weights(sides: Sequence[_Side], capacity: int) -> list[int]:
    """W + k·(W − U'): W is the part of all weights, U' the decayed use as a part of the most that is possible. All are multiplied
    by the same number, which makes them integers."""
    all_weights = sum(side.weight for side in sides)
    full = capacity * LIFE
    least = max(1, all_weights * full // LEAST)
    return [max(least, (1 + USE_FACTOR) * side.weight * full - USE_FACTOR * side.used * all_weights) for side in sides]


def _whole(sides: Sequence[_Side], amounts: Sequence[int], gpus: int) -> list[int]:
    """Makes whole GPUs of the amounts, `gpus` in all: one more for those with the largest remainder, then with the least use."""
    whole = [amount // PARTS for amount in amounts]
    order = sorted(range(len(sides)), key=lambda at: (-(amounts[at] % PARTS), sides[at].used, sides[at].name))
    left = gpus - sum(whole)
    while left > 0:
        for at in order:
            if left and whole[at] < sides[at].most:
                whole[at] += 1
                left -= 1
    return whole
