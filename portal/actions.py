"""Everything that people change about people and appcodes. Every function is one transaction that writes its Event, too.

They raise Invalid (with paths of the appcode manifest, or of the field's own name where there is no manifest), Conflict, and
from portal.access PermissionDenied or Http404. Forms, REST and commands all come through here.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Iterable, Mapping

from django.conf import settings
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import models, transaction

from portal import events
from portal.access import MANAGE, require, require_administrator
from portal.errors import Conflict, FieldError, Invalid
from portal.examples import keep_disabled
from portal.models import ApiToken, Appcode, Membership, OrgNode, User
from portal.specs import MAX_GPU_QUOTA, MAX_OWNERS, MAX_TOKEN_DAYS, AppcodeManifest, no_formula, one_line

MAX_TOKENS = 50
MAX_NOTE = 300
TOKEN_NAME = 60
# Without 0 O 1 l I: it is read aloud and typed once.
PASSWORD_ALPHABET = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # noqa: S105
Role, State = Membership.Role, Appcode.State


# Appcodes


@transaction.atomic
def request_appcode(manifest: AppcodeManifest, *, acting_user: User) -> Appcode:
    """Asks for an appcode; active at once when an administrator asks. Who asks is one of its owners."""
    code, spec = manifest.metadata.name, manifest.spec
    errors = []
    if Appcode.objects.filter(code=code).exists():
        errors.append(FieldError(("metadata", "name"), f"“{code}” is taken; choose another code."))
    node = _org_node(spec.org_node, errors)
    owners = _people(spec.owners, ("spec", "owners"), errors)
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
    _record(appcode, f"appcode.{verb}", acting_user, f"{verb} with the owners {', '.join(spec.owners)}")
    return appcode


@transaction.atomic
def change_appcode(appcode: Appcode, manifest: AppcodeManifest, *, acting_user: User) -> Appcode:
    """Makes the appcode as the manifest says; its code stays. Owners who are not named any more become developers.

    Quota, and the org node of what was approved, are an administrator's to change. A refused request is thereby sent again.
    """
    appcode = _locked(appcode)
    require(acting_user, appcode, MANAGE)
    spec, administrator = manifest.spec, acting_user.is_administrator
    errors = []
    if manifest.metadata.name != appcode.code:
        errors.append(FieldError(("metadata", "name"), f"A code cannot be changed; this one is “{appcode.code}”."))
    node = _org_node(spec.org_node, errors)
    owners = _people(spec.owners, ("spec", "owners"), errors, known=appcode)
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
    _record(appcode, "appcode.changed", acting_user, f"changed {', '.join(changed)}" if changed else "saved as it was")
    return appcode


@transaction.atomic
def approve_appcode(appcode: Appcode, *, acting_user: User, gpu_quota: int | None = None) -> Appcode:
    """Makes it active: a request, a refused one, or a disabled one again. Raises Conflict when it is active already, and for an
    example."""
    require_administrator(acting_user)
    appcode = _locked(appcode)
    if appcode.state == State.ACTIVE:
        raise Conflict(f"{appcode.code} is active already.")
    keep_disabled(appcode)
    verb = "enabled" if appcode.state == State.DISABLED else "approved"
    appcode.state, appcode.note = State.ACTIVE, ""
    if gpu_quota is not None:
        appcode.gpu_quota = _quota(gpu_quota)
    appcode.save()
    _record(appcode, f"appcode.{verb}", acting_user, f"{verb} with a quota of {appcode.gpu_quota} GPUs")
    return appcode


@transaction.atomic
def refuse_appcode(appcode: Appcode, note: str, *, acting_user: User) -> Appcode:
    """Refuses a request with a reason that its owners read; they may change it and send it again."""
    require_administrator(acting_user)
    appcode = _locked(appcode)
    if appcode.state != State.REQUESTED:
        raise Conflict(f"{appcode.code} is {appcode.state}, not requested; only a request can be refused.")
    appcode.state, appcode.note = State.REFUSED, _note(note)
    appcode.save()
    _record(appcode, "appcode.refused", acting_user, appcode.note)
    return appcode


@transaction.atomic
def disable_appcode(appcode: Appcode, note: str, *, acting_user: User) -> Appcode:
    """Nothing new can be started in it; runs that are live go on until somebody disables them."""
    require_administrator(acting_user)
    appcode = _locked(appcode)
    if appcode.state != State.ACTIVE:
        raise Conflict(f"{appcode.code} is {appcode.state}, not active.")
    appcode.state, appcode.note = State.DISABLED, _note(note)
    appcode.save()
    _record(appcode, "appcode.disabled", acting_user, appcode.note)
    return appcode


@transaction.atomic
def set_quota(appcode: Appcode, gpu_quota: int, *, acting_user: User) -> Appcode:
    """GPUs that its runs may hold at one time. Lowering it stops nothing that runs; it only lets nothing new in."""
    require_administrator(acting_user)
    appcode = _locked(appcode)
    before, appcode.gpu_quota = appcode.gpu_quota, _quota(gpu_quota)
    appcode.save()
    _record(appcode, "appcode.quota", acting_user, f"quota from {before} to {appcode.gpu_quota} GPUs")
    return appcode


# Members


@transaction.atomic
def set_members(appcode: Appcode, roles: Mapping[str, str], *, acting_user: User) -> Appcode:
    """Makes exactly these people members: username → role. Raises Invalid at ("spec", "members", username)."""
    appcode = _locked(appcode)
    require(acting_user, appcode, MANAGE)
    errors: list[FieldError] = []
    wrong = [name for name, role in roles.items() if role not in Role.values]
    errors += [FieldError(("spec", "members", name), "Choose owner, developer or viewer.") for name in wrong]
    people = _people(roles, ("spec", "members"), errors, known=appcode)
    owners = sum(role == Role.OWNER for role in roles.values())
    if not 1 <= owners <= MAX_OWNERS:
        errors.append(FieldError(("spec", "members"), _owners_sentence(appcode, owners)))
    if errors:
        raise Invalid(errors)
    before = {each.user.username: each.role for each in appcode.memberships.select_related("user")}
    appcode.memberships.exclude(user__in=people).delete()
    for user in people:
        Membership.objects.update_or_create(user=user, appcode=appcode, defaults={"role": roles[user.username]})
    changes = [f"{name} {role}" for name, role in roles.items() if before.get(name) != role]
    changes += [f"{name} no longer {role}" for name, role in before.items() if name not in roles]
    _record(appcode, "appcode.members", acting_user, ", ".join(changes) or "the same members")
    return appcode


@transaction.atomic
def set_member(appcode: Appcode, username: str, role: str | None, *, acting_user: User) -> Appcode:
    """Gives one person a role, or takes them out (None). Raises Invalid at ("spec", "members", …)."""
    appcode = _locked(appcode)
    require(acting_user, appcode, MANAGE)
    roles = {each.user.username: str(each.role) for each in appcode.memberships.select_related("user")}
    if role is None and username not in roles:
        raise Conflict(f"{username} is not a member of {appcode.code} any more.")
    if role is None:
        del roles[username]
    else:
        roles[username] = role
    return set_members(appcode, roles, acting_user=acting_user)


# The organisation


@transaction.atomic
def save_org_node(node: OrgNode, *, acting_user: User) -> OrgNode:
    """Adds or changes a node. Raises Invalid at ("path",), ("title",) or ("namespace",).

    The namespace of a business line with appcodes below it stays: their runs and volumes live there.
    """
    require_administrator(acting_user)
    node.namespace, node.title = node.namespace or None, node.title.strip()
    try:
        one_line(no_formula(node.title))
    except ValueError as error:
        raise Invalid.at("title", message=str(error)) from error
    new = node.pk is None
    old = None if new else OrgNode.objects.select_for_update().get(pk=node.pk)
    if old and old.path != node.path:
        raise Invalid.at("path", message="A path cannot be changed; add another node.")
    if old and old.namespace and old.namespace != node.namespace and _appcodes_below(old).exists():
        raise Invalid.at(
            "namespace", message=f"Appcodes below live in “{old.namespace}”; it cannot be changed any more."
        )
    try:
        node.full_clean()
    except ValidationError as error:
        raise Invalid(
            [FieldError((name,), said) for name, sentences in error.message_dict.items() for said in sentences]
        ) from error
    node.save()
    line = f"business line with namespace {node.namespace}" if node.namespace else "no namespace of its own"
    events.record(
        "org.created" if new else "org.changed",
        actor=acting_user,
        object=f"org {node.path}",
        message=f"{node.title or node.path}: {line}",
    )
    return node


@transaction.atomic
def delete_org_node(node: OrgNode, *, acting_user: User) -> None:
    require_administrator(acting_user)
    if count := node.appcodes.count():
        raise Conflict(f"{node.path} owns {count} appcodes; move them to another node first.")
    if node.namespace and _appcodes_below(node).exists():
        raise Conflict(f"Appcodes below {node.path} live in its namespace “{node.namespace}”.")
    events.record("org.deleted", actor=acting_user, object=f"org {node.path}")
    node.delete()


# People


@transaction.atomic
def create_person(
    *, username: str, email: str, name: str = "", administrator: bool = False, acting_user: User
) -> tuple[User, str]:
    """Adds a person; returns them and their one-time password, which opens nothing but the choice of a new one.

    Raises Invalid at ("username",), ("email",) or ("name",).
    """
    require_administrator(acting_user)
    password = one_time_password()
    first, _, last = " ".join(name.split()).partition(" ")
    user = User(
        username=username,
        email=email,
        first_name=first,
        last_name=last,
        is_superuser=administrator,
        must_change_password=True,
    )
    user.set_password(password)
    try:
        user.full_clean()
    except ValidationError as error:
        names = {"first_name": "name", "last_name": "name"}
        errors = [
            FieldError((names.get(field, field),), said)
            for field, sentences in error.message_dict.items()
            for said in sentences
        ]
        raise Invalid(errors) from error
    if User.objects.filter(username__iexact=username).exists():
        raise Invalid.at("username", message=f"“{username}” is taken.")
    if not email:
        raise Invalid.at("email", message="Fill this in; a forgotten password is renewed by mail.")
    if User.objects.filter(email__iexact=email).exists():
        raise Invalid.at("email", message="Somebody has this address already.")
    user.save()
    what = "platform administrator" if administrator else "person"
    events.record("person.created", actor=acting_user, object=f"person {username}", message=f"new {what}")
    return user, password


@transaction.atomic
def set_person_active(user: User, active: bool, *, acting_user: User) -> list[str]:
    """Lets a person in or keeps them out; their tokens end at once with their sessions, for ever.

    Returns the codes of appcodes that now have no active owner, so that somebody may be named. Raises Conflict for oneself.
    """
    require_administrator(acting_user)
    if user.pk == acting_user.pk:
        raise Conflict("You cannot deactivate yourself; ask another administrator.")
    user = User.objects.select_for_update().get(pk=user.pk)
    user.is_active = active
    if not active:
        user.session_epoch += 1
        ApiToken.objects.filter(user=user).delete()
    user.save(update_fields=["is_active", "session_epoch"])
    verb = "person.activated" if active else "person.deactivated"
    events.record(verb, actor=acting_user, object=f"person {user.username}")
    mine = Appcode.objects.filter(memberships__user=user, memberships__role=Role.OWNER)
    led = Membership.objects.filter(role=Role.OWNER, user__is_active=True).values("appcode")
    return list(mine.exclude(pk__in=led).values_list("code", flat=True))


@transaction.atomic
def set_administrator(user: User, administrator: bool, *, acting_user: User) -> None:
    """Makes a person a platform administrator or takes that away. Raises Conflict for oneself."""
    require_administrator(acting_user)
    if user.pk == acting_user.pk:
        raise Conflict("You cannot change your own rights; ask another administrator.")
    user = User.objects.select_for_update().get(pk=user.pk)
    user.is_superuser = administrator
    user.save(update_fields=["is_superuser"])
    message = "is a platform administrator" if administrator else "is no platform administrator any more"
    events.record("person.rights", actor=acting_user, object=f"person {user.username}", message=message)


@transaction.atomic
def reset_password(user: User, *, acting_user: User) -> str:
    """Returns a new one-time password; sessions of the person end, because they are bound to the old one, and API tokens too."""
    require_administrator(acting_user)
    user = User.objects.select_for_update().get(pk=user.pk)
    password = one_time_password()
    user.set_password(password)
    user.must_change_password = True
    user.save(update_fields=["password", "must_change_password"])
    events.record(
        "person.password", actor=acting_user, object=f"person {user.username}", message="new one-time password"
    )
    end_tokens(user, acting_user=acting_user)
    return password


def one_time_password() -> str:
    """20 characters from 56: 116 bits, in groups that can be read aloud."""
    while True:
        groups = ["".join(secrets.choice(PASSWORD_ALPHABET) for _ in range(5)) for _ in range(4)]
        password = "-".join(groups)
        try:
            validate_password(password)
        except ValidationError:
            continue
        return password


# API tokens


@transaction.atomic
def make_token(name: str, days: int, *, acting_user: User) -> tuple[ApiToken, str]:
    """A bearer token that ends after `days` (1 to 365). The text is returned only here; the database keeps its hash.

    Raises Invalid at ("name",) or ("days",), Conflict when there are too many.
    """
    name = name.strip()
    errors = []
    if not 1 <= len(name) <= TOKEN_NAME or not name.isprintable():
        errors.append(
            FieldError(("name",), f"Give it a name of 1 to {TOKEN_NAME} characters, so that you know it again.")
        )
    if not 1 <= days <= MAX_TOKEN_DAYS:
        errors.append(FieldError(("days",), f"A token lives 1 to {MAX_TOKEN_DAYS} days."))
    if errors:
        raise Invalid(errors)
    User.objects.select_for_update().get(pk=acting_user.pk)
    if ApiToken.objects.filter(user=acting_user).count() >= MAX_TOKENS:
        raise Conflict(f"You have {MAX_TOKENS} tokens; revoke one that you do not need.")
    token, text = ApiToken.objects.create(user=acting_user, name=name, expiry=dt.timedelta(days=days))
    events.record("token.made", actor=acting_user, object=f"token {name}", message=f"ends {token.expiry:%Y-%m-%d}")
    return token, text


@transaction.atomic
def revoke_token(token: ApiToken, *, acting_user: User) -> None:
    """Ends a token of one's own at once."""
    if token.user_id != acting_user.pk:
        raise Conflict("This is not your token.")
    events.record("token.revoked", actor=acting_user, object=f"token {token.name}")
    token.delete()


