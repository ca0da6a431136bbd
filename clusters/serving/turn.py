"""The rows by which a service turns from one revision to another. Nothing here asks a cloud; the caller holds the lock of the
service and tells what happened.

A rollout begins without moving a request: the new revision has weight 0 until the loop finds that it answers. Only where nothing
answers yet does it have all the weight from the start, for there is nobody else whom requests could wait for.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.utils import timezone

from clusters.models import Cluster, ModelVersion, Replica, Revision, Rollout, Service, ServingRuntime
from clusters.runs.preview import preview
from clusters.serving.manifest import MAX_SLOTS, ServiceSpec, cluster_spec, model_of, replica_manifest
from portal.errors import Invalid
from portal.models import User

# Of a service without a row of its runtime: as frameworks/serve.py does.
DRAIN_SECONDS = 30


def answering(service: Service) -> Revision | None:
    """The revision that answers most of the requests, or would if it had a replica; of two alike the older one."""
    return service.revisions.filter(weight__gt=0).order_by("-weight", "number").first()


def living(service: Service) -> Rollout | None:
    """The one under way, with its revisions."""
    rows = service.rollouts.filter(phase__in=Rollout.LIVING)
    return rows.select_related("from_revision", "to_revision").first()


def before(service: Service, revision: Revision) -> Revision | None:
    """The revision that answered before this one did."""
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
    """Makes the next revision, of `version` as the service says now, and the rollout that leads to it. One that lives is
    cancelled: what of it answers already goes on until the new one does. `spec` is that of the replicas where it is another one
    than follows from the service; `gated`: nothing is started until somebody agrees."""
    said = ServiceSpec.model_validate(service.spec)
    if other := living(service):
        cancel(other, f"Version {version.number} came before it was done.")
    old = answering(service)
    if old is None:
        kind = Rollout.Kind.ROLLING  # there is nothing to compare it with
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
    """What a replica of this version of its model runs, as the service and its runtime say now. One query."""
    runtime = ServingRuntime.objects.filter(name=spec.runtime).first()
    if runtime is None:
        return cluster_spec(spec, version, None, flavor)
    return cluster_spec(spec, version, runtime.server(model_of(spec), version), flavor, runtime.env)


def _spec_now(service: Service, spec: ServiceSpec, version: int) -> dict[str, Any]:
    """The same on a flavor without GPU, where that was chosen for when there is no room for one more."""
    usual, cpu = replica_spec(spec, version), spec.rollout.cpu_flavor
    if cpu is None or service.acts_for is None:
        return usual
    manifest = replica_manifest(service.name, service.appcode.code, MAX_SLOTS, usual)
    try:
        fits = preview(manifest, acting_user=service.acts_for, instead_of=Cluster(), by_fronts=True).fits
    except (Invalid, PermissionDenied):
        return usual  # whoever starts it says why
    return usual if fits == "now" else replica_spec(spec, version, cpu)


def agree(rollout: Rollout, message: str) -> None:
    """One that waited for that begins."""
    service, new = rollout.service, rollout.to_revision
    new.wanted = replicas_of(
        ServiceSpec.model_validate(service.spec), rollout.from_revision, rollout.kind, rollout.weight
    )
    new.save(update_fields=["wanted"])
    to_phase(rollout, Rollout.Phase.STARTING, message)


def swap(service: Service, old: Revision, new: Revision, *, reason: str, message: str, by: User) -> Rollout:
    """Has another revision answer at once, whose replicas serve: a rollout that is over as it begins. The replicas of `old` are
    the ones that are kept warm now."""
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
    """With how many replicas a new revision begins: as many as answer now, a canary its part of them; at least one, which shows
    that it comes up."""
    before = old.wanted if old else 0
    if kind == Rollout.Kind.CANARY and before:
        return max(1, -(-before * weight // 100))
    return max(1, spec.replicas.least, min(before, spec.replicas.most))


def end(rollout: Rollout, phase: str, message: str) -> None:
    """Writes down what became of it; weights stay as they are."""
    rollout.phase, rollout.message = phase, message
    rollout.phase_since = rollout.finished_at = timezone.now()
    rollout.save(update_fields=["phase", "message", "phase_since", "finished_at"])


def cancel(rollout: Rollout, message: str) -> None:
    """Ends it for another one. A new revision that was only compared, or does not answer yet, leaves; one to which requests were
    being moved keeps those that it has, with the replicas that answer them."""
    if rollout.phase == Rollout.Phase.SHIFTING:
        new = rollout.to_revision
        new.wanted = new.replicas.filter(state=Replica.State.SERVING).count() if new.weight else 0
        new.save(update_fields=["wanted"])
        end(rollout, Rollout.Phase.CANCELLED, message)
    else:
        go_back(rollout, Rollout.Phase.CANCELLED, message)


def go_back(rollout: Rollout, phase: str, message: str) -> None:
    """Ends it, and the old revision answers everything again, with as many replicas as there were. The first one of a service has
    no old one: it keeps its weight, for nobody else has it."""
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
