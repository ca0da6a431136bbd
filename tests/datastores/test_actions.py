"""What users do with datastores, and that secrets do not leak."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import Http404

from datastores import actions, extension_points
from datastores.access import datastore_for, datastores_for
from datastores.actions import (
    change_datastore,
    create_datastore,
    delete_datastore,
    open_store,
    try_datastore,
    try_manifest,
)
from datastores.drivers.base import DriverError
from datastores.drivers.s3 import S3
from datastores.models import AllowedFolder, Datastore
from datastores.sources import SourceError, source_for
from portal.errors import Conflict, Invalid
from portal.extension_points import ExtensionPoint
from portal.models import Appcode, Event
from portal.network.outgoing import Rules
from tests import ports


def where(caught: pytest.ExceptionInfo[Invalid]) -> list[str]:
    return [".".join(error.path) for error in caught.value.errors]


def test_a_developer_creates_a_datastore_and_it_works(people: Any, s3_spec: Any, manifest: Any) -> None:
    store = create_datastore(manifest("data", s3_spec(prefix="team/")), acting_user=people.bob)
    assert store.spec["prefix"] == "team"
    outcome = try_datastore(store, acting_user=people.bob)
    assert outcome.ok, outcome.message
    store.refresh_from_db()
    assert (store.test_ok, store.test_message) == (True, outcome.message)
    assert store.tested_at is not None


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something stores files in every datastore."""
    use = extension_points.Use("show1", "/x", writes=True)
    monkeypatch.setattr(extension_points, "finders", ExtensionPoint(lambda stores: {each.pk: [use] for each in stores}))


