"""REST of webhooks: below an appcode for its owners, below /webhooks for administrators (global webhooks), and below
/me/webhook for the user's own, which is set with the other notifications (/me/notifications)."""

from __future__ import annotations

import uuid

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.api.operations import Document, created, operation
from portal.api.pagination import LIST_PARAMETERS, PAGE_PARAMETERS, page, search, text
from portal.api.views import administrator, person
from portal.errors import Invalid
from portal.models import Delivery
from portal.webhooks import access, actions
from portal.webhooks.serializers import (
    DeliveryDocument,
    DeliveryPage,
    MadeWebhook,
    WebhookDocument,
    WebhookPage,
    WebhookSecret,
    delivery_document,
    delivery_summary,
    made_webhook,
    read_webhook,
    webhook_document,
)
from portal.webhooks.specs import WebhookManifest

EXAMPLE = OpenApiExample(
    "What a run does and what it costs",
    request_only=True,
    value={
        "kind": "webhook",
        "metadata": {"name": "team-chat"},
        "spec": {"url": "https://example.com/hooks/gpu", "events": ["run.*", "invoice.closed"]},
    },
)
FILTERS = [
    *PAGE_PARAMETERS,
    OpenApiParameter("state", str, description="Only of this state.", enum=Delivery.State.values),
    OpenApiParameter("type", str, description="Only of this kind of events, like run.failed."),
]


class AppcodeWebhooks(APIView):
    @operation("webhooks_list", WebhookPage, parameters=LIST_PARAMETERS)
    def get(self, request: Request, code: str) -> Response:
        """The webhooks of an appcode, for its owners"""
        rows = access.webhooks_of(access.owner_of(person(request), code))
        return page(request, search(request, rows, "name", "host"), order="name", render=webhook_document)

    @operation("webhooks_create", {201: MadeWebhook}, request=WebhookManifest, examples=[EXAMPLE])
    def post(self, request: Request, code: str | None = None) -> Response:
        """Send events of an appcode to a URL

        The answer has the secret by which messages are verified; it is told only here."""
        user = person(request)
        appcode = access.owner_of(user, code)
        webhook, secret = actions.create_webhook(read_webhook(request.data), appcode=appcode, acting_user=user)
        return created(request, webhook.name, made_webhook(webhook, secret))


@extend_schema_view(
    post=extend_schema(operation_id="webhooks_all_create", summary="Send events of everything to a URL")
)
class AllWebhooks(AppcodeWebhooks):
    @operation("webhooks_all_list", WebhookPage, parameters=LIST_PARAMETERS)
    def get(self, request: Request, code: str | None = None) -> Response:
        """All webhooks, those of every appcode, too

        Administrators only."""
        administrator(request)
        rows = search(request, access.all_webhooks(), "name", "host", "appcode__code")
        return page(request, rows, order="-id", render=webhook_document)


class OneWebhook(APIView):
    @operation("webhooks_read", WebhookDocument)
    def get(self, request: Request, name: str | None = None, code: str | None = None) -> Document:
        """A webhook as a manifest"""
        return webhook_document(access.webhook_for(person(request), code, name))

    @operation("webhooks_change", WebhookDocument, request=WebhookManifest, examples=[EXAMPLE])
    def put(self, request: Request, name: str | None = None, code: str | None = None) -> Document:
        """Change a webhook

        Enabling one that was disabled sends what it has not got meanwhile."""
        user = person(request)
        webhook = access.webhook_for(user, code, name)
        changed = actions.change_webhook(webhook, read_webhook(request.data, name=name), acting_user=user)
        return webhook_document(changed)

    @operation("webhooks_delete", {204: None})
    def delete(self, request: Request, name: str | None = None, code: str | None = None) -> None:
        """Delete a webhook; nothing more is sent"""
        user = person(request)
        actions.delete_webhook(access.webhook_for(user, code, name), acting_user=user)


