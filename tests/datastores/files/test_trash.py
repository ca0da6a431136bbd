"""Removed files move to the trash, on the real S3 server and in a local folder. They can be restored or deleted for good, and a
crash in between neither loses nor duplicates any."""

from __future__ import annotations

import datetime as dt
import io
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from datastores.actions import change_datastore, delete_datastore, open_store
from datastores.drivers.local import Local
from datastores.drivers.s3 import S3
from datastores.files import contents, trash, versions
from datastores.models import Datastore, Removal
from portal.errors import Conflict, Invalid
from tests.datastores.files.conftest import ROOT

TRASH = ROOT.removesuffix("files") + "trash"
FILES = {"runs/1/a b.bin": b"first", "runs/1/deep/c": b"second", "runs/2": b"third"}


@pytest.fixture
def filled(at: str, bob: Any) -> Datastore:
    for path, data in FILES.items():
        assert bob("PUT", f"{at}/{path}", data).status_code == 204
    return Datastore.objects.get(name="data")


def lying(store: Datastore, folder: str = "") -> dict[str, bytes]:
    """Returns all files in a folder and below, by path."""
    driver = open_store(store)
    return {entry.path: b"".join(driver.open(entry.path).chunks) for entry in driver.walk(folder)}


def everything(store: Datastore) -> list[bytes]:
    """Returns the bytes of all files, the trash included."""
    in_trash = [data for row in Removal.objects.all() for data in lying(store, row.folder).values()]
    return sorted([*in_trash, *lying(store).values()])


def test_what_is_removed_is_nowhere_to_be_seen_and_comes_back_as_it_was(filled: Datastore, at: str, bob: Any) -> None:
    made = bob("DELETE", f"{at}/runs/1/")
    assert made.status_code == 200, made.content_
    said = made.json()
    assert (said["path"], said["kind"], said["files"], said["bytes"], said["settled"]) == (
        "runs/1",
        "folder",
        2,
        11,
        True,
    )
    assert bob("DELETE", f"{at}/runs/2").json()["files"] == 1
    assert bob("DELETE", f"{at}/runs/2").status_code == 204
    root = ROOT.removesuffix("files")
    # Local folders stay when their last file is removed, as always.
    assert [each for each in bob("GET", at).json()["items"] if each["path"] != "runs"] == []
    assert bob("GET", f"{at}?search=c&below=true").json()["items"] == []
    assert bob("GET", f"{root}sizes").json()["files"] == 0
    assert bob("GET", f"{root}archive").status_code == 404
    for method in ("GET", "PUT", "DELETE"):
        assert bob(method, f"{at}/.portal-trash/x", b"x").status_code == 422
    assert [each["path"] for each in bob("GET", TRASH).json()["items"]] == ["runs/2", "runs/1"]
    page = trash.held(filled)
    assert (page.removals, page.files, page.size) == (2, 3, 16)

    # Meanwhile another file is stored at one of the paths.
    assert bob("PUT", f"{at}/runs/1/deep/c", b"newest").status_code == 204
    for each in bob("GET", TRASH).json()["items"]:
        answer = bob("POST", f"{TRASH}/{each['id']}/restore")
        assert answer.status_code == (204 if each["path"] == "runs/2" else 409), answer.content_
    assert lying(filled) == {**FILES, "runs/1/deep/c": b"newest"}
    (left,) = bob("GET", TRASH).json()["items"]
    assert (left["files"], left["message"][:26]) == (1, "1 file stay in the trash: ")
    assert bob("DELETE", f"{at}/runs/1/deep/c?forever=true").status_code == 204
    assert bob("POST", f"{TRASH}/{left['id']}/restore").status_code == 204
    assert lying(filled) == FILES
    assert bob("POST", f"{TRASH}/{left['id']}/restore").status_code == bob("GET", f"{TRASH}/1").status_code == 404


CALLS = [(S3, "_copy"), (S3, "_delete_keys"), (os, "link"), (os, "unlink"), (os, "rename"), (os, "rmdir")]
DEATHS = 9