def test_writing_is_tried_only_where_something_writes(
    people: Any, store: Datastore, s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    stored: list[str] = []
    upload = S3.upload
    monkeypatch.setattr(S3, "upload", lambda self, path, *rest: (stored.append(path), upload(self, path, *rest)))
    assert "written" not in try_datastore(store, acting_user=people.bob).message
    assert stored == []
    request.getfixturevalue("written")
    message = try_datastore(store, acting_user=people.bob).message
    assert "can be read. A test file was written and removed. It is empty." in message
    assert [path.startswith(".portal-trash/write-test-") for path in stored] == [True]
    assert "Contents" not in s3.client.list_objects_v2(Bucket=bucket)


def test_a_datastore_that_is_written_fails_if_it_cannot_be(
    written: None, people: Any, store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise DriverError("The bucket is full.")

    monkeypatch.setattr(S3, "delete", refuse)
    kept = try_datastore(store, acting_user=people.bob)
    assert kept.ok
    assert "A test file was written, but .portal-trash/write-test-" in kept.message
    monkeypatch.setattr(S3, "upload", refuse)
    full = try_datastore(store, acting_user=people.bob)
    assert (full.ok, full.message) == (False, "It can be read, but not written: The bucket is full.")


def test_a_slow_listing_does_not_fail_a_test(people: Any, store: Datastore, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*args: Any) -> Any:
        raise DriverError("Unreachable: it does not answer in time.", "server")

    monkeypatch.setattr(S3, "walk", slow)
    outcome = try_datastore(store, acting_user=people.bob)
    assert (outcome.ok, outcome.files, outcome.size) == (True, None, None)


def test_a_folder_for_reading_only_is_not_written(written: None, people: Any, folder: Any, manifest: Any) -> None:
    store = create_datastore(manifest("data", {"local": {"path": str(folder)}}), acting_user=people.bob)
    assert "written and removed" in try_datastore(store, acting_user=people.bob).message
    AllowedFolder.objects.update(read_only=True)
    message = try_datastore(store, acting_user=people.bob).message
    assert message == "The folder can be read. It is empty."


def test_the_secret_is_encrypted_at_rest_and_in_no_event(people: Any, s3: Any, store: Datastore) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT row_to_json(d)::text FROM datastores_datastore d WHERE id = %s", [store.pk])
        assert s3.secret_key not in cursor.fetchone()[0]
    assert Datastore.objects.get(pk=store.pk).secret == s3.secret_key
    event = Event.objects.get(verb="datastore.created")
    assert (event.object, event.appcode, event.actor) == ("datastore ops-demo/data", "ops-demo", people.alice)
    assert s3.secret_key not in f"{event.message} {event.data} {store!r} {store} {source_for(store, 'x')!r}"


def test_viewers_and_outsiders_create_nothing(people: Any, s3_spec: Any, manifest: Any) -> None:
    with pytest.raises(PermissionDenied):
        create_datastore(manifest("data", s3_spec()), acting_user=people.victor)
    with pytest.raises(Invalid) as foreign:
        create_datastore(manifest("data", s3_spec()), acting_user=people.mallory)
    with pytest.raises(Invalid) as absent:
        create_datastore(manifest("data", s3_spec(), appcode="no-such"), acting_user=people.mallory)
    assert where(foreign) == where(absent) == ["metadata.appcode"]
    assert str(foreign.value).replace("ops-demo", "no-such") == str(absent.value)
    assert not Datastore.objects.exists()


@pytest.mark.parametrize("state", ["requested", "disabled"])
def test_an_appcode_that_is_not_active_gets_no_datastores(people: Any, s3_spec: Any, manifest: Any, state: str) -> None:
    Appcode.objects.filter(pk=people.ops.pk).update(state=state)
    with pytest.raises(Invalid) as caught:
        create_datastore(manifest("data", s3_spec()), acting_user=people.alice)
    assert where(caught) == ["metadata.appcode"]


def test_a_name_is_taken_once_in_an_appcode(people: Any, store: Datastore, s3_spec: Any, manifest: Any) -> None:
    with pytest.raises(Invalid) as caught:
        create_datastore(manifest("data", s3_spec()), acting_user=people.bob)
    assert where(caught) == ["metadata.name"]
    create_datastore(manifest("data", s3_spec(), appcode="flight-demo"), acting_user=people.mallory)


def test_what_is_not_mine_looks_like_what_does_not_exist(people: Any, store: Datastore) -> None:
    assert list(datastores_for(people.victor)) == [store]
    assert list(datastores_for(people.root)) == [store]
    assert list(datastores_for(people.mallory)) == []
    with pytest.raises(Http404) as foreign:
        datastore_for(people.mallory, "ops-demo", "data")
    with pytest.raises(Http404) as absent:
        datastore_for(people.alice, "ops-demo", "atad")
    assert str(foreign.value) == str(absent.value).replace("atad", "data")


def test_a_change_without_a_secret_keeps_the_one_that_is_stored(
    people: Any, s3: Any, store: Datastore, s3_spec: Any, manifest: Any
) -> None:
    try_datastore(store, acting_user=people.alice)
    changed = change_datastore(store, manifest("data", s3_spec(secret_key=None, prefix="x")), acting_user=people.bob)
    assert changed.secret == s3.secret_key
    assert (changed.spec["prefix"], changed.tested_at, changed.test_ok) == ("x", None, None)
    assert try_datastore(changed, acting_user=people.bob).ok
    assert Event.objects.filter(verb="datastore.changed").count() == 1


def test_a_change_that_changes_nothing_leaves_no_trace(
    people: Any, store: Datastore, s3_spec: Any, manifest: Any
) -> None:
    change_datastore(store, manifest("data", s3_spec(secret_key="")), acting_user=people.bob)
    assert not Event.objects.filter(verb="datastore.changed").exists()


@pytest.mark.parametrize("change", [{"server": "http://10.9.9.9"}, {"access_key": "ANOTHERKEY"}])
def test_a_kept_secret_never_goes_to_another_server_or_key(
    people: Any, store: Datastore, s3_spec: Any, manifest: Any, change: dict[str, str]
) -> None:
    wish = manifest("data", s3_spec(secret_key=None, **change))
    for attempt in (
        lambda: change_datastore(store, wish, acting_user=people.bob),
        lambda: try_manifest(wish, store=store, acting_user=people.bob),
    ):
        with pytest.raises(Invalid) as caught:
            attempt()
        assert where(caught) == ["spec.s3.secret_key"]


def test_a_kept_secret_opens_nothing_new_but_for_an_owner(
    people: Any, s3_spec: Any, manifest: Any, store: Datastore
) -> None:
    def change(user: Any, **changes: Any) -> Datastore:
        wish = manifest("data", s3_spec(secret_key=None, **changes))
        try_manifest(wish, store=store, acting_user=user)
        return change_datastore(store, wish, acting_user=user)

    store = change(people.alice, prefix="team/a")
    for changes in ({"prefix": "team/ab"}, {"prefix": "team"}, {}, {"bucket": "another", "prefix": "team/a"}):
        with pytest.raises(Invalid, match="ask an owner") as caught:
            change(people.bob, **changes)
        assert where(caught) == ["spec.s3.secret_key"]
    store = change(people.bob, prefix="team/a/b")
    assert change(people.alice, bucket="another").spec["bucket"] == "another"


def test_name_and_appcode_of_a_datastore_stay(people: Any, store: Datastore, s3_spec: Any, manifest: Any) -> None:
    with pytest.raises(Invalid) as caught:
        change_datastore(store, manifest("other", s3_spec()), acting_user=people.alice)
    assert where(caught) == ["metadata.name"]
    with pytest.raises(Invalid) as caught:
        change_datastore(store, manifest("data", s3_spec(), appcode="flight-demo"), acting_user=people.root)
    assert where(caught) == ["metadata.appcode"]


def test_a_new_datastore_needs_its_secret(people: Any, s3_spec: Any, manifest: Any) -> None:
    for attempt in (
        create_datastore,
        lambda wish, acting_user: try_manifest(wish, acting_user=acting_user, store=None),
    ):
        with pytest.raises(Invalid) as caught:
            attempt(manifest("data", s3_spec(secret_key=None)), acting_user=people.alice)
        assert where(caught) == ["spec.s3.secret_key"]


def test_trying_before_saving_names_the_field_and_saves_nothing(people: Any, s3_spec: Any, manifest: Any) -> None:
    wish = manifest("data", s3_spec(bucket="no-such-bucket"))
    outcome = try_manifest(wish, acting_user=people.bob, store=None)
    assert (outcome.ok, outcome.path) == (False, ("spec", "s3", "bucket"))
    assert try_manifest(manifest("data", s3_spec()), acting_user=people.bob, store=None).ok
    assert not Datastore.objects.exists()


def test_a_silent_server_is_given_up_in_time(
    people: Any, s3_spec: Any, manifest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "TEST_SECONDS", 1)
    monkeypatch.setattr("datastores.drivers.patience.ANSWER_SECONDS", 120)
    with socket.create_server(("127.0.0.1", ports.free())) as silent:
        wish = manifest("data", s3_spec(server=f"http://127.0.0.1:{silent.getsockname()[1]}"))
        started = time.monotonic()
        outcome = try_manifest(wish, acting_user=people.bob, store=None)
    assert time.monotonic() - started < 60, "and not when its connection times out"
    assert (outcome.ok, outcome.path) == (False, ("spec", "s3", "server"))
    assert "Unreachable" in outcome.message


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "[::ffff:169.254.1.1]",
        "0.0.0.0",
        "2852039166",
        "0xa9fea9fe",
        "[fe80::1]",
        "[::169.254.169.254]",
        "[2002:a9fe:a9fe::]",
    ],
)
def test_addresses_that_are_closed_are_not_even_saved(people: Any, s3_spec: Any, manifest: Any, host: str) -> None:
    with pytest.raises(Invalid) as caught:
        create_datastore(manifest("data", s3_spec(server=f"http://{host}")), acting_user=people.alice)
    assert where(caught) == ["spec.s3.server"]
    with pytest.raises(Invalid) as caught:
        create_datastore(manifest("data", {"nfs": {"server": host, "path": "/x"}}), acting_user=people.alice)
    assert where(caught) == ["spec.nfs.server"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "portal.localhost", "[::1]", "127.1", "2130706433"])
