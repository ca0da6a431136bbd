from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_safe

from billing.dashboards import reconciliation
from billing.dashboards.filters import Asked, ask, column_urls, common, counted, labelled
from billing.dashboards.segment import marks_of, segment_url
from billing.metering.models import UsageSegment
from billing.metering.segments import FLAGS
from billing.money import display
from billing.sums import access
from portal.pages.appcodes import person
from portal.pages.charts import draw_columns
from portal.web.downloads import csv_file, csv_stream


@require_safe
def reconciled(request: HttpRequest) -> HttpResponseBase:
    """Pods without an end, mended times and corrections; for administrators also the quarantine."""
    asked = ask(request)
    administrator = person(request).is_administrator
    table = request.GET.get("table", "flagged")
    if request.GET.get("format") == "csv" and table != "columns":
        return _rows_csv(asked, table, quarantine=administrator)
    found = reconciliation.report(asked.range, asked.now, appcodes=counted(asked), quarantine=administrator)
    if request.GET.get("format") == "csv":
        return _columns_csv(asked, found)
    drawn = [
        (label, {flag.replace("-", " "): Decimal(count) for flag, count in found.columns[since].items()})
        for label, since in labelled(asked.range)
    ]
    context = {
        **common(asked), "found": found, "most": reconciliation.MOST_ROWS, "mended": sum(found.flags.values()),
        "flags": [(flag.replace("-", " "), access.NOTES[flag], found.flags[flag]) for flag in FLAGS],
        "endless": [(each, _segment_url(asked, each.segment)) for each in found.endless],
        "flagged": [(row, marks_of(row), _segment_url(asked, row)) for row in found.flagged],
        "corrections": [
            (
                each, asked.codes.get(str(each.appcode_id), ""),
                segment_url(asked, each.appcode_id, each.cluster, each.run, each.segment_id),
            )
            for each in found.corrections
        ],
        "chart": draw_columns("Segments with mended times", drawn, urls=column_urls(request, asked), digits=0, most=Decimal(4)),
        "columns": [(label, sum(found.columns[since].values())) for label, since in labelled(asked.range)],
    }  # fmt: skip
    return render(request, "billing/dashboard_reconciliation.html", context)


def _segment_url(asked: Asked, row: UsageSegment) -> str:
    return segment_url(
        asked, row.appcode_id, str(row.labels.get("cluster", "")), str(row.labels.get("run", "")), row.pk
    )


def _name(asked: Asked, table: str) -> str:
    return f"reconciliation-{table}-{asked.range.since:%F}-{asked.range.last_day:%F}"


def _columns_csv(asked: Asked, found: reconciliation.Report) -> HttpResponse:
    rows = (
        (label, flag, count)
        for label, since in labelled(asked.range)
        for flag, count in sorted(found.columns[since].items())
    )
    return csv_file(_name(asked, "columns"), (asked.range.step, "flag", "segments"), rows)


def _rows_csv(asked: Asked, table: str, *, quarantine: bool) -> HttpResponseBase:
    """All rows of `?table=` flagged, corrections, endless or quarantine."""
    if table not in ("flagged", "corrections", "endless", "quarantine") or (table == "quarantine" and not quarantine):
        raise Http404("There is no such table.")
    name, appcodes, portion = _name(asked, table), counted(asked), reconciliation.PORTION
    if table == "corrections":
        cells = (
            (each.posted_at.isoformat(), asked.codes.get(str(each.appcode_id), ""), each.cluster, each.run, each.uid,
             each.since.isoformat(), each.lines, display(each.taken, 6), display(each.instead, 6), settings.CURRENCY)
            for each in reconciliation.corrections(asked.range, appcodes)
        )  # fmt: skip
        columns = (
            "posted_at", "appcode", "cluster", "run", "pod", "used_from", "lines", "taken_back", "instead", "currency",
        )  # fmt: skip
        return csv_stream(name, columns, cells)
    if table == "quarantine":
        unresolved = reconciliation.quarantined().iterator(portion)
        told = ((each.seen_at.isoformat(), each.cloud, each.reason, each.raw) for each in unresolved)
        return csv_stream(name, ("seen_at", "cloud", "reason", "raw"), told)
    head = ("pod", "appcode", "cluster", "run", "started", "ended", "flags")
    segments: Iterable[UsageSegment]
    if table == "endless":
        segments = reconciliation.endless(asked.now, appcodes).order_by("started", "pk").iterator(portion)
    else:
        segments = reconciliation.flagged(asked.range, appcodes).order_by("-ended", "pk").iterator(portion)
    return csv_stream(
        name, head,
        (
            (row.uid, row.appcode.code, row.labels.get("cluster", ""), row.labels.get("run", ""), row.started.isoformat(),
             row.ended.isoformat() if row.ended else "", " ".join(row.flags))
            for row in segments
        ),
    )  # fmt: skip