def dying(whole: Callable[..., Any], steps: Iterator[int], dies: int) -> Callable[..., Any]:
    """Raises KeyboardInterrupt before or after the call of `whole`."""

    def call(*args: Any, **named: Any) -> Any:
        if next(steps) == dies:
            raise KeyboardInterrupt
        result = whole(*args, **named)
        if next(steps) == dies:
            raise KeyboardInterrupt
        return result

    return call


@pytest.mark.parametrize("dies", range(DEATHS))
def test_whoever_dies_in_the_middle_loses_and_doubles_nothing(
    filled: Datastore, people: Any, monkeypatch: pytest.MonkeyPatch, dies: int
) -> None:
    """Crashes before and after each call to the store; then the sweep finishes the work."""
    monkeypatch.setattr(trash, "AGAIN", dt.timedelta(0))

    def mortal(act: Callable[[], Any], whole: dict[str, bytes]) -> None:
        steps = count()
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            for where, name in CALLS:
                patch.setattr(where, name, dying(getattr(where, name), steps, dies))
            act()
        assert set(everything(filled)) == set(whole.values())

    mortal(lambda: trash.remove_folder(filled, "runs", acting_user=people.bob), FILES)
    trash.sweep()
    assert (lying(filled), everything(filled)) == ({}, sorted(FILES.values()))
    (row,) = Removal.objects.all()
    assert (row.settled, row.files, row.bytes) == (True, 3, 16)
    # A folder of that name exists again, so the files are restored one by one.
    contents.store_file(filled, "runs/1/deep/other", io.BytesIO(b"another"), 7, acting_user=people.bob)
    whole = {**FILES, "runs/1/deep/other": b"another"}
    mortal(lambda: trash.restore(filled, [row.pk], acting_user=people.bob), whole)
    trash.sweep()
    assert (lying(filled), Removal.objects.count()) == (whole, 0)


@pytest.mark.parametrize("at", ["s3"], indirect=True)
def test_a_large_folder_goes_on_after_the_answer_and_what_is_stored_meanwhile_stays(
    filled: Datastore, at: str, bob: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trash, "SECONDS", 0)
    assert bob("DELETE", f"{at}/runs/").json()["settled"] is False
    assert lying(filled) == FILES
    trash.sweep()
    assert lying(filled) == {}
    one = bob("GET", TRASH).json()["items"][0]
    assert (one["settled"], one["files"]) == (True, 3)
    assert bob("POST", f"{TRASH}/{one['id']}/restore").status_code == 202
    trash.sweep()
    assert lying(filled) == FILES

    assert bob("DELETE", f"{at}/runs/").json()["settled"] is False
    Removal.objects.update(removed_at=Removal.objects.get().removed_at - trash.CLOCKS - dt.timedelta(seconds=30))
    trash.sweep()
    assert lying(filled) == FILES  # the removal now predates all files
    assert not Removal.objects.exists()


@pytest.mark.parametrize("at", ["s3"], indirect=True)
def test_what_lies_there_with_the_same_bytes_is_as_good_as_restored_whatever_its_etag(
    filled: Datastore, at: str, bob: Any
) -> None:
    """The state after a crash between a multipart copy and the deletion of the original."""
    removed = bob("DELETE", f"{at}/runs/2").json()["id"]
    driver = open_store(filled)
    upload = driver.begin("runs/2")
    driver.finish("runs/2", upload, [driver.write_part("runs/2", upload, 1, 0, FILES["runs/2"])])
    assert bob("POST", f"{TRASH}/{removed}/restore").status_code == 204
    assert everything(filled) == sorted(FILES.values())


