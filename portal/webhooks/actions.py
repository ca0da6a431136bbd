"""Changes of webhooks by people. Every function is one transaction that also writes its Event.

Events name the host of a receiver, never its URL, which often contains a token.
"""

from __future__ import annotations

import base64
import datetime as dt
import secrets

from django.conf import settings
from django.db import IntegrityError, transaction
from django.http import Http404
from django.utils import timezone

from portal import events
from portal.access import MANAGE, require, require_administrator
from portal.errors import Conflict, FieldError, Invalid
from portal.manifests.kept import refuse_changes
from portal.models import OWN_WEBHOOK, Appcode, Delivery, Event, User, Webhook
from portal.network import outgoing
from portal.webhooks import access, specs
from portal.webhooks.sending import way
from portal.webhooks.specs import WebhookManifest, WebhookMetadata, WebhookSpec

MAX_OF_EVERYTHING = 50
# Time for a receiver to learn a new secret.
BOTH_HOLD = dt.timedelta(hours=24)
TEST = "webhook.test"
# Waiting tests per webhook; a person waits for each of them.
MAX_TESTS = 5
# Replaces the URL and the secret of a deleted webhook.
NOTHING_LEFT = "-"


def require_owner(user: User, appcode: Appcode | None) -> None:
    if appcode is None:
        require_administrator(user)
    else:
        require(user, appcode, MANAGE)


def require_owner_of(user: User, webhook: Webhook) -> None:
    if webhook.person_id is None:
        require_owner(user, webhook.appcode)
    elif webhook.person_id != user.pk:
        raise Http404("There is no such webhook.")


@transaction.atomic
def create_webhook(manifest: WebhookManifest, *, appcode: Appcode | None, acting_user: User) -> tuple[Webhook, str]:
    """Creates a webhook of an appcode, or a global one; returns it with its secret, which is available only now. Raises
    Invalid with paths of the manifest, Conflict if there are too many."""
    require_owner(acting_user, appcode)
    mine, most = Webhook.objects.filter(appcode=appcode, person=None, deleted_at=None), MAX_OF_EVERYTHING
    if appcode is not None:
        # The lock makes concurrent creations count correctly.
        Appcode.objects.select_for_update(no_key=True).get(pk=appcode.pk)
        most = settings.WEBHOOKS_PER_APPCODE
    if mine.filter(name=manifest.metadata.name).exists():
        raise _taken(manifest)
    if mine.count() >= most:
        raise Conflict(f"There are {most} webhooks already; delete one that is not needed.")
    return _make(manifest, acting_user, appcode=appcode)


@transaction.atomic
def set_own_webhook(spec: WebhookSpec | None, *, acting_user: User) -> str | None:
    """Sets the user's own webhook to `spec`; None removes it. Returns the secret of a new one, which is available only
    now. The caller has changed the user's row in this transaction, which serialises concurrent calls. Raises Invalid
    with paths of a manifest, Conflict."""
    webhook = access.own_webhook(acting_user)
    if spec is None:
        if webhook is not None:
            delete_webhook(webhook, acting_user=acting_user)
        return None
    manifest = WebhookManifest(metadata=WebhookMetadata(name=OWN_WEBHOOK), spec=spec)
    if webhook is None:
        return _make(manifest, acting_user, person=acting_user)[1]
    change_webhook(webhook, manifest, acting_user=acting_user)
    return None


def _make(
    manifest: WebhookManifest, acting_user: User, *, appcode: Appcode | None = None, person: User | None = None
) -> tuple[Webhook, str]:
    secret = _new_secret()
    webhook = Webhook(
        appcode=appcode, person=person, name=manifest.metadata.name, url=manifest.spec.url, host=_target(manifest).name,
        kinds=manifest.spec.events, enabled=manifest.spec.enabled, secret=secret, created_by=acting_user,
    )  # fmt: skip
    try:
        with transaction.atomic():
            webhook.save()
    except IntegrityError as error:
        raise _taken(manifest) from error
    _record("webhook.created", webhook, acting_user, f"Sends {_kinds(webhook)} to {webhook.host}.")
    return webhook, secret


@transaction.atomic
def change_webhook(webhook: Webhook, manifest: WebhookManifest, *, acting_user: User) -> Webhook:
    """Changes the webhook to match the manifest; its name stays. Enabling it sends waiting deliveries. Raises Invalid,
    Conflict."""
    require_owner_of(acting_user, webhook)
    refuse_changes(manifest, name=webhook.name)
    target, webhook = _target(manifest), _locked(webhook)
    wanted = {
        "url": manifest.spec.url, "host": target.name, "kinds": manifest.spec.events, "enabled": manifest.spec.enabled,
    }  # fmt: skip
    words = {
        "url": "URL",
        "host": "receiver",
        "kinds": "events",
        "enabled": "enabled" if manifest.spec.enabled else "disabled",
    }
    changed = [name for name, value in wanted.items() if getattr(webhook, name) != value]
    if not changed:
        return webhook
    for name, value in wanted.items():
        setattr(webhook, name, value)
    webhook.disabled_reason = ""
    if "enabled" in changed and webhook.enabled:
        # Waiting deliveries get as much time as new ones.
        waiting = Delivery.objects.filter(webhook=webhook, state=Delivery.State.WAITING)
        waiting.update(next_at=timezone.now(), attempts=0, first_at=None, claim=None)
    webhook.save(update_fields=[*wanted, "disabled_reason", "changed_at"])
    said = f"Changed {', '.join(words[name] for name in changed)}: sends {_kinds(webhook)} to {webhook.host}."
    _record("webhook.changed", webhook, acting_user, said)
    return webhook


