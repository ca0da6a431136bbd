"""Webhooks and deliveries as the API says them. A secret is in the answer that makes it and in no other."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, Literal

from pydantic import Field

from portal.api.documents import Answer
from portal.manifests import parse
from portal.models import Delivery, Webhook
from portal.webhooks import sending, specs
from portal.webhooks.specs import WebhookManifest, WebhookSpec


class WebhookNames(Answer):
    name: str
    appcode: str | None = Field(description="null: events of everything.")


class WebhookStatus(Answer):
    state: Literal["enabled", "disabled"]
    note: str = Field(description="Why the portal disabled it.")
    created: dt.datetime
    created_by: str | None
    last_accepted: dt.datetime | None = Field(description="To the minute.")
    old_secret_until: dt.datetime | None = Field(
        description="Until then messages are signed with the secret before, too."
    )


class WebhookDocument(Answer):
    kind: Literal["webhook"] = "webhook"
    metadata: WebhookNames
    spec: WebhookSpec
    status: WebhookStatus


class MadeWebhook(WebhookDocument):
    secret: str = Field(description="With it messages are verified. It is told only once.")


class WebhookPage(Answer):
    items: list[WebhookDocument]
    next: str | None


class WebhookSecret(Answer):
    secret: str
    old_secret_until: dt.datetime


class DeliverySummary(Answer):
    id: str = Field(description="The header webhook-id, the same at every attempt.")
    uid: str
    type: str
    event: int
    state: Literal["waiting", "delivered", "failed"]
    created: dt.datetime
    attempts: int
    next_attempt: dt.datetime | None
    sent: dt.datetime | None
    delivered: dt.datetime | None
    status: int | None
    error: str
    duration_ms: int | None


class DeliveryDocument(DeliverySummary):
    body: dict[str, Any]
    headers: dict[str, str] = Field(description="Of the last attempt.")
    answer: str = Field(
        description=f"The first {specs.MAX_EXCERPT} bytes of what the receiver answered to the last attempt."
    )


class DeliveryPage(Answer):
    items: list[DeliverySummary]
    next: str | None


def read_webhook(body: Any, *, name: str | None = None) -> WebhookManifest:
    """The manifest in a body; the address may say the name instead, and always says the appcode. Raises Invalid."""
    if isinstance(body, dict):
        named = body.get("metadata", {} if name is None else {"name": name})
        if isinstance(named, dict):
            named = {key: value for key, value in named.items() if key != "appcode"}
        body = {**body, "metadata": named}
    return parse(WebhookManifest, body)


def webhook_document(webhook: Webhook) -> dict[str, Any]:
    return _document(webhook).json_value()


def made_webhook(webhook: Webhook, secret: str) -> dict[str, Any]:
    return MadeWebhook(**dict(_document(webhook)), secret=secret).json_value()


def _document(webhook: Webhook) -> WebhookDocument:
    """Not judged again: of a URL that was encrypted by another key something is left that is none, and lists show the others."""
    return WebhookDocument(
        metadata=WebhookNames(name=webhook.name, appcode=webhook.appcode.code if webhook.appcode else None),
        spec=WebhookSpec.model_construct(url=webhook.url, events=webhook.kinds, enabled=webhook.enabled),
        status=WebhookStatus(
            state="enabled" if webhook.enabled else "disabled",
            note=webhook.disabled_reason,
            created=webhook.created_at,
            created_by=webhook.created_by.username if webhook.created_by else None,
            last_accepted=webhook.last_ok_at,
            old_secret_until=webhook.old_secret_until,
        ),
    )


def delivery_summary(row: Delivery) -> dict[str, Any]:
    return DeliverySummary(**_facts(row)).json_value()


def delivery_document(row: Delivery) -> dict[str, Any]:
    body = json.loads(specs.body(sending.facts(row.event)))
    return DeliveryDocument(**_facts(row), body=body, headers=row.headers, answer=row.answer).json_value()


def _facts(row: Delivery) -> dict[str, Any]:
    return {
        "id": row.message_id, "uid": str(row.uid), "type": row.kind, "event": row.event_id, "state": row.state,
        "created": row.created_at, "attempts": row.attempts,
        "next_attempt": row.next_at if row.state == Delivery.State.WAITING else None, "sent": row.sent_at,
        "delivered": row.delivered_at, "status": row.status, "error": row.error, "duration_ms": row.duration_ms,
    }  # fmt: skip
