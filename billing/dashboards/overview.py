"""Usage over time and by group, with the top spenders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from billing.budgets import access as budgets_access
from billing.budgets import figures
from billing.dashboards.filters import (
    GROUP_TITLES,
    NEXT,
    USED_HEAD,
    Asked,
    ask,
    column_urls,
    common,
    counted,
    labelled,
    used_cells,
)
from billing.efficiency import capacity, waste
from billing.efficiency.capacity import Share
from billing.ledger.models import Group
from billing.money import Used
from billing.periods import Range
from billing.sums import breakdown, over_time
from billing.sums.over_time import Dashboard
from portal.pages.appcodes import person
from portal.pages.charts import Columns, draw_columns
from portal.web.downloads import csv_file

# Group titles for use within a sentence, and plurals.
GROUP_WORDS: dict[Group, str] = {
    group: title if group == "model" else title.lower() for group, title in GROUP_TITLES.items()
}
MANY: dict[Group, str] = {"appcode": "appcodes", "user": "people"}
MEASURES = {"cost": "Cost", "hours": "GPU-hours"}
TOP = 5


@dataclass(frozen=True)
class GroupRow:
    """One value of a group over the whole range; `part` is its percentage of the total, `url` narrows the page to it."""

    name: str
    used: Used
    part: Decimal
    url: str


@require_safe
def overview(request: HttpRequest) -> HttpResponse:
    """Cost and GPU-hours over time by a group, with the top spenders among appcodes and people."""
    asked = ask(request)
    found = over_time.read(
        asked.range, asked.by, asked.now, appcodes=asked.appcodes, where=asked.where, also=("appcode", "user", "model")
    )
    if request.GET.get("format") == "csv":
        return _overview_csv(request, asked, found)
    earlier = asked.range.before
    before = over_time.read(earlier, "line", asked.now, appcodes=asked.appcodes, where=asked.where).total
    titles = [(group, title) for group, title in GROUP_TITLES.items() if group != "cluster" or "appcode" in asked.where]
    rows = _group_rows(request, asked, found, asked.by)
    context = {
        **common(asked), "found": found, "rows": rows, "chart": _chart(request, asked, found), "total": found.total,
        "before": before, "change": _change(found.total, before), "group_titles": titles,
        "columns": [(label, used) for (label, _), (_, used) in zip(labelled(asked.range), found.totals, strict=True)],
        "group_title": GROUP_TITLES[asked.by], "group_word": GROUP_WORDS[asked.by],
        "before_words": f"the {(earlier.until - earlier.since).days} days before", "measures": MEASURES.items(),
        "tops": [
            (GROUP_TITLES[group], MANY[group], _group_rows(request, asked, found, group)[:TOP])
            for group in MANY if group != asked.by and group not in asked.where
        ],
    }  # fmt: skip
    if set(asked.where) <= {"appcode"}:
        context["expected"] = figures.together(counted(asked), asked.now)
    if set(asked.where) == {"appcode"}:
        context["budget"] = (
            budgets_access.budgets_for(person(request)).filter(appcode=int(asked.where["appcode"])).first()
        )
    if set(asked.where) in ({"line"}, {"line", "appcode"}):
        context["makeup"] = breakdown.parts(
            asked.now, window=asked.range.window, appcodes=counted(asked), line=asked.where["line"]
        )
    if not asked.where:
        context |= {"share": _share(asked, found), "wasted": waste.total(asked.range, appcodes=asked.appcodes)}
    return render(request, "billing/dashboard.html", context)


def _chart(request: HttpRequest, asked: Asked, found: Dashboard) -> Columns:
    columns = [
        (label, {asked.name(asked.by, value): used.of(asked.measure) for value, used in found.by_group[since].items()})
        for label, since in labelled(asked.range)
    ]
    return draw_columns(
        f"{MEASURES[asked.measure]} by {GROUP_WORDS[asked.by]}", columns, urls=column_urls(request, asked),
        unit=settings.CURRENCY if asked.measure == "cost" else "GPU-hours",
    )  # fmt: skip


def _group_rows(request: HttpRequest, asked: Asked, found: Dashboard, group: Group) -> list[GroupRow]:
    """Most expensive first."""
    whole = sum((used.of(asked.measure) for used in found.by[group].values()), Decimal(0))
    rows = [
        GroupRow(
            asked.name(group, value), used, used.of(asked.measure) * 100 / whole if whole else Decimal(0),
            _further(request, asked, group, value),
        )
        for value, used in found.by[group].items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (-row.used.of(asked.measure), -row.used.cost, row.name))


def _further(request: HttpRequest, asked: Asked, group: Group, value: str) -> str:
    """The link of a row: the page narrowed to it, or a cluster's runs."""
    if group == "cluster":
        code = asked.codes.get(asked.where.get("appcode", ""), "")
        return f"{reverse('billing_cluster', args=[code, value])}?{asked.query}" if code and value else ""
    shown = asked.codes.get(value, value) if group == "appcode" else value
    query = request.GET.copy()
    for gone in ("by", "format"):
        query.pop(gone, None)
    query[group] = shown
    query["by"] = NEXT[group] if NEXT[group] not in asked.where else "cluster"
    return f"{request.path}?{query.urlencode()}"


def _change(total: Used, before: Used) -> Decimal | None:
    """The change in per cent; None if there was no cost before."""
    return (total.cost - before.cost) * 100 / before.cost if before.cost else None


def _overview_csv(request: HttpRequest, asked: Asked, found: Dashboard) -> HttpResponse:
    """`?table=columns` has sums by time, `groups` by group; the default has every group in every column."""
    name = f"dashboard-{asked.range.since:%F}-{asked.range.last_day:%F}"
    group = asked.by
    table = request.GET.get("table", "")
    labels = {since: label for label, since in labelled(asked.range)}
    if table == "columns":
        rows: Iterable[Sequence[object]] = ((labels[since], *used_cells(used)) for since, used in found.totals)
        return csv_file(f"{name}-by-{asked.range.step}", (asked.range.step, *USED_HEAD), rows)
    if table in GROUP_TITLES:
        group = table
        by = found.by.get(group, {})
        rows = ((asked.name(group, value), *used_cells(used)) for value, used in sorted(by.items(), key=_dearest))
        return csv_file(f"{name}-by-{group}", (group, *USED_HEAD), rows)
    rows = (
        (labels[since], asked.name(group, value), *used_cells(used))
        for since, column in found.by_group.items()
        for value, used in sorted(column.items(), key=_dearest)
    )
    return csv_file(f"{name}-{asked.range.step}-{group}", (asked.range.step, group, *USED_HEAD), rows)


def _dearest(pair: tuple[str, Used]) -> tuple[Decimal, str]:
    return -pair[1].charge, pair[0]


def _share(asked: Asked, found: Dashboard) -> Share:
    """The share over the whole range and all models whose capacity is known."""
    whole = Range(asked.range.since, asked.range.until, "month")
    there: dict[str, int] = {}
    for models in capacity.available(whole, asked.now).values():
        for model, (seconds, _) in models.items():
            there[model] = there.get(model, 0) + seconds
    return capacity.total(Share(found.by["model"].get(model, Used()).gpu_seconds, there[model]) for model in there)