class RotateSecret(APIView):
    @operation("webhooks_rotate", WebhookSecret)
    def post(self, request: Request, name: str | None = None, code: str | None = None) -> Document:
        """A new secret

        It is told only here. For 24 hours messages are signed with the one before, too."""
        user = person(request)
        webhook = access.webhook_for(user, code, name)
        secret = actions.rotate_secret(webhook, acting_user=user)
        webhook.refresh_from_db()
        assert webhook.old_secret_until is not None
        return WebhookSecret(secret=secret, old_secret_until=webhook.old_secret_until).json_value()


class SendTest(APIView):
    @operation("webhooks_test", {202: DeliveryDocument})
    def post(self, request: Request, name: str | None = None, code: str | None = None) -> Document:
        """Send a test, an event webhook.test"""
        user = person(request)
        row = actions.send_test(access.webhook_for(user, code, name), acting_user=user)
        return delivery_document(row)


class Deliveries(APIView):
    @operation("deliveries_list", DeliveryPage, parameters=FILTERS)
    def get(self, request: Request, name: str | None = None, code: str | None = None) -> Response:
        """What was sent and what waits, the latest first"""
        rows = access.deliveries_of(access.webhook_for(person(request), code, name))
        if state := text(request, "state", longest=10):
            if state not in Delivery.State.values:
                raise Invalid.at("state", message=f"Say one of {', '.join(Delivery.State.values)}.")
            rows = rows.filter(state=state)
        if kind := text(request, "type", longest=60):
            rows = rows.filter(kind=kind)
        return page(request, rows, order="-id", render=delivery_summary)


class OneDelivery(APIView):
    @operation("deliveries_read", DeliveryDocument)
    def get(self, request: Request, uid: uuid.UUID, name: str | None = None, code: str | None = None) -> Document:
        """A delivery with what is sent and what was answered"""
        webhook = access.webhook_for(person(request), code, name)
        return delivery_document(access.delivery_for(webhook, uid))


class DeliverAgain(APIView):
    @operation("deliveries_again", {202: DeliveryDocument})
    def post(self, request: Request, uid: uuid.UUID, name: str | None = None, code: str | None = None) -> Document:
        """Send it again, under the same id"""
        user = person(request)
        row = access.delivery_for(access.webhook_for(user, code, name), uid)
        again = actions.deliver_again(row, acting_user=user)
        return delivery_document(again)


def _again(view: type[APIView], whose: str, **names: str) -> type[APIView]:
    """A copy of `view` for another base URL, with the methods in `names` and their operation ids."""
    schema = {method: extend_schema(operation_id=name) for method, name in names.items()}
    attributes = {"__module__": __name__, "http_method_names": [*names, "head", "options"]}
    return extend_schema_view(**schema)(type(f"{view.__name__}Of{whose}", (view,), attributes))


OneOfAll = _again(OneWebhook, "All", get="webhooks_all_read", put="webhooks_all_change", delete="webhooks_all_delete")
RotateOfAll = _again(RotateSecret, "All", post="webhooks_all_rotate")
TestOfAll = _again(SendTest, "All", post="webhooks_all_test")
DeliveriesOfAll = _again(Deliveries, "All", get="deliveries_all_list")
DeliveryOfAll = _again(OneDelivery, "All", get="deliveries_all_read")
AgainOfAll = _again(DeliverAgain, "All", post="deliveries_all_again")
OneOfMine = _again(OneWebhook, "Mine", get="my_webhook_read")
RotateOfMine = _again(RotateSecret, "Mine", post="my_webhook_rotate")
TestOfMine = _again(SendTest, "Mine", post="my_webhook_test")
DeliveriesOfMine = _again(Deliveries, "Mine", get="my_deliveries_list")
DeliveryOfMine = _again(OneDelivery, "Mine", get="my_deliveries_read")
AgainOfMine = _again(DeliverAgain, "Mine", post="my_deliveries_again")
