"""Which webhooks and deliveries a person may see: owners those of their appcodes, administrators all. Nobody else sees any,
because the URL of a receiver is often a secret in itself.
"""

from __future__ import annotations

import uuid

from django.db.models import QuerySet
from django.http import Http404

from portal.access import MANAGE, appcode_for, require_administrator
from portal.models import Appcode, Delivery, User, Webhook


def owner_of(user: User, code: str | None) -> Appcode | None:
    """The appcode whose webhooks are asked for, None for those of everything. Raises Http404 or PermissionDenied."""
    if code is None:
        require_administrator(user)
        return None
    return appcode_for(user, code, MANAGE)


def webhooks_of(appcode: Appcode | None) -> QuerySet[Webhook]:
    return all_webhooks().filter(appcode=appcode)


def all_webhooks() -> QuerySet[Webhook]:
    """For administrators."""
    return Webhook.objects.filter(deleted_at=None).select_related("appcode", "created_by")


def webhook_for(user: User, code: str | None, name: str) -> Webhook:
    """Raises Http404 (absent or not theirs) or PermissionDenied (a member who is no owner)."""
    found = webhooks_of(owner_of(user, code)).filter(name=name).first()
    if found is None:
        raise Http404(f"There is no webhook “{name}”.")
    return found


def deliveries_of(webhook: Webhook) -> QuerySet[Delivery]:
    return Delivery.objects.filter(webhook=webhook).select_related("event")


def delivery_for(webhook: Webhook, uid: uuid.UUID) -> Delivery:
    found = deliveries_of(webhook).filter(uid=uid).first()
    if found is None:
        raise Http404("There is no such delivery; they are forgotten after a while.")
    return found
