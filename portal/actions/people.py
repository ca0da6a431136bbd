"""What administrators do to people: create, deactivate, change rights and passwords."""

from __future__ import annotations

import secrets

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction

from portal import events
from portal.access import require_administrator
from portal.actions.tokens import end_tokens
from portal.errors import Conflict, FieldError, Invalid
from portal.models import ApiToken, Appcode, Membership, User
from portal.text.zones import zones

PASSWORD_ALPHABET = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # noqa: S105
Role, State = Membership.Role, Appcode.State


def set_time_zone(zone: str, *, acting_user: User) -> None:
    """Sets the IANA zone in which pages show times to `acting_user`; "" is the browser's. It writes no event: it is a
    preference like the theme and changes no rights. Raises Invalid at ("timeZone",)."""
    if zone and zone not in zones():
        raise Invalid.at("timeZone", message="There is no such time zone; give a name like Asia/Shanghai.")
    acting_user.time_zone = zone
    acting_user.save(update_fields=["time_zone"])


@transaction.atomic
def create_person(
    *, username: str, email: str, name: str = "", administrator: bool = False, acting_user: User
) -> tuple[User, str]:
    """Adds a person; returns them and a one-time password, which only allows choosing a new one. Raises Invalid at
    ("username",), ("email",) or ("name",)."""
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
    """Activates or deactivates a person; deactivation ends their sessions and deletes their tokens for good. Returns
    the codes of appcodes that now have no active owner, so that the caller can name them. Raises Conflict for oneself."""
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
    """Grants or revokes platform administration. Raises Conflict for oneself."""
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
    """Returns a new one-time password. It ends the person's sessions, which are bound to the old password, and their
    API tokens."""
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
