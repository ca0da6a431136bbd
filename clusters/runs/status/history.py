"""The history of what was decided about runs: why they waited, where they were placed, when they were whole, and what they lost.

The idea: what holds for a run follows from its row alone. So whatever changes a row and has its phase recomputed leaves its line,
in the same transaction, and nobody has to remember to write one. Lines have codes and values; who reads them makes the sentences.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from django.db.models import Q

from clusters.admission.codes import Code, Values, code_of
from clusters.admission.words import sentence_of
from clusters.runs.models import Decision, Run
from clusters.runs.status.phase import WAITING

# Only as many lines of a run are kept: the newest.
MOST = 200
# A line whose code is that of the last comes this much later at the earliest; or a part of the time for which the run has been
# there, if that is longer. So the first minutes are told in detail, and a month does not fill the history.
APART, PART = dt.timedelta(minutes=1), 20
# Number of nodes that are named.
NAMED = 3
# Length of others' words.
MOST_SAID = 500
TROUBLE = "CloudUnreachable"


@dataclass(frozen=True)
class Line:
    """`at`: since when it holds, or when it was decided."""

    code: Code
    values: Values
    at: dt.datetime
    number: int = 0

    @property
    def sentence(self) -> str:
        return sentence_of(self.code, self.values)


def of_wait(reason: str, message: str) -> tuple[str, Values]:
    """The code and the values of a wait of which no more is known than a reason and a sentence."""
    if not reason:
        return "", {}
    code = code_of(reason)
    return code, {} if code is Code.TURN else {"said": message[:MOST_SAID]}


def now_of(run: Run) -> tuple[Code, Values] | None:
    """What holds for a run by its row; None if nothing was decided yet, and once it is to end."""
    if run.verdict or run.refusal or run.desired != Run.Desired.RUNNING:
        return None
    if run.wait_reason:
        if run.wait_reason == TROUBLE and run.phase == Run.Phase.RUNNING:
            return None  # It waits for nothing: its cloud could not be told to put something right.
        return _waits(run)
    if run.placed_at is not None:
        if run.whole_at is not None:
            return Code.WHOLE, {"seconds": _seconds(run.placed_at, run.whole_at)}
        return Code.PLACED, _places(run)
    if run.admitted_at is None:
        return None
    if run.started_at is not None:
        return Code.STARTED, {"seconds": _seconds(run.admitted_at, run.started_at)}
    # Until its cloud was told of it, nobody knows what it waits for there.
    return None if run.applied_at is None else _in_cloud(run)


def note(runs: Sequence[Run], at: dt.datetime) -> None:
    """Adds lines for those of `runs` (locked rows) for which something else holds than their last lines say. Sets `Run.noted`,
    which the caller saves in the same transaction. One statement, none without news; one more if a history is too long."""
    new = []
    for run in runs:
        found = now_of(run)
        if found is None or not _is_news(run, *found, at):
            continue
        number = run.noted.get("number", 0) + 1
        code, values = found
        run.noted = {"number": number, "at": at.isoformat(), "code": code, "values": dict(values)}
        new.append(Decision(run=run, number=number, at=at, code=code, values=run.noted["values"]))
    if not new:
        return
    Decision.objects.bulk_create(new)
    if long := [row for row in new if row.number > MOST]:
        Decision.objects.filter(
            reduce(or_, (Q(run=row.run_id, number__lte=row.number - MOST) for row in long))
        ).delete()


def current(run: Run) -> Line | None:
    """What holds for a run now, or held last; None if nothing was decided about it. Its number is that of the last line."""
    found, noted = now_of(run), run.noted
    if not noted:
        return Line(*found, run.admitted_at or run.created_at) if found else None
    code, values = found or (Code(noted["code"]), noted["values"])
    return Line(code, values, dt.datetime.fromisoformat(noted["at"]), noted["number"])


def line(row: Decision) -> Line:
    return Line(Code(row.code), row.values, row.at, row.number)


def _is_news(run: Run, code: Code, values: Values, at: dt.datetime) -> bool:
    """Whether people would notice it: another code, or after a while another sentence."""
    last = run.noted
    if not last:
        # One that never waited has nothing to tell, where its cloud finds the places.
        return code not in (Code.PLACING, Code.STARTED)
    if last["code"] != code:
        return True
    if last["values"] == values:
        return False
    apart = max(APART, (at - run.created_at) / PART)
    if at - dt.datetime.fromisoformat(last["at"]) < apart:
        return False
    return sentence_of(code, last["values"]) != sentence_of(code, values)


def _waits(run: Run) -> tuple[Code, Values]:
    code = code_of(run.wait_reason)
    if run.wait_code and (code is Code.TURN or run.wait_code in (code, Code.OVER_LIMIT)):
        return Code(run.wait_code), run.wait_values
    # Of an older version of the portal, or no more is known.
    return code, {"said": run.wait_message[:MOST_SAID]}


def _places(run: Run) -> Values:
    names = sorted({node for nodes in run.layout.values() for node in nodes})
    found: dict[str, int | str] = {"names": ", ".join(names[:NAMED])}
    return found | {"more": len(names) - NAMED} if len(names) > NAMED else found


def _in_cloud(run: Run) -> tuple[Code, Values]:
    """What a cloud that places tasks itself says of them."""
    said: Mapping[str, int | str] = {"said": run.message[:MOST_SAID]}
    if run.reason in WAITING.values():
        return (Code.GPUS if run.gpus else Code.RESOURCES), said
    if run.blocked_message and run.reason == run.blocked_reason:
        return Code.CLOUD, said
    return Code.PLACING, {"gpus": run.gpus}


def _seconds(start: dt.datetime, end: dt.datetime) -> int:
    """Clocks of nodes may be behind."""
    return max(0, round((end - start).total_seconds()))
