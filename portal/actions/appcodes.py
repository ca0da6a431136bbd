"""Requesting, changing, disabling and enabling appcodes. Decisions about requests are in requests.py.

Like every action, each function is one transaction that also writes its Event. It raises Invalid (with paths of the
appcode manifest, or of the field's own name if there is no manifest), Conflict, and portal.access's PermissionDenied or
Http404. Forms, REST and commands all use these functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from portal import events, extension_points
from portal.access import MANAGE, require, require_administrator
from portal.actions.requests import give, give_alone, judge_expiry, locked, new_terms, note_of, send, terms_of
from portal.errors import Conflict, FieldError, Invalid
from portal.lending import Share
from portal.manifests.appcode import AppcodeManifest
from portal.models import Appcode, Event, Membership, OrgNode, QuotaRequest, User
from portal.terms import Terms

Role, State = Membership.Role, Appcode.State


@transaction.atomic
def request_appcode(manifest: AppcodeManifest, *, acting_user: User) -> Appcode:
    """Requests an appcode; it is active at once if an administrator requests it. The requester must be one of its owners."""
    code, spec = manifest.metadata.name, manifest.spec
    errors = []
    if Appcode.objects.filter(code=code).exists():
        errors.append(FieldError(("metadata", "name"), f"“{code}” is taken; choose another code."))
    node = _org_node(spec.org_node, errors)
    owners = people_named(spec.owners, ("spec", "owners"), errors)
    administrator = acting_user.is_administrator
    if not administrator and acting_user.username not in spec.owners:
        errors.append(FieldError(("spec", "owners"), f"Name yourself, too: {acting_user.username}."))
    waiting = Appcode.objects.filter(requested_by=acting_user, state=State.REQUESTED).count()
    if waiting >= settings.REQUESTS_PER_PERSON and not administrator:
        sentence = (
            f"{waiting} requests of yours wait or were refused; wait for an administrator, or change one of those."
        )
        errors.append(FieldError(("metadata", "name"), sentence))
    now = timezone.now()
    terms, share = spec.over(new_terms(now)), spec.share.over(Share())
    judge_expiry(terms, None, now, ("spec", "expires"), errors)
    if not administrator:
        errors += _foreign(share, Share(), "An administrator sets it, with the approval or later.")
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
    )
    Membership.objects.bulk_create(Membership(user=user, appcode=appcode, role=Role.OWNER) for user in owners)
    if administrator:
        said = f"created with the owners {', '.join(spec.owners)} and {terms.words(settings.CURRENCY)}"
        said += f"; {share.words}" if share != Share() else ""
        record(appcode, "appcode.created", acting_user, said)
        give(appcode, terms, now, acting_user, share)
    else:
        send(appcode, terms, "", now, acting_user)
    return appcode


@transaction.atomic
def change_appcode(appcode: Appcode, manifest: AppcodeManifest, *, acting_user: User) -> Appcode:
    """Changes the appcode to match the manifest; its code stays. Owners missing from the manifest become developers.
    Only administrators change quota, last day and, once it is approved, the org node; owners request the former
    (`requests.ask`). What it may borrow and its weight are never theirs to change. An appcode that was never approved is
    thereby submitted again."""
    appcode = locked(appcode)
    require(acting_user, appcode, MANAGE)
    spec, administrator = manifest.spec, acting_user.is_administrator
    errors = []
    if manifest.metadata.name != appcode.code:
        errors.append(FieldError(("metadata", "name"), f"A code cannot be changed; this one is “{appcode.code}”."))
    node = _org_node(spec.org_node, errors)
    owners = people_named(spec.owners, ("spec", "owners"), errors, known=appcode)
    waiting, now = appcode.state == State.REQUESTED, timezone.now()
    has = terms_of(appcode)
    terms, lent, share = spec.over(has), appcode.share, spec.share.over(appcode.share)
    if node is not None and node.pk != appcode.org_node_id and not administrator and not waiting:
        errors.append(FieldError(("spec", "orgNode"), "Runs live below the org node; ask an administrator to move it."))
    judge_expiry(terms, has, now, ("spec", "expires"), errors)
    if not (administrator or waiting):
        sentence = f"An administrator sets it; request it on the page of {appcode.code}."
        fields = [("quota", "gpus"), ("quota", "storage"), ("quota", "budget"), ("expires",)]
        pairs = zip(fields, astuple(terms), astuple(has), strict=True)
        errors += [FieldError(("spec", *path), sentence) for path, wanted, given in pairs if wanted != given]
    if not administrator:
        errors += _foreign(share, lent, "An administrator sets it.")
    if errors or node is None:
        raise Invalid(errors)
    before = _fields(appcode, has, lent)
    appcode.org_node, appcode.name, appcode.remark = node, spec.name or appcode.code, spec.remark
    appcode.emails = spec.emails
    appcode.save()
    _set_owners(appcode, owners)
    changed = [name for name, value in _fields(appcode, terms, share).items() if value != before[name]]
    said = f"changed {', '.join(changed)}" if changed else "saved as it was"
    given = [terms.words(settings.CURRENCY)] if terms != has else []
    given += [share.words] if share != lent else []
    said += f": {'; '.join(given)}" if given else ""
    event = record(appcode, "appcode.changed", acting_user, said, borrow=share.borrow, weight=share.weight)
    asked = appcode.asked
    if waiting and share != lent:
        appcode.gpu_borrow, appcode.weight = share.borrow, share.weight
        appcode.save(update_fields=["gpu_borrow", "weight"])
    if waiting and (changed or asked is None or asked.state != QuotaRequest.State.WAITING):
        send(appcode, terms, asked.reason if asked else "", now, acting_user)
    elif (terms, share) != (has, lent):
        give_alone(appcode, has, terms, event, now, acting_user, share)
    return appcode


@transaction.atomic
def disable_appcode(appcode: Appcode, note: str, *, acting_user: User) -> Appcode:
    """Nothing new can start in it; live runs go on until they are disabled."""
    require_administrator(acting_user)
    appcode = locked(appcode)
    if appcode.state != State.ACTIVE:
        raise Conflict(f"{appcode.code} is {appcode.standing}, not active.")
    appcode.state, appcode.note = State.DISABLED, note_of(note)
    appcode.save()
    record(appcode, "appcode.disabled", acting_user, appcode.note)
    return appcode


@transaction.atomic
def enable_appcode(appcode: Appcode, *, acting_user: User) -> Appcode:
    """Runs that waited in it start, within its quota and unless it has expired meanwhile."""
    require_administrator(acting_user)
    appcode = locked(appcode)
    if appcode.state != State.DISABLED:
        raise Conflict(f"{appcode.code} is {appcode.standing}, not disabled.")
    appcode.state, appcode.note = State.ACTIVE, ""
    appcode.save()
    extension_points.tell_given(appcode.pk)
    record(appcode, "appcode.enabled", acting_user, f"enabled with {terms_of(appcode).words(settings.CURRENCY)}")
    return appcode


def record(appcode: Appcode, verb: str, actor: User, message: str, **facts: object) -> Event:
    return events.record(
        verb, actor=actor, object=f"appcode {appcode.code}", appcode=appcode.code, message=message, **facts
    )


def _foreign(share: Share, has: Share, sentence: str) -> list[FieldError]:
    """Errors for what somebody who is no administrator would change."""
    return [
        FieldError(("spec", "share", name), sentence)
        for name in ("borrow", "weight")
        if getattr(share, name) != getattr(has, name)
    ]


def _fields(appcode: Appcode, terms: Terms, share: Share) -> dict[str, object]:
    owners = sorted(appcode.memberships.filter(role=Role.OWNER).values_list("user__username", flat=True))
    return {
        "org node": appcode.org_node_id, "name": appcode.name, "addresses": list(appcode.emails), "remark": appcode.remark,
        "GPU quota": terms.gpus, "storage quota": terms.storage, "budget": terms.budget, "last day": terms.expires,
        "may borrow": share.borrow, "weight": share.weight,
        "owners": owners,
    }  # fmt: skip


def _org_node(path: str, errors: list[FieldError]) -> OrgNode | None:
    node = OrgNode.objects.filter(path=path).first()
    if node is None:
        errors.append(FieldError(("spec", "orgNode"), f"There is no org node “{path}”; choose one of the list."))
    return node


def people_named(
    usernames: Iterable[str], path: tuple[str, ...], errors: list[FieldError], known: Appcode | None = None
) -> list[User]:
    """The users with these names; unknown ones add errors. A deactivated user may stay a member of `known`, but not be added."""
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
