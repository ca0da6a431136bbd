"""The GPUs and cost of a service's replicas, and whether they fit the capacity that the controller last saw. Calls no cloud."""

from __future__ import annotations

from dataclasses import dataclass, replace

from django.db.models import Avg, F

from clusters.admission.judgement import Fits, Judgement, worst
from clusters.catalog.admission import Quota, judge_quota
from clusters.clouds.placement import gpu_limit
from clusters.runs.placing.known import capacity_of, read
from clusters.runs.placing.room import Wish, judge, left
from clusters.runs.queries.preview import NOTHING, Cost, cost_of, placed
from clusters.runs.quota import ahead, held
from clusters.services.checks import resolved_as
from clusters.services.manifest import DeploySpec, ServiceSpec
from clusters.services.models import Replica, Service
from clusters.services.revisions import answering, replicas_of
from portal.models import Appcode

# Recent replicas whose start-up times are averaged.
LOOKED_AT = 10


@dataclass(frozen=True)
class Takes:
    """`count` replicas. `free` counts unused GPUs of any model; `sentence` explains why they do not fit."""

    count: int
    gpus: int
    free: int
    fits: Fits
    sentence: str
    cost: Cost


def takes(spec: ServiceSpec, model: str, appcode: Appcode, count: int) -> Takes:
    """Raises Invalid where no replica could be created."""
    resolved = resolved_as(spec, model, appcode)
    capacity = capacity_of(resolved.place.cloud)
    tasks = [replace(each, count=count) for each in placed(resolved)]
    most = gpu_limit(appcode, resolved.place.cloud)
    queue = ahead(appcode.pk, most)
    quota = judge_quota(resolved.gpus * count, Quota(appcode.code, most, held(appcode.pk), queue))
    wish = Wish(appcode, resolved.place.namespace, is_endless=True)
    room = judge(tasks, capacity, resolved.place.cloud, wish) if count else Judgement("now", "", "")
    found = worst(quota, room)
    each = cost_of(resolved.spec, appcode)
    field = left(read(resolved.place.cloud, capacity))
    return Takes(
        count=count,
        gpus=resolved.gpus * count,
        free=sum(shape.gpus * len(names) for shape, names in field.items()),
        fits=found.fits,
        sentence=found.message,
        cost=sum((each for _ in range(count)), NOTHING),
    )


@dataclass(frozen=True)
class Change:
    """Additional resources of a rollout: `takes` at first, up to `most` replicas while old ones stay warm. `seconds` is
    the start-up time of a replica; None until one has started."""

    takes: Takes
    most: int
    kind: str
    seconds: int | None
    compared: int
    warm: int
    old: int

    @property
    def during(self) -> int | None:
        """Seconds for which the additional resources are held; None while unknown."""
        if self.seconds is None:
            return None
        return self.compared * 60 + self.seconds * (max(1, self.old) if self.kind == "rolling" else 1) + self.warm


def change_of(service: Service, spec: ServiceSpec, deploy: DeploySpec, model: str) -> Change:
    """Raises Invalid where no replica of that version could be created."""
    old = answering(service)
    kind = (deploy.kind or spec.rollout.kind) if old else "rolling"
    weight = deploy.weight or spec.rollout.weight
    new = replicas_of(spec, old, kind, weight)
    has = old.wanted if old else 0
    first = 1 if kind == "rolling" and has else new
    return Change(
        takes=takes(spec, model, service.appcode, first),
        most=new if spec.rollout.keep_warm or kind != "rolling" else first,
        kind=kind,
        seconds=comes_up_in(service),
        compared=0 if kind == "rolling" else deploy.minutes or spec.rollout.minutes,
        warm=spec.rollout.keep_warm if has else 0,
        old=has,
    )


def comes_up_in(service: Service) -> int | None:
    """Mean start-up time of the last replicas in seconds. One query."""
    latest = Replica.objects.filter(service=service, served_at__isnull=False).order_by("-id")[:LOOKED_AT]
    took = Replica.objects.filter(pk__in=latest.values("pk")).aggregate(took=Avg(F("served_at") - F("created_at")))[
        "took"
    ]
    return None if took is None else max(1, round(took.total_seconds()))
