"""User actions on services. Each is one transaction: the change, its event, and notifications of the loop and the routers.

Actions only write the desired state. The loop creates and ends clusters and moves requests between revisions. What needs neither,
such as a rollback to warm replicas, takes effect at once. Lock order: appcode → service → model → cluster → run.
"""

from __future__ import annotations

from django.db import IntegrityError, transaction
from django.utils import timezone

from clusters.catalog.lookup import require_active, resolve, usable_appcode
from clusters.cluster import actions
from clusters.gateway import origins
from clusters.manifest.cluster import ClusterSpec
from clusters.model_registry.actions import move_alias
from clusters.model_registry.manifest import MAX_REASON
from clusters.model_registry.models import ModelVersion
from clusters.runs.models import Cluster, Run
from clusters.services import notify, revisions
from clusters.services.access import SERVICES
from clusters.services.checks import judge, judge_size, resolved_as, version_of
from clusters.services.manifest import DeploySpec, ReplicasSpec, ScaleSpec, ServiceManifest, ServiceSpec, name_of_model
from clusters.services.models import Replica, Revision, Rollout, Service
from portal.errors import Conflict, FieldError, Invalid, sentence
from portal.manifests import parse
from portal.manifests.kept import refuse_changes
from portal.models import Appcode, User
from portal.text.zones import utc_text

# Services of one appcode.
MOST = 100
# Not allowed as names: /appcodes/CODE/services/preview is another endpoint.
RESERVED = ("preview",)
# Fields of a rollout that a deployment may override.
OF_ROLLOUT = ("kind", "weight", "minutes", "promote")


@transaction.atomic
def create_service(manifest: ServiceManifest, *, acting_user: User, appcode: Appcode | None = None) -> Service:
    """Stores the service with its first revision and the rollout that starts it. A deleted service of that name is restored: it
    keeps its address, and its numbers go on. Raises Invalid or PermissionDenied."""
    name, spec = manifest.metadata.name, manifest.spec
    appcode = usable_appcode(manifest.metadata.appcode, acting_user, appcode)
    Appcode.objects.select_for_update(of=("self",), no_key=True).get(pk=appcode.pk)
    rows = Service.objects.filter(appcode=appcode).select_related("appcode")
    found = rows.filter(name=name).select_for_update(of=("self",), no_key=True).first()
    why = ""
    if found and found.deleted_at is None:
        why = f"{appcode.code} already has a service “{name}”; choose another name."
    elif name in RESERVED:
        why = f"A service cannot be called “{name}”: REST has another thing at that address."
    elif rows.filter(deleted_at=None).count() >= MOST:
        why = f"{appcode.code} has {MOST} services already; delete one."
    if why:
        raise Invalid.at("metadata", "name", message=why)
    version = judge(name, spec, appcode)
    made = found or Service(appcode=appcode, name=name)
    made.spec = spec.model_dump(mode="json", by_alias=True)
    made.desired, made.phase, made.message = Run.Desired.RUNNING, Service.Phase.STARTING, ""
    made.phase_since = timezone.now()
    made.scale, made.deleted_at = {}, None
    made.created_by = made.acts_for = acting_user
    if found:
        made.save()
    else:
        _keep_label(made)
    SERVICES.record(made, "created", acting_user, "Created anew; its numbers go on." if found else "Created.")
    _begin(made, version, spec, by=acting_user)
    notify.reroute(made)
    return made


@transaction.atomic
def change_service(service: Service, manifest: ServiceManifest, *, acting_user: User) -> Service:
    """Replaces the definition. A change of its replicas is rolled out, with the version that answers unless the model field
    changed; a change of their number only scales. Raises Invalid, PermissionDenied and Http404."""
    service = SERVICES.locked(service, acting_user)
    before, spec = ServiceSpec.stored(service.spec), manifest.spec
    refuse_changes(manifest, name=service.name, appcode=service.appcode.code, spec=before)
    if spec == before:
        return service
    require_active(service.appcode)
    named = judge(service.name, spec, service.appcode)
    service.spec, service.acts_for = spec.model_dump(mode="json", by_alias=True), acting_user
    service.save(update_fields=["spec", "acts_for", "changed_at"])
    SERVICES.record(service, "changed", acting_user, "Changed.")
    now = _target(service)
    version = named if spec.model != before.model or now is None or now.version is None else now.version
    if now is None or revisions.replica_spec(spec, version.number) != now.spec:
        _begin(service, version, spec, by=acting_user)
    elif spec.replicas != before.replicas:
        _resize(service, spec, acting_user)
    notify.reroute(service)
    notify.changed(service.pk)
    return service


