"""The query parameters of dashboard pages, and what all those pages share."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone

from billing import periods
from billing.efficiency import measured
from billing.ledger.models import Group
from billing.metering.segments import floor
from billing.money import Used, display
from billing.periods import Range
from portal.access import appcodes_for
from portal.errors import Invalid
from portal.models import OrgNode
from portal.pages.appcodes import person
from portal.pages.layout import selected_appcode, words

GROUP_TITLES: dict[Group, str] = {
    "line": "Business line",
    "appcode": "Appcode",
    "user": "Person",
    "model": "GPU model",
    "framework": "Framework",
    "cluster": "Cluster",
}
# Labels for usage without a value of a group.
NAMELESS: dict[Group, str] = {
    "line": "no business line",
    "appcode": "–",
    "user": "nobody named",
    "model": "CPU, memory, storage",
    "framework": "none named",
    "cluster": "no cluster",
}
# How a narrowed dashboard is grouped by default.
NEXT: dict[Group, Group] = {
    "line": "appcode", "appcode": "cluster", "user": "appcode", "model": "appcode", "framework": "appcode",
}  # fmt: skip
# The usage columns of CSV files; `used_cells` makes their cells.
USED_HEAD = ("gpu_seconds", "gpu_hours", "cost", "currency")


@dataclass(frozen=True)
class Asked:
    """What a page shows. `where` narrows it; `appcodes` are the ids that count (None: all); `codes` are the codes of
    all appcodes that the user may see, by id as text. `errors` are by field name."""

    range: Range
    now: dt.datetime
    by: Group
    measure: str
    where: dict[Group, str]
    appcodes: list[int] | None
    codes: dict[str, str]
    lines: dict[str, str]
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def query(self) -> str:
        """For links to other pages about the same days."""
        return urlencode({"from": f"{self.range.since:%F}", "to": f"{self.range.last_day:%F}"})

    @property
    def title(self) -> str:
        """ "November 2026" or "2026-10-05 to 2026-12-24"."""
        first, last = self.range.since, self.range.last_day
        if first.day == 1 and self.range.until == periods.following(first):
            return f"{first:%B %Y}"
        return f"{first} to {last}"

    @property
    def presets(self) -> list[tuple[str, str, bool]]:
        """Common ranges, as (label, query, whether it is the current one)."""
        today = self.now.date()
        first = today.replace(day=1)
        before = (first - dt.timedelta(days=1)).replace(day=1)
        # The first day of the month eleven months ago.
        year = periods.following(first.replace(year=first.year - 1))
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
        """The filters in force, as (group, its title, the value as people read it)."""
        return [(group, GROUP_TITLES[group], self.name(group, value)) for group, value in self.where.items()]

    def name(self, group: Group, value: str) -> str:
        """The readable form of a group's value."""
        if group == "appcode":
            return self.codes.get(value, value)
        if group == "line" and value:
            return self.lines.get(value) or value
        return value or NAMELESS[group]


def ask(request: HttpRequest) -> Asked:
    """Parses `?from= to= columns= by= show= appcode= line= user= model= framework=`. If the range is invalid, `errors`
    holds a message for its field and the last 30 days are shown."""
    now, user = floor(timezone.now()), person(request)
    codes = {str(pk): code for pk, code in appcodes_for(user).order_by().values_list("pk", "code")}
    where: dict[Group, str] = {}
    if code := selected_appcode(request):
        # An appcode that the user may not see finds nothing, like one that does not exist.
        where["appcode"] = next((pk for pk, each in codes.items() if each == code), "0")
    narrowing: tuple[Group, ...] = ("line", "user", "model", "framework")
    for group in narrowing:
        if group in request.GET:
            where[group] = words(request, group)
    by = request.GET.get("by", "")
    if by not in GROUP_TITLES or (by == "cluster" and "appcode" not in where):
        by = next((NEXT[group] for group in where), "line" if user.is_administrator else "appcode")
    errors: dict[str, str] = {}
    try:
        range_ = periods.parse_days(words(request, "from"), words(request, "to"), words(request, "columns"), now.date())
    except Invalid as invalid:
        range_ = periods.parse_days("", "", "", now.date())
        errors = {str(error.path[0]): error.message for error in invalid.errors}
    return Asked(
        range=range_, now=now, by=by, where=where, codes=codes, errors=errors,
        measure="hours" if request.GET.get("show") == "hours" else "cost",
        appcodes=None if user.is_administrator else sorted(map(int, codes)),
        lines=dict(OrgNode.objects.exclude(title="").values_list("path", "title")),
    )  # fmt: skip


def counted(asked: Asked) -> list[int] | None:
    """The appcodes that count, for pages that only filter by appcode."""
    if "appcode" not in asked.where:
        return asked.appcodes
    one = int(asked.where["appcode"])
    return [one] if asked.appcodes is None or one in asked.appcodes else []


def common(asked: Asked) -> dict[str, Any]:
    return {"asked": asked}


def labelled(range_: Range) -> list[tuple[str, dt.date]]:
    """The range's columns, as (label, first day)."""
    form = "%Y-%m" if range_.step == "month" else "%Y-%m-%d"
    return [(f"{since:{form}}", since) for since, _ in range_.columns]


def column_urls(request: HttpRequest, asked: Asked) -> list[str]:
    """A link for each column that narrows the page to its days."""
    return [
        page_with(request, {"from": f"{since:%F}", "to": f"{until - dt.timedelta(days=1):%F}", "columns": ""})
        for since, until in asked.range.columns
    ]


def page_with(request: HttpRequest, changes: Mapping[str, str]) -> str:
    """The URL of this page with changed parameters; an empty value removes one."""
    query = request.GET.copy()
    for name, value in {"format": "", **changes}.items():
        query.pop(name, None)
        if value:
            query[name] = value
    return f"{request.path}?{query.urlencode()}"


def used_cells(used: Used) -> tuple[object, ...]:
    """The cells of USED_HEAD."""
    return used.gpu_seconds, display(used.gpu_hours, 6), display(used.cost, 6), settings.CURRENCY


def busy_notes(request: HttpRequest) -> list[str]:
    """Why something is not measured. Only administrators see the troubles of a cloud."""
    return measured.notes(troubles=person(request).is_administrator)
