"""Which webhooks and deliveries a user may see: owners those of their appcodes, administrators those of all appcodes
and the global ones, and every user their own, which others do not see. The URL of a receiver is often a secret."""

from __future__ import annotations

import uuid

from django.db.models import Q, QuerySet
from django.http import Http404

from portal.access import MANAGE, appcode_for, appcodes_for, require_administrator
from portal.models import Appcode, Delivery, User, Webhook


def owner_of(user: User, code: str | None) -> Appcode | None:
    """The appcode whose webhooks are requested, None for the global ones. Raises Http404 or PermissionDenied."""
    if code is None:
        require_administrator(user)
        return None
    return appcode_for(user, code, MANAGE)


def webhooks_of(appcode: Appcode | None) -> QuerySet[Webhook]:
    return all_webhooks().filter(appcode=appcode)


def all_webhooks() -> QuerySet[Webhook]:
    """For administrators, without webhooks of persons."""
    return Webhook.objects.filter(person=None, deleted_at=None).select_related("appcode", "created_by")


def own_webhook(user: User) -> Webhook | None:
    """One query."""
    return Webhook.objects.filter(person=user, deleted_at=None).select_related("person", "created_by").first()


def webhook_for(user: User, code: str | None, name: str | None) -> Webhook:
    """The user's own webhook without a `name`. Raises Http404 (absent or not theirs) or PermissionDenied (a member who
    is not an owner)."""
    found = webhooks_of(owner_of(user, code)).filter(name=name).first() if name else own_webhook(user)
    if found is None:
        raise Http404(
            f"There is no webhook “{name}”." if name else "You have no webhook of your own; choose one on your profile."
        )
    return found


def deliveries_of(webhook: Webhook) -> QuerySet[Delivery]:
    """For a person's own webhook only deliveries of appcodes that they may still see."""
    found = Delivery.objects.filter(webhook=webhook).select_related("event")
    if webhook.person:
        found = found.filter(Q(event__appcode="") | Q(event__appcode__in=appcodes_for(webhook.person).values("code")))
    return found


def delivery_for(webhook: Webhook, uid: uuid.UUID) -> Delivery:
    found = deliveries_of(webhook).filter(uid=uid).first()
    if found is None:
        raise Http404("There is no such delivery; they are forgotten after a while.")
    return found
