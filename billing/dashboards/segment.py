from __future__ import annotations

from decimal import Decimal

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from billing.dashboards.filters import Asked
from billing.ledger.models import LedgerEntry
from billing.metering.models import Observation, UsageSegment
from billing.money import display, money
from billing.sums import access
from portal.access import appcode_for
from portal.pages.appcodes import person
from portal.web.downloads import csv_file

SEEN_HEAD = (
    "seen_at", "cloud", "phase", "scheduled_at", "started_at", "finished_at", "estimated", "gpus", "gpu_model", "cpu_milli",
    "memory_mb", "storage_mb", "digest",
)  # fmt: skip
LINE_HEAD = (
    "entry",
    "kind",
    "sku",
    "since",
    "until",
    "quantity",
    "per_hour",
    "discount",
    "amount",
    "posted_at",
    "reverses",
)


@require_safe
def segment(request: HttpRequest, code: str, name: str, number: str, pk: int) -> HttpResponse:
    """One segment, every sighting that it is derived from, and every ledger line derived from it."""
    appcode = appcode_for(person(request), code)
    row = UsageSegment.objects.filter(pk=pk, appcode=appcode, labels__cluster=name, labels__run=number).first()
    if row is None:
        raise Http404("There is no such segment.")
    seen = list(Observation.objects.filter(uid=row.uid).order_by("seen_at", "pk"))
    lines = list(LedgerEntry.objects.filter(segment=row).order_by("pk"))
    if request.GET.get("format") == "csv":
        if request.GET.get("table") == "ledger":
            cells = (
                (line.pk, line.kind, line.sku, line.since.isoformat(), line.until.isoformat(), line.quantity, line.per_hour,
                 line.discount, display(line.amount, 6), line.posted_at.isoformat(), line.reverses_id or "")
                for line in lines
            )  # fmt: skip
            return csv_file(f"ledger-{pk}", LINE_HEAD, cells)
        return csv_file(
            f"observations-{pk}", SEEN_HEAD, ([getattr(each, field) for field in SEEN_HEAD] for each in seen)
        )
    context = {
        "appcode": appcode, "code": code, "name": name, "number": number, "row": row, "seen": seen, "lines": lines,
        "held": row.segment.resources, "now": timezone.now(), "total": money(sum((line.charge for line in lines), Decimal(0))),
        "marks": marks_of(row),
    }  # fmt: skip
    return render(request, "billing/segment.html", context)


def marks_of(row: UsageSegment) -> list[tuple[str, str]]:
    """Its flags as (word, explanation)."""
    return [(flag.replace("-", " "), access.NOTES[flag]) for flag in row.flags]


def segment_url(asked: Asked, appcode_id: int, cluster: str, run: str, pk: int) -> str:
    """The segment's page; "" if it belongs to no run, or to an appcode that the user may not see."""
    code = asked.codes.get(str(appcode_id), "")
    return reverse("billing_segment", args=[code, cluster, run, pk]) if code and cluster and run else ""
