"""What people do to services. Each action is one transaction: the change, its event, and a word to the loop and the fronts.

Actions only write what is wanted. The loop makes and ends clusters by it, and moves requests from one revision to the next; what
needs neither, a rollback to replicas that are still warm, is done here at once. Rows are locked in one order: appcode → service →
model → cluster → run.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
from collections.abc import Sequence

from django.db import IntegrityError, transaction
from django.http import Http404
from django.utils import timezone

from clusters import actions
from clusters.gateway import origins
from clusters.manifest import ClusterSpec
from clusters.model_registry.actions import move_alias
from clusters.model_registry.manifest import MAX_REASON
from clusters.models import (
    Cluster,
    ModelVersion,
    Replica,
    Revision,
    Rollout,
    Run,
    Service,
    ServiceToken,
    ServingRuntime,
)
from clusters.serving import signal, turn
from clusters.serving.manifest import (
    MAX_SLOTS,
    DeploySpec,
    ReplicasSpec,
    ScaleSpec,
    ServiceManifest,
    ServiceSpec,
    TokenSpec,
    model_of,
    replica_name,
)
from clusters.serving.telling import told
from clusters.spec.admission import Quota, judge_quota
from clusters.spec.catalog import Resolved, require_active, resolve, usable_appcode
from portal.access import OPERATE, require
from portal.errors import Conflict, FieldError, Invalid
from portal.manifests import parse
from portal.models import Appcode, User

# Services of one appcode, and tokens of one service.
MOST, MOST_TOKENS = 100, 100
PREFIX = "gps_"
# /appcodes/CODE/services/preview is no service.
RESERVED = ("preview",)
# What a deployment may say instead of the service.
OF_ROLLOUT = ("kind", "weight", "minutes", "promote")


@transaction.atomic
def create_service(manifest: ServiceManifest, *, acting_user: User, appcode: Appcode | None = None) -> Service:
    """Writes it down with its first revision, and the rollout that starts it. One that was deleted comes back under its address,
    and its numbers go on. Raises Invalid or PermissionDenied."""
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
    told(made, "created", acting_user, "Created anew; its numbers go on." if found else "Created.")
    _begin(made, version, spec, by=acting_user)
    signal.reroute(made)
    return made


@transaction.atomic
def change_service(service: Service, manifest: ServiceManifest, *, acting_user: User) -> Service:
    """Replaces the definition. What changes its replicas is rolled out, of the version that answers unless the model names
    another one now; a changed number of them is only scaled. Raises Invalid, PermissionDenied and Http404."""
    service = _locked(service, acting_user)
    if manifest.metadata.appcode != service.appcode.code:
        raise Invalid.at("metadata", "appcode", message="A service stays in its appcode; create another one there.")
    if manifest.metadata.name != service.name:
        raise Invalid.at("metadata", "name", message="A service keeps its name: its callers have its address.")
    before, spec = ServiceSpec.model_validate(service.spec), manifest.spec
    if model_of(spec) != model_of(before):
        raise Invalid.at("spec", "model", message="A service keeps its model; create another one for this.")
    if spec == before:
        return service
    require_active(service.appcode)
    named = judge(service.name, spec, service.appcode)
    service.spec, service.acts_for = spec.model_dump(mode="json", by_alias=True), acting_user
    service.save(update_fields=["spec", "acts_for", "changed_at"])
    told(service, "changed", acting_user, "Changed.")
    now = _target(service)
    version = named if spec.model != before.model or now is None or now.version is None else now.version
    if now is None or turn.replica_spec(spec, version.number) != now.spec:
        _begin(service, version, spec, by=acting_user)
    elif spec.replicas != before.replicas:
        _resize(service, spec, acting_user)
    signal.reroute(service)
    signal.changed(service.pk)
    return service


@transaction.atomic
def deploy(service: Service, spec: DeploySpec, *, acting_user: User) -> Rollout | None:
    """Has a version answer from now on, and agrees to one that waits for that; also of a service that was disabled. None where it
    answers already. Raises Invalid at "version", PermissionDenied and Http404."""
    service = _locked(service, acting_user)
    require_active(service.appcode)
    said = ServiceSpec.model_validate(service.spec)
    version = version_of(service, said, spec.version)
    old, rollout, now = turn.answering(service), turn.living(service), _target(service)
    is_disabled = service.desired != Run.Desired.RUNNING
    wanted = turn.replica_spec(said, version.number)
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
            turn.agree(rollout, f"Agreed to by {acting_user.display_name}.")
    elif rollout and old and old.spec == wanted:
        turn.go_back(rollout, Rollout.Phase.CANCELLED, f"{old.model} is to go on, says {acting_user.display_name}.")
    elif old is None or old.spec != wanted:
        if is_disabled:
            chosen = chosen.model_copy(update={"kind": "rolling"})  # nobody answers with whom it could be compared
        rollout = _begin(
            service, version, said.model_copy(update={"rollout": chosen}), by=acting_user, reason=spec.reason
        )
    _acts_for(service, acting_user)
    reason = f" {spec.reason}" if spec.reason else ""
    told(
        service,
        "deployed",
        acting_user,
        f"{model_of(said)}/{version.number} is to answer.{reason}",
        version=version.number,
    )
    signal.reroute(service)
    signal.changed(service.pk)
    return rollout


@transaction.atomic
def rollback(service: Service, reason: str = "", *, acting_user: User) -> Rollout:
    """Has the revision answer that did before. A rollout that is under way ends, and its alias stays where it is. Else it is the
    one before that which answers: at once where its replicas are still warm, and the alias that the service follows goes back
    with it; else by a rollout. Raises Conflict, PermissionDenied and Http404."""
    service = _locked(service, acting_user)
    if service.desired != Run.Desired.RUNNING:
        raise Conflict(f"{service.name} is disabled; enable it first.")
    who = f"by {acting_user.display_name}{f': {reason}'.rstrip('.') if reason else ''}."
    if rollout := turn.living(service):
        if rollout.phase == Rollout.Phase.GATED:
            turn.go_back(rollout, Rollout.Phase.CANCELLED, f"Declined {who}")
        elif rollout.from_revision is None:
            raise Conflict(
                f"Nothing answered before revision {rollout.to_revision.number}; disable the service to end it."
            )
        else:
            turn.go_back(rollout, Rollout.Phase.ROLLED_BACK, f"Rolled back {who}")
    else:
        old = turn.answering(service)
        new = turn.before(service, old) if old else None
        if old is None or new is None:
            raise Conflict("No revision answered before the one that does now.")
        if new.replicas.filter(state=Replica.State.SERVING).exists():
            said = f"Rolled back {who} Its replicas were still warm."
            rollout = turn.swap(service, old, new, reason=reason, message=said, by=acting_user)
            move_alias_to(service, new, f"{service.name} was rolled back {who}", by=acting_user)
        else:
            rollout = _begin_again(service, new, reason, acting_user)
    _acts_for(service, acting_user)
    now = _target(service)
    to = f" to revision {now.number}, {now.model}" if now else ""
    told(service, "rolled-back", acting_user, f"Rolled back{to}, {who}")
    signal.reroute(service)
    signal.changed(service.pk)
    return rollout


def can_roll_back(service: Service) -> bool:
    """Whether a revision answered before the one that does, or will. Three queries at most."""
    if rollout := turn.living(service):
        return rollout.phase == Rollout.Phase.GATED or rollout.from_revision is not None
    old = turn.answering(service)
    return old is not None and turn.before(service, old) is not None


@transaction.atomic
def promote(service: Service, *, acting_user: User) -> Rollout:
    """Ends the comparison: the new revision takes over now; or agrees to one that waits for that. Repeating it changes nothing.
    Raises Conflict where nothing is compared."""
    service = _locked(service, acting_user)
    rollout = turn.living(service)
    if rollout is None:
        raise Conflict(f"No rollout of {service.name} is under way.")
    new = rollout.to_revision
    if rollout.phase == Rollout.Phase.SHIFTING:
        return rollout
    if rollout.phase == Rollout.Phase.STARTING:
        raise Conflict(f"Revision {new.number} does not answer yet; it goes on when it does.")
    if rollout.phase == Rollout.Phase.GATED:
        turn.agree(rollout, f"Agreed to by {acting_user.display_name}.")
    else:
        turn.to_phase(rollout, Rollout.Phase.SHIFTING, f"Promoted by {acting_user.display_name}.")
    _acts_for(service, acting_user)
    told(service, "promoted", acting_user, f"Revision {new.number}, {new.model}: {rollout.message}")
    signal.changed(service.pk)
    return rollout


@transaction.atomic
def scale(service: Service, spec: ScaleSpec, *, acting_user: User) -> Service:
    """How many replicas there are from now on; with 0 it sleeps until somebody asks. Raises Invalid, PermissionDenied and
    Http404."""
    service = _locked(service, acting_user)
    said = ServiceSpec.model_validate(service.spec)
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
    told(service, "scaled", acting_user, f"{range_} replicas, now {count}.", replicas=count)
    signal.reroute(service)  # fronts read the target
    signal.changed(service.pk)
    return service


def _resize(service: Service, spec: ServiceSpec, user: User, exactly: int | None = None) -> int:
    """Wants as many replicas as its range allows, nearest to what there are; how many."""
    revision = turn.answering(service)
    now, replicas = revision.wanted if revision else 0, spec.replicas
    count = max(replicas.least, min(now, replicas.most)) if exactly is None else exactly
    if service.desired == Run.Desired.RUNNING:
        if revision:
            revision.wanted = count
            revision.save(update_fields=["wanted"])
        why = f"{user.display_name} asked for {replicas.least} to {replicas.most}."
        service.scale = {
            "replicas": count,
            "since": f"{timezone.now().astimezone(dt.UTC):%Y-%m-%dT%H:%M:%SZ}",
            "why": why,
        }
        service.save(update_fields=["scale"])
    return count


def _target(service: Service) -> Revision | None:
    """The revision that answers when nothing more happens; one that nobody has agreed to does not."""
    rollout = turn.living(service)
    if rollout and rollout.phase != Rollout.Phase.GATED:
        return rollout.to_revision
    return turn.answering(service)


def version_of(service: Service, spec: ServiceSpec, number: int | None) -> ModelVersion:
    """That of the number, or the one that its alias names. Raises Invalid at "version"."""
    try:
        found = resolved_as(spec, f"{model_of(spec)}/{number}" if number else spec.model, service.appcode).model
    except Invalid as invalid:
        errors = [
            FieldError(("version",), each.message, each.see) if number and each.path == ("spec", "model") else each
            for each in invalid.errors
        ]
        raise Invalid(errors) from None
    assert found
    return found


def _begin_again(service: Service, revision: Revision, reason: str, user: User) -> Rollout:
    """A rollout to what a revision was. Raises Conflict where that cannot be made any more."""
    try:
        version = resolve(ClusterSpec.model_validate(revision.spec), service.appcode, by_fronts=True).model
    except Invalid as invalid:
        why = " ".join(each.message for each in invalid.errors)
        raise Conflict(f"Revision {revision.number} cannot be made again: {why}") from None
    assert version
    return turn.begin_rollout(
        service, version, kind=Rollout.Kind.ROLLING, weight=100, minutes=0, by_hand=False, reason=reason, by=user,
        spec=revision.spec,
    )  # fmt: skip


def move_alias_to(service: Service, revision: Revision, reason: str, *, by: User) -> None:
    """Has the alias that a service follows name what answers now. Nothing where it follows none, or that version's files are not
    known to be what they were."""
    spec = ServiceSpec.model_validate(service.spec)
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
    """Nobody answers any more: its replicas end, and what is under way is cancelled. Repeating it changes nothing."""
    service = _locked(service, acting_user)
    if service.desired == Run.Desired.RUNNING:
        why = f"Disabled by {acting_user.display_name}."
        if rollout := turn.living(service):
            turn.go_back(rollout, Rollout.Phase.CANCELLED, why)
        service.revisions.filter(wanted__gt=0).update(wanted=0)
        _want(service, Run.Desired.ENDED, acting_user)
        told(service, "disabled", acting_user, why)
        signal.reroute(service)
    return service


@transaction.atomic
def enable_service(service: Service, *, acting_user: User) -> Service:
    """The revision that answered last answers again. Repeating it changes nothing. Raises Invalid where its appcode may run
    nothing now."""
    service = _locked(service, acting_user)
    if service.desired != Run.Desired.RUNNING:
        _enable(service, acting_user)
        told(service, "enabled", acting_user, f"Enabled by {acting_user.display_name}.")
        signal.reroute(service)
    return service


def _enable(service: Service, user: User) -> None:
    require_active(service.appcode)
    service.scale = {}
    if revision := turn.answering(service):
        revision.wanted = max(1, ServiceSpec.model_validate(service.spec).replicas.least)
        revision.save(update_fields=["wanted"])
    _want(service, Run.Desired.RUNNING, user)


def _want(service: Service, desired: str, user: User) -> None:
    service.desired, service.acts_for = desired, user
    fields = ["desired", "acts_for", "scale", "changed_at"]
    if desired == Run.Desired.RUNNING:
        service.phase, service.message, service.phase_since = Service.Phase.STARTING, "", timezone.now()
        fields += ["phase", "message", "phase_since"]
    service.save(update_fields=fields)
    signal.changed(service.pk)


@transaction.atomic
def delete_service(service: Service, *, acting_user: User) -> None:
    """Removes it from sight with its replicas, which end at once, and its tokens. Its row stays, for its address is its own for
    ever. Nothing refuses that."""
    service = _locked(service, acting_user)
    why = f"Deleted by {acting_user.display_name}."
    if rollout := turn.living(service):
        turn.end(rollout, Rollout.Phase.CANCELLED, why)
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
    told(service, "deleted", acting_user, "Deleted.")
    signal.reroute(service)


@transaction.atomic
def create_token(service: Service, spec: TokenSpec, *, acting_user: User) -> tuple[ServiceToken, str]:
    """The row, and the token itself, which is known to nobody afterwards. Raises Invalid."""
    service = _locked(service, acting_user)
    rows = service.tokens.all()
    if rows.filter(name=spec.name).exists():
        raise Invalid.at("name", message=f"{service.name} already has a token “{spec.name}”; choose another name.")
    if rows.count() >= MOST_TOKENS:
        raise Invalid.at("name", message=f"{service.name} has {MOST_TOKENS} tokens already; delete one.")
    token = PREFIX + secrets.token_urlsafe(32)
    row = ServiceToken.objects.create(
        service=service,
        name=spec.name,
        digest=hashlib.sha256(token.encode()).hexdigest(),
        begins=token[: ServiceToken._meta.get_field("begins").max_length],
        per_second=spec.per_second,
        at_once=spec.at_once,
        created_by=acting_user,
        expires_at=timezone.now() + dt.timedelta(days=spec.days) if spec.days else None,
    )
    told(service, "token-created", acting_user, f"The token “{row.name}” may ask it.", token=row.name)
    signal.reroute(service)
    return row, token


@transaction.atomic
def delete_token(service: Service, name: str, *, acting_user: User) -> None:
    """Fronts refuse it from now on. Raises Http404."""
    service = _locked(service, acting_user)
    if not service.tokens.filter(name=name).delete()[0]:
        raise Http404(f"{service.name} has no token “{name}”.")
    told(service, "token-deleted", acting_user, f"The token “{name}” may ask it no more.", token=name)
    signal.reroute(service)


def judge(name: str, spec: ServiceSpec, appcode: Appcode) -> ModelVersion:
    """The version that its model names now. Raises Invalid, at its fields, for that of which no replica could be made."""
    slots = [replica_name(name, slot) for slot in range(1, MAX_SLOTS + 1)]
    clusters = Cluster.objects.filter(appcode=appcode, name__in=slots, deleted_at=None)
    if taken := clusters.exclude(part_of=f"services/{name}").values_list("name", flat=True).first():
        message = f"There is a cluster “{taken}”, as a replica of this would be called; choose another name."
        raise Invalid.at("metadata", "name", message=message)
    judge_runtime(spec)
    resolved = resolved_as(spec, spec.model, appcode)
    judge_size(spec.replicas, resolved, appcode)
    if spec.rollout.cpu_flavor:
        other = resolved_as(spec, spec.model, appcode, spec.rollout.cpu_flavor, ("spec", "rollout", "cpuFlavor"))
        if other.gpus:
            message = f"“{spec.rollout.cpu_flavor}” has a GPU; name a flavor without one."
            raise Invalid.at("spec", "rollout", "cpuFlavor", message=message)
    assert resolved.model
    return resolved.model


def judge_size(replicas: ReplicasSpec, resolved: Resolved, appcode: Appcode) -> None:
    """Raises Invalid for more replicas than the quota of the appcode could ever hold; one more, which starts while another one
    drains, waits or does as the service says."""
    for field in ("least", "most"):
        count = getattr(replicas, field)
        quota = judge_quota(resolved.gpus * count, Quota(appcode.code, appcode.gpu_quota))
        if quota.fits == "never":
            more = f"/appcodes/{appcode.code}/request?gpus={resolved.gpus * count}"
            raise Invalid.at("spec", "replicas", field, message=quota.message, see=more)


def judge_runtime(spec: ServiceSpec) -> None:
    """Raises Invalid where the catalogue does not offer its runtime, or it says too much or too little beside it. Whether that
    serves the model, and where it would run, is known with the version."""
    runtime = ServingRuntime.objects.filter(name=spec.runtime, enabled=True).first()
    if runtime is None:
        raise Invalid.at("spec", "runtime", message=f"The catalogue offers no serving runtime “{spec.runtime}”.")
    if not runtime.image:
        if spec.image is None:
            raise Invalid.at("spec", "image", message="Name the image that has what the model was made with.")
        return
    said = {"image": spec.image, "environment": spec.environment, "command": spec.command}
    sentence = f"“{runtime.title}” is a container that has all it needs; leave this out."
    if wrong := [FieldError(("spec", field), sentence) for field, value in said.items() if value]:
        raise Invalid(wrong)


def resolved_as(
    spec: ServiceSpec,
    model: str,
    appcode: Appcode,
    flavor: str = "",
    flavor_at: Sequence[str] = ("spec", "flavor"),
) -> Resolved:
    """A replica of a service, for `model` by alias or version: every name exists, and a run of it could be. Raises Invalid."""
    body = {**turn.replica_spec(spec, 1, flavor), "model": model}
    try:
        return resolve(parse(ClusterSpec, body), appcode, by_fronts=True)
    except Invalid as invalid:
        raise Invalid([_as_said(each, tuple(flavor_at)) for each in invalid.errors]) from None


def _as_said(error: FieldError, flavor_at: tuple[str, ...]) -> FieldError:
    """An error of a replica's cluster, at the field of the service that it comes from."""
    path = error.path if error.path[:1] == ("spec",) else ("spec", *error.path)
    if path[:2] == ("spec", "framework"):
        path = ("spec", "image")
    elif path[:2] == ("spec", "server"):
        path = ("spec", "runtime")
    elif path[:2] == ("spec", "roles"):
        path = flavor_at
    return FieldError(path, error.message, error.see)