def test_of_the_portals_own_machine_only_named_ports_are_open(
    people: Any, s3_spec: Any, manifest: Any, settings: Any, host: str
) -> None:
    settings.OUTGOING = Rules.read(["127.0.0.1:9000", "[::1]:9000"])
    create_datastore(manifest("data", s3_spec(server=f"http://{host}:9000")), acting_user=people.alice)
    with pytest.raises(Invalid) as caught:
        create_datastore(manifest("other", s3_spec(server=f"http://{host}:9001")), acting_user=people.alice)
    assert where(caught) == ["spec.s3.server"]
    assert "An administrator can open it (PORTAL_OPEN_NETWORKS)" in str(caught.value)


def test_a_used_datastore_is_not_deleted(people: Any, store: Datastore, monkeypatch: pytest.MonkeyPatch) -> None:
    users = [extension_points.Use(f"show{n}", f"/clusters/ops-demo/show{n}") for n in range(7)]
    monkeypatch.setattr(extension_points, "finders", ExtensionPoint(lambda stores: {each.pk: users for each in stores}))
    with pytest.raises(Conflict, match=r"used by show0, show1, show2, show3, show4 and 2 more"):
        delete_datastore(store, acting_user=people.alice)
    monkeypatch.setattr(extension_points, "finders", ExtensionPoint())
    delete_datastore(store, acting_user=people.alice)
    delete_datastore(store, acting_user=people.alice)
    assert not Datastore.objects.exists()
    assert Event.objects.filter(verb="datastore.deleted").count() == 1


