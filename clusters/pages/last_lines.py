"""What logs say of the tasks on the Overview: what each of an independent run wrote last, beside its name, and which fall behind.
The logs are read side by side, a little of each; both fragments come after the page, so that nobody waits for a log to see a
state."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import conditional_page, require_safe

from clusters import failure
from clusters.api.looks import Looks, looks_at
from clusters.clouds.drivers.base import CloudError
from clusters.logs.read import RunLogs
from clusters.models import Run
from clusters.pages.cluster import MAX_TASK_ROWS, TaskRow, in_order, page_of, says_its_own, task_rows
from clusters.scalars.counted import gpu_seconds, repeated
from portal.api.problems import Unavailable
from portal.limits import TRANSFERS
from portal.pages.appcodes import person

TAIL_BYTES = 4096
AT_ONCE = 8


@require_safe
@conditional_page
def last_lines(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    shown = page_of(request, appcode, name)
    found: list[tuple[TaskRow, str]] = []
    if shown.run and says_its_own(shown.run):
        rows = [
            row for row in in_order(shown.run, task_rows(shown.run))[:MAX_TASK_ROWS] if row.has_log and not row.message
        ]
        logs = RunLogs(shown.run)
        try:
            with TRANSFERS.enter(person(request).pk), ThreadPoolExecutor(AT_ONCE) as threads:
                logs.load()
                found = list(zip(rows, threads.map(partial(_last_line, logs), rows), strict=True))
        except (CloudError, Unavailable):
            # It is asked for again, and Logs says why not.
            found = []
    return render(request, "clusters/_last_lines.html", {"page": shown, "lines": found})


@require_safe
@conditional_page
def pace(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Which tasks fall behind the others of their role, and what crashes cost, where they tell their steps."""
    shown = page_of(request, appcode, name)
    looks = looks_at(shown.run, person(request)) if shown.run else Looks()
    return render(request, "clusters/_pace.html", {"page": shown, **of_tasks(shown.run, looks)})


def of_tasks(run: Run | None, looks: Looks) -> dict[str, Any]:
    """What _pace.html shows."""
    found = looks.crashes or []
    return {
        "stragglers": looks.stragglers,
        "crashes": list(reversed(found)),
        "repeated": repeated(found),
        "repeated_gpu_seconds": gpu_seconds(run, found) if run else 0,
    }


def _last_line(logs: RunLogs, row: TaskRow) -> str:
    """ "" for what cannot be read now."""
    assert row.task is not None
    try:
        data = logs.read(row.role, row.index, row.task.attempt, limit=TAIL_BYTES, tail=TAIL_BYTES).data
    except CloudError:
        return ""
    return failure.shortened((failure.lines_of(data.decode("utf-8", "replace")) or [""])[-1].strip())
