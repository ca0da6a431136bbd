"""The page of a service: state, statistics, history, manifest. The browser polls live parts, which answer 304 if unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import conditional_page, require_safe

from clusters.cluster.form.new import curl
from clusters.model_registry.drift import LARGE, MIN_ROWS, Column, again, word
from clusters.services.access import service_for
from clusters.services.actions import can_roll_back
from clusters.services.controller.canary import Pair, Sums, why_worse
from clusters.services.manifest import ServiceManifest, ServiceSpec
from clusters.services.models import Replica, RevisionDrift, Rollout, Service
from clusters.services.pages.charts import MINUTES_HEAD, charts_of, has_lines, minute_of, recent, table_of, this_month
from clusters.services.pages.form import short_document
from clusters.services.summary import HOUR, LONGEST, RevisionShown, Shown, Stats, address, shown, stats_of
from portal.access import OPERATE, may
from portal.models import Event
from portal.pages.appcodes import person
from portal.pages.layout import page_of
from portal.web.downloads import csv_file

# Steps of a rollout, in the order of the strip.
STEPS = {
    "rolling": (("Starting", "Starting"), ("Shifting", "Taking over"), ("Promoted", "Promoted")),
    "canary": (
        ("Starting", "Starting"), ("Comparing", "Answering a part"), ("Shifting", "Taking over"), ("Promoted", "Promoted"),
    ),
    "shadow": (("Starting", "Starting"), ("Comparing", "Sent copies"), ("Shifting", "Taking over"), ("Promoted", "Promoted")),
}  # fmt: skip
WORST = 5
TABLE_HEAD = (
    "Minute (UTC)", "Revision", "Copies", "Requests", "Errors", "Refused", "Rows", "p50, ms", "p95, ms", "p99, ms",
    "Bytes in", "Bytes out",
)  # fmt: skip
EVENTS = 100


@dataclass(frozen=True)
class Step:
    label: str
    is_now: bool
    is_done: bool


@dataclass(frozen=True)
class Side:
    """One of the two revisions that are compared."""

    revision: RevisionShown
    requests: int = 0
    errors: int = 0
    p50: float | None = None
    p99: float | None = None

    @property
    def error_percent(self) -> float:
        return 100 * self.errors / self.requests if self.requests else 0.0


@dataclass(frozen=True)
class Way:
    """A live rollout. `worse` explains why the new revision is worse so far; "" if it is not."""

    rollout: Rollout
    steps: list[Step]
    sides: list[Side]
    worse: str

    @property
    def is_gated(self) -> bool:
        return self.rollout.phase == Rollout.Phase.GATED

    @property
    def is_compared(self) -> bool:
        return self.rollout.phase == Rollout.Phase.COMPARING


@dataclass(frozen=True)
class Bin:
    """Share of the training sample and share seen, as heights; the highest is 100."""

    says: str
    expected: float
    seen: float


@dataclass(frozen=True)
class Seen:
    """How far a revision's values of one input or output have drifted from its training sample."""

    column: Column
    psi: float | None
    bins: list[Bin]

    @property
    def word(self) -> str:
        return word(self.psi)

    @property
    def css(self) -> str:
        return {"large": "drifted", "moderate": "moved"}.get(self.word, "stable")

    @property
    def spoken(self) -> str:
        return "; ".join(each.says for each in self.bins)


@dataclass(frozen=True)
class Drift:
    """`drifted` counts all columns that are far from the sample; `columns` has the worst."""

    row: RevisionDrift
    columns: list[Seen]
    drifted: int
    least: int = MIN_ROWS


