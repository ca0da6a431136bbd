"""Changing PORTAL_SECRET_KEY and PORTAL_SALT_KEYS while people work (docs/deployment.md, “Changing the keys”).

Django and django-encrypted-fields open what an older key signed or encrypted as long as it is listed behind the present one. Two
things are left to the portal: to encrypt rows with the present key, so that the older one can be dropped, and to keep sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from cryptography.fernet import Fernet, InvalidToken
from django.apps import apps
from django.conf import settings
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.core.exceptions import MiddlewareNotUsed
from django.db.models import Model, TextField
from django.db.models.functions import Cast
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from encrypted_fields.fields import EncryptedFieldMixin

from portal.models import User

BATCH = 500


@dataclass
class Found:
    """The values of one encrypted column, by its label ("datastores.Datastore.secret"): under the present key, under an older one
    (`rotated` counts those that were encrypted anew), or, by the ids of their rows, under none that is listed."""

    label: str
    present: int = 0
    older: int = 0
    rotated: int = 0
    lost: tuple[int, ...] = ()


def rotate(*, change: bool = True) -> Iterator[Found]:
    """Encrypts every value with the present key; without `change` it only counts. It may be stopped and repeated: each row is
    written by one statement, and only while it holds what was read."""
    for model in apps.get_models():
        for field in model._meta.concrete_fields:
            if isinstance(field, EncryptedFieldMixin):
                yield _rotate(model, field, change)


def _rotate(model: type[Model], field: Any, change: bool) -> Found:
    found = Found(f"{model._meta.label}.{field.attname}")
    present = Fernet(field.keys[0])
    rows = (
        model._default_manager.annotate(_stored=Cast(field.attname, TextField())).exclude(_stored=None).order_by("pk")
    )
    left = rows
    while batch := [*left.values_list("pk", "_stored")[:BATCH]]:
        for pk, stored in batch:
            if _opens(present, stored):
                found.present += 1
                continue
            try:
                value = field.f.decrypt(stored.encode()).decode()
            except InvalidToken:
                found.lost += (pk,)
                continue
            found.older += 1
            if change:
                # Whoever changed the row meanwhile used a key of their own; the next rotation sees which.
                found.rotated += rows.filter(pk=pk, _stored=stored).order_by().update(**{field.attname: value})
        left = rows.filter(pk__gt=batch[-1][0])
    return found


def _opens(key: Fernet, stored: str) -> bool:
    try:
        key.decrypt(stored.encode())
    except InvalidToken:
        return False
    return True


def _is_among(value: str, candidates: Iterable[str]) -> bool:
    return any(constant_time_compare(value, each) for each in candidates)


class SessionsMiddleware:
    """Moves sessions that an older key signed to the present one.

    Django does so by itself, but gives them another session key. Of two requests that a browser sends at once the second would
    then find no session, and sign its person out. Open applications (`Visit`) would be closed, too.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        if not settings.SECRET_KEY_FALLBACKS:
            raise MiddlewareNotUsed
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        signed = request.session.get(HASH_SESSION_KEY, "")
        user = User.objects.filter(pk=request.session[SESSION_KEY]).first() if signed else None
        if user is not None and _is_among(signed, user.get_session_auth_fallback_hash()):
            request.session[HASH_SESSION_KEY] = user.get_session_auth_hash()
        return self.get_response(request)
