"""What would happen if this were submitted now: tasks, GPUs, whether it fits and why not, and what it costs.

Reads the capacity that the controller last saw and the prices of now; asks no cloud. The quota is judged again after
submit, in the same words; what a run waits for in its cloud, the cloud says then.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from django.utils import timezone

from billing.metering.segments import Resources
from billing.prices.book import price_book
from billing.prices.rates import hourly, planned
from clusters.clouds.drivers.base import Capacity, Node, Waiting
from clusters.clouds.drivers.base.fit import Fits, Judgement, Tasks, judge, worst
from clusters.clouds.health import silences
from clusters.clouds.placement import Place
from clusters.manifest import ClusterManifest, ClusterSpec
from clusters.models import CloudState
from clusters.runs.quota import held, waiting, why_unread
from clusters.spec.admission import Quota, judge_quota
from clusters.spec.catalog import Resolved, resolve, usable_appcode
from portal.models import Appcode, User


@dataclass(frozen=True)
class Cost:
    """For an hour at the prices of now, and at most until the time limit (None without one) at the prices that are known for
    that time; in settings.CURRENCY, unrounded. A task that takes any GPU is paid by the model that it gets: `per_hour` is with
    the dearest that its cloud has, `per_hour_low` with the cheapest."""

    per_hour_low: Decimal
    per_hour: Decimal
    limit: Decimal | None

    def __add__(self, other: Cost) -> Cost:
        """Together; without a limit when one of them has none."""
        limit = None if self.limit is None or other.limit is None else self.limit + other.limit
        return Cost(self.per_hour_low + other.per_hour_low, self.per_hour + other.per_hour, limit)


NOTHING = Cost(Decimal(0), Decimal(0), Decimal(0))


@dataclass(frozen=True)
class Preview:
    """`place` is where it would run, and `notice` a sentence while that cloud is out of reach."""

    place: Place
    notice: str
    tasks: int
    gpus: int
    fits: Fits
    sentence: str
    cost: Cost


def preview(manifest: ClusterManifest, *, acting_user: User) -> Preview:
    """Raises Invalid and PermissionDenied exactly where `actions.create_cluster` would (except for a name that is taken)."""
    appcode = usable_appcode(manifest.metadata.appcode, acting_user)
    spec = manifest.spec
    resolved = resolve(spec, appcode)
    capacity = capacity_of(resolved.place.cloud)
    queue = [gpus for gpus in waiting(appcode.pk).values_list("gpus", flat=True) if 0 < gpus <= appcode.gpu_quota]
    source = resolved.input.run if resolved.input else None
    judgement = worst(
        Judgement("waits", *why_unread(source)) if source and source.phase != "Succeeded" else Judgement("now", "", ""),
        judge_quota(resolved.gpus, Quota(appcode.code, appcode.gpu_quota, held(appcode.pk), queue)),
        judge(tasks_of(resolved), capacity),
    )
    return Preview(
        place=resolved.place,
        notice=silences(timezone.now()).get(resolved.place.cloud, ""),
        tasks=sum(each.count for each in spec.active_roles.values()),
        gpus=resolved.gpus,
        fits=judgement.fits,
        sentence=judgement.message or "It can start now.",
        cost=_cost(spec, resolved, appcode, capacity),
    )


def tasks_of(resolved: Resolved) -> list[Tasks]:
    """What a run would put onto machines."""
    return [
        Tasks(role, each.count, held.gpus, held.gpu_model, held.cpu_milli, held.memory_mb)
        for role, each in resolved.spec.active_roles.items()
        for held in (resolved.resources[role],)
    ]


def cost_of(spec: ClusterSpec, appcode: Appcode) -> Cost:
    """What a run of `spec` costs. Raises Invalid where it cannot be run as it is."""
    resolved = resolve(spec, appcode)
    return _cost(spec, resolved, appcode, capacity_of(resolved.place.cloud))


def _cost(spec: ClusterSpec, resolved: Resolved, appcode: Appcode, capacity: Capacity) -> Cost:
    prices, now = price_book(), timezone.now()
    low = high = limit = Decimal(0)
    for role, each in spec.active_roles.items():
        held, n = resolved.resources[role], each.count
        models = [held.gpu_model]
        if held.gpus and not held.gpu_model:
            # Where no machine is known that has so many, each that has a price, and any other.
            had = {node.gpu_model for node in capacity.nodes if node.gpus >= held.gpus}
            models = sorted(had or prices.gpu_models | {""})
        sizes = [Resources(held.gpus * n, model, held.cpu_milli * n, held.memory_mb * n) for model in models]
        rates = [hourly(prices, now, [size], appcode.pk) for size in sizes]
        low, high = low + min(rates), high + max(rates)
        limit += max(planned(prices, now, spec.time_limit or 0, [size], appcode.pk) for size in sizes)
    return Cost(low, high, limit if spec.time_limit else None)


def capacity_of(cloud: str) -> Capacity:
    """What a cloud had when the controller last looked; empty before it did."""
    seen = CloudState.objects.filter(name=cloud).values_list("capacity", flat=True).first() or {}
    return Capacity(
        nodes=tuple(Node(**node) for node in seen.get("nodes", [])),
        queue=tuple(Waiting(**each) for each in seen.get("queue", [])),
        in_order=seen.get("in_order", False),
    )