@transaction.atomic
def delete_webhook(webhook: Webhook, *, acting_user: User) -> None:
    """Stops all sending, including waiting deliveries. The row is deleted after its last delivery was purged."""
    require_owner_of(acting_user, webhook)
    webhook = _locked(webhook)
    _record("webhook.deleted", webhook, acting_user, f"Sent {_kinds(webhook)} to {webhook.host}.")
    webhook.deleted_at, webhook.enabled = timezone.now(), False
    webhook.url, webhook.secret, webhook.old_secret = NOTHING_LEFT, NOTHING_LEFT, None
    webhook.save(update_fields=["deleted_at", "enabled", "url", "secret", "old_secret", "changed_at"])


@transaction.atomic
def rotate_secret(webhook: Webhook, *, acting_user: User) -> str:
    """Returns a new secret, which is available only now. For a day messages are also signed with the previous one."""
    require_owner_of(acting_user, webhook)
    webhook, secret = _locked(webhook), _new_secret()
    webhook.old_secret, webhook.old_secret_until = webhook.secret, timezone.now() + BOTH_HOLD
    webhook.secret = secret
    webhook.save(update_fields=["secret", "old_secret", "old_secret_until", "changed_at"])
    _record(
        "webhook.rotated",
        webhook,
        acting_user,
        f"A new secret; the old one holds until {webhook.old_secret_until:%F %T} UTC.",
    )
    return secret


@transaction.atomic
def send_test(webhook: Webhook, *, acting_user: User) -> Delivery:
    """Sends a test event to this webhook, whatever events it subscribes to. Raises Conflict if it is disabled or
    MAX_TESTS tests wait."""
    require_owner_of(acting_user, webhook)
    webhook = _enabled(_locked(webhook))
    waiting = Delivery.objects.filter(webhook=webhook, state=Delivery.State.WAITING, kind=TEST)
    if waiting.count() >= MAX_TESTS:
        raise Conflict(f"{MAX_TESTS} tests are on their way already; see what becomes of them first.")
    event = _record(TEST, webhook, acting_user, "A test. Nothing has happened.")
    # For a webhook that subscribes to everything, the trigger has made the delivery already.
    return Delivery.objects.get_or_create(webhook=webhook, event=event, defaults={"kind": event.verb})[0]


@transaction.atomic
def deliver_again(delivery: Delivery, *, acting_user: User) -> Delivery:
    """Sends it again now, under the same id and with the retries of a new delivery. Raises Conflict if the webhook is
    disabled."""
    require_owner_of(acting_user, delivery.webhook)
    webhook = _enabled(_locked(delivery.webhook))
    Delivery.objects.filter(pk=delivery.pk).update(
        state=Delivery.State.WAITING, next_at=timezone.now(), attempts=0, first_at=None, claim=None
    )
    _record(
        "webhook.again", webhook, acting_user, f"Sends {delivery.kind} of event {delivery.event_id} again.",
        message_id=delivery.message_id,
    )  # fmt: skip
    delivery.refresh_from_db()
    return delivery


def _target(manifest: WebhookManifest) -> specs.Target:
    """The target of the URL. Raises Invalid if the settings forbid it; names are resolved only when a message is sent."""
    target, errors = specs.target(manifest.spec.url), []
    if not target.secure and not settings.WEBHOOK_HTTP:
        errors.append(FieldError(("spec", "url"), "Use https: an administrator does not allow messages without TLS."))
    try:
        outgoing.check_literal(target.host, target.port, way().rules)
    except outgoing.Closed as error:
        errors.append(FieldError(("spec", "url"), str(error)))
    if errors:
        raise Invalid(errors)
    return target


def _taken(manifest: WebhookManifest) -> Invalid:
    return Invalid.at("metadata", "name", message=f"There is a webhook “{manifest.metadata.name}” already.")


def _locked(webhook: Webhook) -> Webhook:
    """The locked, current row. NO KEY UPDATE: concurrent deliveries to it need not wait. Raises Conflict if it was deleted."""
    rows = Webhook.objects.select_for_update(of=("self",), no_key=True).select_related("appcode", "person")
    found = rows.filter(pk=webhook.pk, deleted_at=None).first()
    if found is None:
        raise Conflict(f"{webhook.title} was deleted.")
    return found


def _enabled(webhook: Webhook) -> Webhook:
    if not webhook.enabled:
        raise Conflict(f"{webhook.title} is disabled; enable it first.")
    return webhook


def _new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def _kinds(webhook: Webhook) -> str:
    return ", ".join(webhook.kinds)[:400]


def _record(verb: str, webhook: Webhook, actor: User, message: str, **data: object) -> Event:
    code = webhook.appcode.code if webhook.appcode else ""
    return events.record(
        verb, actor=actor, object=f"webhook {webhook}", appcode=code, message=message, host=webhook.host, **data
    )
