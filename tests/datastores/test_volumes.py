"""Volumes of datastores over REST and on pages: created, grown, and deleted only when that is intended."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from datastores import extension_points
from datastores.actions import change_datastore, create_datastore, delete_datastore, try_datastore
from datastores.models import Datastore, Volume
from datastores.sources import source_for
from portal.errors import Conflict, FieldError, Invalid
from portal.extension_points import ExtensionPoint
from portal.models import Event
from tests.api.client import api_of
from tests.datastores.conftest import body

ONE = "/datastores/ops-demo/scratch"


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the check that would refuse volumes where ops-demo runs."""
    monkeypatch.setattr(extension_points, "judges", ExtensionPoint())


@pytest.fixture
def scratch(people: Any, manifest: Any) -> Datastore:
    return create_datastore(manifest("scratch", wish()), acting_user=people.bob)


def wish(size: str = "20Gi", **more: str) -> dict[str, Any]:
    return {"volume": {"storage_class": "ceph-rbd", "size": size, **more}}


def made(store: Datastore, size: str = "20Gi") -> Volume:
    """Stores the volume as a run does."""
    return Volume.objects.create(
        datastore=store,
        cloud="gpu-a",
        namespace="ops",
        appcode="ops-demo",
        name=store.name,
        storage_class="ceph-rbd",
        access_mode="ReadWriteOnce",
        size=size,
        told_size=size,
        told_at=timezone.now(),
    )


def where(caught: pytest.ExceptionInfo[Invalid]) -> list[str]:
    return [".".join(error.path) for error in caught.value.errors]


def test_a_volume_that_was_not_made_can_become_anything(people: Any, scratch: Datastore, manifest: Any) -> None:
    assert (scratch.size, scratch.made) == ("20Gi", None)
    fields = {"storage_class": "ceph-rbd", "size": "20Gi", "access_mode": "ReadWriteOnce", "folder": "mnist/3"}
    assert source_for(scratch, "mnist/3").fields == fields
    smaller = wish("5Gi", storage_class="cephfs", access_mode="ReadWriteMany")
    change_datastore(scratch, manifest("scratch", smaller), acting_user=people.bob)
    nfs = {"nfs": {"server": "10.0.0.7", "path": "/data"}}
    change_datastore(scratch, manifest("scratch", nfs), acting_user=people.bob)
    change_datastore(scratch, manifest("scratch", wish()), acting_user=people.bob)
    delete_datastore(scratch, acting_user=people.bob)
    assert not Volume.objects.exists()


def test_one_that_was_made_only_grows(people: Any, scratch: Datastore, manifest: Any) -> None:
    volume = made(scratch)
    for spec, field in (
        (wish("10Gi"), "spec.volume.size"),
        (wish(storage_class="cephfs"), "spec.volume.storage_class"),
        (wish(access_mode="ReadWriteMany"), "spec.volume.access_mode"),
        ({"nfs": {"server": "10.0.0.7", "path": "/data"}}, "spec.nfs"),
    ):
        with pytest.raises(Invalid) as caught:
            change_datastore(scratch, manifest("scratch", spec), acting_user=people.bob)
        assert where(caught) == [field]
    change_datastore(scratch, manifest("scratch", wish("40Gi")), acting_user=people.bob)
    volume.refresh_from_db()
    assert (volume.size, volume.told_size) == ("40Gi", "20Gi")
    with pytest.raises(Invalid, match="it has 40Gi by now"):
        change_datastore(scratch, manifest("scratch", wish("30Gi")), acting_user=people.bob)


def test_growth_that_was_refused_can_be_taken_back(people: Any, scratch: Datastore, manifest: Any) -> None:
    volume = made(scratch)
    change_datastore(scratch, manifest("scratch", wish("40Gi")), acting_user=people.bob)
    Volume.objects.update(refused_size="40Gi", trouble="The class cannot grow.")
    change_datastore(scratch, manifest("scratch", wish("20Gi")), acting_user=people.bob)
    volume.refresh_from_db()
    assert (volume.size, volume.told_size, volume.refused_size, volume.trouble) == ("20Gi", "20Gi", "", "")


def test_its_data_goes_only_when_its_name_is_said(people: Any, scratch: Datastore) -> None:
    volume = made(scratch)
    for named in ("", "Scratch", "scratch "):
        with pytest.raises(Invalid, match="All data in scratch is lost"):
            delete_datastore(scratch, acting_user=people.bob, named=named)
    delete_datastore(scratch, acting_user=people.bob, named="scratch")
    volume.refresh_from_db()
    # The remaining row names the volume that the controller has to delete in its cloud.
    assert (volume.datastore_id, volume.namespace, volume.appcode, volume.name) == (None, "ops", "ops-demo", "scratch")
    event = Event.objects.get(verb="datastore.deleted")
    assert event.message == "Deleted; its volume is deleted with all data."


def test_there_is_nothing_to_try(people: Any, scratch: Datastore) -> None:
    with pytest.raises(Conflict, match="when a run first mounts it"):
        try_datastore(scratch, acting_user=people.bob)
    scratch.refresh_from_db()
    assert scratch.tested_at is None
    assert "Test connection" not in browser(people.bob).get(ONE).content.decode()


