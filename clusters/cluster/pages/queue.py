"""The queue of each cloud: who has its GPUs, runs that wait for some and why, and runs that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from clusters.cluster.actions import gives_way
from clusters.cluster.pages.list import lent
from clusters.cluster.pages.machines import Machines, machines
from clusters.runs.models import Run
from clusters.runs.placing.rights import Right
from clusters.runs.queries.queue import Queue, Waits, queues
from portal.access import OPERATE, roles_of
from portal.pages.appcodes import person


@dataclass(frozen=True)
class Shown:
    """One cloud. `waiting`: each with whether the reader may change it. What a feature made for itself is changed there, and what
    is about to start nowhere. `holding`: each with the words on its right to its GPUs."""

    queue: Queue
    machines: Machines
    waiting: Sequence[tuple[Waits, bool]]
    holding: Sequence[tuple[Run, str]]

    @property
    def explains(self) -> bool:
        """Whether there is an order between appcodes."""
        return any(each.right for each, _ in self.waiting)


@require_safe
def queue(request: HttpRequest) -> HttpResponse:
    roles = roles_of(person(request))
    found = queues(None if roles is None else list(roles))
    return render(request, "clusters/cluster/queue.html", {"queues": [_shown(each, roles) for each in found]})


def _shown(found: Queue, roles: dict[int, str] | None) -> Shown:
    keepers = {pk: (run.cluster.appcode.code, run.cluster.name) for pk, run in found.keepers.items()}
    return Shown(
        found,
        machines(found.tiles, keepers, sees_all=roles is None),
        [(each, _may_change(each, roles)) for each in found.waiting],
        [(run, _right(found.rights.get(run.pk))) for run in found.holding],
    )


def _right(right: Right | None) -> str:
    if right is None:
        return ""
    return lent(right, timezone.now()) or "Inside the quota"


def _may_change(each: Waits, roles: dict[int, str] | None) -> bool:
    run, cluster = each.run, each.run.cluster
    may_operate = roles is None or roles.get(cluster.appcode_id) in OPERATE.value
    return may_operate and gives_way(run) and not cluster.part_of
