"""The first page: all that lives in the user's appcodes, whatever its kind, and the numbers that people check every morning.

Every browser with the page open polls its rows. They take the same queries however many objects there are, and those of a kind
only where a row of it is shown. The ETag is compared before anything is rendered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.core.cache import cache
from django.db.models import F, Func, IntegerField
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from clusters.cluster.pages import list as listing
from clusters.cluster.pages.verbs import SEVERAL
from clusters.cluster.search import Search
from clusters.home.kinds import KINDS, Key, counted, keys
from clusters.pipelines.access import PIPELINES, stages_of, used_by
from clusters.pipelines.graph import ENDED
from clusters.pipelines.models import Pipeline
from clusters.runs.models import Run
from clusters.services.access import SERVICES
from clusters.services.models import Service
from clusters.services.pages import list as services
from clusters.sweeps.access import SWEEPS
from clusters.sweeps.models import Sweep
from clusters.sweeps.pages import list as sweeps
from clusters.sweeps.totals import sums_of
from portal.access import OPERATE, roles_of
from portal.models import User
from portal.pages.appcodes import person
from portal.pages.layout import selected_appcode
from portal.templatetags.portal import gpu_hours, number, time

ROWS = 50
COUNT_SECONDS = 5


@dataclass(frozen=True)
class Thing:
    """A row of a service, sweep or pipeline as a value, like `listing.Row` of clusters and applications. `whose` says what its
    cost covers."""

    kind: str
    title: str
    name: str
    appcode: str
    owner: str
    phase: str
    work: str
    note: str
    started: str
    gpu_hours: str
    cost: str
    whose: str

    @property
    def url(self) -> str:
        return reverse(self.kind, args=[self.appcode, self.name])

    @property
    def html(self) -> SafeString:
        return listing.row_html(self, "clusters/home/_row.html")


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    return render(request, "clusters/home/home.html", _context(request))


@require_safe
def rows(request: HttpRequest) -> HttpResponseBase:
    """The live part of the page. Answers 304 while it is unchanged."""
    return listing.live(request, _context(request), "clusters/home/_rows.html")


def _context(request: HttpRequest) -> dict[str, Any]:
    user = person(request)
    roles = roles_of(user)
    search = replace(Search.read(request.GET), appcode=selected_appcode(request))
    found, following = keys(roles, search, ROWS)
    counts = _counts(user, roles, search)
    by_kind = {
        kind.name: sum(n for (name, phase), n in counts.items() if name == kind.name and _fits(phase, search))
        for kind in KINDS
    }
    by_phase = {phase: sum(n for (_, said), n in counts.items() if said == phase) for phase in Run.Phase.values}
    return {
        "rows": _rows(found, user, roles),
        "kinds": [(kind.title, reverse(kind.route), by_kind[kind.name]) for kind in KINDS],
        "counts": list(by_phase.items()),
        "all": sum(by_kind.values()),
        "search": search,
        "next_cursor": following,
        "several": SEVERAL,
        "may_create": roles is None or any(role in OPERATE.value for role in roles.values()),
        "query": request.GET.urlencode(),
        "morning": listing.morning(user, roles, search.appcode),
    }


def _fits(phase: str, search: Search) -> bool:
    return not search.phase or phase.lower() in [each.strip().lower() for each in search.phase.split(",")]


def _counts(user: User, roles: Mapping[int, str] | None, search: Search) -> dict[tuple[str, str], int]:
    """`counted`, cached for COUNT_SECONDS."""
    asked = repr((user.pk, replace(search, phase="", cursor="")))
    key = f"home.counts.{hashlib.blake2b(asked.encode(), digest_size=16).hexdigest()}"
    found: list[tuple[str, str, int]] | None = cache.get(key)
    if found is None:
        found = [(*place, count) for place, count in counted(roles, search).items()]
        cache.set(key, found, COUNT_SECONDS)
    return {(kind, phase): count for kind, phase, count in found}


def _rows(found: Collection[Key], user: User, roles: Mapping[int, str] | None) -> list[listing.Row | Thing]:
    """The rows in this order. What was deleted meanwhile is left out."""
    pks = {kind.name: [key.pk for key in found if key.kind == kind.name] for kind in KINDS}
    clusters = listing.rows_with([*pks["cluster"], *pks["application"]], user, roles)
    rows: dict[str, Mapping[int, listing.Row | Thing]] = {
        "cluster": clusters,
        "application": clusters,
        "service": _services(pks["service"]),
        "sweep": _sweeps(pks["sweep"]),
        "pipeline": _pipelines(pks["pipeline"]),
    }
    return [row for key in found if (row := rows[key.kind].get(key.pk)) is not None]


def _services(pks: Collection[int]) -> dict[int, Thing]:
    found = services.rows_of(list(SERVICES.rows.filter(pk__in=pks))) if pks else []
    return {
        row.service.pk: Thing(
            kind="service",
            title="Service",
            name=row.service.name,
            appcode=row.service.appcode.code,
            owner=_owner(row.service),
            phase=row.service.phase,
            work=f"{row.brief.serving} of {row.replicas} replicas",
            note=", ".join(each.model for each in row.revisions) or row.brief.spec.model,
            started=time(row.service.created_at),
            gpu_hours="",
            cost=listing.cents(row.month),
            whose="this month",
        )
        for row in found
    }


def _sweeps(pks: Collection[int]) -> dict[int, Thing]:
    found = sweeps.rows_of(list(SWEEPS.rows.filter(pk__in=pks))) if pks else []
    return {
        row.sweep.pk: Thing(
            kind="sweep",
            title="Sweep",
            name=row.sweep.name,
            appcode=row.sweep.appcode.code,
            owner=_owner(row.sweep),
            phase=row.sweep.phase,
            work=f"{number(row.ended)} of {number(row.total)} trials",
            note=f"best {row.best}" if row.best else row.sweep.message.partition("\n")[0],
            started=time(row.sweep.created_at),
            gpu_hours=gpu_hours(row.sums.gpu_seconds),
            cost=listing.cents(row.sums.cost),
            whose="all trials",
        )
        for row in found
    }


def _pipelines(pks: Collection[int]) -> dict[int, Thing]:
    total = Func(F("current_run__spec__stages"), function="jsonb_array_length", output_field=IntegerField())
    found = list(PIPELINES.rows.filter(pk__in=pks).annotate(total=total)) if pks else []
    now, runs = timezone.now(), [row.current_run for row in found if row.current_run]
    stages = stages_of(runs) if runs else {}
    searched = [stage.sweep.pk for rows in stages.values() for stage in rows if stage.sweep]
    sums = sums_of(searched, now) if searched else {}
    things = {}
    for row in found:
        run, made = row.current_run, stages.get(row.current_run_id or 0, [])
        ended = sum(stage.phase in ENDED for stage in {stage.stage: stage for stage in made}.values())
        seconds, cost = used_by(made, sums, now)
        things[row.pk] = Thing(
            kind="pipeline",
            title="Pipeline",
            name=row.name,
            appcode=row.appcode.code,
            owner=_owner(row),
            phase=run.phase if run else "",
            work=f"{ended} of {row.total} stages" if run else "",
            note=run.message.partition("\n")[0] if run else "It has never been run.",
            started=time(run.created_at) if run else "",
            gpu_hours=gpu_hours(seconds) if run else "",
            cost=listing.cents(cost) if run else "",
            whose="last run",
        )
    return things


def _owner(row: Service | Sweep | Pipeline) -> str:
    return row.created_by.username if row.created_by else ""
