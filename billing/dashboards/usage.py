"""Pages of usage and prices, from a month of all appcodes down to one segment, each with chart, table and CSV."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from django.conf import settings
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from billing import periods
from billing.budgets import access as budgets_access
from billing.budgets import figures
from billing.budgets.access import Part
from billing.dashboards.outlook import Outlook, outlook
from billing.efficiency import measured
from billing.metering.segments import floor
from billing.money import ORDER, SECONDS_PER_HOUR, display
from billing.periods import Period
from billing.sums import access, breakdown
from billing.sums.access import Amount, SegmentRow, Usage
from portal.access import MANAGE, appcode_for, appcodes_for, may
from portal.errors import Invalid
from portal.models import Appcode
from portal.pages.appcodes import person
from portal.pages.charts import draw_columns
from portal.pages.layout import selected_appcode
from portal.web.downloads import csv_file, csv_stream


@dataclass(frozen=True)
class Asked:
    """The period that a page shows. `errors` are by field name."""

    period: Period
    now: dt.datetime
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def query(self) -> str:
        return self.period.query

    @property
    def before(self) -> Period:
        return periods.month_before(self.period)

    @property
    def after(self) -> Period | None:
        """The following month, unless it has not begun."""
        after = periods.month_after(self.period)
        return after if after.since <= self.now else None

    @property
    def is_this_month(self) -> bool:
        return self.period == periods.month(self.now)

    @property
    def title(self) -> str:
        """ "November 2026" or "2026-11-05 to 2026-12-24"."""
        if self.period == periods.month(self.period.since):
            return f"{self.period.since:%B %Y}"
        return f"{self.period.since:%Y-%m-%d} to {self.period.last_day:%Y-%m-%d}"


def ask(request: HttpRequest) -> Asked:
    """Parses `?from=` and `?to=`. If they are invalid, `errors` holds a message for the field and this month is shown."""
    now = floor(timezone.now())
    try:
        return Asked(periods.parse(request.GET.get("from", ""), request.GET.get("to", ""), now), now)
    except Invalid as invalid:
        return Asked(periods.month(now), now, {error.path[0]: error.message for error in invalid.errors})


class Row(NamedTuple):
    """A row of a page's table. `url` is "" where nothing is below it; `budget` is its part of this month's budget, if any;
    else `may_set_budget` says whether to offer one."""

    usage: Usage
    url: str
    budget: Part | None = None
    may_set_budget: bool = False


@require_safe
def billing(request: HttpRequest) -> HttpResponse:
    """Usage of the user's appcodes, one row per appcode."""
    mine, code = appcodes_for(person(request)), selected_appcode(request)
    return _appcodes(request, mine.filter(code=code) if code else mine, "billing/mine.html", chosen=code)


def _appcodes(request: HttpRequest, appcodes: QuerySet[Appcode], template: str, **context: Any) -> HttpResponse:
    asked = ask(request)
    rows = access.usage_by_appcode(appcodes, asked.period, asked.now)
    over_time = access.usage_over_time(appcodes, asked.period, asked.now)
    lines = access.by_business_line(rows)
    if request.GET.get("by") == "line":
        return _usage_csv("business-lines", "business_line", asked, lines)
    links = [Row(row, reverse("billing_appcode", args=[row.name])) for row in rows]
    if _shows_page(request):
        found = list(appcodes.order_by().values_list("pk", flat=True))
        context["makeup"] = breakdown.parts(asked.now, window=asked.period.window, appcodes=found)
        if asked.is_this_month:
            context["outlook"] = _outlook(asked, found, over_time)
            budgets = budgets_access.parts(appcodes, rows)
            without = appcodes_for(person(request), MANAGE).filter(pk__in=found, budget=None)
            may_set = set(without.values_list("code", flat=True))
            links = [
                row._replace(budget=budgets.get(row.usage.name), may_set_budget=row.usage.name in may_set)
                for row in links
            ]
            context["budgets"] = bool(budgets or may_set)
    return _usage_page(request, template, asked, links, over_time, what="appcode", lines=lines, **context)


