"""Expiry of clouds' credentials: administrators are notified 14 days and 2 days before.

Without credentials nothing can be started, followed or stopped there. An Event written with the mail records the notice. New
credentials have another expiry, and so notices of their own.
"""

from __future__ import annotations

import datetime as dt
import json

from django.conf import settings
from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from clusters.clouds import registry
from clusters.clouds.drivers.kubernetes.api import kubeconfig
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.models import Cloud
from portal import extension_points
from portal.events import record
from portal.models import Event, User

# Days before expiry.
MARKS = (14, 2)
VERB = "cloud.credentials_end"


def ends_at(row: Cloud) -> dt.datetime | None:
    """Returns when a cloud's credentials expire; None if never, unknown or without credentials."""
    if row.kind != KubernetesCloud.kind or not row.credentials:
        return None
    try:
        return kubeconfig.credentials_end(json.loads(row.credentials))
    except ValueError:
        return None  # The connection test reports unreadable credentials.


def mark(end: dt.datetime, now: dt.datetime) -> int | None:
    """Returns the notice that applies: the smallest of MARKS that is reached, also after expiry. None if none is."""
    return min((days for days in MARKS if end - now <= dt.timedelta(days=days)), default=None)


def tell_ends(now: dt.datetime | None = None) -> int:
    """Sends due notices and returns their number. Safe to kill, repeat and run concurrently."""
    now = now or timezone.now()
    rows = registry.registered().filter(given_up_at=None)
    return sum(_tell(row.pk, now) for row in rows if (end := ends_at(row)) and mark(end, now) is not None)


@transaction.atomic
def _tell(pk: int, now: dt.datetime) -> bool:
    row = Cloud.objects.select_for_update().filter(pk=pk).first()
    end = ends_at(row) if row else None
    days = mark(end, now) if end else None
    if row is None or end is None or days is None:
        return False
    about = f"{row.kind} {row.name}"
    told = Event.objects.filter(verb=VERB, object=about, data__end=end.isoformat(), data__days__lte=days)
    if told.exists():
        return False
    subject, text = _words(row, end, now)
    record(VERB, actor=None, object=about, message=text, end=end.isoformat(), days=days)
    administrators = User.objects.filter(is_active=True, is_superuser=True).exclude(email="")
    if to := list(administrators.values_list("email", flat=True)):
        link = f"{settings.PORTAL_ORIGIN}{reverse('admin_cloud', args=[row.name])}"
        for tell in extension_points.mail:
            tell(f"credentials {row.pk} {end.isoformat()} {days}", None, subject, f"{text}\n\n{link}\n", to)
    return True


def _words(row: Cloud, end: dt.datetime, now: dt.datetime) -> tuple[str, str]:
    day = f"{end.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC"
    over = end <= now
    subject = f"The credentials of {row.title} {'have ended' if over else f'end on {end.astimezone(dt.UTC):%Y-%m-%d}'}"
    what = f"The credentials with which the portal reaches {row.title} {'ended' if over else 'end'} at {day}."
    then = f"Nothing can be started, followed or stopped there{'' if over else ' after that'}"
    advice = "Give new ones under Clouds; docker/kubernetes/token.yaml makes a token that lasts."
    return subject, f"{what} {then}. {advice}"