def test_whoever_runs_tasks_may_refuse_one(people: Any, manifest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = FieldError(("spec", "volume", "size"), "At most 10Gi.")
    monkeypatch.setattr(
        extension_points, "judges", ExtensionPoint(lambda appcode, spec: [wrong] if spec.volume else [])
    )
    with pytest.raises(Invalid) as caught:
        create_datastore(manifest("scratch", wish()), acting_user=people.bob)
    assert where(caught) == ["spec.volume.size"]
    create_datastore(manifest("other", {"nfs": {"server": "10.0.0.7", "path": "/"}}), acting_user=people.bob)


def test_by_rest_from_its_making_to_its_end(people: Any) -> None:
    path, bob = "/appcodes/ops-demo/datastores", api_of(people.bob)
    status, answer = bob.post(path, body("scratch", {"volume": {"storage_class": "ceph-rbd", "size": "20Gi"}}))
    assert (status, answer["status"]["volume"]) == (201, None)
    assert answer["spec"] == {"volume": {"storage_class": "ceph-rbd", "size": "20Gi", "access_mode": "ReadWriteOnce"}}
    made(Datastore.objects.get())
    status, answer = bob.get(f"{path}/scratch")
    shown = answer["status"]["volume"]
    assert (shown["cloud"], shown["namespace"], shown["size"], shown["message"]) == ("gpu-a", "ops", "20Gi", "")
    assert bob.put(f"{path}/scratch", answer)[0] == 200
    assert bob.put(f"{path}/scratch", body("scratch", wish("1Gi")))[0] == 422
    assert bob.post(f"{path}/scratch/test")[0] == 409
    status, refused = bob.delete(f"{path}/scratch")
    assert (status, refused["errors"][0]["path"]) == (422, "name")
    assert bob.delete(f"{path}/scratch?name=scratch")[0] == 204
    assert Volume.objects.get().datastore_id is None


def browser(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_by_pages_from_its_making_to_its_end(people: Any) -> None:
    bob = browser(people.bob)
    form = bob.get("/datastores/new?kind=volume").content.decode()
    assert "Storage class" in form
    assert "Test connection" not in form
    typed = {"name": "scratch", "appcode": "ops-demo", "storage_class": "ceph-rbd", "access_mode": "ReadWriteOnce"}
    wrong = bob.post("/datastores/new?kind=volume", {**typed, "size": "20"})
    assert list(wrong.context["form"].errors) == ["size"]
    assert bob.post("/datastores/new?kind=volume", {**typed, "size": "20Gi"})["Location"] == ONE
    page = bob.get(ONE).content.decode()
    assert "not yet; the first cluster that mounts it makes it" in page
    assert "inside a cluster" in page
    volume = made(Datastore.objects.get())
    assert "on gpu-a, namespace ops" in bob.get(ONE).content.decode()

    bob.post(f"{ONE}/change", {"size": "40Gi", "storage_class": "other", "access_mode": "ReadWriteMany"})
    volume.refresh_from_db()
    assert (volume.size, volume.storage_class) == ("40Gi", "ceph-rbd")
    listing = bob.get("/datastores?kind=volume").content.decode()
    assert "40Gi" in listing
    assert "has 20Gi, grows" in listing
    Volume.objects.update(refused_size="40Gi", trouble="The class cannot grow.")
    assert "It has 20Gi and not 40Gi: The class cannot grow." in bob.get(ONE).content.decode()

    question = bob.get(f"{ONE}/delete").content.decode()
    assert "is deleted with all data" in question
    assert "is deleted with all data" in bob.post(f"{ONE}/delete").content.decode()
    assert "say its name" in bob.post(f"{ONE}/delete", {"name": "scrach"}).content.decode()
    assert Datastore.objects.exists()
    assert bob.post(f"{ONE}/delete", {"name": "scratch"})["Location"] == "/datastores"
    assert not Datastore.objects.exists()


def test_a_list_of_volumes_costs_few_queries(
    people: Any, scratch: Datastore, manifest: Any, django_assert_max_num_queries: Any
) -> None:
    made(scratch)
    for n in range(10):
        made(create_datastore(manifest(f"scratch-{n}", wish()), acting_user=people.bob))
    bob = browser(people.bob)
    bob.get("/datastores")
    with django_assert_max_num_queries(20):
        assert bob.get("/datastores").content.decode().count("ceph-rbd") == 11


def test_volumes_of_an_appcode_have_a_quota_together(people: Any, scratch: Datastore, manifest: Any) -> None:
    people.ops.storage_quota_gib = 50
    people.ops.save()
    with pytest.raises(Invalid) as caught:
        create_datastore(manifest("more", wish("31Gi")), acting_user=people.bob)
    assert where(caught) == ["spec.volume.size"]
    [error] = caught.value.errors
    assert error.message.startswith(
        "Volumes of ops-demo may have 50 GiB together, and 30 GiB are left; choose a smaller"
    )
    more = create_datastore(manifest("more", wish("30Gi")), acting_user=people.bob)
    with pytest.raises(Invalid, match="20 GiB are left"):
        change_datastore(scratch, manifest("scratch", wish("21Gi")), acting_user=people.bob)
    # Lowering the quota removes nothing and still allows all other changes.
    people.ops.storage_quota_gib = 1
    people.ops.save()
    change_datastore(scratch, manifest("scratch", wish(storage_class="cephfs")), acting_user=people.bob)
    change_datastore(scratch, manifest("scratch", wish("5Gi")), acting_user=people.bob)
    # A deleted volume counts until it is gone.
    people.ops.storage_quota_gib = 50
    people.ops.save()
    made(more, "30Gi")
    delete_datastore(more, acting_user=people.bob, named="more")
    with pytest.raises(Invalid, match="15 GiB are left"):
        create_datastore(manifest("third", wish("16Gi")), acting_user=people.bob)
    Volume.objects.all().delete()
    create_datastore(manifest("third", wish("45Gi")), acting_user=people.bob)
    # Other appcodes have their own quota, and other kinds of datastores need none.
    create_datastore(manifest("more", wish("900Gi"), appcode="flight-demo"), acting_user=people.mallory)
    nfs = {"nfs": {"server": "10.0.0.7", "path": "/data"}}
    create_datastore(manifest("nfs", nfs), acting_user=people.bob)