@require_safe
def appcode(request: HttpRequest, code: str) -> HttpResponse:
    """One appcode, one row per cluster."""
    asked, one = ask(request), appcode_for(person(request), code)
    if request.GET.get("part") == "box":
        return _box(request, one)
    over_time = access.usage_over_time(Appcode.objects.filter(pk=one.pk), asked.period, asked.now, by="cluster")
    links = [
        Row(row, reverse("billing_cluster", args=[code, row.name]) if row.name != access.VOLUMES else "")
        for row in access.usage_by_cluster(one, asked.period, asked.now)
    ]
    context: dict[str, Any] = {"appcode": one}
    if _shows_page(request):
        context |= {
            "may_set_budget": may(person(request), one, MANAGE) and budgets_access.budget_of(one.pk) is None,
            "makeup": breakdown.parts(asked.now, window=asked.period.window, appcodes=[one.pk]),
        }
        if asked.is_this_month:
            context["outlook"] = _outlook(asked, [one.pk], over_time)
    return _usage_page(request, "billing/appcode.html", asked, links, over_time, what="cluster", **context)


@require_safe
def cluster(request: HttpRequest, code: str, name: str) -> HttpResponse:
    """One cluster, one row per run. It is found by its usage: the cluster itself may be deleted."""
    asked, one = ask(request), appcode_for(person(request), code)
    if request.GET.get("part") == "box":
        return _box(request, one, name)
    links = [
        Row(row, reverse("billing_run", args=[code, name, row.name]) if row.name else "")
        for row in access.usage_by_run(one, name, asked.period, asked.now)
    ]
    parts = _shows_page(request) and breakdown.parts(
        asked.now, window=asked.period.window, appcodes=[one.pk], cluster=name
    )
    return _usage_page(
        request, "billing/cluster.html", asked, links, [], what="run", code=code, name=name, makeup=parts
    )  # fmt: skip


def _outlook(asked: Asked, appcodes: list[int], over_time: list[tuple[dt.datetime, list[Usage]]]) -> Outlook:
    """Of these appcodes together; a budget applies to all of it only if there is one of them."""
    row = budgets_access.budget_of(appcodes[0]) if len(appcodes) == 1 else None
    budget = budgets_access.shown([row], asked.now)[0] if row else None
    days = [(since, Amount.total(each.amount for each in used).cost) for since, used in over_time]
    return outlook(days, budget.figures if budget else figures.together(appcodes, asked.now), budget, asked.now)


def _box(request: HttpRequest, one: Appcode, name: str | None = None) -> HttpResponse:
    """This month of an appcode or one of its clusters in a few figures. Pages about them fetch this fragment."""
    now = floor(timezone.now())
    parts = breakdown.parts(now, window=periods.month(now).window, appcodes=[one.pk], cluster=name)
    by_family = {sku: sum((part.cost for part in parts if part.family == sku), Decimal(0)) for sku in ORDER}
    context = {
        "code": one.code, "name": name, "now": now, "sums": by_family,
        "subtotal": sum(by_family.values(), Decimal(0)),
    }  # fmt: skip
    return render(request, "billing/_box.html", context)


@require_safe
def run(request: HttpRequest, code: str, name: str, number: str) -> HttpResponseBase:
    """One run, one row per segment: what it held, from when to when, at which price."""
    asked, one = ask(request), appcode_for(person(request), code)
    if "format" in request.GET:
        every = access.every_segment(one, name, number, asked.period, asked.now)
        cells = (_segment_cells(row, asked.now) for row in every)
        return csv_stream(_file_name(f"{code}-{name}-{number}", asked), SEGMENT_HEAD, cells)
    rows = access.segments(one, name, number, asked.period, asked.now)
    context = {
        "asked": asked, "code": code, "name": name, "number": number, "segments": rows,
        "seconds": sum(row.seconds for row in rows), "gpu_seconds": sum(row.gpu_seconds for row in rows),
        "cost": sum((row.cost for row in rows), Decimal(0)), "busy": access.busy_of(rows),
        "complete": len(rows) < access.MAX_SEGMENTS,
        "makeup": breakdown.parts(
            asked.now, window=asked.period.window, appcodes=[one.pk], cluster=name, run=number
        ),
    }  # fmt: skip
    return render(request, "billing/run.html", context)