def _begin(
    service: Service, version: ModelVersion, spec: ServiceSpec, *, by: User, reason: str = "", kind: str = ""
) -> Rollout:
    """A rollout as the service says."""
    rollout = spec.rollout
    made = turn.begin_rollout(
        service,
        version,
        kind=kind or rollout.kind,
        weight=rollout.weight,
        minutes=rollout.minutes,
        by_hand=rollout.promote == "by-hand",
        reason=reason,
        by=by,
    )
    signal.changed(service.pk)
    return made


def _keep_label(service: Service) -> None:
    """Saves a new service with an address that nobody else has."""
    names = (service.name, service.appcode.code)
    service.label = origins.label(*names)
    try:
        with transaction.atomic():
            service.save()
    except IntegrityError:  # somebody else's: a-b of c, and a of b-c
        service.label = origins.label(*names, plain=False)
        service.save()


def _locked(service: Service, user: User) -> Service:
    """The row as it is now, until the end of the transaction. Raises PermissionDenied, and Http404 where it was deleted
    meanwhile."""
    require(user, service.appcode, OPERATE)
    rows = Service.objects.select_for_update(of=("self",), no_key=True).select_related("appcode", "created_by")
    found = rows.filter(pk=service.pk, deleted_at=None).first()
    if found is None:
        raise Http404(f"There is no service “{service.name}” any more.")
    return found
