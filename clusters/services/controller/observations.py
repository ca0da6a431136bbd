"""Rows → the values that `rollout.py` and `autoscaling.py` decide by. The number of queries does not grow with the services."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import connection
from django.db.models import Count, F, Q

from clusters.frameworks.serving import ENDPOINT
from clusters.router import histograms
from clusters.runs.models import Run, Task
from clusters.runs.status.phase import TERMINAL
from clusters.services.controller import steps
from clusters.services.controller.autoscaling import Demand, Range, Scale
from clusters.services.controller.canary import Pair, Sums
from clusters.services.manifest import ServiceSpec
from clusters.services.models import Replica, Revision, Rollout, Router, Service, ServiceMinute

# Crashes after which a starting program counts as failing; one crash may be the machine's fault.
CRASHES = 2
# Waiting for room for less than this is not reported.
PASSING = dt.timedelta(seconds=5)
# Pause in seconds after a replica that failed to start; doubles each time, up to five minutes.
PAUSE, LONGEST_PAUSE = 5, 300
# How long the room of an ended replica is kept for the waiting one: the cloud needs a moment to assign it.
FREED = dt.timedelta(seconds=10)
COUNTED = dt.timedelta(hours=1)
NOBODY = frozenset[int]()


@dataclass(frozen=True)
class Seen:
    """One service as it is now. `routers` are the live ones."""

    service: Service
    spec: ServiceSpec
    scale: Scale
    revisions: Mapping[int, Revision]
    replicas: Mapping[int, Mapping[str, Any]]
    rollout: Rollout | None
    last: Rollout | None
    routers: Sequence[steps.RouterSeen] = ()
    demand: Demand = field(default_factory=Demand)
    measured: Pair | None = None

    def state(
        self,
        scale: Scale,
        resting: Mapping[int, str] | None = None,
        refused: Mapping[int, str] | None = None,
        *,
        freed: bool = False,
    ) -> steps.State:
        service, spec = self.service, self.spec
        return steps.State(
            wanted=scale.replicas,
            route=service.route,
            ended=service.desired == Run.Desired.ENDED,
            phase=service.phase,
            message=service.message,
            revisions=[_revision(each) for each in self.revisions.values()],
            replicas=[_replica(each) for each in self.replicas.values()],
            rollout=_way(self.rollout) if self.rollout else None,
            last=_way(self.last) if self.last else None,
            keep_warm=dt.timedelta(seconds=spec.rollout.keep_warm),
            when_full=spec.rollout.when_full,
            resting=resting or {},
            refused=refused or {},
            freed=freed,
        )

    @property
    def range(self) -> Range:
        said = self.spec.replicas
        return Range(said.least, said.most, said.target, dt.timedelta(seconds=said.idle_after))


# Services that are not at rest, besides the ones in `asked`. May return too many, but finds every change not caused by the clock.
_DUE = """
SELECT service.id FROM clusters_service service
WHERE service.phase <> 'Stopped' AND (
    service.id = ANY(%(asked)s) OR service.phase NOT IN ('Running', 'Sleeping') OR service.desired <> 'running'
    OR service.scale ->> 'replicas' IS DISTINCT FROM COALESCE(service.spec -> 'replicas' ->> 'least', '1')
    OR (service.id = ANY(%(busy)s) AND service.spec -> 'replicas' ->> 'least' <> service.spec -> 'replicas' ->> 'most')
    OR EXISTS (SELECT 1 FROM clusters_rollout way WHERE way.service_id = service.id AND way.phase = ANY(%(living)s))
    OR EXISTS (
        SELECT 1 FROM clusters_replica replica
        JOIN clusters_revision revision ON revision.id = replica.revision_id
        LEFT JOIN clusters_run run ON run.id = replica.run_id
        WHERE replica.service_id = service.id AND replica.state <> 'gone' AND (
            replica.state <> 'serving' OR revision.weight = 0 OR run.phase IS DISTINCT FROM 'Running'
            OR run.desired <> 'running' OR run.verdict <> ''
            OR run.endpoints -> %(endpoint)s ->> 'address' IS DISTINCT FROM replica.address
        )
    )
)
"""


def living() -> list[Service]:
    """Services that are not stopped."""
    return list(Service.objects.exclude(phase=Service.Phase.STOPPED).order_by("pk"))


def due(asked: frozenset[int], now: dt.datetime) -> list[Service]:
    """Services not at rest, or in `asked`; others are not read every second. At most three queries for any number of services."""
    busy = {
        int(pk)
        for router in Router.objects.all()
        if abs(now - router.seen_at) < steps.ROUTER_DEAD
        for pk, said in router.services.items()
        if said.get("waiting") or said.get("panic") or said.get("stable")
    }
    with connection.cursor() as cursor:
        cursor.execute(_DUE, {"asked": [*asked], "busy": [*busy], "living": list(Rollout.LIVING), "endpoint": ENDPOINT})
        found = [pk for (pk,) in cursor.fetchall()]
    return list(Service.objects.filter(pk__in=found).order_by("pk")) if found else []


def look(services: Iterable[Service], now: dt.datetime, woken: frozenset[int] = NOBODY) -> list[Seen]:
    """At most eight queries, plus one for each service that is compared."""
    by_id = {each.pk: each for each in services}
    if not by_id:
        return []
    replicas = _replicas(by_id, now)
    moving, ended = _rollouts(by_id)
    needed = {row["revision_id"] for rows in replicas.values() for row in rows.values()}
    for each in (*moving.values(), *ended.values()):
        needed |= {each.to_revision_id, each.from_revision_id or each.to_revision_id}
    revisions = defaultdict[int, dict[int, Revision]](dict)
    used = Q(weight__gt=0) | Q(wanted__gt=0) | Q(mirrored=True) | Q(pk__in=needed)
    for revision in Revision.objects.filter(used, service__in=by_id).defer("spec").order_by("number"):
        revisions[revision.service_id][revision.pk] = revision
    routers = [each for each in Router.objects.all() if abs(now - each.seen_at) < steps.ROUTER_DEAD]
    found = []
    for pk, service in by_id.items():
        spec = ServiceSpec.stored(service.spec)
        said = [(each.seen_at, each.services.get(str(pk)) or {}) for each in routers]
        way, scale = moving.get(pk), Scale.read(service.scale, spec.replicas.least, now)
        found.append(
            Seen(
                service=service,
                spec=spec,
                scale=scale,
                revisions=revisions[pk],
                replicas=replicas[pk],
                rollout=way,
                last=ended.get(pk),
                routers=[_router(at, each) for at, each in said],
                demand=_demand([each for _, each in said], woken=pk in woken),
                measured=compared(way) if way and way.phase == Rollout.Phase.COMPARING else None,
            )
        )
    return found


_FACTS = ("id", "service_id", "revision_id", "slot", "cluster_id", "run_id", "state", "address", "left_at", "drain_until",
          "served_at", "message")  # fmt: skip
_CRASHED = Q(phase="Failed", disrupted=False) & ~Q(reason="Stopped")
_OF_RUN = ("phase", "reason", "message", "desired", "verdict", "endpoints", "created_at")


def _replicas(services: Iterable[int], now: dt.datetime) -> dict[int, dict[int, dict[str, Any]]]:
    """Replicas not gone, by service and id: their and their runs' columns, the crashes of their program, and the last cause."""
    rows = Replica.objects.filter(service__in=services).exclude(state=Replica.State.GONE).order_by("slot")
    runs = {f"run_{name}": F(f"run__{name}") for name in _OF_RUN}
    found = defaultdict[int, dict[int, dict[str, Any]]](dict)
    for row in rows.values(*_FACTS, **runs):
        found[row["service_id"]][row["id"]] = {**row, "crashes": 0, "crash": "", "in_trouble": False, "now": now}
    silent = {
        row["run_id"]: row
        for rows in found.values()
        for row in rows.values()
        if row["run_id"] and not (row["run_endpoints"] or {}).get(ENDPOINT)
    }
    if silent:
        tasks = Task.objects.filter(run__in=silent).order_by()
        crashed = Count("pk", filter=_CRASHED)
        trouble = Count("pk", filter=Q(reason="BackOff"))
        for run, crashes, troubles in tasks.values_list("run").annotate(crashed=crashed, trouble=trouble):
            silent[run] |= {"crashes": crashes, "in_trouble": bool(troubles)}
        if any(row["crashes"] for row in silent.values()):
            last = tasks.filter(_CRASHED).order_by("run", "-attempt").distinct("run")
            for run, why in last.values_list("run", "message"):
                silent[run]["crash"] = why
    return found