@require_safe
def service(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    found = service_for(person(request), appcode, name)
    return render(request, "clusters/services/overview.html", head_of(request, found) | {"tab": "overview"})


@require_safe
@conditional_page
def live(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    found = service_for(person(request), appcode, name)
    return render(request, "clusters/services/_overview.html", head_of(request, found))


@require_safe
@conditional_page
def head(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The live part above the other tabs."""
    found = service_for(person(request), appcode, name)
    return render(request, "clusters/services/_head.html", head_of(request, found, whole=False))


@require_safe
def minutes(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    found, now = service_for(person(request), appcode, name), timezone.now()
    stats = stats_of(found, now - HOUR, now)
    return csv_file(f"{appcode}-{name}-minutes", MINUTES_HEAD, table_of(stats.minutes))


@require_safe
def history(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    found = service_for(person(request), appcode, name)
    rollouts = found.rollouts.select_related("from_revision", "to_revision", "created_by")
    events = Event.objects.filter(appcode=appcode, object=f"service {found}", at__gte=found.created_at)
    page, following = page_of(request, events, "-id", EVENTS)
    context = {
        "rollouts": []
        if request.GET.get("cursor")
        else rollouts.defer("from_revision__spec", "to_revision__spec")[:EVENTS],
        "events": page,
        "next_cursor": following,
        "tab": "history",
    }
    return render(request, "clusters/services/history.html", head_of(request, found, whole=False) | context)


@require_safe
def manifest(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    found = service_for(person(request), appcode, name)
    said = ServiceManifest.stored({"metadata": {"name": name, "appcode": appcode}, "spec": found.spec})
    text = json.dumps(short_document(said), indent=2, ensure_ascii=False)
    path = request.build_absolute_uri(f"/api/v1/appcodes/{quote(appcode)}/services/{name}")
    context = {"manifest": text, "curl": curl(path, text, method="PUT"), "tab": "manifest"}
    return render(request, "clusters/services/manifest.html", head_of(request, found, whole=False) | context)


def head_of(request: HttpRequest, found: Service, *, whole: bool = True) -> dict[str, Any]:
    """The context of all tabs; `whole` adds that of the first one."""
    now = timezone.now()
    is_on, may_operate = found.desired == "running", may(person(request), found.appcode, OPERATE)
    context: dict[str, Any] = {
        "service": found,
        "spec": ServiceSpec.stored(found.spec),
        "url": f"/services/{found.appcode.code}/{found.name}",
        "address": address(found),
        "is_on": is_on,
        "may_operate": may_operate,
        "can_roll_back": is_on and may_operate and can_roll_back(found),
    }
    if not whole:
        living = found.rollouts.filter(phase__in=Rollout.LIVING)
        return context | {"living": living.exists()}
    said = shown(found, now)
    by_key = {each.row.pk: each for each in said.revisions}
    last = said.rollouts[0] if said.rollouts and not said.rollout else None
    return context | {
        "living": said.rollout is not None,
        "shown": said,
        "replicas": max(said.living, sum(each.row.wanted for each in said.revisions if each.row.weight)),
        "way": _way(said.rollout, _compared(said.rollout, found, said), by_key) if said.rollout else None,
        "last": last,
        "last_log": _log_of_failed(found, last) if last and last.phase == Rollout.Phase.FAILED else "",
        "recent": recent([found.pk], now).get(found.pk),
        "month": this_month([found.pk], now).get(found.pk, 0),
        "charts": charts_of(said.stats) if has_lines(said.stats) else [],
        "is_counting": bool(said.stats.minutes),
        "table": table_of(said.stats.minutes),
        "table_head": TABLE_HEAD,
        "revisions": [(each, _version_url(each, found)) for each in said.revisions],
        "drift": _drift(said),
    }  # fmt: skip


def _log_of_failed(found: Service, last: Rollout) -> str:
    """The log address of the replica that failed to start; "" if there was none."""
    failed = Replica.objects.filter(revision=last.to_revision_id, served_at=None, run__isnull=False)
    replica = failed.select_related("run__cluster").order_by("-pk").first()
    if replica is None or replica.run is None:
        return ""
    address = reverse("cluster_logs", args=[found.appcode.code, replica.run.cluster.name])
    return f"{address}?run={replica.run.number}"


def _version_url(each: RevisionShown, found: Service) -> str:
    """The page of the revision's model version; "" if that was deleted."""
    model, _, number = each.row.model.partition("/")
    return reverse("model_version", args=[found.appcode.code, model, number]) if each.row.version_id else ""


def _compared(rollout: Rollout, found: Service, said: Shown) -> Stats:
    """Statistics since the comparison began, as the loop counts; otherwise of the last hour. One query."""
    if rollout.phase != Rollout.Phase.COMPARING:
        return said.stats
    return stats_of(found, max(minute_of(rollout.phase_since), said.stats.until - LONGEST), said.stats.until)


def _way(rollout: Rollout, stats: Stats, by_key: Mapping[int, RevisionShown]) -> Way:
    steps = STEPS[rollout.kind]
    at = next((n for n, (phase, _) in enumerate(steps) if phase == rollout.phase), -1)
    sides = [
        _side(by_key[key], rollout, stats)
        for key in (rollout.from_revision_id, rollout.to_revision_id)
        if key is not None and key in by_key
    ]
    worse = ""
    if len(sides) == 2 and rollout.phase == Rollout.Phase.COMPARING:
        before, after = (Sums(each.requests, each.errors, each.p99) for each in sides)
        worse = why_worse(Pair(before, after))
    return Way(rollout, [Step(label, n == at, n < at) for n, (_, label) in enumerate(steps)], sides, worse)


def _side(revision: RevisionShown, rollout: Rollout, stats: Stats) -> Side:
    """The loop's judgement of a revision; its counters until there is one."""
    mirrored = rollout.kind == Rollout.Kind.SHADOW and revision.row.pk == rollout.to_revision_id
    which = "to" if revision.row.pk == rollout.to_revision_id else "from"
    counted = stats.sums.get((revision.row.number, mirrored))
    p50 = counted.p50 if counted else None
    if judged := rollout.judged.get(which):
        return Side(revision, judged.get("requests", 0), judged.get("errors", 0), p50, judged.get("p99Ms"))
    if counted is None:
        return Side(revision)
    return Side(revision, counted.requests, counted.errors, p50, counted.p99)


def _drift(said: Shown) -> Drift | None:
    """Drift of the live revision in the last hour, worst columns first. Two queries."""
    if said.answering is None:
        return None
    rows = RevisionDrift.objects.filter(revision=said.answering).select_related("revision").order_by("-hour")
    # An hour that has just begun has too few rows.
    row = rows.filter(rows__gte=MIN_ROWS).first() or rows.first()
    if row is None:
        return None
    drifted = sum((each["psi"] or 0) >= LARGE for each in row.columns)
    return Drift(row, [_seen(each) for each in again(row.columns[:WORST])], drifted)


def _seen(column: Column) -> Seen:
    shares = [count / (column.rows or 1) for count in column.seen]
    highest = max(*shares, *column.expected)
    ends = [f"up to {edge:g}" for edge in column.edges] + [f"above {column.edges[-1]:g}"]
    bins = [
        Bin(f"{end}: {expected:.0%} in the sample, {seen:.0%} seen", 100 * expected / highest, 100 * seen / highest)
        for end, expected, seen in zip(ends, column.expected, shares, strict=True)
    ]
    return Seen(column, column.psi, bins)