@transaction.atomic
def deploy(service: Service, spec: DeploySpec, *, acting_user: User) -> Rollout | None:
    """Makes a version answer from now on. Also approves a rollout that waits for it, and enables a disabled service. Returns
    None if that version answers already. Raises Invalid at "version", PermissionDenied and Http404."""
    service = SERVICES.locked(service, acting_user)
    require_active(service.appcode)
    said = ServiceSpec.stored(service.spec)
    version = version_of(service, said, spec.version)
    old, rollout, now = revisions.answering(service), revisions.living(service), _target(service)
    is_disabled = service.desired != Run.Desired.RUNNING
    wanted = revisions.replica_spec(said, version.number)
    if now and not rollout and not is_disabled and now.spec == wanted:
        return None
    if is_disabled:
        _enable(service, acting_user)
    chosen = said.rollout.model_copy(
        update={key: value for key, value in spec.model_dump().items() if key in OF_ROLLOUT and value is not None}
    )
    if rollout and rollout.to_revision.spec == wanted:
        if rollout.phase == Rollout.Phase.GATED:
            rollout.kind, rollout.by_hand = chosen.kind, chosen.promote == "by-hand"
            rollout.weight, rollout.minutes = chosen.weight, chosen.minutes
            revisions.agree(rollout, f"Agreed to by {acting_user.display_name}.")
    elif rollout and old and old.spec == wanted:
        revisions.go_back(
            rollout, Rollout.Phase.CANCELLED, f"{old.model} is to go on, says {acting_user.display_name}."
        )
    elif old is None or old.spec != wanted:
        if is_disabled:
            chosen = chosen.model_copy(update={"kind": "rolling"})  # nobody answers with whom it could be compared
        rollout = _begin(
            service, version, said.model_copy(update={"rollout": chosen}), by=acting_user, reason=spec.reason
        )
    _acts_for(service, acting_user)
    reason = f" {spec.reason}" if spec.reason else ""
    SERVICES.record(
        service,
        "deployed",
        acting_user,
        f"{name_of_model(said.model)}/{version.number} is to answer.{reason}",
        version=version.number,
    )
    notify.reroute(service)
    notify.changed(service.pk)
    return rollout


@transaction.atomic
def rollback(service: Service, reason: str = "", *, acting_user: User) -> Rollout:
    """Returns to an earlier revision. A rollout under way ends, and its alias stays. Otherwise it is the revision before the
    current one: at once if its replicas are still warm (then the followed alias moves back, too), else by a rollout. Raises
    Conflict, PermissionDenied and Http404."""
    service = SERVICES.locked(service, acting_user)
    if service.desired != Run.Desired.RUNNING:
        raise Conflict(f"{service.name} is stopped; start it first.")
    who = f"by {acting_user.display_name}{f': {reason}'.rstrip('.') if reason else ''}."
    if rollout := revisions.living(service):
        if rollout.phase == Rollout.Phase.GATED:
            revisions.go_back(rollout, Rollout.Phase.CANCELLED, f"Declined {who}")
        elif rollout.from_revision is None:
            raise Conflict(
                f"Nothing answered before revision {rollout.to_revision.number}; disable the service to end it."
            )
        else:
            revisions.go_back(rollout, Rollout.Phase.ROLLED_BACK, f"Rolled back {who}")
    else:
        old = revisions.answering(service)
        new = revisions.before(service, old) if old else None
        if old is None or new is None:
            raise Conflict("No revision answered before the one that does now.")
        if new.replicas.filter(state=Replica.State.SERVING).exists():
            said = f"Rolled back {who} Its replicas were still warm."
            rollout = revisions.swap(service, old, new, reason=reason, message=said, by=acting_user)
            move_alias_to(service, new, f"{service.name} was rolled back {who}", by=acting_user)
        else:
            rollout = _begin_again(service, new, reason, acting_user)
    _acts_for(service, acting_user)
    now = _target(service)
    to = f" to revision {now.number}, {now.model}" if now else ""
    SERVICES.record(service, "rolled-back", acting_user, f"Rolled back{to}, {who}")
    notify.reroute(service)
    notify.changed(service.pk)
    return rollout


def can_roll_back(service: Service) -> bool:
    """Whether there is an earlier revision to return to. At most three queries."""
    if rollout := revisions.living(service):
        return rollout.phase == Rollout.Phase.GATED or rollout.from_revision is not None
    old = revisions.answering(service)
    return old is not None and revisions.before(service, old) is not None


