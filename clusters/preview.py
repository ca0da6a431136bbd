"""What would happen if this were submitted now: tasks, GPUs, whether it fits and why not, and what it costs.

Reads the capacity that the controller last saw and the prices of now; asks no cloud. The same judgement is made again after
submit, so the sentence before and the sentence after agree unless the world has changed between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from django.utils import timezone

from billing.metering import price_book
from billing.rating import hourly
from billing.usage import Resources
from clusters.admission import Fits, Quota, judge_capacity, judge_quota, worst
from clusters.catalogue import Resolved, resolve, usable_appcode
from clusters.clouds.base import Capacity, Node, Waiting
from clusters.models import CloudState
from clusters.news import silences
from clusters.places import Place
from clusters.reconcile import held, waiting
from clusters.specs import ClusterManifest, ClusterSpec
from portal.models import Appcode, User


@dataclass(frozen=True)
class Preview:
    """`place` is where it would run, and `notice` a sentence while that cloud is out of reach. `cost_limit` is the cost until
    the time limit (None without one); money in settings.CURRENCY, unrounded."""

    place: Place
    notice: str
    tasks: int
    gpus: int
    fits: Fits
    sentence: str
    cost_per_hour: Decimal
    cost_limit: Decimal | None


def preview(manifest: ClusterManifest, *, acting_user: User) -> Preview:
    """Raises Invalid and PermissionDenied exactly where `actions.create_cluster` would (except for a name that is taken)."""
    appcode = usable_appcode(manifest.metadata.appcode, acting_user)
    spec = manifest.spec
    resolved = resolve(spec, appcode)
    queue = [gpus for gpus in waiting(appcode.pk).values_list("gpus", flat=True) if 0 < gpus <= appcode.gpu_quota]
    judgement = worst(
        judge_quota(resolved.gpus, Quota(appcode.code, appcode.gpu_quota, held(appcode.pk), queue)),
        judge_capacity(
            {role: (each.count, resolved.resources[role].gpus) for role, each in spec.active_roles.items()},
            {role: each.gpu_model for role, each in resolved.resources.items()},
            capacity_of(resolved.place.cloud),
        ),
    )
    cost = _cost(spec, resolved, appcode)
    return Preview(
        place=resolved.place,
        notice=silences(timezone.now()).get(resolved.place.cloud, ""),
        tasks=sum(each.count for each in spec.active_roles.values()),
        gpus=resolved.gpus,
        fits=judgement.fits,
        sentence=judgement.message or "It can start now.",
        cost_per_hour=cost.per_hour,
        cost_limit=cost.limit,
    )


@dataclass(frozen=True)
class Cost:
    """For an hour, and until the time limit (None without one), unrounded."""

    per_hour: Decimal
    limit: Decimal | None


def cost_of(spec: ClusterSpec, appcode: Appcode) -> Cost:
    """What a run of `spec` costs at today's prices. Raises Invalid where it cannot be run as it is."""
    return _cost(spec, resolve(spec, appcode), appcode)


def _cost(spec: ClusterSpec, resolved: Resolved, appcode: Appcode) -> Cost:
    roles = [(resolved.resources[role], each.count) for role, each in spec.active_roles.items()]
    sizes = [Resources(each.gpus * n, each.gpu_model, each.cpu_milli * n, each.memory_mb * n) for each, n in roles]
    per_hour = hourly(price_book(), timezone.now(), sizes, appcode.pk)
    return Cost(per_hour, per_hour * spec.time_limit / 3600 if spec.time_limit else None)


def capacity_of(cloud: str) -> Capacity:
    """What a cloud had when the controller last looked; empty before it did."""
    seen = CloudState.objects.filter(name=cloud).values_list("capacity", flat=True).first() or {}
    return Capacity(
        nodes=tuple(Node(**node) for node in seen.get("nodes", [])),
        queue=tuple(Waiting(**each) for each in seen.get("queue", [])),
    )