def test_deleting_a_datastore_leaves_its_files(people: Any, store: Datastore, s3: Any, bucket: str) -> None:
    s3.client.put_object(Bucket=bucket, Key="precious", Body=b"1")
    delete_datastore(store, acting_user=people.bob)
    assert s3.client.get_object(Bucket=bucket, Key="precious")["Body"].read() == b"1"


def test_a_viewer_reads_and_changes_nothing(people: Any, store: Datastore, s3_spec: Any, manifest: Any) -> None:
    assert datastore_for(people.victor, "ops-demo", "data") == store
    for attempt in (
        lambda: change_datastore(store, manifest("data", s3_spec(prefix="x")), acting_user=people.victor),
        lambda: delete_datastore(store, acting_user=people.victor),
        lambda: try_datastore(store, acting_user=people.victor),
        lambda: try_manifest(manifest("x", s3_spec()), acting_user=people.victor, store=None),
    ):
        with pytest.raises(PermissionDenied):
            attempt()


# Local folders


def test_a_local_datastore_lies_in_an_allowed_folder(people: Any, folder: Any, manifest: Any) -> None:
    (folder / "data").mkdir()
    store = create_datastore(manifest("data", {"local": {"path": f"{folder}/data"}}), acting_user=people.bob)
    assert try_datastore(store, acting_user=people.bob).ok
    assert dict(source_for(store, "show1/1").fields) == {"root": str(folder), "path": f"{folder}/data/show1/1"}
    for path in ("/etc", str(folder.parent), f"{folder}-other"):
        with pytest.raises(Invalid) as caught:
            create_datastore(manifest("other", {"local": {"path": path}}), acting_user=people.bob)
        assert where(caught) == ["spec.local.path"]


def test_a_folder_allowed_for_one_appcode_is_closed_to_others(people: Any, folder: Any, manifest: Any) -> None:
    AllowedFolder.objects.get().appcodes.add(people.ops)
    create_datastore(manifest("data", {"local": {"path": str(folder)}}), acting_user=people.alice)
    with pytest.raises(Invalid) as caught:
        create_datastore(manifest("data", {"local": {"path": str(folder)}}, "flight-demo"), acting_user=people.mallory)
    assert where(caught) == ["spec.local.path"]


def test_a_folder_that_was_closed_since_is_refused_everywhere(people: Any, folder: Any, manifest: Any) -> None:
    store = create_datastore(manifest("data", {"local": {"path": str(folder)}}), acting_user=people.alice)
    AllowedFolder.objects.all().delete()
    outcome = try_datastore(store, acting_user=people.alice)
    assert (outcome.ok, outcome.path) == (False, ("spec", "local", "path"))
    with pytest.raises(SourceError, match="any more"):
        source_for(store)


def test_sources_join_the_folder_of_a_run(people: Any, s3: Any, bucket: str, s3_spec: Any, manifest: Any) -> None:
    store = create_datastore(manifest("data", s3_spec(prefix="team")), acting_user=people.alice)
    source = source_for(store, "show1/2")
    assert source.kind == "s3"
    assert source.secret == s3.secret_key
    assert source.fields["prefix"] == "team/show1/2"
    nfs = create_datastore(manifest("nfs", {"nfs": {"server": "10.0.0.7", "path": "/data"}}), acting_user=people.alice)
    assert dict(source_for(nfs, "show1/2").fields) == {
        "server": "10.0.0.7",
        "path": "/data/show1/2",
        "root": "/data",
    }
    assert dict(source_for(nfs).fields) == {"server": "10.0.0.7", "path": "/data", "root": "/data"}


def test_open_store_reads_what_clients_wrote(people: Any, store: Datastore, s3: Any, bucket: str) -> None:
    s3.client.put_object(Bucket=bucket, Key="a/b", Body=b"123")
    assert [entry.path for entry in open_store(store).walk("a")] == ["a/b"]
