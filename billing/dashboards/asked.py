"""What the pages of dashboards are asked for, and what all of them have."""

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
# The columns of files that tell what was used, for `used_cells`.
USED_HEAD = ("gpu_seconds", "gpu_hours", "cost", "currency")


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
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def query(self) -> str:
        """For links to other pages of the same days."""
        return urlencode({"from": f"{self.range.since:%F}", "to": f"{self.range.last_day:%F}"})

    @property
    def title(self) -> str:
        """ "November 2026" or "2026-10-05 to 2026-12-24"."""
        first, last = self.range.since, self.range.last_day
        if first.day == 1 and self.range.until == periods.following(first):
            return f"{first:%B %Y}"
        return f"{first} to {last}"

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
    """What `?from= to= columns= by= show= appcode= line= user= model= framework=` ask for. What cannot be understood is
    told beside its field, and the last 30 days are shown."""
    now, user = floor(timezone.now()), person(request)
    codes = {str(pk): code for pk, code in appcodes_for(user).order_by().values_list("pk", "code")}
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
    """The appcodes that count on pages that are narrowed by nothing else."""
    if "appcode" not in asked.where:
        return asked.appcodes
    one = int(asked.where["appcode"])
    return [one] if asked.appcodes is None or one in asked.appcodes else []


def common(asked: Asked) -> dict[str, Any]:
    """What the templates of all pages want."""
    return {"asked": asked}


def labelled(range_: Range) -> list[tuple[str, dt.date]]:
    """Its columns, as (label, first day)."""
    form = "%Y-%m" if range_.step == "month" else "%Y-%m-%d"
    return [(f"{since:{form}}", since) for since, _ in range_.columns]


def column_urls(request: HttpRequest, asked: Asked) -> list[str]:
    """Each column leads to its own days."""
    return [
        page_with(request, {"from": f"{since:%F}", "to": f"{until - dt.timedelta(days=1):%F}", "columns": ""})
        for since, until in asked.range.columns
    ]


def page_with(request: HttpRequest, changes: Mapping[str, str]) -> str:
    """This page with other parameters; an empty one goes."""
    query = request.GET.copy()
    for name, value in {"format": "", **changes}.items():
        query.pop(name, None)
        if value:
            query[name] = value
    return f"{request.path}?{query.urlencode()}"


def used_cells(used: Used) -> tuple[object, ...]:
    """Beneath USED_HEAD."""
    return used.gpu_seconds, display(used.gpu_hours, 6), display(used.cost, 6), settings.CURRENCY


def busy_notes(request: HttpRequest) -> list[str]:
    """Why something is not measured; what is the matter with a cloud is for administrators."""
    return measured.notes(troubles=person(request).is_administrator)
