"""Expiring credentials of clouds: administrators are warned twice, by event and mail, whatever dies in between."""

from __future__ import annotations

import base64
import datetime as dt
import json
from typing import Any

import pytest

from billing.models import Mail
from clusters.clouds import credentials
from clusters.clouds.models import Cloud
from portal.models import Event

pytestmark = pytest.mark.django_db

END = dt.datetime(2026, 6, 30, 12, tzinfo=dt.UTC)


def config(end: dt.datetime) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": int(end.timestamp())}).encode()).decode().rstrip("=")
    return json.dumps({"users": [{"name": "user", "user": {"token": f"e30.{claims}.secret"}}]})


def before(**left: float) -> dt.datetime:
    return END - dt.timedelta(**left)


def test_each_notice_is_given_once_and_new_credentials_have_notices_of_their_own(people: Any) -> None:
    people.root.email = "root@example.com"
    people.root.save()
    row = Cloud.objects.create(kind="kubernetes", name="training", title="Training", credentials=config(END))
    Cloud.objects.create(kind="kubernetes", name="lasting", title="Lasting", credentials='{"users": []}')
    Cloud.objects.create(
        kind="kubernetes", name="lost", title="Lost", credentials=config(END), enabled=False, given_up_at=before(days=9)
    )
    told = [
        (credentials.tell_ends(now), credentials.tell_ends(now))
        for now in (before(days=14, minutes=1), before(days=14), before(days=3), before(days=2), before(days=-1))
    ]
    assert told == [(0, 0), (1, 0), (0, 0), (1, 0), (0, 0)]
    mails = list(Mail.objects.order_by("pk"))
    assert [(mail.subject, mail.to) for mail in mails] == [
        ("The credentials of Training end on 2026-06-30", ["root@example.com"])
    ] * 2
    assert "/admin/clouds/training/edit" in mails[0].text
    events = Event.objects.filter(verb="cloud.credentials_end").order_by("pk")
    assert [event.data["days"] for event in events] == [14, 2]
    assert not any("secret" in f"{each.message}{each.data}" for each in events)
    Cloud.objects.filter(pk=row.pk).update(credentials=config(END + dt.timedelta(days=30)))
    assert credentials.tell_ends(before(days=2)) == 0
    assert credentials.tell_ends(END + dt.timedelta(days=29)) == 1, "the nearest alone, after a portal that was off"


def test_one_that_has_ended_while_the_portal_was_off_is_told_as_that(people: Any) -> None:
    Cloud.objects.create(kind="kubernetes", name="training", title="Training", credentials=config(END))
    assert credentials.tell_ends(before(days=-9)) == 1
    assert (
        "ended at 2026-06-30 12:00 UTC. Nothing can be started"
        in Event.objects.get(object="kubernetes training").message
    )