@transaction.atomic
def end_tokens(user: User, *, acting_user: User) -> None:
    """Ends all API tokens of a person whose password is another one now."""
    count, _ = ApiToken.objects.filter(user=user).delete()
    if count:
        events.record(
            "token.revoked",
            actor=acting_user,
            object=f"tokens of {user.username}",
            message=f"{count} ended with the password",
        )


# Shared by the above


def _locked(appcode: Appcode) -> Appcode:
    """The row as it is now, held until the end of the transaction: owners are counted before they are changed.

    NO KEY UPDATE: what is metered meanwhile names the appcode and need not wait.
    """
    return Appcode.objects.select_for_update(of=("self",), no_key=True).select_related("org_node").get(pk=appcode.pk)


def _record(appcode: Appcode, verb: str, actor: User, message: str) -> None:
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


def _people(
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


def _owners_sentence(appcode: Appcode, owners: int) -> str:
    if owners < 1:
        return f"{appcode.code} needs an owner; make somebody else owner first."
    return f"{appcode.code} may have {MAX_OWNERS} owners at most; make one of them developer first."


def _note(note: str) -> str:
    note = " ".join(note.split())
    if not 1 <= len(note) <= MAX_NOTE:
        raise Invalid.at("note", message=f"Say why in 1 to {MAX_NOTE} characters; the owners will read it.")
    return note


def _quota(gpus: int) -> int:
    if not 0 <= gpus <= MAX_GPU_QUOTA:
        raise Invalid.at("spec", "gpuQuota", message=f"A quota is a number from 0 to {MAX_GPU_QUOTA:,}.")
    return gpus


def _appcodes_below(node: OrgNode) -> models.QuerySet[Appcode]:
    """Appcodes at this node or below it."""
    return Appcode.objects.filter(models.Q(org_node=node) | models.Q(org_node__path__startswith=f"{node.path}."))