@transaction.atomic
def promote(service: Service, *, acting_user: User) -> Rollout:
    """Ends a comparison, so that the new revision takes over now, or approves a rollout that waits for it. Repeating it changes
    nothing. Raises Conflict if there is nothing to promote."""
    service = SERVICES.locked(service, acting_user)
    rollout = revisions.living(service)
    if rollout is None:
        raise Conflict(f"No rollout of {service.name} is under way.")
    new = rollout.to_revision
    if rollout.phase == Rollout.Phase.SHIFTING:
        return rollout
    if rollout.phase == Rollout.Phase.STARTING:
        raise Conflict(f"Revision {new.number} does not answer yet; it goes on when it does.")
    if rollout.phase == Rollout.Phase.GATED:
        revisions.agree(rollout, f"Agreed to by {acting_user.display_name}.")
    else:
        revisions.to_phase(rollout, Rollout.Phase.SHIFTING, f"Promoted by {acting_user.display_name}.")
    _acts_for(service, acting_user)
    SERVICES.record(service, "promoted", acting_user, f"Revision {new.number}, {new.model}: {rollout.message}")
    notify.changed(service.pk)
    return rollout


@transaction.atomic
def scale(service: Service, spec: ScaleSpec, *, acting_user: User) -> Service:
    """Sets the number of replicas; with 0 it sleeps until the next request. Raises Invalid, PermissionDenied and Http404."""
    service = SERVICES.locked(service, acting_user)
    said = ServiceSpec.stored(service.spec)
    if spec.replicas is None:
        asked = spec.model_dump(exclude_none=True)
    else:
        asked = {"least": spec.replicas, "most": max(1, spec.replicas)}
    try:
        replicas = parse(ReplicasSpec, said.replicas.model_dump() | asked)
        judge_size(replicas, resolved_as(said, said.model, service.appcode), service.appcode)
    except Invalid as invalid:
        at = ("replicas",) if spec.replicas is not None else ()
        raise Invalid([FieldError(at or each.path[-1:], each.message, each.see) for each in invalid.errors]) from None
    said = said.model_copy(update={"replicas": replicas})
    service.spec = said.model_dump(mode="json", by_alias=True)
    service.save(update_fields=["spec", "changed_at"])
    _acts_for(service, acting_user)
    count = _resize(service, said, acting_user, spec.replicas)
    range_ = f"{replicas.least}" if replicas.least == replicas.most else f"{replicas.least} to {replicas.most}"
    SERVICES.record(service, "scaled", acting_user, f"{range_} replicas, now {count}.", replicas=count)
    notify.reroute(service)  # routers read the target
    notify.changed(service.pk)
    return service


def _resize(service: Service, spec: ServiceSpec, user: User, exactly: int | None = None) -> int:
    """Wants the number of replicas in the range nearest to the current one, or `exactly`. Returns it."""
    revision = revisions.answering(service)
    now, replicas = revision.wanted if revision else 0, spec.replicas
    count = max(replicas.least, min(now, replicas.most)) if exactly is None else exactly
    if service.desired == Run.Desired.RUNNING:
        if revision:
            revision.wanted = count
            revision.save(update_fields=["wanted"])
        why = f"{user.display_name} asked for {replicas.least} to {replicas.most}."
        service.scale = {
            "replicas": count,
            "since": utc_text(timezone.now()),
            "why": why,
        }
        service.save(update_fields=["scale"])
    return count


def _target(service: Service) -> Revision | None:
    """The revision that will answer if nothing else happens. A gated rollout does not count."""
    rollout = revisions.living(service)
    if rollout and rollout.phase != Rollout.Phase.GATED:
        return rollout.to_revision
    return revisions.answering(service)


def _begin_again(service: Service, revision: Revision, reason: str, user: User) -> Rollout:
    """Begins a rollout to an earlier revision's spec. Raises Conflict if that cannot be created any more."""
    try:
        version = resolve(ClusterSpec.stored(revision.spec), service.appcode, by_routers=True).model
    except Invalid as invalid:
        why = sentence(invalid)
        raise Conflict(f"Revision {revision.number} cannot be made again: {why}") from None
    assert version
    return revisions.begin_rollout(
        service, version, kind=Rollout.Kind.ROLLING, weight=100, minutes=0, by_hand=False, reason=reason, by=user,
        spec=revision.spec,
    )  # fmt: skip


