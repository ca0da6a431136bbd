"""What people are told of a forecast (`forecast.py`): by when a run probably starts, why nobody can say, and why it became later.
Pure.

The idea: a forecast is no promise, so it is shown only while it is as good as it says. Of the last runs of the cloud that were
foretold, about nine of ten must have started by the time that was likely.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field

from clusters.admission.codes import Values

# Fewer starts than this say nothing about nine of ten; more than that are long ago.
ENOUGH, LAST = 29, 200
# How many of a hundred must have started by then. Where nearly all do, it is no forecast but a bound.
FEWEST, MOST = 80, 97
# Fewer replays say nothing about nine of ten either.
REPLAYS = 8
# A forecast that has become so many times as far away as it was told first is explained.
SLIP = 1.25
# A forecast that was not renewed for so long is none.
OLD = dt.timedelta(minutes=5)

UNKNOWN = "It is not known yet: it is computed each minute, for the first runs that wait."
QUEUE = "The queue of its cloud decides when it starts."
FIRST = "It is known once it waits for nothing but its places."


@dataclass(frozen=True)
class Foretold:
    """Half of the replays have started the run by `p50`, nine of ten by `p90`. `values`: from what it is known, and why it became
    later. `why`: nobody can say."""

    p50: dt.datetime | None = None
    p90: dt.datetime | None = None
    as_of: dt.datetime | None = None
    values: Values = field(default_factory=dict)
    why: str = ""

    @property
    def runs(self) -> int:
        return int(self.values.get("runs", 0))

    @property
    def replays(self) -> int:
        return int(self.values.get("replays", 0))

    @property
    def basis(self) -> str:
        """ "32 replays of the queue, with the run times of 43 runs that ended there"."""
        runs = self.runs
        times = f"the run times of {_runs(runs)} that ended there" if runs else "time limits only"
        return f"{self.replays} replays of the queue, with {times}"

    @property
    def slipped(self) -> str:
        """Why it is later than it was told first; empty if it is not."""
        if not self.values.get("late") or self.why:
            return ""
        own, others, fewer = (int(self.values.get(name, 0)) for name in ("own", "others", "fewer"))
        came = [
            *([f"{_runs(own)} of its appcode"] if own else []),
            *([f"{_runs(others)} of other appcodes"] if others else []),
        ]
        why = [
            *([f"{' and '.join(came)}, which came later, {_go(own + others)} before it by more right"] if came else []),
            *([f"{fewer} fewer GPU{'' if fewer == 1 else 's'} {'is' if fewer == 1 else 'are'} there"] if fewer else []),
        ]
        return f"Later than was told first: {'; '.join(why) or 'runs before it last longer than such runs did'}."


def foretold(
    p50: dt.datetime | None, p90: dt.datetime | None, as_of: dt.datetime, values: Values, now: dt.datetime
) -> Foretold:
    """What is told of a forecast at `now`. `values`: `starts` and `kept` beside those of `Foretold`."""
    if now - as_of > OLD:
        return Foretold(why=UNKNOWN)
    why = doubt(int(values.get("starts", 0)), int(values.get("kept", 0)))
    if not why and int(values.get("replays", 0)) < REPLAYS:
        why = "The queue is too long to be replayed often enough."
    if not why and (p50 is None or p90 is None):
        why = "It cannot be said: not in nine of ten replays of the queue does it start within 7 days."
    return Foretold(as_of=as_of, values=values, why=why) if why else Foretold(p50, p90, as_of, values)


def doubt(starts: int, kept: int) -> str:
    """Why forecasts of a cloud are not shown; empty if they are. `kept`: how many of the last `starts` were in time."""
    if starts < ENOUGH:
        return f"Forecasts are not shown here yet: {starts} of {ENOUGH} starts are known by which they can be judged."
    if not FEWEST * starts <= 100 * kept <= MOST * starts:
        how = "early" if 100 * kept < FEWEST * starts else "cautious"
        return (
            f"Forecasts are not shown here now, as they were too {how}: {kept} of the last {starts} runs had started by the time "
            "that was likely for nine of ten."
        )
    return ""


def has_slipped(first_at: dt.datetime, first: dt.datetime, now: dt.datetime) -> bool:
    """Whether a run that was told `first` at `first_at` is to wait so much longer by what it is told now."""
    return now - first_at > SLIP * (first - first_at)


def _runs(count: int) -> str:
    return f"{count:,} run{'' if count == 1 else 's'}"


def _go(count: int) -> str:
    return "goes" if count == 1 else "go"
