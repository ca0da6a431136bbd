"""Volumes are billed from creation to deletion, to the second, whether or not anything runs."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from billing.ledger import posting
from billing.models import LedgerEntry, Observation, Price, UsageSegment
from billing.sums import breakdown
from clusters.clouds import bulkhead
from clusters.clouds.bulkhead import Lanes
from clusters.clouds.drivers.base import ImageRef, Mount, Plan
from clusters.clouds.models import Cloud, CloudState
from clusters.clouds.registry import run_ref
from clusters.runs.models import Cluster, Run
from clusters.volumes import lifecycle, metering
from datastores import extension_points
from datastores.actions import create_datastore, delete_datastore
from datastores.models import Datastore, Volume
from datastores.specs import DatastoreManifest
from portal.extension_points import ExtensionPoint

T0 = timezone.now().replace(microsecond=0) - dt.timedelta(days=40)
GIB = 1024


def at(seconds: float) -> dt.datetime:
    return T0 + dt.timedelta(seconds=seconds)


@pytest.fixture
def store(people: Any, monkeypatch: pytest.MonkeyPatch) -> Datastore:
    monkeypatch.setattr(extension_points, "judges", ExtensionPoint())
    Price.objects.create(sku="storage", per_hour=Decimal("0.0001"), valid_from=at(-9))
    body = {"metadata": {"name": "scratch", "appcode": "ops-demo"}, "spec": {"volume": {"size": "20Gi"}}}
    return create_datastore(DatastoreManifest.model_validate(body), acting_user=people.bob)


@pytest.fixture
def run(people: Any) -> Run:
    cluster = Cluster.objects.create(appcode=people.ops, name="show1", spec={})
    return Run.objects.create(cluster=cluster, number=1, cloud="gpu-a", namespace="ops", spec={}, resources={}, gpus=0)


def metered() -> list[tuple[int, float, float | None]]:
    """(MiB, from, to) of every segment, in seconds since T0."""
    rows = UsageSegment.objects.order_by("started", "id")
    since = lambda moment: moment and (moment - T0).total_seconds()  # noqa: E731
    return [(row.storage_mb, since(row.started), since(row.ended)) for row in rows]


def test_the_first_run_that_mounts_it_begins_it_and_the_last_word_ends_it(
    people: Any, store: Datastore, run: Run
) -> None:
    source = lifecycle.source_for_run(run, store, "mnist")
    lifecycle.source_for_run(run, store, "mnist")
    assert not UsageSegment.objects.exists(), "no cloud has taken it"
    assert not lifecycle.unsettled(timezone.now()).exists()
    before = timezone.now().replace(microsecond=0)
    mounts = (Mount("/elearn/input", True, source), Mount("/elearn/output", False, source))
    plan = Plan(run_ref(run), ImageRef("python", "", "", ""), (), mounts)
    for _ in range(2):
        lifecycle.told(plan)
    (row,) = UsageSegment.objects.all()
    assert before <= row.started <= timezone.now()
    assert (row.storage_mb, row.ended, row.gpus, row.cpu_milli) == (20 * GIB, None, 0, 0)
    assert (row.appcode_id, row.labels) == (people.ops.pk, {"volume": "scratch"})
    Run.objects.update(gone=True, phase="Succeeded")
    volume = Volume.objects.get()
    delete_datastore(store, acting_user=people.bob, named="scratch")
    # Its cloud is no longer registered, so the deletion needs no call to it.
    lifecycle.settle(volume.pk)
    lifecycle.settle(volume.pk)
    assert not Volume.objects.exists()
    row.refresh_from_db()
    assert before <= row.ended <= timezone.now()


def test_a_volume_that_no_cloud_took_costs_nothing_and_what_it_was_to_grow_to_is_made_at_once(
    people: Any, store: Datastore, run: Run
) -> None:
    assert lifecycle.source_for_run(run, store, "").size == "20Gi"
    Volume.objects.update(size="30Gi")
    assert not lifecycle.unsettled(timezone.now()).exists()
    assert lifecycle.source_for_run(run, store, "").size == "30Gi"
    Run.objects.update(gone=True, phase="Failed")
    delete_datastore(store, acting_user=people.bob, named="scratch")
    lifecycle.settle(Volume.objects.get().pk)
    assert not Volume.objects.exists()
    assert not UsageSegment.objects.exists()


def test_growing_ends_one_size_and_begins_the_next_in_the_same_second(store: Datastore, run: Run) -> None:
    volume = Volume.objects.create(
        datastore=store, cloud="gpu-a", namespace="ops", appcode="ops-demo", name="scratch", access_mode="ReadWriteOnce",
        size="20Gi", told_size="20Gi",
    )  # fmt: skip
    metering.meter(volume.pk, "20Gi", at(0.9))
    for _ in range(2):
        metering.meter(volume.pk, "50Gi", at(100))
    # A late report of the old size is ignored.
    metering.meter(volume.pk, "20Gi", at(101))
    assert metered() == [(20 * GIB, 0, 100), (50 * GIB, 100, None)]
    for moment in (160, 170):
        metering.meter(volume.pk, "", at(moment))
    assert metered() == [(20 * GIB, 0, 100), (50 * GIB, 100, 160)]
    parts = breakdown.parts(at(1000))
    assert [(part.sku, part.quantity) for part in parts] == [("storage", 20 * GIB * 100 + 50 * GIB * 60)]
    assert parts[0].cost == Decimal("0.0001") * (20 * 100 + 50 * 60) / 3600
    posting.post(at(1000))
    assert sum(line.quantity for line in LedgerEntry.objects.all()) == parts[0].quantity
    assert Observation.objects.filter(storage_mb__gt=0).count() == 4
    call_command("replay", verify=True)


def test_what_was_made_before_volumes_were_metered_is_paid_for_from_now_on(store: Datastore) -> None:
    volume = Volume.objects.create(
        datastore=store, cloud="gpu-a", namespace="ops", appcode="ops-demo", name="scratch", access_mode="ReadWriteOnce",
        size="20Gi", told_size="20Gi", told_at=at(0),
    )  # fmt: skip
    assert list(lifecycle.unsettled(timezone.now())) == [volume]
    before = timezone.now().replace(microsecond=0)
    lifecycle.settle(volume.pk)
    (row,) = UsageSegment.objects.all()
    assert row.started >= before
    assert not lifecycle.unsettled(timezone.now() + dt.timedelta(hours=1)).exists()


@pytest.mark.django_db(transaction=True)
def test_a_volume_that_is_put_off_keeps_the_better_reason(
    people: Any, store: Datastore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cloud.objects.create(kind="kubernetes", name="gpu-a", title="A", credentials="{}")
    lifecycle.source_for_run(run, store, "")
    Volume.objects.update(told_at=at(0), size="30Gi", metered_mb=1)
    mine = Lanes()
    monkeypatch.setattr(bulkhead, "_of_this_process", mine)
    CloudState.objects.create(name="gpu-a", trouble="The API server does not answer.")
    volume = Volume.objects.get()
    with mine.taken("gpu-a", trouble=True):
        for known, told in (("", bulkhead.AWAY), ("It is on fire.", "It is on fire.")):
            Volume.objects.update(trouble=known, tried_at=None)
            lifecycle.settle(volume.pk)
            volume.refresh_from_db()
            assert volume.trouble == told
            # Other volumes come first now.
            assert volume.tried_at


def test_the_form_says_what_it_costs_before_it_is_sent(client: Client, people: Any, store: Datastore) -> None:
    client.force_login(people.bob)
    asked = {"appcode": "ops-demo", "size": "20Gi"}
    said = client.get("/datastores/cost", asked)
    assert said.context["cost"].per_month == Decimal("0.0001") * 20 * 730
    assert "1.46" in said.content.decode()
    assert "volume_cost" not in said.content.decode()
    for nothing in ({}, {"appcode": "ops-demo", "size": "20G"}, {"appcode": "flight-demo", "size": "20Gi"}):
        assert client.get("/datastores/cost", nothing).context["cost"] is None
    assert "/datastores/cost" in client.get("/datastores/new?kind=volume").content.decode()
    assert "1.46" in client.get("/datastores/ops-demo/scratch").content.decode()
    client.force_login(people.victor)
    assert client.get("/datastores/cost", asked).context["cost"] is None
