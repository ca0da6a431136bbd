"""The value that a run reached: the last value of its metric in its event files or its printed output.

Event files come first, if there is an output; the last lines of the log have metrics that they lack. Not inside a transaction.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import PurePosixPath

from clusters.clouds.drivers.base import CloudError
from clusters.logs.read import TAIL_BYTES, Key, RunLogs
from clusters.runs.models import Run
from clusters.scalars.events import Curve, Scalars
from clusters.scalars.printed import last_printed, scalars_of_log
from clusters.scalars.reading import leading, recorded
from datastores.drivers.base import DriverError

log = logging.getLogger(__name__)

# Bytes read from the log of a running run each time.
LATELY = 64 * 1024
# Squares of the values of folds, and their sums, must stay finite.
MAX_VALUE = 1e150


@dataclass(frozen=True)
class Reading:
    """A value, or why there is none. `again`: a retry may succeed, because the storage or cloud does not answer now."""

    value: float | None
    why: str = ""
    again: bool = False


def read_value(run: Run, metric: str) -> Reading:
    """The value of `run`, which has succeeded."""
    try:
        found = last_stored(recorded(run), metric)
        if isinstance(found, str):
            return Reading(None, found)
        value, why = (found, "") if found is not None else _last_line(run, metric)
    except (CloudError, DriverError) as error:
        return Reading(None, f"Its numbers cannot be read now: {error}", again=True)
    return reading_of(metric, value, why)


def reading_of(metric: str, value: float | None, why: str) -> Reading:
    """The Reading for a value that was found, or for `why` there is none."""
    if value is None:
        return Reading(
            None, why or f"It named no {metric}, neither in an event file nor in a line like “{metric} = 0.31”."
        )
    if not is_comparable(value):
        return Reading(None, f"Its {metric} is {value}, which is no number to compare.")
    return Reading(value)


def read_steps(run: Run, metric: str) -> list[tuple[int, float]]:
    """Recent steps and values of a running run, ordered by step; [] if they cannot be read now."""
    try:
        if lines := lines_of(recorded(run), metric):
            return [(point.step, point.value) for point in lines[0].points]
        role, attempt = leading(run)
        if attempt is None:
            return []
        chunk = RunLogs(run).read(role, 0, attempt, limit=LATELY, tail=LATELY)
    except (CloudError, DriverError) as error:
        log.info("run %s: how far it is cannot be read now: %s", run.pk, error)
        return []
    return [(point.step, point.value) for line in lines_of(scalars_of_log(chunk.data), metric) for point in line.points]


def is_comparable(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= MAX_VALUE


def last_stored(scalars: Scalars, metric: str) -> float | str | None:
    """The last value of a line; a sentence if several lines match, None if there is none."""
    lines = lines_of(scalars, metric)
    if len(lines) > 1:
        folders = ", ".join(sorted(f"{PurePosixPath(curve.folder).name}/{curve.tag}" for curve in lines)[:5])
        return f"“{metric}” is written more than once; name one of {folders}."
    return lines[0].points[-1].value if lines else None


def lines_of(scalars: Scalars, metric: str) -> list[Curve]:
    """The lines that a goal may mean: by tag, or as FOLDER/TAG."""
    return [curve for curve in scalars.curves if curve.points and metric in _names(curve)]


def _names(curve: Curve) -> tuple[str, str]:
    return curve.tag, f"{PurePosixPath(curve.folder).name}/{curve.tag}"


def _last_line(run: Run, metric: str) -> tuple[float | None, str]:
    """The last value in the leading task's log, and why it is unknown if the log is gone."""
    role, attempt = leading(run)
    return (None, "") if attempt is None else value_in_log(RunLogs(run), (role, 0, attempt), metric)


def value_in_log(logs: RunLogs, task: Key, metric: str) -> tuple[float | None, str]:
    """The last value in the log of an ended task, and why it is unknown if the log is gone. Raises CloudError."""
    chunk = logs.read(*task, limit=TAIL_BYTES, tail=TAIL_BYTES)
    if chunk.absent and not chunk.complete:
        raise CloudError("its log is not there yet.")
    return last_printed(chunk.data, metric), logs.note(*task, chunk) if chunk.absent else ""
