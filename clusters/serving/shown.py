"""What a service is and has been asked, as its page and REST say it. However many services or replicas there are, it is read with
a fixed number of queries.

Requests are what fronts counted by the minute, cost is that of the runs of its replicas: neither knows of the other, and the
price of a thousand requests is one divided by the other.
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

from clusters.front.counts import quantile, total
from clusters.models import Front, Replica, Revision, Rollout, Run, Service, ServiceMinute, ServiceToken, Task
from clusters.serving.manifest import ROLE, ServiceSpec, replica_name

# A front that has said nothing for so long is dead, and its requests with it.
FRONT_DEAD = dt.timedelta(seconds=15)
# Of stand-still things: so many of the last.
MOST_ROLLOUTS, MOST_REVISIONS = 20, 20
HOUR, LONGEST = dt.timedelta(hours=1), dt.timedelta(days=1)


@dataclass(frozen=True)
class Counted:
    """Requests of some time. `errors` are answers of 500 and more and those that never came, `refused` those of 400 to 499,
    `rows` what was answered, as far as model servers say it."""

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
        """Milliseconds within which this share of the answers came, None where nobody asked."""
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
    """Of one revision. `mirrored`: what it was asked were copies."""

    at: dt.datetime
    revision: int
    mirrored: bool
    counted: Counted


@dataclass(frozen=True)
class Stats:
    """By minute, oldest first; and all together by (revision, whether mirrored)."""

    since: dt.datetime
    until: dt.datetime
    minutes: Sequence[Minute]
    sums: Mapping[tuple[int, bool], Counted]


@dataclass(frozen=True)
class Flying:
    """What living fronts say of a service: requests in flight by replica, and those that wait for one."""

    fronts: int = 0
    replicas: Mapping[int, int] = field(default_factory=dict)
    waiting: int = 0
    # The least route that one of them has; None where there is no front.
    route: int | None = None

    @property
    def requests(self) -> int:
        return sum(self.replicas.values())


@dataclass(frozen=True)
class ReplicaShown:
    """`phase` and `message` are those of its run, as far as it says less."""

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
    """`requests` are those that it answered since it was made, copies not among them."""

    row: Revision
    serving: int
    living: int
    gpu_seconds: int = 0
    cost: Decimal = Decimal(0)
    requests: int = 0

    @property
    def all(self) -> int:
        """Its replicas: those that there are, or that are wanted where those are more."""
        wanted = self.row.wanted if self.row.weight or self.row.mirrored else 0
        return max(self.living, wanted)

    @property
    def price(self) -> Decimal | None:
        """Of a thousand requests; None where nobody asked."""
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
    """All of a service. `revisions` are those that answer, have replicas or are among the last."""

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
    """Where it answers, with a slash at its end."""
    port = "" if settings.SERVE_PORT == settings.SERVE_USUAL_PORT else f":{settings.SERVE_PORT}"
    return f"{settings.SERVE_SCHEME}://{service.label}.{settings.SERVE_DOMAIN}{port}/"


def briefs(services: Iterable[Service], now: dt.datetime | None = None) -> list[Brief]:
    """In their order; five queries."""
    now, rows = now or timezone.now(), list(services)
    keys = [row.pk for row in rows]
    answering: dict[int, Revision] = {}
    for each in Revision.objects.filter(service__in=keys, weight__gt=0).order_by("weight", "-number"):
        answering[each.service_id] = each
    states = _states(Replica.objects.filter(service__in=keys), "service")
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
            spec=ServiceSpec.model_validate(row.spec),
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


def _states(replicas: QuerySet[Replica], by: str) -> dict[int, list[str]]:
    """Of those that are not gone; one query."""
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
    """By service; one query."""
    fronts = [row.services for row in Front.objects.filter(seen_at__gt=now - FRONT_DEAD)]
    found = {}
    for key in services:
        said = [each[str(key)] for each in fronts if str(key) in each]
        replicas: dict[int, int] = {}
        for each in said:
            for replica, count in each.get("inFlight", {}).items():
                replicas[int(replica)] = replicas.get(int(replica), 0) + count
        route = min((each.get("route", 0) for each in said), default=None)
        found[key] = Flying(len(fronts), replicas, sum(each.get("waiting", 0) for each in said), route)
    return found


def replicas_of(service: Service, flying: Flying) -> list[ReplicaShown]:
    """Those that are not gone, by slot; two queries."""
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
    """The newest first; five queries."""
    states = _states(Replica.objects.filter(service=service), "revision")
    last = Q(number__gt=service.revision_count - MOST_REVISIONS)
    rows = list(service.revisions.filter(last | Q(weight__gt=0) | Q(pk__in=list(states))).select_related("created_by"))
    keys = [row.pk for row in rows]
    seconds: dict[int, int] = dict.fromkeys(keys, 0)
    cost: dict[int, Decimal] = dict.fromkeys(keys, Decimal(0))
    runs = Run.objects.filter(replica__revision__in=keys).order_by()
    for key, of_gpus, paid in runs.values_list("replica__revision").annotate(Sum("gpu_seconds"), Sum("cost")):
        seconds[key], cost[key] = of_gpus, paid
    # Those that hold something now use more of it every second.
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
    """What it was asked from `since` until before `until`, LONGEST at most; one query."""
    rows = ServiceMinute.objects.filter(service=service, minute__gte=since, minute__lt=until)
    found = list(rows.annotate(number=F("revision__number")).order_by("minute", "number", "mirrored"))
    minutes = [
        Minute(*key, Counted.of(group))
        for key, group in groupby(found, key=lambda row: (row.minute, row.number, row.mirrored))
    ]
    by_revision = sorted(found, key=lambda row: (row.number, row.mirrored))
    sums = {key: Counted.of(group) for key, group in groupby(by_revision, key=lambda row: (row.number, row.mirrored))}
    return Stats(since, until, minutes, sums)
