"""Log-based details of the Overview: the last line of each task of an independent run, and which tasks fall behind.
Both fragments load after the page, so that a slow log never delays the state. They read small pieces in parallel."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import conditional_page, require_safe

from clusters.clouds.drivers.base import CloudError
from clusters.cluster.api.summaries import Looks, looks_at
from clusters.cluster.pages.cluster import page_of
from clusters.cluster.pages.tasks import Asked, TaskRow, says_its_own, table, task_rows
from clusters.logs import failure
from clusters.logs.read import RunLogs
from clusters.runs.models import Run
from clusters.scalars.counted import gpu_seconds, repeated
from portal.api.problems import Unavailable
from portal.pages.appcodes import person
from portal.web.limits import TRANSFERS

TAIL_BYTES = 4096
AT_ONCE = 8


@require_safe
@conditional_page
def last_lines(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    shown = page_of(request, appcode, name)
    found: list[tuple[TaskRow, str]] = []
    if shown.run and says_its_own(shown.run):
        listed = table(task_rows(shown.run), Asked.read(request.GET), is_apart=True).rows
        rows = [row for row in listed if row.has_log and not row.message]
        logs = RunLogs(shown.run)
        try:
            with TRANSFERS.enter(person(request).pk), ThreadPoolExecutor(AT_ONCE) as threads:
                logs.load()
                found = list(zip(rows, threads.map(partial(_last_line, logs), rows), strict=True))
        except (CloudError, Unavailable):
            # The browser polls again, and the Logs tab shows the reason.
            found = []
    return render(request, "clusters/cluster/_last_lines.html", {"lines": found})


@require_safe
@conditional_page
def pace(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Tasks that fall behind the others of their role, and the cost of crashes, where tasks report their steps."""
    shown = page_of(request, appcode, name)
    looks = looks_at(shown.run, person(request)) if shown.run else Looks()
    return render(request, "clusters/cluster/_pace.html", {"page": shown, **of_tasks(shown.run, looks)})


def of_tasks(run: Run | None, looks: Looks) -> dict[str, Any]:
    """The context of _pace.html."""
    found = looks.crashes or []
    return {
        "stragglers": looks.stragglers,
        "crashes": list(reversed(found)),
        "repeated": repeated(found),
        "repeated_gpu_seconds": gpu_seconds(run, found) if run else 0,
    }


def _last_line(logs: RunLogs, row: TaskRow) -> str:
    """The last line of a task's log; "" if it cannot be read now."""
    assert row.task is not None
    try:
        data = logs.read(row.role, row.index, row.task.attempt, limit=TAIL_BYTES, tail=TAIL_BYTES).data
    except CloudError:
        return ""
    return failure.shortened((failure.lines_of(data.decode("utf-8", "replace")) or [""])[-1].strip())
