"""Access control: who may see and do what. Views and APIs read rows of people and appcodes only through this module.

A membership gives up to three capabilities: VIEW (viewer and up), OPERATE (developer and up: clusters, datastores),
MANAGE (owner: members, addresses, money). Platform administrators may do everything, deactivated users nothing.
Something that a user may not see raises the same `Http404` as something that does not exist; something that they may
see but not do raises `PermissionDenied`.
"""

from __future__ import annotations

import enum

from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404

from portal.models import ApiToken, Appcode, Event, Membership, User


class Capability(enum.Enum):
    VIEW = frozenset({"viewer", "developer", "owner"})
    OPERATE = frozenset({"developer", "owner"})
    MANAGE = frozenset({"owner"})


VIEW, OPERATE, MANAGE = Capability.VIEW, Capability.OPERATE, Capability.MANAGE
# Events of which names are suggested.
LATELY = 5000


def appcodes_for(user: User, capability: Capability = VIEW) -> QuerySet[Appcode]:
    """The appcodes in which `user` has `capability`, including requested and disabled ones."""
    appcodes = Appcode.objects.select_related("org_node")
    if user.is_administrator:
        return appcodes
    mine = Membership.objects.filter(user_id=user.pk, user__is_active=True, role__in=capability.value)
    return appcodes.filter(pk__in=mine.values("appcode"))


def roles_of(user: User) -> dict[int, str] | None:
    """The role of `user` by appcode id; None for an administrator, who needs none. One query."""
    if user.is_administrator:
        return None
    mine = Membership.objects.filter(user_id=user.pk, user__is_active=True)
    return dict(mine.values_list("appcode_id", "role"))


def appcode_for(user: User, code: str, capability: Capability = VIEW) -> Appcode:
    """The appcode called `code`. Raises Http404 (absent or not theirs) or PermissionDenied (theirs, but without
    `capability`). One query."""
    if user.is_administrator:
        appcode = appcodes_for(user).filter(code=code).first()
    else:
        mine = Membership.objects.filter(user_id=user.pk, user__is_active=True, role__in=VIEW.value, appcode__code=code)
        row = mine.select_related("appcode__org_node").first()
        appcode = row.appcode if row else None
        if row and appcode:
            appcode.reader, appcode.reader_role = user.pk, row.role
    if appcode is None:
        raise Http404(f"There is no appcode “{code}” that you can see.")
    require(user, appcode, capability)
    return appcode


def require(user: User, appcode: Appcode, capability: Capability) -> None:
    """Raises PermissionDenied unless `user`, who may see `appcode`, has `capability` in it."""
    if not may(user, appcode, capability):
        needed = "owner" if capability is MANAGE else "developer or owner"
        raise PermissionDenied(f"You need to be {needed} of {appcode.code} to do this.")


def may_somewhere(user: User, capability: Capability) -> bool:
    """True if `user` has `capability` in any appcode; otherwise pages hide the button. One query."""
    return appcodes_for(user, capability).exists()


def require_somewhere(user: User, capability: Capability) -> None:
    """Raises PermissionDenied unless `may_somewhere`: the form would have nothing to choose from."""
    if not may_somewhere(user, capability):
        needed = "owner" if capability is MANAGE else "developer or owner"
        raise PermissionDenied(f"You need to be {needed} of an appcode to do this; its owners can change your role.")


def may(user: User, appcode: Appcode, capability: Capability) -> bool:
    if user.is_administrator:
        return True
    if appcode.reader == user.pk:
        return appcode.reader_role in capability.value
    mine = Membership.objects.filter(user_id=user.pk, user__is_active=True, role__in=capability.value)
    return mine.filter(appcode=appcode).exists()


def require_administrator(user: User) -> None:
    """Raises Http404, so that others cannot tell whether an administrator's page exists."""
    if not user.is_administrator:
        raise Http404("There is no such page.")


def people_for(user: User) -> QuerySet[User]:
    """The people that `user` may know of: everybody for an administrator; otherwise themselves and members of their appcodes."""
    if user.is_administrator:
        return User.objects.order_by("username")
    mine = Membership.objects.filter(user_id=user.pk).values("appcode")
    together = Membership.objects.filter(appcode__in=mine).values("user")
    return User.objects.filter(Q(pk=user.pk) | Q(pk__in=together), is_active=True).order_by("username")


def events_for(user: User) -> QuerySet[Event]:
    """The events that `user` may read: all for an administrator; otherwise those of their appcodes and their own."""
    if user.is_administrator:
        return Event.objects.all()
    return Event.objects.filter(Q(appcode__in=appcodes_for(user).values("code")) | Q(actor_id=user.pk))


def recent_names(user: User) -> tuple[list[str], list[str]]:
    """Kinds of events and names of people in the newest LATELY events that `user` may read. One query."""
    newest = events_for(user).order_by("-id").values_list("verb", "actor_name")[:LATELY]
    found = set(newest)
    return sorted({verb for verb, _ in found}), sorted({name for _, name in found})


def token_for(user: User, token_key: str) -> ApiToken:
    """The user's own token by its first characters. Raises Http404."""
    token: ApiToken | None = ApiToken.objects.filter(user=user, token_key=token_key).first()
    if token is None:
        raise Http404("You have no such token.")
    return token
