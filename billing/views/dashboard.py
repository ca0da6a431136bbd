"""Dashboards: what was used over time, what of it for nothing, of what there was, and what does not fit; and one segment with the
sightings and the lines of the ledger behind it. Administrators see everybody's, others that of their appcodes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, cast
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from billing import access, budget_access, capacity, dashboard, history, makeup, measured, reconciliation, waste
from billing.capacity import Share
from billing.dashboard import Dashboard, Group, Range, Used
from billing.files import csv_file
from billing.measured import Busy, IdleTask
from billing.models import LedgerEntry, Observation, UsageSegment, Waste
from billing.rating import SECONDS_PER_HOUR, display, money
from billing.usage import FLAGS, floor
from portal.access import appcode_for, appcodes_for, require_administrator
from portal.charts import Columns, draw_columns
from portal.errors import Conflict, Invalid
from portal.frame import selected_appcode, words
from portal.models import OrgNode
from portal.views import person

GROUP_TITLES: dict[Group, str] = {
    "line": "Business line",
    "appcode": "Appcode",
    "user": "Person",
    "model": "GPU model",
    "framework": "Framework",
    "cluster": "Cluster",
}
# The same within a sentence, and of many.
GROUP_WORDS: dict[Group, str] = {
    group: title if group == "model" else title.lower() for group, title in GROUP_TITLES.items()
}
MANY: dict[Group, str] = {"appcode": "appcodes", "user": "people"}
# What has no value of a group, in words.
NAMELESS: dict[Group, str] = {
    "line": "no business line",
    "appcode": "–",
    "user": "nobody named",
    "model": "CPU, memory, storage",
    "framework": "none named",
    "cluster": "no cluster",
}
# By what a narrowed dashboard is grouped, unless something is chosen.
NEXT: dict[Group, Group] = {
    "line": "appcode", "appcode": "cluster", "user": "appcode", "model": "appcode", "framework": "appcode",
}  # fmt: skip
MEASURES = {"cost": "Cost", "hours": "GPU-hours"}
TOP = 5
# Single cases of waste on the page; the file has more.
SHOWN = 20


@dataclass(frozen=True)
class Asked:
    """What a page shows. `where` narrows it; `appcodes` are the numbers of those that count (None: all) and `codes` the names of
    all that the person may see. `errors` are by the name of the field that could not be understood."""

    range: Range
    now: dt.datetime
    by: Group
    measure: str
    where: dict[Group, str]
    appcodes: list[int] | None
    codes: dict[str, str]
    lines: dict[str, str]
    with_examples: bool
    has_examples: bool
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def query(self) -> str:
        """For links to other pages of the same days."""
        return urlencode({"from": f"{self.range.since:%F}", "to": f"{self.range.last_day:%F}"})

    @property
    def title(self) -> str:
        """ "November 2026" or "5 October to 24 December 2026"."""
        first, last = self.range.since, self.range.last_day
        if first.day == 1 and self.range.until == dashboard.following(first):
            return f"{first:%B %Y}"
        return f"{first.day} {first:%B %Y} to {last.day} {last:%B %Y}"

    @property
    def step_word(self) -> str:
        return self.range.step

    @property
    def presets(self) -> list[tuple[str, str, bool]]:
        """Ranges that people ask for, as (words, query, whether it is this one)."""
        today = self.now.date()
        first = today.replace(day=1)
        before = (first - dt.timedelta(days=1)).replace(day=1)
        # The first day of the month eleven months ago.
        year = dashboard.following(first.replace(year=first.year - 1))
        named = {
            "Last 30 days": (today - dt.timedelta(days=29), today),
            "This month": (first, today),
            "Last month": (before, first - dt.timedelta(days=1)),
            "Last 12 months": (year, today),
        }
        shown = self.range.since, self.range.last_day
        return [
            (name, urlencode({"from": f"{since:%F}", "to": f"{until:%F}"}), (since, until) == shown)
            for name, (since, until) in named.items()
        ]

    @property
    def narrowed(self) -> list[tuple[str, str, str]]:
        """What it is narrowed to, as (group, its title, the value in words)."""
        return [(group, GROUP_TITLES[group], self.name(group, value)) for group, value in self.where.items()]

    def name(self, group: Group, value: str) -> str:
        """A value of a group as people say it."""
        if group == "appcode":
            return self.codes.get(value, value)
        if group == "line" and value:
            return self.lines.get(value) or value
        return value or NAMELESS[group]


def ask(request: HttpRequest) -> Asked:
    """What `?from= to= columns= by= show= appcode= line= user= model= framework= examples=` ask for. What cannot be understood is
    told beside its field, and the last 30 days are shown."""
    now, user = floor(timezone.now()), person(request)
    codes = {str(pk): code for pk, code in appcodes_for(user).order_by().values_list("pk", "code")}
    examples = {str(pk) for pk in history.codes()} & codes.keys()
    where: dict[Group, str] = {}
    if code := selected_appcode(request):
        # One that is not theirs is as good as none: nothing is found.
        where["appcode"] = next((pk for pk, each in codes.items() if each == code), "0")
    narrowing: tuple[Group, ...] = ("line", "user", "model", "framework")
    for group in narrowing:
        if group in request.GET:
            where[group] = words(request, group)
    by = request.GET.get("by", "")
    if by not in GROUP_TITLES or (by == "cluster" and "appcode" not in where):
        by = next((NEXT[group] for group in where), "line" if user.is_administrator else "appcode")
    with_examples = request.GET.get("examples") != "0"
    counted = codes.keys() - (set() if with_examples else examples)
    errors: dict[str, str] = {}
    try:
        range_ = dashboard.parse(words(request, "from"), words(request, "to"), words(request, "columns"), now.date())
    except Invalid as invalid:
        range_ = dashboard.parse("", "", "", now.date())
        errors = {str(error.path[0]): error.message for error in invalid.errors}
    return Asked(
        range=range_, now=now, by=by, where=where, codes=codes, errors=errors, with_examples=with_examples,
        measure="hours" if request.GET.get("show") == "hours" else "cost", has_examples=bool(examples),
        appcodes=None if user.is_administrator and len(counted) == len(codes) else sorted(map(int, counted)),
        lines=dict(OrgNode.objects.exclude(title="").values_list("path", "title")),
    )  # fmt: skip


def counted(asked: Asked) -> list[int] | None:
    """The appcodes that count on pages that are narrowed by nothing else."""
    if "appcode" not in asked.where:
        return asked.appcodes
    one = int(asked.where["appcode"])
    return [one] if asked.appcodes is None or one in asked.appcodes else []


# What was used


@dataclass(frozen=True)
class GroupRow:
    """One value of a group over the whole range; `part` of all is from 0 to 100, `url` leads further down."""

    name: str
    used: Used
    part: Decimal
    url: str


@require_safe
def overview(request: HttpRequest) -> HttpResponse:
    """Cost and GPU-hours over time by a group, with the top spenders among appcodes and people."""
    asked = ask(request)
    found = dashboard.read(
        asked.range, asked.by, asked.now, appcodes=asked.appcodes, where=asked.where, also=("appcode", "user", "model")
    )
    if request.GET.get("format") == "csv":
        return _overview_csv(request, asked, found)
    earlier = asked.range.before
    before = dashboard.read(earlier, "line", asked.now, appcodes=asked.appcodes, where=asked.where).total
    titles = [(group, title) for group, title in GROUP_TITLES.items() if group != "cluster" or "appcode" in asked.where]
    rows = _group_rows(request, asked, found, asked.by)
    context = {
        **_context(asked), "found": found, "rows": rows, "chart": _chart(request, asked, found), "total": found.total,
        "before": before, "change": _change(found.total, before), "group_titles": titles,
        "columns": [(label, used) for label, (_, used) in zip(_labels(asked.range), found.totals, strict=True)],
        "group_title": GROUP_TITLES[asked.by], "group_word": GROUP_WORDS[asked.by],
        "before_words": f"the {(earlier.until - earlier.since).days} days before", "measures": MEASURES.items(),
        "tops": [
            (GROUP_TITLES[group], MANY[group], _group_rows(request, asked, found, group)[:TOP])
            for group in MANY if group != asked.by and group not in asked.where
        ],
    }  # fmt: skip
    if set(asked.where) <= {"appcode"}:
        context["expected"] = budget_access.together(counted(asked), asked.now)
    if set(asked.where) in ({"line"}, {"line", "appcode"}):
        context["makeup"] = makeup.parts(
            asked.now, window=asked.range.window, appcodes=counted(asked), line=asked.where["line"]
        )
    if not asked.where:
        context |= {"share": _share(asked, found), "wasted": waste.total(asked.range, appcodes=asked.appcodes)}
    return render(request, "billing/dashboard.html", context)


def _context(asked: Asked) -> dict[str, Any]:
    return {"asked": asked, "examples_shown": asked.has_examples and asked.with_examples}


def _labels(range_: Range) -> list[str]:
    return [f"{since:%Y-%m}" if range_.step == "month" else f"{since:%Y-%m-%d}" for since, _ in range_.columns]


def _chart(request: HttpRequest, asked: Asked, found: Dashboard) -> Columns:
    columns = [
        (label, {asked.name(asked.by, value): used.of(asked.measure) for value, used in found.by_group[since].items()})
        for label, (since, _) in zip(_labels(asked.range), asked.range.columns, strict=True)
    ]
    return draw_columns(
        f"{MEASURES[asked.measure]} by {GROUP_WORDS[asked.by]}", columns, urls=_column_urls(request, asked),
        unit=settings.CURRENCY if asked.measure == "cost" else "GPU-hours",
    )  # fmt: skip


def _column_urls(request: HttpRequest, asked: Asked) -> list[str]:
    """Each column leads to its own days."""
    return [
        _changed(request, {"from": f"{since:%F}", "to": f"{until - dt.timedelta(days=1):%F}", "columns": ""})
        for since, until in asked.range.columns
    ]


def _changed(request: HttpRequest, changes: Mapping[str, str]) -> str:
    """This page with other parameters; an empty one goes."""
    query = request.GET.copy()
    for name, value in {"format": "", **changes}.items():
        query.pop(name, None)
        if value:
            query[name] = value
    return f"{request.path}?{query.urlencode()}"


def _group_rows(request: HttpRequest, asked: Asked, found: Dashboard, group: Group) -> list[GroupRow]:
    """The dearest first."""
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
    """Where a row leads: narrowed to it, or from a cluster to its runs."""
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
    """Percent more (or less) than before; None when there was nothing."""
    return (total.cost - before.cost) * 100 / before.cost if before.cost else None


OVERVIEW_HEAD = ("gpu_seconds", "gpu_hours", "cost", "currency")


def _overview_csv(request: HttpRequest, asked: Asked, found: Dashboard) -> HttpResponse:
    """`?table=columns` sums by time, `groups` by group; otherwise every group in every column."""
    name = f"dashboard-{asked.range.since:%F}-{asked.range.last_day:%F}"
    group = asked.by
    table = request.GET.get("table", "")
    labels = dict(zip([since for since, _ in asked.range.columns], _labels(asked.range), strict=True))
    if table == "columns":
        rows: Iterable[Sequence[object]] = ((labels[since], *_cells(used)) for since, used in found.totals)
        return csv_file(f"{name}-by-{asked.range.step}", (asked.range.step, *OVERVIEW_HEAD), rows)
    if table in GROUP_TITLES:
        group = table
        by = found.by.get(group, {})
        rows = ((asked.name(group, value), *_cells(used)) for value, used in sorted(by.items(), key=_dearest))
        return csv_file(f"{name}-by-{group}", (group, *OVERVIEW_HEAD), rows)
    rows = (
        (labels[since], asked.name(group, value), *_cells(used))
        for since, column in found.by_group.items()
        for value, used in sorted(column.items(), key=_dearest)
    )
    return csv_file(f"{name}-{asked.range.step}-{group}", (asked.range.step, group, *OVERVIEW_HEAD), rows)


def _dearest(pair: tuple[str, Used]) -> tuple[Decimal, str]:
    return -pair[1].charge, pair[0]


def _cells(used: Used) -> tuple[object, ...]:
    return used.gpu_seconds, display(used.gpu_hours, 6), display(used.cost, 6), settings.CURRENCY


# Of what there was


def _without(asked: Asked) -> list[str]:
    return [] if asked.with_examples else [history.CLOUD]


def _share(asked: Asked, found: Dashboard) -> Share:
    """Over the whole range and all models of which it is known what was there."""
    whole = Range(asked.range.since, asked.range.until, "month")
    there: dict[str, int] = {}
    for models in capacity.available(whole, asked.now, without=_without(asked)).values():
        for model, (seconds, _) in models.items():
            there[model] = there.get(model, 0) + seconds
    return capacity.total(Share(found.by["model"].get(model, Used()).gpu_seconds, there[model]) for model in there)


@dataclass(frozen=True)
class ModelRow:
    name: str
    share: Share
    simulated: bool
    url: str
    busy: Busy


@require_safe
def utilisation(request: HttpRequest) -> HttpResponse:
    """GPU-hours held of those that were there, and how busy they were while they were held, as far as that was measured."""
    asked = ask(request)
    model = asked.where.pop("model", None)
    found = dashboard.read(asked.range, "model", asked.now, appcodes=asked.appcodes, where=asked.where)
    there = capacity.available(asked.range, asked.now, without=_without(asked))
    all_shares = capacity.shares(found, there)
    columns = [
        (label, capacity.total(share for name, share in all_shares[since].items() if model in (None, name)))
        for label, (since, _) in zip(_labels(asked.range), asked.range.columns, strict=True)
    ]
    looked = measured.by_model(asked.range, appcodes=asked.appcodes, where=asked.where)
    busy_columns = [measured.busy(found, looked, [since], model) for since, _ in asked.range.columns]
    names = sorted({name for column in all_shares.values() for name in column})
    models = [
        ModelRow(
            name or "any model", capacity.total(column[name] for column in all_shares.values() if name in column),
            any(column.get(name, (0, 0))[1] for column in there.values()), _changed(request, {"model": name}),
            measured.busy(found, looked, looked, name),
        )
        for name in names
    ]  # fmt: skip
    name = f"utilisation-{asked.range.since:%F}-{asked.range.last_day:%F}"
    if request.GET.get("format") == "csv":
        if request.GET.get("table") == "models":
            return csv_file(
                f"{name}-by-model",
                ("gpu_model", *SHARE_HEAD, *BUSY_HEAD),
                ((row.name, *_share_cells(row.share), *_busy_cells(row.busy)) for row in models),
            )
        return csv_file(
            f"{name}-by-{asked.range.step}",
            (asked.range.step, *SHARE_HEAD, *BUSY_HEAD),
            (
                (label, *_share_cells(share), *_busy_cells(busy))
                for (label, share), busy in zip(columns, busy_columns, strict=True)
            ),
        )
    held, free = (
        ("held", "free")
        if asked.appcodes is None and not asked.where
        else ("held by these appcodes", "held by others, or free")
    )
    drawn = [
        (label, {held: _hours(share.held), free: _hours(share.free or 0)} if share.part is not None else {})
        for label, share in columns
    ]  # fmt: skip
    context = {
        **_context(asked), "columns": [(*each, busy) for each, busy in zip(columns, busy_columns, strict=True)], "models": models,
        "busy": measured.busy(found, looked, looked, model), "busy_notes": _busy_notes(request), "model": model,
        "total": capacity.total(share for _, share in columns),
        "chart": draw_columns(
            "GPU-hours held of those available", drawn, unit="GPU-hours", urls=_column_urls(request, asked), order=(held, free),
            quiet=free,
        ),
        "known": any(share.part is not None for _, share in columns),
    }  # fmt: skip
    return render(request, "billing/dashboard_utilisation.html", context)


def _busy_notes(request: HttpRequest) -> list[str]:
    """Why something is not measured; what is the matter with a cloud is for administrators."""
    return measured.notes(troubles=person(request).is_administrator)


BUSY_HEAD = ("measured_gpu_seconds", "busy_gpu_seconds", "idle_while_held_percent", "measured_percent_of_held")


def _busy_cells(busy: Busy) -> tuple[object, ...]:
    if busy.idle is None:
        return 0, 0, "not known", display(busy.covered)
    return (
        _seconds(busy.measured.measured_ms),
        _seconds(busy.measured.busy_ms),
        display(busy.idle),
        display(busy.covered),
    )


def _seconds(milliseconds: int) -> Decimal:
    return display(Decimal(milliseconds) / 1000, 3)


SHARE_HEAD = ("held_gpu_seconds", "available_gpu_seconds", "utilisation_percent")


def _share_cells(share: Share) -> tuple[object, ...]:
    known = share.percent is not None
    return (share.held, share.available, display(cast("Decimal", share.percent))) if known else ("", "", "not known")


def _hours(seconds: int) -> Decimal:
    return Decimal(seconds) / SECONDS_PER_HOUR


# For nothing

IDLE = "GPUs held idle"


@dataclass(frozen=True)
class Case:
    """One consumer's waste of one kind."""

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
def wasted(request: HttpRequest) -> HttpResponse:
    """What was held for nothing, and what is at this moment."""
    asked = ask(request)
    found = waste.report(asked.range, asked.now, appcodes=counted(asked))
    cases = [_case(asked, row) for row in found.dearest]
    labels = _labels(asked.range)
    idle = measured.idle(asked.range, appcodes=counted(asked))
    idle_cases = [(each, asked.codes.get(str(each.appcode_id), ""), *_idle_urls(asked, each)) for each in idle.tasks]
    if request.GET.get("format") == "csv":
        if request.GET.get("table") == "idle":
            return _idle_csv(asked, idle.tasks)
        return _waste_csv(request, asked, found, cases, idle)
    titles = {kind: waste.EXPLAINED[Waste.Kind(kind)] for kind in found.kinds}
    known = measured.known_since(asked.now)
    drawn = [
        (
            label,
            {titles[kind]: each.used.cost for kind, each in found.columns[since].items()} | {IDLE: idle.columns[since][1].cost},
        )
        for label, (since, _) in zip(labels, asked.range.columns, strict=True)
    ]  # fmt: skip
    outliving = [
        (each, asked.codes.get(str(each.appcode_id), ""), _run_url(asked, str(each.appcode_id), each.cluster, each.run))
        for each in found.outliving
    ]
    context = {
        **_context(asked), "cases": cases[:SHOWN], "more": len(cases) - SHOWN, "outliving": outliving,
        "kinds": [(titles[kind], kind, each) for kind, each in found.kinds.items()],
        "idle": idle, "idle_cases": idle_cases[:SHOWN],
        "idle_more": len(idle_cases) - SHOWN, "idle_percent": measured.IDLE_PERCENT, "busy_notes": _busy_notes(request),
        "looked": _looked(asked) and known < asked.range.until,
        "known": known if known > asked.range.since else None,
        "chart": draw_columns("What was held for nothing", drawn, urls=_column_urls(request, asked), unit=settings.CURRENCY),
        "columns": [
            (label, found.columns[since], idle.columns[since][1])
            for label, (since, _) in zip(labels, asked.range.columns, strict=True)
        ],
    }  # fmt: skip
    return render(request, "billing/dashboard_waste.html", context)


