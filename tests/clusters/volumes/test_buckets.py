"""Buckets are billed from one measurement to the next, exactly once despite crashes and repeats; owners are notified in time."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from django.core import mail
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from billing.ledger import posting
from billing.mails import send_due
from billing.models import LedgerEntry, Price, UsageSegment
from clusters.volumes import buckets
from datastores.models import Storage
from datastores.storage import limits
from portal.models import Event
from tests.api.client import api_of

T0 = timezone.now().replace(microsecond=0) - dt.timedelta(days=40)
GIB, HOUR = 2**30, 3600


@pytest.fixture
def bucket(people: Any) -> Storage:
    Price.objects.create(sku="storage", per_hour=Decimal("0.01"), valid_from=T0 - dt.timedelta(days=1))
    return Storage.objects.create(appcode=people.ops, bucket="ops-demo", limit_gib=10)


def counted(size: float, seconds: float) -> None:
    """Records a measurement of this size, that many seconds after T0."""
    Storage.objects.update(used_bytes=int(size), measured_at=T0 + dt.timedelta(seconds=seconds))


def metered() -> list[tuple[int, float, float | None]]:
    """(MiB, from, to) of every segment, in seconds since T0."""
    since = lambda moment: moment and (moment - T0).total_seconds()  # noqa: E731
    return [(row.storage_mb, since(row.started), since(row.ended)) for row in UsageSegment.objects.order_by("started")]


def test_a_bucket_is_billed_by_what_was_counted_once_and_to_the_second(
    bucket: Storage, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    buckets.meter_all()
    counted(0, 0)
    buckets.meter_all()
    assert metered() == []
    counted(2 * GIB, 60.9)
    # A crash before the commit changes nothing, and a repetition counts once.
    with monkeypatch.context() as patch:
        patch.setattr(buckets.Storage.objects, "bulk_update", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            buckets.meter_all()
    for _ in range(2):
        buckets.meter_all()
    assert metered() == [(2048, 60, None)]
    # A bucket that grows continuously gets a new segment every ten minutes.
    for minute in range(1, 61):
        counted(2 * GIB + minute * 2**20, 60 + minute * 60)
        buckets.meter_all()
    assert [size for size, _, _ in metered()] == [2048, 2058, 2068, 2078, 2088, 2098, 2108]
    assert metered()[-1] == (2108, 60 + HOUR, None)
    counted(0, 60 + 2 * HOUR)
    buckets.meter_all()
    counted(0, 60 + 9 * HOUR)
    buckets.meter_all()
    found = metered()
    assert all(ended == begun for (_, _, ended), (_, begun, _) in pairwise(found))
    assert found[-1] == (2108, 60 + HOUR, 60 + 2 * HOUR)

    posting.post()
    paid = sum(entry.quantity for entry in LedgerEntry.objects.filter(sku="storage"))
    assert paid == sum(size * 600 for size in range(2048, 2108, 10)) + 2108 * HOUR
    call_command("replay", "--verify")
    page = Client()
    page.force_login(people.alice)
    assert "Volumes and buckets" in page.get(f"/billing/ops-demo?from={T0:%Y-%m-%d}&to={T0:%Y-%m-%d}").content.decode()


def test_people_are_told_once_at_each_step_and_again_only_after_there_was_room(
    bucket: Storage, people: Any, settings: Any
) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"

    def told(gib: float) -> list[int]:
        before = Event.objects.filter(verb="storage.filling").count()
        counted(gib * GIB, gib)
        for _ in range(2):
            limits.watch()
        return [event.data["percent"] for event in Event.objects.filter(verb="storage.filling").order_by("id")[before:]]

    assert [told(gib) for gib in (1, 8.125, 7.875, 8.125, 9.625, 9.375, 9.625, 10, 12)] == [
        [],
        [81],
        [],
        [],
        [96],
        [],
        [],
        [100],
        [],
    ]
    assert [told(gib) for gib in (5, 9.9375, 10.5)] == [[], [99], [105]]
    send_due()
    assert any("is full, 10 GiB" in each.body and "/storage/ops-demo" in each.body for each in mail.outbox)

    # Only administrators can raise the limit.
    def limit(person: Any, gib: int) -> tuple[int, Any]:
        return api_of(person)("PATCH", "/appcodes/ops-demo/storage", {"limitGiB": gib})

    assert limit(people.alice, 20)[0] == 404
    status, answer = limit(people.root, 20)
    assert (status, answer["limitGiB"]) == (200, 20)
    assert limit(people.root, 0)[0] == 422
    assert told(10.5) == []
    assert told(16) == [80]
    settings.STORAGE = settings.STORAGE | {"url": "http://s3.portal.localhost"}
    page = Client()
    page.force_login(people.bob)
    assert "80 % full" in page.get("/storage/ops-demo").content.decode()
