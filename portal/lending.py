"""What an appcode may borrow beyond its quota and how much it weighs, and who gains and who loses when that changes: pure.

The sentences are for administrators, before they save. They take the case in which everybody asks, since only then it matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Appcodes that a sentence names.
MOST_NAMED = 3


@dataclass(frozen=True)
class Share:
    """GPUs that may be held beyond the quota while nobody else needs them, and the part of what is lent."""

    borrow: int = 0
    weight: int = 1

    @property
    def words(self) -> str:
        """ "may borrow 8 GPUs, weight 2" """
        borrows = f"may borrow {_gpus(self.borrow)}" if self.borrow else "borrows no GPUs"
        return f"{borrows}, weight {self.weight}"


@dataclass(frozen=True)
class Stand:
    """What an appcode has."""

    quota: int
    borrow: int
    weight: int


def promised(quotas: int, pool: int | None) -> str:
    """What the quotas of all appcodes are worth, in a sentence. `pool`: the number of all GPUs, None or 0 if unknown."""
    if not pool:
        return f"The quotas of all appcodes together are {_gpus(quotas)}."
    said = f"The quotas of all appcodes together are {quotas:,} of {_gpus(pool)}"
    if quotas > pool:
        return f"{said}: oversold. If all ask, each gets a part of its quota."
    free = pool - quotas
    if not free:
        return f"{said}: each is promised, and only what others leave is lent."
    return f"{said}: each is promised, and {free:,} {'belongs' if free == 1 else 'belong'} to nobody and can always be lent."


def effect(
    code: str, before: Stand | None, after: Stand, others: Mapping[str, Stand], pool: int | None
) -> tuple[str, ...]:
    """Sentences on what `after` means for the appcode and for the others. `before`: what it has, None if it is new."""
    was = before or Stand(0, 0, 0)
    said = [promised(after.quota + sum(each.quota for each in others.values()), pool)]
    more = after.quota - was.quota
    if more > 0 and before:
        said.append(f"{code} gains {_gpus(more)} of its own: whoever borrows them gives them back when it asks.")
    elif more < 0:
        said.append(f"{code} loses {_gpus(-more)} of its own: what its runs hold beyond the quota counts as borrowed.")
    if after.borrow:
        said.append(f"It may hold {_gpus(after.quota + after.borrow)} while nobody else needs them.")
    elif was.borrow:
        said.append("It borrows nothing any more: its runs wait for its own quota.")
    said.append(_weights(code, before, after, others))
    return tuple(said)


def _weights(code: str, before: Stand | None, after: Stand, others: Mapping[str, Stand]) -> str:
    rest = sum(each.weight for each in others.values())
    total, old = rest + after.weight, rest + (before.weight if before else 0)
    if not total:
        return "Nobody has a weight: what is lent is divided equally."
    mine, mine_before = _percent(after.weight, total), _percent(before.weight if before else 0, old)
    said = f"When everybody asks, {code} gets {mine} of what is lent (weight {after.weight} of {total:,})"
    if before and before.weight == after.weight:
        return f"{said}."
    changed = {
        other: (_percent(each.weight, total), _percent(each.weight, old))
        for other, each in sorted(others.items(), key=lambda item: (-item[1].weight, item[0]))
    }
    told = [f"{other} {now} instead of {then}" for other, (now, then) in changed.items() if now != then]
    named, left = told[:MOST_NAMED], len(told) - MOST_NAMED
    if left > 0:
        named.append(f"and {left:,} more")
    who = "the others lose" if after.weight > (before.weight if before else 0) else "the others gain"
    said += f" instead of {mine_before}" if before else ""
    return f"{said}; {who}: {', '.join(named)}." if named else f"{said}."


def _percent(part: int, whole: int) -> str:
    """ "33 %", "0.4 %"; "0 %" only of nothing."""
    if not part or not whole:
        return "0 %"
    percent = 100 * part / whole
    return f"{percent:.0f} %" if percent >= 1 else f"{max(0.1, percent):.1f} %"


def _gpus(count: int) -> str:
    return f"{count:,} {'GPU' if count == 1 else 'GPUs'}"
