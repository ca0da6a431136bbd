from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from urllib.parse import urlencode

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from billing.dashboards.filters import (
    USED_HEAD,
    Asked,
    ask,
    busy_notes,
    column_urls,
    common,
    counted,
    labelled,
    used_cells,
)
from billing.dashboards.segment import segment_url
from billing.efficiency import measured, waste
from billing.efficiency.measured import IdleTask
from billing.efficiency.models import Waste
from billing.money import SECONDS_PER_HOUR, Used, display, money
from portal.pages.charts import draw_columns
from portal.web.downloads import csv_file, csv_stream

# Cases shown on the page; the file has all of them.
SHOWN = 20
IDLE = "GPUs held idle"


@dataclass(frozen=True)
class Case:
    row: Waste
    kind: str
    code: str
    cluster: str
    run: str
    url: str

    @property
    def cost(self) -> Decimal:
        return money(self.row.charge)


@require_safe
def wasted(request: HttpRequest) -> HttpResponseBase:
    """Wasted cost in the range, and what is being wasted now."""
    asked = ask(request)
    known = measured.forgotten_before(asked.range.since, asked.now)
    table = request.GET.get("table", "")
    if request.GET.get("format") == "csv" and table != "columns":
        if table == "idle":
            return _idle_csv(asked, measured.idle_tasks(asked.range, appcodes=counted(asked)), known)
        return _cases_csv(asked)
    found = waste.report(asked.range, asked.now, appcodes=counted(asked))
    cases = [_case(asked, row) for row in found.dearest]
    idle = measured.idle(asked.range, appcodes=counted(asked))
    idle_cases = [(each, asked.codes.get(str(each.appcode_id), ""), *_idle_urls(asked, each)) for each in idle.tasks]
    if request.GET.get("format") == "csv":
        return _columns_csv(asked, found, idle)
    titles = {kind: waste.EXPLAINED[Waste.Kind(kind)] for kind in found.kinds}
    drawn = [
        (
            label,
            {titles[kind]: each.used.cost for kind, each in found.columns[since].items()} | {IDLE: idle.columns[since][1].cost},
        )
        for label, since in labelled(asked.range)
    ]  # fmt: skip
    outliving = [
        (each, asked.codes.get(str(each.appcode_id), ""), _run_url(asked, str(each.appcode_id), each.cluster, each.run))
        for each in found.outliving
    ]
    context = {
        **common(asked), "cases": cases[:SHOWN],
        "more": sum(each.count for each in found.kinds.values()) - SHOWN, "outliving": outliving,
        "kinds": [(titles[kind], kind, each) for kind, each in found.kinds.items()],
        "idle": idle, "idle_cases": idle_cases[:SHOWN],
        "idle_more": len(idle_cases) > SHOWN, "idle_percent": measured.IDLE_PERCENT, "busy_notes": busy_notes(request),
        "looked": _looked(asked) and (known is None or known < asked.range.until),
        "known": known,
        "chart": draw_columns("Wasted cost", drawn, urls=column_urls(request, asked), unit=settings.CURRENCY),
        "columns": [(label, found.columns[since], idle.columns[since][1]) for label, since in labelled(asked.range)],
    }  # fmt: skip
    return render(request, "billing/dashboard_waste.html", context)


def _looked(asked: Asked) -> bool:
    return any(measured.by_model(asked.range, appcodes=counted(asked)).values())


def _as_waste(hours: int, used: Used) -> waste.Wasted:
    """Counts each idle hour of a task as a case."""
    return waste.Wasted(hours, hours * SECONDS_PER_HOUR, used)


def _idle_urls(asked: Asked, each: IdleTask) -> tuple[str, str]:
    """The URLs of its run and of its segment."""
    run = _run_url(
        asked, str(each.appcode_id), each.cluster, each.run, each.since, each.until - dt.timedelta(seconds=1)
    )
    return run, segment_url(asked, each.appcode_id, each.cluster, each.run, each.segment_id)


def _idle_csv(asked: Asked, tasks: Iterable[IdleTask], known: dt.date | None) -> HttpResponseBase:
    """The file name states the first day with known hours: an empty file has no row to say so."""
    head = (
        "appcode",
        "cluster",
        "run",
        "task",
        "pod",
        "gpu_model",
        "hours",
        "from",
        "to",
        "busy_percent",
        *USED_HEAD,
        "known_from",
    )
    return csv_stream(
        f"idle-{asked.range.since:%F}-{asked.range.last_day:%F}{f'-known-from-{known:%F}' if known else ''}", head,
        (
            (asked.codes.get(str(each.appcode_id), ""), each.cluster, each.run, each.task, each.uid, each.gpu_model, each.hours,
             each.since.isoformat(), each.until.isoformat(), display(each.busy_percent),
             *used_cells(each.used), known or "")
            for each in tasks
        ),
    )  # fmt: skip


def _case(asked: Asked, row: Waste) -> Case:
    names = row.labels if isinstance(row.labels, dict) else {}
    cluster, run = str(names.get("cluster", "")), str(names.get("run", ""))
    url = _run_url(asked, str(row.appcode_id), cluster, run, row.since, row.until)
    return Case(row, waste.EXPLAINED[Waste.Kind(row.kind)], row.appcode.code, cluster, run, url)


def _run_url(
    asked: Asked,
    appcode_id: str,
    cluster: str,
    run: str,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
) -> str:
    """A run's page, for the days in which it used something."""
    code = asked.codes.get(appcode_id, "")
    if not (code and cluster and run):
        return ""
    days = urlencode({"from": f"{(since or asked.now):%F}", "to": f"{(until or asked.now):%F}"})
    return f"{reverse('billing_run', args=[code, cluster, run])}?{days}"


def _name(asked: Asked) -> str:
    return f"waste-{asked.range.since:%F}-{asked.range.last_day:%F}"


def _columns_csv(asked: Asked, found: waste.Report, idle: measured.Idle) -> HttpResponse:
    rows = (
        (
            label,
            kind,
            each.count,
            each.seconds,
            *used_cells(each.used),
            (kind == "idle" and measured.forgotten_before(since, asked.now)) or "",
        )
        for label, since in labelled(asked.range)
        for kind, each in sorted({**found.columns[since], "idle": _as_waste(*idle.columns[since])}.items())
    )
    return csv_file(
        f"{_name(asked)}-by-{asked.range.step}",
        (asked.range.step, "kind", "cases", "seconds", *USED_HEAD, "known_from"),
        rows,
    )


def _cases_csv(asked: Asked) -> HttpResponseBase:
    """All cases, most expensive first."""
    head = ("kind", "appcode", "cluster", "run", "from", "to", "seconds", *USED_HEAD)
    rows = waste.cases(asked.range, appcodes=counted(asked)).order_by(*waste.DEAREST).iterator(waste.CHUNK)
    return csv_stream(
        _name(asked), head,
        (
            (case.row.kind, case.code, case.cluster, case.run, case.row.since.isoformat(), case.row.until.isoformat(),
             case.row.seconds, *used_cells(Used(case.row.gpu_seconds, case.row.charge)))
            for case in (_case(asked, row) for row in rows)
        ),
    )  # fmt: skip
