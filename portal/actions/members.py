"""Members of an appcode and their roles."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import transaction

from portal.access import MANAGE, require
from portal.actions.appcodes import people_named, record
from portal.actions.requests import locked
from portal.errors import Conflict, FieldError, Invalid
from portal.manifests.appcode import MAX_OWNERS
from portal.models import Appcode, Membership, User

Role, State = Membership.Role, Appcode.State


@transaction.atomic
def set_members(appcode: Appcode, roles: Mapping[str, str], *, acting_user: User) -> Appcode:
    """Makes exactly these people members: username → role. Raises Invalid at ("spec", "members", username)."""
    appcode = locked(appcode)
    require(acting_user, appcode, MANAGE)
    errors: list[FieldError] = []
    wrong = [name for name, role in roles.items() if role not in Role.values]
    errors += [FieldError(("spec", "members", name), "Choose owner, developer or viewer.") for name in wrong]
    people = people_named(roles, ("spec", "members"), errors, known=appcode)
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
    record(appcode, "appcode.members", acting_user, ", ".join(changes) or "the same members")
    return appcode


@transaction.atomic
def set_member(appcode: Appcode, username: str, role: str | None, *, acting_user: User) -> Appcode:
    """Gives one person a role, or removes them (None). Raises Invalid at ("spec", "members", …)."""
    appcode = locked(appcode)
    require(acting_user, appcode, MANAGE)
    roles = {each.user.username: str(each.role) for each in appcode.memberships.select_related("user")}
    if role is None and username not in roles:
        raise Conflict(f"{username} is not a member of {appcode.code} any more.")
    if role is None:
        del roles[username]
    else:
        roles[username] = role
    return set_members(appcode, roles, acting_user=acting_user)


def _owners_sentence(appcode: Appcode, owners: int) -> str:
    if owners < 1:
        return f"{appcode.code} needs an owner; make somebody else owner first."
    return f"{appcode.code} may have {MAX_OWNERS} owners at most; make one of them developer first."