def _rollouts(services: Iterable[int]) -> tuple[dict[int, Rollout], dict[int, Rollout]]:
    """The live rollout, and the last one that ended, by service."""
    rows = Rollout.objects.filter(service__in=services)
    moving = {each.service_id: each for each in rows.filter(phase__in=Rollout.LIVING)}
    ended = rows.exclude(phase__in=Rollout.LIVING).order_by("service_id", "-number").distinct("service_id")
    return moving, {each.service_id: each for each in ended}


def _revision(row: Revision) -> steps.Revision:
    drain = dt.timedelta(seconds=row.drain_seconds)
    return steps.Revision(row.pk, row.number, row.weight, row.mirrored, drain, row.wanted)


def _replica(row: Mapping[str, Any]) -> steps.Replica:
    over = row["run_id"] is None or row["run_phase"] in TERMINAL
    ending = not over and (row["run_desired"] == Run.Desired.ENDED or bool(row["run_verdict"]))
    answers = "" if over or ending else ((row["run_endpoints"] or {}).get(ENDPOINT) or {}).get("address", "")
    # The first line only; log lines that follow are in the log.
    said = (row["run_message"] or "").strip().partition("\n")[0]
    fails = waits = ""
    if row["run_phase"] == Run.Phase.FAILED or (
        not over and not answers and (row["crashes"] >= CRASHES or row["in_trouble"])
    ):
        fails = row["crash"] or said or "It ended and said nothing."
    elif row["run_phase"] == Run.Phase.QUEUED and row["run_reason"] != "Submitted":
        waits = said if abs(row["now"] - row["run_created_at"]) > PASSING else ""
    return steps.Replica(
        id=row["id"],
        slot=row["slot"],
        revision=row["revision_id"],
        state=row["state"],
        address=row["address"],
        answers=answers,
        over=over,
        ending=ending,
        fails=fails,
        waits=waits,
        message=row["message"],
        left_at=row["left_at"] or 0,
        drain_until=row["drain_until"],
    )


