"""What is said of a run before it is submitted: does it start now, later or never, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from clusters.admission.codes import Fits as Fits


@dataclass(frozen=True)
class Judgement:
    """`reason` is a word for programs, `message` a sentence for people; both are "" where nothing is to be said."""

    fits: Fits
    reason: str
    message: str


def worst(*judgements: Judgement) -> Judgement:
    """Returns the worst judgement: never, then waits, then now; the first of equals."""
    order: dict[Fits, int] = {"never": 0, "waits": 1, "now": 2}
    return min(judgements, key=lambda judgement: order[judgement.fits])