def _looked(asked: Asked) -> bool:
    """Whether anything was measured at all."""
    return any(measured.by_model(asked.range, appcodes=counted(asked)).values())


def _as_waste(hours: int, used: Used) -> waste.Wasted:
    """A case is an hour of a task."""
    return waste.Wasted(hours, hours * SECONDS_PER_HOUR, used)


def _idle_urls(asked: Asked, each: IdleTask) -> tuple[str, str]:
    """Of its run and of its segment."""
    run = _run_url(
        asked, str(each.appcode_id), each.cluster, each.run, each.since, each.until - dt.timedelta(seconds=1)
    )
    code = asked.codes.get(str(each.appcode_id), "")
    return run, reverse("billing_segment", args=[code, each.cluster, each.run, each.segment_id]) if run else ""


def _idle_csv(asked: Asked, tasks: Sequence[IdleTask]) -> HttpResponse:
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
        *OVERVIEW_HEAD,
    )
    return csv_file(
        f"idle-{asked.range.since:%F}-{asked.range.last_day:%F}", head,
        (
            (asked.codes.get(str(each.appcode_id), ""), each.cluster, each.run, each.task, each.uid, each.gpu_model, each.hours,
             each.since.isoformat(), each.until.isoformat(), display(each.busy_percent),
             *_cells(each.used))
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
    """The page of a run, for the days in which it used something."""
    code = asked.codes.get(appcode_id, "")
    if not (code and cluster and run):
        return ""
    days = urlencode({"from": f"{(since or asked.now):%F}", "to": f"{(until or asked.now):%F}"})
    return f"{reverse('billing_run', args=[code, cluster, run])}?{days}"


def _waste_csv(
    request: HttpRequest, asked: Asked, found: waste.Report, cases: list[Case], idle: measured.Idle
) -> HttpResponse:
    name = f"waste-{asked.range.since:%F}-{asked.range.last_day:%F}"
    if request.GET.get("table") == "columns":
        rows = (
            (label, kind, each.count, each.seconds, *_cells(each.used))
            for label, (since, _) in zip(_labels(asked.range), asked.range.columns, strict=True)
            for kind, each in sorted({**found.columns[since], "idle": _as_waste(*idle.columns[since])}.items())
        )
        return csv_file(
            f"{name}-by-{asked.range.step}", (asked.range.step, "kind", "cases", "seconds", *OVERVIEW_HEAD), rows
        )
    head = ("kind", "appcode", "cluster", "run", "from", "to", "seconds", *OVERVIEW_HEAD)
    return csv_file(
        name, head,
        (
            (case.row.kind, case.code, case.cluster, case.run, case.row.since.isoformat(), case.row.until.isoformat(),
             case.row.seconds, *_cells(Used(case.row.gpu_seconds, case.row.charge)))
            for case in cases
        ),
    )  # fmt: skip


# What does not fit


@require_safe
def reconciled(request: HttpRequest) -> HttpResponse:
    """Pods without an end, mended times, corrections; for administrators what nobody understood, too."""
    asked = ask(request)
    administrator = person(request).is_administrator
    found = reconciliation.report(asked.range, asked.now, appcodes=counted(asked), quarantine=administrator)
    if request.GET.get("format") == "csv":
        return _reconciliation_csv(request, asked, found)
    labels = _labels(asked.range)
    drawn = [
        (label, {flag.replace("-", " "): Decimal(count) for flag, count in found.columns[since].items()})
        for label, (since, _) in zip(labels, asked.range.columns, strict=True)
    ]
    context = {
        **_context(asked), "found": found, "most": reconciliation.MOST_ROWS, "mended": sum(found.flags.values()),
        "flags": [(flag.replace("-", " "), access.NOTES[flag], found.flags[flag]) for flag in FLAGS],
        "endless": [(each, _segment_url(asked, each.segment)) for each in found.endless],
        "flagged": [(row, _marks(row), _segment_url(asked, row)) for row in found.flagged],
        "corrections": [
            (each, asked.codes.get(str(each.appcode_id), ""), _correction_url(asked, each)) for each in found.corrections
        ],
        "chart": draw_columns("Segments with mended times", drawn, urls=_column_urls(request, asked), digits=0, most=Decimal(4)),
        "columns": [
            (label, sum(found.columns[since].values()))
            for label, (since, _) in zip(labels, asked.range.columns, strict=True)
        ],
    }  # fmt: skip
    return render(request, "billing/dashboard_reconciliation.html", context)


def _marks(row: UsageSegment) -> list[tuple[str, str]]:
    """Its flags in words, each with its sentence."""
    return [(flag.replace("-", " "), access.NOTES[flag]) for flag in row.flags]


def _segment_url(asked: Asked, row: UsageSegment) -> str:
    cluster, run = str(row.labels.get("cluster", "")), str(row.labels.get("run", ""))
    if not (cluster and run):
        return ""
    return reverse("billing_segment", args=[asked.codes[str(row.appcode_id)], cluster, run, row.pk])


def _correction_url(asked: Asked, each: reconciliation.Correction) -> str:
    code = asked.codes.get(str(each.appcode_id), "")
    if not (code and each.cluster and each.run):
        return ""
    return reverse("billing_segment", args=[code, each.cluster, each.run, each.segment_id])


def _reconciliation_csv(request: HttpRequest, asked: Asked, found: reconciliation.Report) -> HttpResponse:
    """`?table=` columns, flagged, corrections, endless or quarantine."""
    table = request.GET.get("table", "flagged")
    name = f"reconciliation-{table}-{asked.range.since:%F}-{asked.range.last_day:%F}"
    if table == "columns":
        rows = (
            (label, flag, count)
            for label, (since, _) in zip(_labels(asked.range), asked.range.columns, strict=True)
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


# One segment


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
    """One segment, every sighting that it follows from, and every line of the ledger that follows from it."""
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
        "marks": _marks(row), "generated": appcode.pk in history.codes(),
    }  # fmt: skip
    return render(request, "billing/segment.html", context)


# The example


@require_POST
def remove_examples(request: HttpRequest) -> HttpResponse:
    user = person(request)
    require_administrator(user)
    try:
        removed = history.remove(acting_user=user)
    except Conflict as conflict:
        messages.error(request, str(conflict))
    else:
        messages.success(request, f"The generated example data of {removed} appcodes is gone.")
    return HttpResponseRedirect(reverse("dashboard"))
