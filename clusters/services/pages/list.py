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
from clusters.services.models import Revision, Service
from clusters.services.pages.charts import Recent, recent, this_month
from clusters.services.summary import Brief, briefs
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
        """Existing replicas, or desired ones if those are more."""
        return max(self.brief.living, sum(each.wanted for each in self.revisions))


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
    revisions: dict[int, list[Revision]] = {}
    heavy = Revision.objects.filter(service__in=pks, weight__gt=0).defer("spec")
    for each in heavy.order_by("-weight", "-number"):
        revisions.setdefault(each.service_id, []).append(each)
    return [
        Row(brief, revisions.get(brief.row.pk, ()), counted.get(brief.row.pk), month.get(brief.row.pk, Decimal(0)))
        for brief in briefs(found, now)
    ]


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
    found = rows_of(list(SERVICES.rows.filter(pk__in=pks)))
    return {
        row.service.pk: Thing(
            kind="service",
            title="Service",
            name=row.service.name,
            appcode=row.service.appcode.code,
            owner=owner(row.service),
            phase=row.service.phase,
            work=f"{row.brief.serving} of {row.replicas} replicas",
            note=", ".join(each.model for each in row.revisions) or row.brief.spec.model,
            started=time(row.service.created_at),
            gpu_hours="",
            cost=cents(row.month),
            whose="this month",
        )
        for row in found
    }


LIVE = LiveKind(
    "service", "Services", "services", SERVICES.rows, "phase", ("phase_since",), ("created_at",), _things,
    (("Degraded", "Running"), ("Sleeping", "Running")),
)  # fmt: skip