@pytest.mark.parametrize("at", ["s3"], indirect=True)
def test_what_is_on_its_way_is_neither_emptied_nor_frozen(
    filled: Datastore, at: str, bob: Any, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise removed files would stay for ever, or be deleted from a version later."""
    monkeypatch.setattr(trash, "SECONDS", 0)
    assert bob("DELETE", f"{at}/runs/1/").json()["settled"] is False
    assert bob("DELETE", TRASH).status_code == 409
    for folder in ("", "runs", "runs/1/deep"):
        with pytest.raises(Conflict, match="runs/1 is on its way"):
            versions.freeze(filled, "v1", folder, acting_user=people.bob)
    trash.sweep()
    assert versions.freeze(filled, "v1", "", acting_user=people.bob).files == 1
    assert bob("DELETE", TRASH).status_code == 202
    trash.sweep()
    assert everything(filled) == [b"third"]


def test_the_trash_goes_for_good_after_seven_days_or_when_it_is_emptied(filled: Datastore, at: str, bob: Any) -> None:
    ids = [bob("DELETE", f"{at}/{path}").json()["id"] for path in ("runs/1/", "runs/2")]
    Removal.objects.filter(pk=ids[0]).update(
        removed_at=Removal.objects.get(pk=ids[0]).removed_at - dt.timedelta(days=7)
    )
    trash.sweep()
    assert [row.pk for row in Removal.objects.all()] == [ids[1]]
    assert everything(filled) == [b"third"]
    assert bob("DELETE", TRASH).status_code == 202
    folder = Removal.objects.get().folder
    trash.sweep()
    assert (lying(filled, folder), Removal.objects.count()) == ({}, 0)


@pytest.mark.parametrize("at", ["s3"], indirect=True)
def test_what_is_in_the_trash_changes_no_version_and_is_never_forgotten_with_its_datastore(
    filled: Datastore, at: str, bob: Any, people: Any, manifest: Any, s3_spec: Any
) -> None:
    before = versions.freeze(filled, "v1", "", acting_user=people.alice).digest
    versions.thaw(filled.versions.get(), acting_user=people.alice)
    assert bob("PUT", f"{at}/more", b"x").status_code == 204
    removed = bob("DELETE", f"{at}/more").json()["id"]
    assert versions.freeze(filled, "v2", "", acting_user=people.alice).digest == before
    assert "belongs to the version data@v2" in bob("POST", f"{TRASH}/{removed}/restore").content_.decode()
    versions.thaw(filled.versions.get(), acting_user=people.alice)
    with pytest.raises(Conflict, match="empty the trash first"):
        delete_datastore(filled, acting_user=people.alice)
    with pytest.raises(Invalid, match="trash"):
        change_datastore(filled, manifest("data", s3_spec(prefix="elsewhere")), acting_user=people.alice)


def test_what_the_store_refuses_stays_where_it_is(
    filled: Datastore, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full bucket refuses the copy to the trash, so nothing is removed, except for good."""
    from datastores.drivers.base import DriverError

    def full(*_: Any, **__: Any) -> None:
        raise DriverError("The bucket is full.")

    for driver in (S3, Local):
        monkeypatch.setattr(driver, "carry", full)
    with pytest.raises(DriverError, match="full"):
        trash.remove_file(filled, "runs/2", acting_user=people.bob)
    assert (lying(filled), Removal.objects.count()) == (FILES, 0)
    trash.remove_folder(filled, "runs", acting_user=people.bob, forever=True)
    assert lying(filled) == {}
    assert contents.amount(filled, "").files == 0


@pytest.mark.parametrize("at", ["local"], indirect=True)
def test_what_people_remove_does_not_wait_behind_all_that_a_rule_moves(
    filled: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"datastore": filled, "is_folder": False, "remote": "x"}
    for cause, many in (("a rule", 3), ("", 1)):
        for number in range(many):
            Removal.objects.create(path=f"{cause}{number}", cause=cause, **facts)
    turns = list[int]()
    monkeypatch.setattr(trash, "carry_on", lambda pk, seconds: turns.append(pk))
    trash.sweep()
    assert [Removal.objects.get(pk=pk).cause for pk in turns] == ["", "a rule", "a rule", "a rule"]