def _shows_page(request: HttpRequest) -> bool:
    """False if the request is for one of the page's tables as a file."""
    return "format" not in request.GET and request.GET.get("by") not in ("line", "time")


def _usage_page(
    request: HttpRequest, template: str, asked: Asked, links: list[Row],
    over_time: list[tuple[dt.datetime, list[Usage]]], *, what: str, **context: Any,
) -> HttpResponse:  # fmt: skip
    """The page, its self-refreshing part (`?part=usage`), or one of its tables as CSV (`?format=csv`)."""
    form = "%Y-%m" if asked.period.monthly else "%Y-%m-%d"
    times = [Usage(f"{since:{form}}", Amount.total(each.amount for each in used)) for since, used in over_time]
    if request.GET.get("by") == "time":
        return _usage_csv("by-month" if asked.period.monthly else "by-day", "from", asked, times)
    if "format" in request.GET:
        return _usage_csv(f"by-{what}", what, asked, [row.usage for row in links])
    columns = [(f"{since:{form}}", {each.name or "–": each.amount.cost for each in used}) for since, used in over_time]
    chart = draw_columns("Cost over time", columns, unit=settings.CURRENCY) if times else None
    context |= {
        "asked": asked, "rows": links, "what": what, "times": times, "chart": chart,
        "total": Amount.total(row.usage.amount for row in links),
    }  # fmt: skip
    return render(request, "billing/_usage.html" if request.GET.get("part") else template, context)


# CSV tables: raw quantities, money with six decimals.

USAGE_HEAD = ("gpu_seconds", "gpu_hours", "cost", "currency", "running_gpus", "cost_per_hour")
SEGMENT_HEAD = (
    "pod", "role", "index", "started", "ended", "seconds", "gpus", "gpu_model", "cpu_milli", "memory_mb", "gpu_seconds",
    "cost", "currency", "measured_gpu_seconds", "busy_gpu_seconds", "notes", "measured_known_from",
)  # fmt: skip


def _usage_csv(name: str, what: str, asked: Asked, rows: list[Usage]) -> HttpResponse:
    with_line = any(row.line for row in rows)
    head = (what, *(("business_line",) if with_line else ()), *USAGE_HEAD)
    cells = ((row.name, *((row.line,) if with_line else ()), *_usage_cells(row.amount)) for row in rows)
    return csv_file(_file_name(name, asked), head, cells)


def _usage_cells(amount: Amount) -> tuple[object, ...]:
    hours = display(Decimal(amount.gpu_seconds) / SECONDS_PER_HOUR, 6)
    money = (display(amount.cost, 6), settings.CURRENCY)
    return (amount.gpu_seconds, hours, *money, amount.gpus, display(amount.cost_per_hour, 6))


def _segment_cells(row: SegmentRow, now: dt.datetime) -> tuple[object, ...]:
    segment, held = row.segment, row.segment.resources
    ended = "" if row.running or segment.ended is None else segment.ended.isoformat()
    who = (segment.uid, segment.labels.get("role", ""), segment.labels.get("index", ""))
    amounts = (held.gpus, held.gpu_model, held.cpu_milli, held.memory_mb, row.gpu_seconds)
    money = (display(row.cost, 6), settings.CURRENCY)
    looked = row.measured
    busy = (looked.measured_ms // 1000, looked.busy_ms // 1000) if looked else ("", "")
    notes = (" ".join(segment.flags), measured.forgotten_of(segment, now) or "")
    return (*who, segment.started.isoformat(), ended, row.seconds, *amounts, *money, *busy, *notes)


def _file_name(name: str, asked: Asked) -> str:
    return f"usage-{name}-{asked.period.since:%Y-%m-%d}-{asked.period.last_day:%Y-%m-%d}"
