"""Large files in parts, on the real S3 server and in a folder: broken uploads resume, abandoned ones leave nothing."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from datastores.actions import change_datastore
from datastores.files import uploads, versions
from datastores.models import Upload
from portal.errors import Invalid
from tests.datastores.files.conftest import ROOT

UPLOADS = ROOT.removesuffix("files") + "uploads"
MIB = 2**20
# Two parts: one of the minimum size (8 MiB), which every part but the last must have, and a short last one.
FIRST, LAST = b"a" * (8 * MIB), b"the end"
BODY = json.dumps({"path": "big/a b.bin", "size": len(FIRST + LAST), "fingerprint": "now"})
PATH = f"{ROOT}/big/a%20b.bin"
S3_ONLY = pytest.mark.parametrize("at", ["s3"], indirect=True)


@pytest.fixture
def begun(at: str, bob: Any) -> dict[str, Any]:
    answer = bob("POST", UPLOADS, BODY.encode(), "application/json")
    assert answer.status_code == 201, answer.content_
    return dict(answer.json())


def part(begun: dict[str, Any], number: int) -> str:
    return f"{PATH}?upload={begun['id']}&part={number}"


def test_a_file_comes_in_parts_in_any_order_and_goes_on_where_it_broke(begun: dict[str, Any], bob: Any) -> None:
    assert (begun["partSize"], begun["parts"], begun["stored"]) == (8 * MIB, 2, [])
    assert bob("PUT", part(begun, 2), LAST).status_code == 204
    assert bob("GET", PATH).status_code == 404
    assert [each["name"] for each in bob("GET", f"{ROOT}?path=big").json()["items"]] == []
    one = f"{UPLOADS}/{begun['id']}"
    assert (refused := bob("POST", f"{one}/finish")).status_code == 409
    assert "1 parts are missing; the first of them is part 1" in refused.content_.decode()

    # From another tab, or the next day, the same file resumes; another file starts a new upload.
    again = bob("POST", UPLOADS, BODY.encode(), "application/json")
    assert (again.status_code, again.json()) == (200, {**begun, "stored": [2]})
    other = bob("POST", UPLOADS, BODY.replace("now", "later").encode(), "application/json")
    assert other.json()["id"] != begun["id"]
    assert bob("DELETE", f"{UPLOADS}/{other.json()['id']}").status_code == 204

    for _ in range(2):
        assert bob("PUT", part(begun, 1), FIRST).status_code == 204
    made = bob("POST", f"{one}/finish")
    assert (made.status_code, made.json()["size"]) == (201, len(FIRST + LAST))
    assert bob("GET", PATH).content_ == FIRST + LAST
    assert bob("POST", f"{one}/finish").status_code == bob("PUT", part(begun, 1), FIRST).status_code == 404


def test_who_died_before_saying_that_it_is_finished_says_so_again(begun: dict[str, Any], bob: Any) -> None:
    bob("PUT", part(begun, 1), FIRST)
    bob("PUT", part(begun, 2), LAST)
    upload = Upload.objects.get()
    facts = {"datastore_id": upload.datastore_id, "path": upload.path, "size": upload.size, "remote": upload.remote}
    etags = dict(upload.parts.values_list("number", "etag"))
    assert bob("POST", f"{UPLOADS}/{upload.pk}/finish").status_code == 201
    row = Upload.objects.create(**facts, part_size=upload.part_size)
    for number, etag in etags.items():
        row.parts.create(number=number, etag=etag)
    assert bob("POST", f"{UPLOADS}/{row.pk}/finish").status_code == 201
    assert not Upload.objects.exists()


@pytest.mark.parametrize(
    ("number", "data", "said"),
    [(1, b"short", "Part 1 has 8,388,608 bytes, and 5 are sent."), (3, b"x", "This upload has the parts 1 to 2.")],
)
def test_what_is_no_part_of_it_is_refused(
    begun: dict[str, Any],
    bob: Any,
    number: int,
    data: bytes,
    said: str,
) -> None:
    answer = bob("PUT", part(begun, number), data)
    assert (answer.status_code, answer.json()["errors"][0]["message"]) == (422, said)
    elsewhere = bob("PUT", part(begun, 2).replace("big", "other"), LAST)
    assert "This upload is of big/a b.bin." in elsewhere.content_.decode()


@pytest.fixture
def left(request: pytest.FixtureRequest, at: str) -> Callable[[], list[Any]]:
    """Returns a function that lists what the store keeps of unfinished uploads."""
    if "s3" in request.node.name:
        s3, bucket = request.getfixturevalue("s3"), request.getfixturevalue("bucket")
        return lambda: list(s3.client.list_multipart_uploads(Bucket=bucket).get("Uploads", ()))
    folder = request.getfixturevalue("folder")
    return lambda: list((folder / "big").iterdir())


def test_what_nobody_goes_on_with_is_dropped_with_its_parts(begun: dict[str, Any], bob: Any, left: Any) -> None:
    bob("PUT", part(begun, 2), LAST)
    assert len(left()) == 1
    uploads.give_up()
    assert Upload.objects.count() == 1
    Upload.objects.update(touched_at=timezone.now() - dt.timedelta(days=2))
    uploads.give_up()
    assert not Upload.objects.exists()
    assert left() == []


def test_a_datastore_is_deleted_with_what_was_on_its_way_to_it(
    begun: dict[str, Any], bob: Any, left: Any, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        assert bob("DELETE", "/api/v1/appcodes/ops-demo/datastores/data").status_code == 204
    assert (left(), Upload.objects.exists()) == ([], False)


@S3_ONLY
def test_what_a_version_keeps_is_replaced_by_no_upload_that_began_before(
    people: Any, store: Any, begun: dict[str, Any], bob: Any, s3_spec: Any, manifest: Any
) -> None:
    bob("PUT", PATH, b"frozen")
    bob("PUT", part(begun, 1), FIRST)
    bob("PUT", part(begun, 2), LAST)
    frozen = versions.freeze(store, "v1", "big", acting_user=people.alice)
    refused = bob("POST", f"{UPLOADS}/{begun['id']}/finish")
    assert (refused.status_code, bob("GET", PATH).content_) == (409, b"frozen")
    assert bob("GET", f"{ROOT.removesuffix('files')}versions/a%00b").status_code == 404
    # The version would say nothing about files at another place.
    with pytest.raises(Invalid, match="versions are of what lies where it is now"):
        change_datastore(store, manifest("data", s3_spec(prefix="other")), acting_user=people.alice)
    versions.thaw(frozen, acting_user=people.alice)
    assert bob("POST", f"{UPLOADS}/{begun['id']}/finish").status_code == 201


@S3_ONLY
def test_what_a_store_has_dropped_by_itself_begins_anew_and_an_older_file_is_not_taken_for_it(
    store: Any, begun: dict[str, Any], bob: Any, s3: Any, bucket: str
) -> None:
    def dropped() -> None:
        row = Upload.objects.get()
        s3.client.abort_multipart_upload(Bucket=bucket, Key=row.path, UploadId=row.remote)

    bob("PUT", PATH, FIRST + b"the old")
    bob("PUT", part(begun, 1), FIRST)
    bob("PUT", part(begun, 2), LAST)
    Upload.objects.update(created_at=timezone.now() + dt.timedelta(minutes=2))
    dropped()
    assert bob("POST", f"{UPLOADS}/{begun['id']}/finish").status_code == 404
    begun = bob("POST", UPLOADS, BODY.encode(), "application/json").json()
    dropped()
    assert bob("PUT", part(begun, 1), FIRST).status_code == 404
    begun = bob("POST", UPLOADS, BODY.encode(), "application/json").json()
    assert (bob("PUT", part(begun, 1), FIRST).status_code, begun["stored"]) == (204, [])


@S3_ONLY
def test_a_datastore_that_lies_elsewhere_now_has_no_upload_of_where_it_lay(
    people: Any, manifest: Any, folder: Any, store: Any, begun: dict[str, Any], bob: Any, s3: Any, bucket: str,
    django_capture_on_commit_callbacks: Any,
) -> None:  # fmt: skip
    outside = folder.parent / "outside"
    outside.write_bytes(b"not theirs")
    # A foreign S3 server may choose any upload id.
    row = Upload.objects.get()
    with django_capture_on_commit_callbacks(execute=True):
        change_datastore(store, manifest("data", {"local": {"path": str(folder)}}), acting_user=people.alice)
    assert (s3.client.list_multipart_uploads(Bucket=bucket).get("Uploads", []), Upload.objects.count()) == ([], 0)
    row.remote = "../outside"
    row.save(force_insert=True)
    assert bob("PUT", f"{PATH}?upload={row.pk}&part=2", LAST).status_code == 404
    row.save(force_insert=True)
    assert bob("DELETE", f"{UPLOADS}/{row.pk}").status_code == 204
    assert outside.read_bytes() == b"not theirs"


def test_many_that_are_not_finished_and_files_that_are_too_large_are_refused(
    begun: dict[str, Any],
    bob: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uploads, "MAX_OPEN", 1)
    refused = bob("POST", UPLOADS, b'{"path": "x", "size": 1}', "application/json")
    assert (refused.status_code, "1 uploads to data" in refused.content_.decode()) == (409, True)
    large = bob("POST", UPLOADS, b'{"path": "x", "size": 9000000000000}', "application/json")
    assert (large.status_code, large.json()["errors"][0]["path"]) == (422, "size")


@S3_ONLY
def test_parts_that_went_straight_to_the_store_are_counted_where_their_size_is_right(
    begun: dict[str, Any], bob: Any, s3: Any, bucket: str
) -> None:
    one, upload = f"{UPLOADS}/{begun['id']}", Upload.objects.get()
    facts = {"Bucket": bucket, "Key": upload.path, "UploadId": upload.remote}
    s3.client.upload_part(**facts, PartNumber=1, Body=FIRST)
    s3.client.upload_part(**facts, PartNumber=2, Body=LAST + b"!")
    answer = bob("POST", f"{one}/urls", b'{"parts": [2]}', "application/json")
    assert (answer.json()["stored"], [item["part"] for item in answer.json()["items"]]) == ([1], [2])
    assert bob("POST", f"{one}/finish").status_code == 409
    assert bob("DELETE", one).status_code == 204
    begun = bob("POST", UPLOADS, BODY.encode(), "application/json").json()
    one, upload = f"{UPLOADS}/{begun['id']}", Upload.objects.get()
    for number, data in ((1, FIRST), (2, LAST)):
        s3.client.upload_part(Bucket=bucket, Key=upload.path, UploadId=upload.remote, PartNumber=number, Body=data)
    assert bob("POST", f"{one}/finish").status_code == 201
    assert bob("GET", PATH).content_ == FIRST + LAST
    assert bob("POST", f"{one}/urls", b'{"parts": [2]}', "application/json").status_code == 404


@pytest.mark.parametrize("at", ["local"], indirect=True)
def test_a_folder_has_no_addresses_for_parts(begun: dict[str, Any], bob: Any) -> None:
    refused = bob("POST", f"{UPLOADS}/{begun['id']}/urls", b'{"parts": [1]}', "application/json")
    assert (refused.status_code, "no address of its own" in refused.content_.decode()) == (409, True)
    assert bob("POST", f"{UPLOADS}/{begun['id']}/urls", b'{"parts": [3]}', "application/json").status_code == 422
