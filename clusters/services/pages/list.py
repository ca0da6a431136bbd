"""The list of services. The browser polls its live part as a fragment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import conditional_page, require_safe

from clusters.cluster.pages.list import cents
from clusters.cluster.pages.living import LiveKind, Thing, owner
from clusters.services.access import SERVICES, services_for
from clusters.services.manifest import ServiceSpec
from clusters.services.models import Replica, Revision, Service
from clusters.services.pages.charts import Recent, recent, this_month
from clusters.services.summary import Brief, briefs, states_of
from portal.access import OPERATE, may_somewhere
from portal.models import User
from portal.pages.appcodes import person
from portal.pages.layout import listed, page_of, words
from portal.templatetags.portal import time


@dataclass(frozen=True)
class Row:
    """A service in the list. `revisions` are those that get requests, by weight."""

    brief: Brief
    revisions: Sequence[Revision]
    recent: Recent | None
    month: Decimal

    @property
    def service(self) -> Service:
        return self.brief.row

    @property
    def replicas(self) -> int:
        return _replicas(self.brief.living, self.revisions)


@require_safe
def services(request: HttpRequest) -> HttpResponse:
    return render(request, "clusters/services/services.html", _listed(request))


@require_safe
@conditional_page
def rows(request: HttpRequest) -> HttpResponse:
    return render(request, "clusters/services/_rows.html", _listed(request))


def rows_of(found: Sequence[Service]) -> list[Row]:
    """List rows, in a constant number of queries."""
    pks, now = [each.pk for each in found], timezone.now()
    counted, month = recent(pks, now), this_month(pks, now)
    revisions = _weighed(pks)
    return [
        Row(brief, revisions.get(brief.row.pk, ()), counted.get(brief.row.pk), month.get(brief.row.pk, Decimal(0)))
        for brief in briefs(found, now)
    ]


def _weighed(services: Collection[int]) -> dict[int, list[Revision]]:
    """Revisions that get requests, by service and weight. One query."""
    found: dict[int, list[Revision]] = {}
    heavy = Revision.objects.filter(service__in=services, weight__gt=0).defer("spec")
    for each in heavy.order_by("-weight", "-number"):
        found.setdefault(each.service_id, []).append(each)
    return found


def _replicas(living: int, revisions: Sequence[Revision]) -> int:
    """Existing replicas, or desired ones if those are more."""
    return max(living, sum(each.wanted for each in revisions))


def _listed(request: HttpRequest) -> dict[str, Any]:
    user, phase = person(request), words(request, "phase")
    found = listed(request, services_for(user), "name", "label", "spec__model")
    counts = dict(found.order_by().values_list("phase").annotate(Count("pk")))
    chosen = found.filter(phase=phase) if phase in Service.Phase.values else found
    page, following = page_of(request, chosen, "-id")
    return {
        "rows": rows_of(page),
        "phases": [(each, counts[each]) for each in Service.Phase.values if counts.get(each)],
        "next_cursor": following,
        "searched": bool(words(request) or phase or request.GET.get("cursor")),
        "query": request.GET.urlencode(),
        "may_create": may_somewhere(user, OPERATE),
    }


def _things(pks: Collection[int], user: User, roles: Mapping[int, str] | None) -> dict[int, Thing]:
    """Without what only the list of services shows: the first page is polled more often."""
    revisions, month = _weighed(pks), this_month(pks, timezone.now())
    states = states_of(Replica.objects.filter(service__in=pks), "service")
    return {
        row.pk: Thing(
            kind="service",
            title="Service",
            name=row.name,
            appcode=row.appcode.code,
            owner=owner(row),
            phase=row.phase,
            work=f"{states[row.pk].count(Replica.State.SERVING)} of {_replicas(len(states[row.pk]), weighed)} replicas",
            note=", ".join(each.model for each in weighed) or ServiceSpec.stored(row.spec).model,
            started=time(row.created_at),
            gpu_hours="",
            cost=cents(month.get(row.pk, Decimal(0))),
            whose="this month",
        )
        for row in SERVICES.rows.filter(pk__in=pks)
        for weighed in [revisions.get(row.pk, [])]
    }


LIVE = LiveKind(
    "service", "Services", "services", SERVICES.rows, "phase", ("created_at",), _things,
    (("Degraded", "Running"), ("Sleeping", "Running")),
)  # fmt: skip
