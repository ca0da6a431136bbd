"""What does not fit: pods without an end, mended times, corrections, what nobody understood."""

from __future__ import annotations

from decimal import Decimal

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from billing import access, reconciliation
from billing.files import csv_file
from billing.models import UsageSegment
from billing.rating import display
from billing.usage import FLAGS
from billing.views.dashboards.asked import Asked, ask, column_urls, common, counted, labelled
from billing.views.dashboards.segment import marks_of, segment_url
from portal.charts import draw_columns
from portal.views import person


@require_safe
def reconciled(request: HttpRequest) -> HttpResponse:
    """Pods without an end, mended times, corrections; for administrators what nobody understood, too."""
    asked = ask(request)
    administrator = person(request).is_administrator
    found = reconciliation.report(asked.range, asked.now, appcodes=counted(asked), quarantine=administrator)
    if request.GET.get("format") == "csv":
        return _reconciliation_csv(request, asked, found)
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


def _reconciliation_csv(request: HttpRequest, asked: Asked, found: reconciliation.Report) -> HttpResponse:
    """`?table=` columns, flagged, corrections, endless or quarantine."""
    table = request.GET.get("table", "flagged")
    name = f"reconciliation-{table}-{asked.range.since:%F}-{asked.range.last_day:%F}"
    if table == "columns":
        rows = (
            (label, flag, count)
            for label, since in labelled(asked.range)
            for flag, count in sorted(found.columns[since].items())
        )
        return csv_file(name, (asked.range.step, "flag", "segments"), rows)
    if table == "corrections":
        cells = (
            (each.posted_at.isoformat(), asked.codes.get(str(each.appcode_id), ""), each.cluster, each.run, each.uid,
             each.since.isoformat(), each.lines, display(each.taken, 6), display(each.instead, 6), settings.CURRENCY)
            for each in found.corrections
        )  # fmt: skip
        columns = (
            "posted_at", "appcode", "cluster", "run", "pod", "used_from", "lines", "taken_back", "instead", "currency",
        )  # fmt: skip
        return csv_file(name, columns, cells)
    if table == "quarantine":
        if found.quarantine is None:
            raise Http404("There is no such table.")
        told = ((each.seen_at.isoformat(), each.cloud, each.reason, each.raw) for each in found.quarantine)
        return csv_file(name, ("seen_at", "cloud", "reason", "raw"), told)
    head = ("pod", "appcode", "cluster", "run", "started", "ended", "flags")
    segments = [each.segment for each in found.endless] if table == "endless" else found.flagged
    return csv_file(
        name, head,
        (
            (row.uid, row.appcode.code, row.labels.get("cluster", ""), row.labels.get("run", ""), row.started.isoformat(),
             row.ended.isoformat() if row.ended else "", " ".join(row.flags))
            for row in segments
        ),
    )  # fmt: skip
