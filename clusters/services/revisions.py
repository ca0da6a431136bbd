"""Writes the rows that move a service from one revision to another, under the caller's lock. Calls no cloud, records no events.

A rollout begins without moving requests: the new revision has weight 0 until the loop finds that it answers. Only if no
revision answers yet, it has all the weight from the start, because requests have nobody else to wait for.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.utils import timezone

from clusters.catalog.models import ServingRuntime
from clusters.model_registry.models import ModelVersion
from clusters.runs.models import Cluster
from clusters.runs.queries.preview import preview
from clusters.services.manifest import MAX_SLOTS, ServiceSpec, cluster_spec, name_of_model, replica_manifest
from clusters.services.models import Replica, Revision, Rollout, Service
from portal.errors import Invalid
from portal.models import User

# Default for a service whose runtime has no row, as in frameworks/inside/serve.py.
DRAIN_SECONDS = 30


def answering(service: Service) -> Revision | None:
    """The revision with the largest weight, even without replicas; of equal ones the older."""
    return service.revisions.filter(weight__gt=0).order_by("-weight", "number").first()


def living(service: Service) -> Rollout | None:
    """The rollout under way, with its revisions."""
    rows = service.rollouts.filter(phase__in=Rollout.LIVING)
    return rows.select_related("from_revision", "to_revision").first()


def before(service: Service, revision: Revision) -> Revision | None:
    """The revision that answered before this one was promoted."""
    rows = service.rollouts.filter(phase=Rollout.Phase.PROMOTED, to_revision=revision)
    found = rows.select_related("from_revision__version__model").first()
    return found.from_revision if found else None


def begin_rollout(
    service: Service,
    version: ModelVersion,
    *,
    kind: str,
    weight: int,
    minutes: int,
    by_hand: bool,
    reason: str,
    by: User | None,
    gated: bool = False,
    spec: dict[str, Any] | None = None,
) -> Rollout:
    """Creates the next revision, of `version` with the service's current definition, and the rollout to it. Cancels a live
    rollout; its answering replicas go on until the new revision answers. `spec` replaces the replica spec that follows from the
    service. `gated`: nothing starts until a user approves."""
    said = ServiceSpec.stored(service.spec)
    if other := living(service):
        cancel(other, f"Version {version.number} came before it was done.")
    old = answering(service)
    if old is None:
        kind = Rollout.Kind.ROLLING  # there is nothing to compare with
    runtime = ServingRuntime.objects.filter(name=said.runtime).first()
    revision = Revision.objects.create(
        service=service,
        number=service.revision_count + 1,
        version=version,
        model=f"{version.model.name}/{version.number}",
        spec=spec or _spec_now(service, said, version.number),
        drain_seconds=runtime.drain_seconds if runtime else DRAIN_SECONDS,
        weight=0 if old else 100,
        wanted=0 if gated else replicas_of(said, old, kind, weight),
        created_by=by,
    )
    compared = kind != Rollout.Kind.ROLLING
    rollout = Rollout.objects.create(
        service=service,
        number=service.rollout_count + 1,
        kind=kind,
        from_revision=old,
        to_revision=revision,
        weight=weight if kind == Rollout.Kind.CANARY else 100,
        minutes=minutes if compared else 0,
        by_hand=by_hand and compared,
        phase=Rollout.Phase.GATED if gated else Rollout.Phase.STARTING,
        reason=reason,
        created_by=by,
    )
    service.revision_count, service.rollout_count = revision.number, rollout.number
    service.save(update_fields=["revision_count", "rollout_count", "changed_at"])
    return rollout


def replica_spec(spec: ServiceSpec, version: int, flavor: str = "") -> dict[str, Any]:
    """The spec of a replica for this version, by the current definition and runtime. One query."""
    runtime = ServingRuntime.objects.filter(name=spec.runtime).first()
    if runtime is None:
        return cluster_spec(spec, version, None, flavor)
    return cluster_spec(spec, version, runtime.server(name_of_model(spec.model), version), flavor, runtime.env)


def _spec_now(service: Service, spec: ServiceSpec, version: int) -> dict[str, Any]:
    """`replica_spec`; on the flavor without GPU if the service has one and another replica does not fit now."""
    usual, cpu = replica_spec(spec, version), spec.rollout.cpu_flavor
    if cpu is None or service.acts_for is None:
        return usual
    manifest = replica_manifest(service.name, service.appcode.code, MAX_SLOTS, usual)
    try:
        fits = preview(manifest, acting_user=service.acts_for, instead_of=Cluster(), by_routers=True).fits
    except (Invalid, PermissionDenied):
        return usual  # starting it will report the error
    return usual if fits == "now" else replica_spec(spec, version, cpu)


def agree(rollout: Rollout, message: str) -> None:
    """Starts a gated rollout."""
    service, new = rollout.service, rollout.to_revision
    new.wanted = replicas_of(ServiceSpec.stored(service.spec), rollout.from_revision, rollout.kind, rollout.weight)
    new.save(update_fields=["wanted"])
    to_phase(rollout, Rollout.Phase.STARTING, message)


def swap(service: Service, old: Revision, new: Revision, *, reason: str, message: str, by: User) -> Rollout:
    """Makes `new`, whose replicas serve, answer at once, by a rollout that ends as it begins. `old` is kept warm from now on."""
    new.wanted = max(new.wanted, old.wanted)
    service.revisions.exclude(pk=new.pk).filter(weight__gt=0).update(weight=0, mirrored=False)
    new.weight, new.mirrored = 100, False
    new.save(update_fields=["weight", "mirrored", "wanted"])
    service.rollout_count += 1
    service.save(update_fields=["rollout_count", "changed_at"])
    return Rollout.objects.create(
        service=service,
        number=service.rollout_count,
        kind=Rollout.Kind.ROLLING,
        from_revision=old,
        to_revision=new,
        phase=Rollout.Phase.PROMOTED,
        message=message,
        reason=reason,
        created_by=by,
        finished_at=timezone.now(),
    )


def to_phase(rollout: Rollout, phase: str, message: str) -> None:
    rollout.phase, rollout.message, rollout.phase_since = phase, message, timezone.now()
    rollout.save(update_fields=["phase", "message", "phase_since", "kind", "weight", "minutes", "by_hand"])


def replicas_of(spec: ServiceSpec, old: Revision | None, kind: str, weight: int) -> int:
    """Initial replicas of a new revision: as many as answer now, or a canary's share; at least one, to show that it starts."""
    before = old.wanted if old else 0
    if kind == Rollout.Kind.CANARY and before:
        return max(1, -(-before * weight // 100))
    return max(1, spec.replicas.least, min(before, spec.replicas.most))


def end(rollout: Rollout, phase: str, message: str) -> None:
    """Ends the rollout with this outcome; weights stay as they are."""
    rollout.phase, rollout.message = phase, message
    rollout.phase_since = rollout.finished_at = timezone.now()
    rollout.save(update_fields=["phase", "message", "phase_since", "finished_at"])


def cancel(rollout: Rollout, message: str) -> None:
    """Ends it for another rollout. A new revision that does not answer yet, or was only compared, is withdrawn. One that
    requests were being moved to keeps those, with the replicas that answer them."""
    if rollout.phase == Rollout.Phase.SHIFTING:
        new = rollout.to_revision
        new.wanted = new.replicas.filter(state=Replica.State.SERVING).count() if new.weight else 0
        new.save(update_fields=["wanted"])
        end(rollout, Rollout.Phase.CANCELLED, message)
    else:
        go_back(rollout, Rollout.Phase.CANCELLED, message)


def go_back(rollout: Rollout, phase: str, message: str) -> None:
    """Ends it, and gives all requests back to the old revision, with as many replicas as there were. Without an old one (a
    service's first rollout) the new revision keeps its weight, as there is no other."""
    new, old = rollout.to_revision, rollout.from_revision
    if old is None:
        new.wanted = 0
        new.save(update_fields=["wanted"])
    else:
        others = Revision.objects.filter(Q(weight__gt=0) | Q(pk=new.pk), service=rollout.service_id)
        others.exclude(pk=old.pk).update(weight=0, mirrored=False, wanted=0)
        if rollout.phase == Rollout.Phase.SHIFTING:
            old.wanted = max(old.wanted, new.wanted)
        old.weight = 100
        old.save(update_fields=["weight", "wanted"])
        new.refresh_from_db()
    end(rollout, phase, message)
