"""Services and their requests for pages and REST. The number of queries does not depend on services or replicas.

Requests come from the routers' per-minute counters, cost from the runs of replicas, independently; their quotient is the price.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import groupby

from django.conf import settings
from django.db.models import F, Q, QuerySet, Sum
from django.utils import timezone

from clusters.router.histograms import quantile, total
from clusters.runs.models import Run, Task
from clusters.services.controller.steps import ROUTER_DEAD
from clusters.services.manifest import ROLE, ServiceSpec, replica_name
from clusters.services.models import Replica, Revision, Rollout, Router, Service, ServiceMinute, ServiceToken

# Newest rollouts and revisions that are shown.
MOST_ROLLOUTS, MOST_REVISIONS = 20, 20
HOUR, LONGEST = dt.timedelta(hours=1), dt.timedelta(days=1)


@dataclass(frozen=True)
class Counted:
    """Requests within some time. `errors` are answers of 500 and above and missing ones, `refused` those of 400 to 499. `rows`
    are the rows answered, as far as model servers report them."""

    requests: int = 0
    errors: int = 0
    refused: int = 0
    rows: int = 0
    latency: Sequence[int] = ()
    busy_ms: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    @classmethod
    def of(cls, rows: Iterable[ServiceMinute]) -> Counted:
        found = list(rows)
        return cls(
            requests=sum(each.requests for each in found),
            errors=sum(each.errors for each in found),
            refused=sum(each.refused for each in found),
            rows=sum(each.rows for each in found),
            latency=total(each.latency for each in found),
            busy_ms=sum(each.busy_ms for each in found),
            bytes_in=sum(each.bytes_in for each in found),
            bytes_out=sum(each.bytes_out for each in found),
        )

    def quantile(self, share: float) -> float | None:
        """Milliseconds within which this share of the answers came; None without requests."""
        found = quantile(self.latency, share) if self.latency else None
        return None if found is None else round(found, 2)

    @property
    def p50(self) -> float | None:
        return self.quantile(0.5)

    @property
    def p95(self) -> float | None:
        return self.quantile(0.95)

    @property
    def p99(self) -> float | None:
        return self.quantile(0.99)


@dataclass(frozen=True)
class Minute:
    """One minute of one revision. `mirrored`: its requests were copies."""

    at: dt.datetime
    revision: int
    mirrored: bool
    counted: Counted


@dataclass(frozen=True)
class Stats:
    """Minutes, oldest first, and sums by (revision, mirrored)."""

    since: dt.datetime
    until: dt.datetime
    minutes: Sequence[Minute]
    sums: Mapping[tuple[int, bool], Counted]


@dataclass(frozen=True)
class Flying:
    """What live routers report of a service: requests in flight by replica, and requests that wait for a replica."""

    routers: int = 0
    replicas: Mapping[int, int] = field(default_factory=dict)
    waiting: int = 0
    # The smallest route among routers; None without routers.
    route: int | None = None

    @property
    def requests(self) -> int:
        return sum(self.replicas.values())


@dataclass(frozen=True)
class ReplicaShown:
    """`phase` is its run's; `message` is its own, else its run's."""

    row: Replica
    revision: int
    cluster: str
    run: int | None
    phase: str
    message: str
    node: str
    since: dt.datetime
    in_flight: int


@dataclass(frozen=True)
class RevisionShown:
    """`requests` counts those answered since its creation, without copies."""

    row: Revision
    serving: int
    living: int
    gpu_seconds: int = 0
    cost: Decimal = Decimal(0)
    requests: int = 0

    @property
    def all(self) -> int:
        """Number of replicas: those alive, or those wanted if they are more."""
        wanted = self.row.wanted if self.row.weight or self.row.mirrored else 0
        return max(self.living, wanted)

    @property
    def price(self) -> Decimal | None:
        """Price of a thousand requests; None without requests."""
        return self.cost * 1000 / self.requests if self.requests else None

    @property
    def words(self) -> str:
        return f"revision {self.row.number} · {self.row.model}"


@dataclass(frozen=True)
class Brief:
    """A service in a list. `requests` and `errors` are those of the last hour."""

    row: Service
    spec: ServiceSpec
    answering: Revision | None
    serving: int
    living: int
    rollout: Rollout | None
    flying: Flying
    requests: int
    errors: int

    @property
    def address(self) -> str:
        return address(self.row)


@dataclass(frozen=True)
class Shown(Brief):
    """A service in full. `revisions` are those that answer, have replicas or are among the newest."""

    replicas: Sequence[ReplicaShown]
    revisions: Sequence[RevisionShown]
    rollouts: Sequence[Rollout]
    stats: Stats
    tokens: Sequence[ServiceToken]

    @property
    def gpu_seconds(self) -> int:
        return sum(each.gpu_seconds for each in self.revisions)

    @property
    def cost(self) -> Decimal:
        return sum((each.cost for each in self.revisions), Decimal(0))


def address(service: Service) -> str:
    """Its URL, with a trailing slash."""
    port = "" if settings.SERVE_PORT == settings.SERVE_USUAL_PORT else f":{settings.SERVE_PORT}"
    return f"{settings.SERVE_SCHEME}://{service.label}.{settings.SERVE_DOMAIN}{port}/"


def briefs(services: Iterable[Service], now: dt.datetime | None = None) -> list[Brief]:
    """In the given order. Five queries."""
    now, rows = now or timezone.now(), list(services)
    keys = [row.pk for row in rows]
    answering: dict[int, Revision] = {}
    for each in Revision.objects.filter(service__in=keys, weight__gt=0).order_by("weight", "-number"):
        answering[each.service_id] = each
    states = states_of(Replica.objects.filter(service__in=keys), "service")
    rollouts = Rollout.objects.filter(service__in=keys, phase__in=Rollout.LIVING)
    under_way = {
        each.service_id: each for each in rollouts.select_related("from_revision", "to_revision", "created_by")
    }
    asked = ServiceMinute.objects.filter(service__in=keys, minute__gte=now - HOUR, mirrored=False).order_by()
    sums = {key: found for key, *found in asked.values_list("service").annotate(Sum("requests"), Sum("errors"))}
    flying = flying_of(keys, now)
    return [
        Brief(
            row=row,
            spec=ServiceSpec.stored(row.spec),
            answering=answering.get(row.pk),
            serving=states[row.pk].count(Replica.State.SERVING),
            living=len(states[row.pk]),
            rollout=under_way.get(row.pk),
            flying=flying[row.pk],
            requests=sums[row.pk][0] if row.pk in sums else 0,
            errors=sums[row.pk][1] if row.pk in sums else 0,
        )
        for row in rows
    ]


def states_of(replicas: QuerySet[Replica], by: str) -> dict[int, list[str]]:
    """States of replicas that are not gone. One query."""
    found: dict[int, list[str]] = defaultdict(list)
    for key, state in replicas.exclude(state=Replica.State.GONE).order_by().values_list(by, "state"):
        found[key].append(state)
    return found


def shown(service: Service, now: dt.datetime | None = None) -> Shown:
    """Fourteen queries."""
    now = now or timezone.now()
    [brief] = briefs([service], now)
    rollouts = service.rollouts.select_related("from_revision", "to_revision", "created_by")
    return Shown(
        **{name: getattr(brief, name) for name in Brief.__dataclass_fields__},
        replicas=replicas_of(service, brief.flying),
        revisions=revisions_of(service, now),
        rollouts=list(rollouts[:MOST_ROLLOUTS]),
        stats=stats_of(service, now - HOUR, now),
        tokens=list(service.tokens.select_related("created_by").defer("digest")),
    )


def flying_of(services: Iterable[int], now: dt.datetime) -> dict[int, Flying]:
    """By service. One query."""
    routers = [row.services for row in Router.objects.filter(seen_at__gt=now - ROUTER_DEAD)]
    found = {}
    for key in services:
        said = [each[str(key)] for each in routers if str(key) in each]
        replicas: dict[int, int] = {}
        for each in said:
            for replica, count in each.get("inFlight", {}).items():
                replicas[int(replica)] = replicas.get(int(replica), 0) + count
        route = min((each.get("route", 0) for each in said), default=None)
        found[key] = Flying(len(routers), replicas, sum(each.get("waiting", 0) for each in said), route)
    return found


def replicas_of(service: Service, flying: Flying) -> list[ReplicaShown]:
    """Replicas that are not gone, by slot. Two queries."""
    rows = list(
        service.replicas.exclude(state=Replica.State.GONE)
        .select_related("revision", "run", "cluster")
        .defer("counted", "revision__spec", "run__spec", "cluster__spec")
    )
    tasks = Task.objects.filter(run__in=[row.run_id for row in rows if row.run_id], role=ROLE).order_by("attempt")
    nodes = {each.run_id: each.node for each in tasks.only("run", "node")}
    return [
        ReplicaShown(
            row,
            row.revision.number,
            row.cluster.name if row.cluster else replica_name(service.name, row.slot),
            row.run.number if row.run else None,
            row.run.phase if row.run else "",
            row.message or ((row.run.wait_message or row.run.message) if row.run else ""),
            nodes.get(row.run_id or 0, ""),
            row.served_at if row.served_at and row.state != Replica.State.STARTING else row.created_at,
            flying.replicas.get(row.pk, 0),
        )
        for row in rows
    ]


def revisions_of(service: Service, now: dt.datetime) -> list[RevisionShown]:
    """Newest first. Five queries."""
    states = states_of(Replica.objects.filter(service=service), "revision")
    last = Q(number__gt=service.revision_count - MOST_REVISIONS)
    rows = list(service.revisions.filter(last | Q(weight__gt=0) | Q(pk__in=list(states))).select_related("created_by"))
    keys = [row.pk for row in rows]
    seconds: dict[int, int] = dict.fromkeys(keys, 0)
    cost: dict[int, Decimal] = dict.fromkeys(keys, Decimal(0))
    runs = Run.objects.filter(replica__revision__in=keys).order_by()
    for key, of_gpus, paid in runs.values_list("replica__revision").annotate(Sum("gpu_seconds"), Sum("cost")):
        seconds[key], cost[key] = of_gpus, paid
    # Runs that hold resources now use more every second.
    growing = runs.filter(gone=False).annotate(revision=F("replica__revision"))
    for each in growing.only("usage_as_of", "gpu_seconds", "gpu_rate", "cost", "cost_rate"):
        seconds[each.revision] += each.gpu_seconds_at(now) - each.gpu_seconds
        cost[each.revision] += each.cost_at(now) - each.cost
    asked = ServiceMinute.objects.filter(service=service, revision__in=keys, mirrored=False).order_by()
    if service.counted_until:
        asked = asked.filter(minute__gte=service.counted_until)
    answered = dict(asked.values_list("revision").annotate(Sum("requests")))
    return [
        RevisionShown(
            row,
            serving=states[row.pk].count(Replica.State.SERVING),
            living=len(states[row.pk]),
            gpu_seconds=seconds[row.pk],
            cost=cost[row.pk],
            requests=row.counted + answered.get(row.pk, 0),
        )
        for row in rows
    ]


def stats_of(service: Service, since: dt.datetime, until: dt.datetime) -> Stats:
    """Requests from `since` until before `until`, at most LONGEST apart. One query."""
    rows = ServiceMinute.objects.filter(service=service, minute__gte=since, minute__lt=until)
    found = list(rows.annotate(number=F("revision__number")).order_by("minute", "number", "mirrored"))
    minutes = [
        Minute(*key, Counted.of(group))
        for key, group in groupby(found, key=lambda row: (row.minute, row.number, row.mirrored))
    ]
    by_revision = sorted(found, key=lambda row: (row.number, row.mirrored))
    sums = {key: Counted.of(group) for key, group in groupby(by_revision, key=lambda row: (row.number, row.mirrored))}
    return Stats(since, until, minutes, sums)