def _way(row: Rollout) -> steps.Way:
    return steps.Way(
        id=row.pk,
        kind=row.kind,
        phase=row.phase,
        to=row.to_revision_id,
        from_=row.from_revision_id,
        weight=row.weight,
        by_hand=row.by_hand,
        judge_at=row.judge_at,
        lasts=dt.timedelta(minutes=row.minutes),
        began=row.created_at,
        finished=row.finished_at,
        message=row.message,
    )


def _router(seen_at: dt.datetime, said: Mapping[str, Any]) -> steps.RouterSeen:
    flying = {int(replica): int(count) for replica, count in (said.get("inFlight") or {}).items()}
    return steps.RouterSeen(seen_at, int(said.get("route", 0)), flying)


def _demand(said: Sequence[Mapping[str, Any]], *, woken: bool) -> Demand:
    return Demand(
        stable=sum(float(each.get("stable", 0)) for each in said),
        panic=sum(float(each.get("panic", 0)) for each in said),
        waiting=sum(int(each.get("waiting", 0)) for each in said),
        is_known=bool(said),
        woken=woken,
    )


def compared(row: Rollout) -> Pair:
    """Counters of both revisions since their comparison began, by the minute. One query."""
    since = row.phase_since.replace(second=0, microsecond=0)
    rows = ServiceMinute.objects.filter(service=row.service_id, minute__gte=since)
    found = defaultdict[int, list[ServiceMinute]](list)
    for each in rows.filter(revision__in=[row.from_revision_id, row.to_revision_id]):
        is_new = each.revision_id == row.to_revision_id
        if each.mirrored == (is_new and row.kind == Rollout.Kind.SHADOW):
            found[each.revision_id].append(each)
    return Pair(_sums(found[row.from_revision_id or 0]), _sums(found[row.to_revision_id]))


def _sums(rows: Sequence[ServiceMinute]) -> Sums:
    p99 = histograms.quantile(histograms.total(each.latency for each in rows), 0.99)
    return Sums(sum(each.requests for each in rows), sum(each.errors for each in rows), p99)


def freed(service: Service, now: dt.datetime) -> bool:
    """Whether a replica that had answered has just ended. One query."""
    gone = Replica.objects.filter(service=service, state=Replica.State.GONE, served_at__isnull=False)
    return gone.filter(gone_at__gt=now - FREED, gone_at__lte=now).exists()


def resting(service: Service, now: dt.datetime) -> dict[int, str]:
    """Revisions whose last replicas failed to start and whose next one has to wait, with the last failure. One query. After a
    clock jump backwards, none waits."""
    gone = Replica.objects.filter(service=service, state=Replica.State.GONE, gone_at__gt=now - COUNTED)
    failed = defaultdict[int, list[tuple[dt.datetime, str]]](list)
    for revision, at, why in (
        gone.filter(served_at=None).exclude(message="").values_list("revision", "gone_at", "message")
    ):
        failed[revision].append((at or now, why))
    found = {}
    for revision, ends in failed.items():
        at, why = max(ends)
        pause = dt.timedelta(seconds=min(LONGEST_PAUSE, PAUSE * 2 ** min(len(ends), 10)))
        if dt.timedelta(0) <= now - at < pause:
            found[revision] = why
    return found
