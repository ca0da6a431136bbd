"""Requesting, changing, approving, refusing and disabling appcodes.

As all actions, each function is one transaction that writes its Event, too, and raises Invalid (with paths of the appcode
manifest, or of the field's own name where there is no manifest), Conflict, and from portal.access PermissionDenied or
Http404. Forms, REST and commands all come through here.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.conf import settings
from django.db import transaction

from portal import events
from portal.access import MANAGE, require, require_administrator
from portal.errors import Conflict, FieldError, Invalid
from portal.models import Appcode, Membership, OrgNode, User
from portal.specs import MAX_GPU_QUOTA, AppcodeManifest

MAX_NOTE = 300
Role, State = Membership.Role, Appcode.State


@transaction.atomic
def request_appcode(manifest: AppcodeManifest, *, acting_user: User) -> Appcode:
    """Asks for an appcode; active at once when an administrator asks. Who asks is one of its owners."""
    code, spec = manifest.metadata.name, manifest.spec
    errors = []
    if Appcode.objects.filter(code=code).exists():
        errors.append(FieldError(("metadata", "name"), f"“{code}” is taken; choose another code."))
    node = _org_node(spec.org_node, errors)
    owners = people_named(spec.owners, ("spec", "owners"), errors)
    administrator = acting_user.is_administrator
    if not administrator and acting_user.username not in spec.owners:
        errors.append(FieldError(("spec", "owners"), f"Name yourself, too: {acting_user.username}."))
    waiting = Appcode.objects.filter(requested_by=acting_user, state__in=(State.REQUESTED, State.REFUSED)).count()
    if waiting >= settings.REQUESTS_PER_PERSON and not administrator:
        sentence = (
            f"{waiting} requests of yours wait or were refused; wait for an administrator, or change one of those."
        )
        errors.append(FieldError(("metadata", "name"), sentence))
    if spec.gpu_quota is not None and not administrator:
        errors.append(FieldError(("spec", "gpuQuota"), "An administrator sets the quota; leave it out."))
    if spec.storage_quota_gib is not None and not administrator:
        errors.append(FieldError(("spec", "storageQuotaGib"), "An administrator sets the quota; leave it out."))
    if errors or node is None:
        raise Invalid(errors)
    appcode = Appcode.objects.create(
        code=code,
        name=spec.name or code,
        org_node=node,
        emails=spec.emails,
        remark=spec.remark,
        resource_type=spec.resource_type,
        state=State.ACTIVE if administrator else State.REQUESTED,
        requested_by=acting_user,
        **({} if spec.gpu_quota is None else {"gpu_quota": spec.gpu_quota}),
        **({} if spec.storage_quota_gib is None else {"storage_quota_gib": spec.storage_quota_gib}),
    )
    Membership.objects.bulk_create(Membership(user=user, appcode=appcode, role=Role.OWNER) for user in owners)
    verb = "created" if administrator else "requested"
    record(appcode, f"appcode.{verb}", acting_user, f"{verb} with the owners {', '.join(spec.owners)}")
    return appcode


@transaction.atomic
def change_appcode(appcode: Appcode, manifest: AppcodeManifest, *, acting_user: User) -> Appcode:
    """Makes the appcode as the manifest says; its code stays. Owners who are not named any more become developers.

    Quota, and the org node of what was approved, are an administrator's to change. A refused request is thereby sent again.
    """
    appcode = locked(appcode)
    require(acting_user, appcode, MANAGE)
    spec, administrator = manifest.spec, acting_user.is_administrator
    errors = []
    if manifest.metadata.name != appcode.code:
        errors.append(FieldError(("metadata", "name"), f"A code cannot be changed; this one is “{appcode.code}”."))
    node = _org_node(spec.org_node, errors)
    owners = people_named(spec.owners, ("spec", "owners"), errors, known=appcode)
    waiting = appcode.state in (State.REQUESTED, State.REFUSED)
    if node is not None and node.pk != appcode.org_node_id and not administrator and not waiting:
        errors.append(FieldError(("spec", "orgNode"), "Runs live below the org node; ask an administrator to move it."))
    if spec.gpu_quota not in (None, appcode.gpu_quota) and not administrator:
        errors.append(FieldError(("spec", "gpuQuota"), "An administrator sets the quota; ask one of them."))
    if spec.storage_quota_gib not in (None, appcode.storage_quota_gib) and not administrator:
        errors.append(FieldError(("spec", "storageQuotaGib"), "An administrator sets the quota; ask one of them."))
    if errors or node is None:
        raise Invalid(errors)
    before = _fields(appcode)
    appcode.org_node, appcode.name, appcode.remark = node, spec.name or appcode.code, spec.remark
    appcode.emails = spec.emails
    if spec.gpu_quota is not None:
        appcode.gpu_quota = spec.gpu_quota
    if spec.storage_quota_gib is not None:
        appcode.storage_quota_gib = spec.storage_quota_gib
    if appcode.state == State.REFUSED:
        appcode.state, appcode.note = State.REQUESTED, ""
    appcode.save()
    _set_owners(appcode, owners)
    changed = [name for name, value in _fields(appcode).items() if value != before[name]]
    record(appcode, "appcode.changed", acting_user, f"changed {', '.join(changed)}" if changed else "saved as it was")
    return appcode


@transaction.atomic
def approve_appcode(appcode: Appcode, *, acting_user: User, gpu_quota: int | None = None) -> Appcode:
    """Makes it active: a request, a refused one, or a disabled one again. Raises Conflict when it is active already."""
    require_administrator(acting_user)
    appcode = locked(appcode)
    if appcode.state == State.ACTIVE:
        raise Conflict(f"{appcode.code} is active already.")
    verb = "enabled" if appcode.state == State.DISABLED else "approved"
    appcode.state, appcode.note = State.ACTIVE, ""
    if gpu_quota is not None:
        appcode.gpu_quota = _quota(gpu_quota)
    appcode.save()
    record(appcode, f"appcode.{verb}", acting_user, f"{verb} with a quota of {appcode.gpu_quota} GPUs")
    return appcode


@transaction.atomic
def refuse_appcode(appcode: Appcode, note: str, *, acting_user: User) -> Appcode:
    """Refuses a request with a reason that its owners read; they may change it and send it again."""
    require_administrator(acting_user)
    appcode = locked(appcode)
    if appcode.state != State.REQUESTED:
        raise Conflict(f"{appcode.code} is {appcode.state}, not requested; only a request can be refused.")
    appcode.state, appcode.note = State.REFUSED, _note(note)
    appcode.save()
    record(appcode, "appcode.refused", acting_user, appcode.note)
    return appcode


@transaction.atomic
def disable_appcode(appcode: Appcode, note: str, *, acting_user: User) -> Appcode:
    """Nothing new can be started in it; runs that are live go on until somebody disables them."""
    require_administrator(acting_user)
    appcode = locked(appcode)
    if appcode.state != State.ACTIVE:
        raise Conflict(f"{appcode.code} is {appcode.state}, not active.")
    appcode.state, appcode.note = State.DISABLED, _note(note)
    appcode.save()
    record(appcode, "appcode.disabled", acting_user, appcode.note)
    return appcode


@transaction.atomic
def set_quota(appcode: Appcode, gpu_quota: int, *, acting_user: User) -> Appcode:
    """GPUs that its runs may hold at one time. Lowering it stops nothing that runs; it only lets nothing new in."""
    require_administrator(acting_user)
    appcode = locked(appcode)
    before, appcode.gpu_quota = appcode.gpu_quota, _quota(gpu_quota)
    appcode.save()
    record(appcode, "appcode.quota", acting_user, f"quota from {before} to {appcode.gpu_quota} GPUs")
    return appcode


def locked(appcode: Appcode) -> Appcode:
    """The row as it is now, held until the end of the transaction: owners are counted before they are changed.

    NO KEY UPDATE: what is metered meanwhile names the appcode and need not wait.
    """
    return Appcode.objects.select_for_update(of=("self",), no_key=True).select_related("org_node").get(pk=appcode.pk)


def record(appcode: Appcode, verb: str, actor: User, message: str) -> None:
    events.record(verb, actor=actor, object=f"appcode {appcode.code}", appcode=appcode.code, message=message)


def _fields(appcode: Appcode) -> dict[str, object]:
    owners = sorted(appcode.memberships.filter(role=Role.OWNER).values_list("user__username", flat=True))
    return {
        "org node": appcode.org_node_id, "name": appcode.name, "addresses": list(appcode.emails), "remark": appcode.remark,
        "quota": appcode.gpu_quota, "storage quota": appcode.storage_quota_gib, "owners": owners,
    }  # fmt: skip


def _org_node(path: str, errors: list[FieldError]) -> OrgNode | None:
    node = OrgNode.objects.filter(path=path).first()
    if node is None:
        errors.append(FieldError(("spec", "orgNode"), f"There is no org node “{path}”; choose one of the list."))
    return node


def people_named(
    usernames: Iterable[str], path: tuple[str, ...], errors: list[FieldError], known: Appcode | None = None
) -> list[User]:
    """The people of these names. Who has been deactivated may stay in an appcode (`known`), but not come in."""
    wanted = list(usernames)
    found = {user.username: user for user in User.objects.filter(username__in=wanted)}
    inside = set(known.memberships.values_list("user__username", flat=True)) if known else set()
    missing = [name for name in wanted if name not in found or not (found[name].is_active or name in inside)]
    errors.extend(FieldError(path, f"There is nobody called “{name}”.") for name in missing)
    return [found[name] for name in wanted if name in found]


def _set_owners(appcode: Appcode, owners: list[User]) -> None:
    appcode.memberships.filter(role=Role.OWNER).exclude(user__in=owners).update(role=Role.DEVELOPER)
    for user in owners:
        Membership.objects.update_or_create(user=user, appcode=appcode, defaults={"role": Role.OWNER})


def _note(note: str) -> str:
    note = " ".join(note.split())
    if not 1 <= len(note) <= MAX_NOTE:
        raise Invalid.at("note", message=f"Say why in 1 to {MAX_NOTE} characters; the owners will read it.")
    return note


def _quota(gpus: int) -> int:
    if not 0 <= gpus <= MAX_GPU_QUOTA:
        raise Invalid.at("spec", "gpuQuota", message=f"A quota is a number from 0 to {MAX_GPU_QUOTA:,}.")
    return gpus
