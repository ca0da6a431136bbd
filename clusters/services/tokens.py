"""Tokens of a service: the routers let in a request that carries one."""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets

from django.db import transaction
from django.http import Http404
from django.utils import timezone

from clusters.services import notify
from clusters.services.access import SERVICES
from clusters.services.manifest import TokenSpec
from clusters.services.models import Service, ServiceToken
from portal.errors import Invalid
from portal.models import User

# Tokens of one service.
MOST_TOKENS = 100
PREFIX = "gps_"


@transaction.atomic
def create_token(service: Service, spec: TokenSpec, *, acting_user: User) -> tuple[ServiceToken, str]:
    """Returns the row, and the token, which is not stored. Raises Invalid."""
    service = SERVICES.locked(service, acting_user)
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
    SERVICES.record(service, "token-created", acting_user, f"The token “{row.name}” may ask it.", token=row.name)
    notify.reroute(service)
    return row, token


@transaction.atomic
def delete_token(service: Service, name: str, *, acting_user: User) -> None:
    """Deletes the token; routers reject it from now on. Raises Http404."""
    service = SERVICES.locked(service, acting_user)
    if not service.tokens.filter(name=name).delete()[0]:
        raise Http404(f"{service.name} has no token “{name}”.")
    SERVICES.record(service, "token-deleted", acting_user, f"The token “{name}” may ask it no more.", token=name)
    notify.reroute(service)
