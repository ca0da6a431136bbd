"""A transactional outbox for mail: written together with the change it is about, sent by a task afterwards.

A sender leases a mail, so that two do not send the same. Refused mail is retried with growing delays for seven days. If a
process dies while sending, the mail is sent again with the same Message-ID, by which mail programs detect the duplicate.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from smtplib import SMTPException
from typing import ClassVar
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.mail import EmailMessage
from django.db import models, transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from billing import wakeups
from portal.models import Appcode
from portal.pages.layout import sends_mail

log = logging.getLogger(__name__)

HOLD = dt.timedelta(minutes=2)
TRY_FOR = dt.timedelta(days=7)
FIRST_WAIT, LONGEST_WAIT = dt.timedelta(minutes=1), dt.timedelta(hours=6)


class Mail(models.Model):
    """A mail to `to`, or else to the notification addresses of an appcode, written with the change it is about and sent
    afterwards. `key` names the occasion ("invoice INV-202610-ops-demo") and is unique, so each is mailed once. It is
    sent at `due_at`, which the sender first moves ahead as its lease, and not after `give_up_at`."""

    key = models.CharField(max_length=120, unique=True)
    appcode = models.ForeignKey(
        Appcode, null=True, on_delete=models.PROTECT, related_name="+", help_text="None: it is about none."
    )
    subject = models.CharField(max_length=200)
    text = models.TextField()
    to = ArrayField(
        models.EmailField(), default=list, help_text="None: the addresses that the appcode has when it is sent."
    )
    created_at = models.DateTimeField(db_default=Now())
    due_at = models.DateTimeField(db_default=Now())
    give_up_at = models.DateTimeField()
    tries = models.PositiveIntegerField(default=0, db_default=0)
    sent_at = models.DateTimeField(null=True)
    sent_to = ArrayField(models.EmailField(), default=list)
    error = models.CharField(max_length=300, blank=True)

    class Meta:
        indexes: ClassVar = [models.Index(fields=["due_at"], name="mail_waiting", condition=Q(sent_at=None))]

    def __str__(self) -> str:
        return self.key


@dataclass(frozen=True)
class Letter:
    """`key` identifies the occasion for ever. Without `to` it goes to the appcode's notification addresses."""

    key: str
    appcode_id: int | None
    subject: str
    text: str
    to: tuple[str, ...] = ()


def queue(letters: Sequence[Letter], now: dt.datetime) -> None:
    """Writes mail to the outbox. Call it in the transaction that makes the change."""
    Mail.objects.bulk_create(
        (
            Mail(
                key=letter.key, appcode_id=letter.appcode_id, subject=letter.subject, text=letter.text, to=list(letter.to),
                due_at=now, give_up_at=now + TRY_FOR,
            )
            for letter in letters
        ),
        ignore_conflicts=True,
    )  # fmt: skip
    transaction.on_commit(wakeups.wake_mail)


def tell(key: str, appcode_id: int | None, subject: str, text: str, to: Sequence[str]) -> None:
    """The outbox for `portal.extension_points`."""
    queue([Letter(key, appcode_id, subject[:200], text, tuple(to))], timezone.now())


def again(mail: Mail) -> None:
    """Retries a mail that was given up."""
    now = timezone.now()
    Mail.objects.filter(pk=mail.pk, sent_at=None).update(due_at=now, give_up_at=now + TRY_FOR, error="")
    transaction.on_commit(wakeups.wake_mail)


def send_due(now: dt.datetime | None = None) -> int:
    """Sends due mail; returns how many. Without a mail server everything stays queued."""
    if not sends_mail():
        return 0
    sent = 0
    while mail := _hold(now or timezone.now()):
        sent += _send(mail, now or timezone.now())
    return sent


@transaction.atomic
def _hold(now: dt.datetime) -> Mail | None:
    """Leases the next mail for HOLD; if the sender dies, it is due again afterwards."""
    due = Mail.objects.filter(sent_at=None, due_at__lte=now, give_up_at__gt=now).select_related("appcode")
    mail = due.select_for_update(skip_locked=True, of=("self",)).order_by("due_at", "pk").first()
    if mail is not None:
        mail.due_at, mail.tries = now + HOLD, mail.tries + 1
        mail.save(update_fields=["due_at", "tries"])
    return mail


def _send(mail: Mail, now: dt.datetime) -> bool:
    to = mail.to or (list(mail.appcode.emails) if mail.appcode else [])
    host = urlsplit(settings.PORTAL_ORIGIN).hostname
    headers = {
        "Message-ID": f"<{hashlib.sha256(mail.key.encode()).hexdigest()[:32]}@{host}>",
        "Auto-Submitted": "auto-generated",
    }
    try:
        EmailMessage(mail.subject, mail.text, to=to, headers=headers).send()
    except (SMTPException, OSError) as error:
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(mail.tries, 20))
        log.warning("mail “%s” was not sent and is tried again in %s: %s", mail.key, wait, error)
        said = str(error) or type(error).__name__
        Mail.objects.filter(pk=mail.pk).update(error=said[:300], due_at=now + wait)
        return False
    Mail.objects.filter(pk=mail.pk).update(sent_at=now, sent_to=to, error="")
    return True