def move_alias_to(service: Service, revision: Revision, reason: str, *, by: User) -> None:
    """Moves the alias that the service follows to the version that answers now. Does nothing if it follows none, or if that
    version's files may have changed."""
    spec = ServiceSpec.stored(service.spec)
    name, at, alias = spec.model.partition("@")
    version = revision.version
    if not at or spec.rollout.follow == "never" or version is None or version.state != ModelVersion.State.READY:
        return
    if version.deleted_at is None and version.model.name == name:
        move_alias(version.model, alias, version.number, reason[:MAX_REASON], acting_user=by)


def _acts_for(service: Service, user: User) -> None:
    service.acts_for = user
    service.save(update_fields=["acts_for", "changed_at"])


@transaction.atomic
def disable_service(service: Service, *, acting_user: User) -> Service:
    """Ends all replicas, and cancels a rollout under way. Repeating it changes nothing."""
    service = SERVICES.locked(service, acting_user)
    if service.desired == Run.Desired.RUNNING:
        why = f"Stopped by {acting_user.display_name}."
        if rollout := revisions.living(service):
            revisions.go_back(rollout, Rollout.Phase.CANCELLED, why)
        service.revisions.filter(wanted__gt=0).update(wanted=0)
        _want(service, Run.Desired.ENDED, acting_user)
        SERVICES.record(service, "disabled", acting_user, why)
        notify.reroute(service)
    return service


@transaction.atomic
def enable_service(service: Service, *, acting_user: User) -> Service:
    """Makes the last revision answer again. Repeating it changes nothing. Raises Invalid if its appcode may not run anything
    now."""
    service = SERVICES.locked(service, acting_user)
    if service.desired != Run.Desired.RUNNING:
        _enable(service, acting_user)
        SERVICES.record(service, "enabled", acting_user, f"Enabled by {acting_user.display_name}.")
        notify.reroute(service)
    return service


def _enable(service: Service, user: User) -> None:
    require_active(service.appcode)
    service.scale = {}
    if revision := revisions.answering(service):
        revision.wanted = max(1, ServiceSpec.stored(service.spec).replicas.least)
        revision.save(update_fields=["wanted"])
    _want(service, Run.Desired.RUNNING, user)


def _want(service: Service, desired: str, user: User) -> None:
    service.desired, service.acts_for = desired, user
    fields = ["desired", "acts_for", "scale", "changed_at"]
    if desired == Run.Desired.RUNNING:
        service.phase, service.message, service.phase_since = Service.Phase.STARTING, "", timezone.now()
        fields += ["phase", "message", "phase_since"]
    service.save(update_fields=fields)
    notify.changed(service.pk)


@transaction.atomic
def delete_service(service: Service, *, acting_user: User) -> None:
    """Hides the service; its replicas end at once, its tokens are deleted, its row stays to reserve its address. Always
    allowed."""
    service = SERVICES.locked(service, acting_user)
    why = f"Deleted by {acting_user.display_name}."
    if rollout := revisions.living(service):
        revisions.end(rollout, Rollout.Phase.CANCELLED, why)
    parts = Cluster.objects.filter(appcode=service.appcode, part_of=service.part_of, deleted_at=None)
    actions.delete_parts(service.appcode_id, service.part_of, parts.count())
    now = timezone.now()
    service.replicas.exclude(state=Replica.State.GONE).update(state=Replica.State.GONE, gone_at=now, message=why)
    service.revisions.update(weight=0, mirrored=False, wanted=0)
    service.tokens.all().delete()
    service.desired, service.phase, service.message = Run.Desired.ENDED, Service.Phase.STOPPED, why
    service.deleted_at = service.phase_since = now
    service.scale = {}
    service.save()
    SERVICES.record(service, "deleted", acting_user, "Deleted.")
    notify.reroute(service)


def _begin(
    service: Service, version: ModelVersion, spec: ServiceSpec, *, by: User, reason: str = "", kind: str = ""
) -> Rollout:
    """Begins a rollout as the service defines it."""
    rollout = spec.rollout
    made = revisions.begin_rollout(
        service,
        version,
        kind=kind or rollout.kind,
        weight=rollout.weight,
        minutes=rollout.minutes,
        by_hand=rollout.promote == "by-hand",
        reason=reason,
        by=by,
    )
    notify.changed(service.pk)
    return made


def _keep_label(service: Service) -> None:
    """Saves a new service with a unique address."""
    names = (service.name, service.appcode.code)
    service.label = origins.label(*names)
    try:
        with transaction.atomic():
            service.save()
    except IntegrityError:  # somebody else's: a-b of c, and a of b-c
        service.label = origins.label(*names, plain=False)
        service.save()
