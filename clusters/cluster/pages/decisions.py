"""The part of a run's page that tells why it waited: its newest decisions, the oldest of them first. One query."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from clusters.runs.models import Run
from clusters.runs.status import history
from clusters.runs.status.history import Line

# More are behind a link.
SHOWN = 12
# A shorter wait, in seconds, needs no explanation once it is over.
SHORT = 30


@dataclass(frozen=True)
class Waited:
    """`now` tells what has changed since the last line; None if nothing has. `waits`: it still does."""

    lines: list[Line]
    hidden: int
    now: Line | None
    waits: bool


def waited(run: Run, *, everything: bool) -> Waited | None:
    """None if nothing was decided about the run, or it never waited for long and nothing was taken back from it."""
    current = history.current(run)
    if current is None or not run.noted:
        return None
    rows = list(run.decisions.order_by("-number")[: history.MOST if everything else SHOWN])
    lines = [history.line(row) for row in reversed(rows)]
    waits = not run.is_terminal and current.code.fits != "now"
    since = max(lines[-1].at, run.started_at or run.created_at) - run.created_at
    if not waits and not run.times_given_back and since < dt.timedelta(seconds=SHORT):
        return None
    is_news = lines[-1].sentence != current.sentence
    hidden = min(lines[0].number - 1, history.MOST - len(lines))
    return Waited(lines, hidden, current if is_news else None, waits)
