"""What a person wants to be told of the runs that they started, and how: by mail, by a notification of their browsers, or by a
webhook of their own.

A phase that a run comes to is news for who started it (clusters/runs/status/notifications.py). What an appcode tells other
programs of all its runs are its own webhooks (portal/webhooks).
"""

from __future__ import annotations

from typing import Annotated, Literal

from django.db import transaction
from pydantic import AfterValidator, Field

from portal.errors import FieldError, Invalid
from portal.manifests import Strict
from portal.models import User, Webhook
from portal.webhooks.access import own_webhook
from portal.webhooks.actions import set_own_webhook
from portal.webhooks.specs import Url, WebhookSpec

Phase = Literal["running", "succeeded", "failed", "stopped", "taken_back"]
# Phases in lower case, and what else befalls a run (its event is `run.WORD`); and how people read them.
PHASES: dict[Phase, str] = {
    "running": "starts running", "succeeded": "succeeds", "failed": "fails", "stopped": "is stopped",
    "taken_back": "has its GPUs taken back",
}  # fmt: skip


def _in_order(value: list[Phase]) -> list[Phase]:
    return [phase for phase in PHASES if phase in value]


Phases = Annotated[list[Phase], Field(max_length=20, examples=[["failed", "succeeded"]]), AfterValidator(_in_order)]


class PersonWebhook(Strict):
    """The URL that gets notifications of one's own runs, and for which phases. The portal disables a webhook that
    accepts nothing."""

    url: Url
    phases: Annotated[Phases, Field(min_length=1)]
    enabled: bool = True


class Notifications(Strict):
    """The phases of one's own runs that `mail`, `browser` and `webhook` notify of; none by default."""

    mail: Phases = Field(default_factory=list)
    browser: Phases = Field(default_factory=list)
    webhook: PersonWebhook | None = None


class SavedNotifications(Notifications):
    secret: str | None = Field(
        description="Of a webhook that is new: with it messages are verified. It is told only here."
    )


def notifications_of(user: User) -> Notifications:
    """One query."""
    return Notifications.model_validate(
        {"mail": user.mail_phases, "browser": user.browser_phases, "webhook": _value(own_webhook(user))}
    )


@transaction.atomic
def set_notifications(wanted: Notifications, *, acting_user: User) -> str | None:
    """Sets the user's own notifications; earlier events are not sent. Returns the secret of a new webhook, which is
    available only now. Raises Invalid with paths of `wanted`, Conflict if the webhook is removed meanwhile."""
    acting_user.mail_phases, acting_user.browser_phases = list(wanted.mail), list(wanted.browser)
    acting_user.save(update_fields=["mail_phases", "browser_phases"])
    try:
        return set_own_webhook(_spec(wanted.webhook), acting_user=acting_user)
    except Invalid as error:
        raise Invalid([FieldError(("webhook", *each.path[1:]), each.message) for each in error.errors]) from error


def _value(webhook: Webhook | None) -> PersonWebhook | None:
    """Skips validation: a URL that was encrypted with another key decrypts to garbage."""
    if webhook is None:
        return None
    phases = [phase for phase in PHASES if f"run.{phase}" in webhook.kinds]
    return PersonWebhook.model_construct(url=webhook.url, phases=phases, enabled=webhook.enabled)


def _spec(wanted: PersonWebhook | None) -> WebhookSpec | None:
    if wanted is None:
        return None
    return WebhookSpec(url=wanted.url, events=[f"run.{phase}" for phase in wanted.phases], enabled=wanted.enabled)
