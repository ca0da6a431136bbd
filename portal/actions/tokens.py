"""API tokens of a person: made and revoked by themselves, deleted when the password changes."""

from __future__ import annotations

import datetime as dt

from django.db import transaction

from portal import events
from portal.errors import Conflict, FieldError, Invalid
from portal.manifests.appcode import MAX_TOKEN_DAYS
from portal.models import ApiToken, User

MAX_TOKENS = 50
TOKEN_NAME = 60


@transaction.atomic
def make_token(name: str, days: int, *, acting_user: User) -> tuple[ApiToken, str]:
    """Makes a bearer token that expires after `days` (1 to 365). Its text is returned only here; the database keeps the
    hash. Raises Invalid at ("name",) or ("days",), Conflict if there are too many."""
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
    """Revokes one's own token at once."""
    if token.user_id != acting_user.pk:
        raise Conflict("This is not your token.")
    events.record("token.revoked", actor=acting_user, object=f"token {token.name}")
    token.delete()


@transaction.atomic
def end_tokens(user: User, *, acting_user: User) -> None:
    """Deletes all API tokens of a person whose password has changed."""
    count, _ = ApiToken.objects.filter(user=user).delete()
    if count:
        events.record(
            "token.revoked",
            actor=acting_user,
            object=f"tokens of {user.username}",
            message=f"{count} ended with the password",
        )
