"""Documents of webhooks and deliveries. A secret is only in the response that creates it."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, Literal

from pydantic import Field

from portal.api.documents import Answer, Who, page_of
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
    created_by: Who
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


WebhookPage = page_of("WebhookPage", WebhookDocument)


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


DeliveryPage = page_of("DeliveryPage", DeliverySummary)


def read_webhook(body: Any, *, name: str | None = None) -> WebhookManifest:
    """Parses a webhook manifest. The URL may supply the name and always supplies the appcode. Raises Invalid."""
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
    """Skips validation: a URL that was encrypted with another key decrypts to garbage and must not hide the other
    webhooks of a list."""
    return WebhookDocument(
        metadata=WebhookNames(name=webhook.name, appcode=webhook.appcode.code if webhook.appcode else None),
        spec=WebhookSpec.model_construct(url=webhook.url, events=webhook.kinds, enabled=webhook.enabled),
        status=WebhookStatus.of(
            webhook,
            state="enabled" if webhook.enabled else "disabled",
            note=webhook.disabled_reason,
            created=webhook.created_at,
            last_accepted=webhook.last_ok_at,
        ),
    )


def delivery_summary(row: Delivery) -> dict[str, Any]:
    return DeliverySummary.of(row, **_facts(row)).json_value()


def delivery_document(row: Delivery) -> dict[str, Any]:
    body = json.loads(specs.body(sending.facts(row.event)))
    return DeliveryDocument.of(row, **_facts(row), body=body).json_value()


def _facts(row: Delivery) -> dict[str, Any]:
    return {
        "id": row.message_id, "uid": str(row.uid), "type": row.kind, "event": row.event_id, "created": row.created_at,
        "next_attempt": row.next_at if row.state == Delivery.State.WAITING else None, "sent": row.sent_at,
        "delivered": row.delivered_at,
    }  # fmt: skip
