"""Files over REST, on the real S3 server and in a local folder: stored bytes come back, whole and in parts."""

from __future__ import annotations

import io
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.client import BOUNDARY, MULTIPART_CONTENT, encode_multipart

from datastores.actions import open_store
from datastores.drivers import local
from datastores.files import contents, versions
from portal.db.advisory_lock import Lock
from portal.errors import Conflict
from portal.models import Event
from tests import ports
from tests.datastores.files.conftest import ROOT


def test_a_file_goes_in_comes_back_in_parts_and_gets_another_name(at: str, bob: Any) -> None:
    assert bob("PUT", f"{at}/runs/a%20b/model.bin", b"0123456789").status_code == 204
    whole = bob("GET", f"{at}/runs/a%20b/model.bin")
    assert (whole.status_code, whole.content_, whole["Accept-Ranges"]) == (200, b"0123456789", "bytes")
    for wanted, told, data in (
        ("bytes=2-4", "bytes 2-4/10", b"234"),
        ("bytes=7-", "bytes 7-9/10", b"789"),
        ("bytes=-3", "bytes 7-9/10", b"789"),
        ("bytes=8-99", "bytes 8-9/10", b"89"),
    ):
        part = bob("GET", f"{at}/runs/a%20b/model.bin", Range=wanted)
        assert (part.status_code, part["Content-Range"], part.content_) == (206, told, data)
    assert bob("GET", f"{at}/runs/a%20b/model.bin", Range="bytes=10-").status_code == 416
    assert bob("GET", f"{at}/runs/a%20b/model.bin", Range="bytes=4-2").status_code == 200
    old = {"Range": "bytes=0-1", "If-Range": whole["ETag"]}
    assert bob("GET", f"{at}/runs/a%20b/model.bin", **old).content_ == b"01"
    bob("PUT", f"{at}/runs/a%20b/model.bin", b"another")
    assert bob("GET", f"{at}/runs/a%20b/model.bin", **old).content_ == b"another"
    looked = bob("HEAD", f"{at}/runs/a%20b/model.bin")
    assert (looked["Content-Length"], looked.content_) == ("7", b"")

    copied = bob("POST", f"{at}/runs/a%20b/model.bin", b'{"copy": "best/model.bin"}', "application/json")
    assert (copied.status_code, copied.json()["size"], copied["Location"]) == (
        201, 7, f"http://testserver{at}/best/model.bin",
    )  # fmt: skip
    again = bob("POST", f"{at}/runs/a%20b/model.bin", b'{"move": "best/model.bin"}', "application/json")
    assert (again.status_code, "already" in again.json()["detail"]) == (409, True)
    moved = bob("POST", f"{at}/runs/a%20b/model.bin", b'{"move": "runs/first.bin"}', "application/json")
    assert moved.status_code == 201
    assert bob("GET", f"{at}/runs/a%20b/model.bin").status_code == 404
    assert bob("GET", f"{at}/runs/first.bin").content_ == b"another"
    said = list(Event.objects.filter(verb__startswith="datastore.file-").order_by("id").values_list("verb", "message"))
    assert said[-2:] == [
        ("datastore.file-copied", "Copied runs/a b/model.bin to best/model.bin."),
        ("datastore.file-moved", "Moved runs/a b/model.bin to runs/first.bin."),
    ]

    assert bob("DELETE", f"{at}/best/model.bin").status_code == 200
    assert bob("GET", f"{at}/best/model.bin").status_code == 404
    assert [bob("DELETE", f"{at}/{folder}/").status_code for folder in ("runs", "best")] == [200, 204]
    assert bob("GET", at).json() == {"items": [], "next": None}


def test_a_folder_is_listed_by_pages(at: str, bob: Any) -> None:
    for name in ("a.txt", "b.txt", "c/d.txt"):
        bob("PUT", f"{at}/{name}", b"x")
    first = bob("GET", f"{at}?limit=2").json()
    rest = bob("GET", first["next"].removeprefix("http://testserver")).json()
    items = sorted((each["kind"], each["path"], each["size"]) for each in first["items"] + rest["items"])
    assert (items, rest["next"]) == ([("file", "a.txt", 1), ("file", "b.txt", 1), ("folder", "c", None)], None)
    [deep] = bob("GET", f"{at}?path=c").json()["items"]
    assert (deep["path"], deep["etag"] != "") == ("c/d.txt", True)
    assert [each["name"] for each in bob("GET", f"{at}?search=b").json()["items"]] == ["b.txt"]


def test_a_folder_comes_as_one_archive_of_a_size_that_is_known_before(at: str, bob: Any) -> None:
    archive = at.replace("/files", "/archive")
    assert bob("GET", f"{archive}?path=runs").status_code == 404
    files = {"runs/1/a.txt": b"a" * 300_000, "runs/1/deep/b.txt": b"b", "runs/2/ä.txt": b"c", "other.txt": b"x"}
    for name, data in files.items():
        bob("PUT", f"{at}/{name}", data)
    packed = bob("GET", f"{archive}?path=runs/1")
    assert int(packed["Content-Length"]) == len(packed.content_)
    assert packed["Content-Disposition"] == 'attachment; filename="1.zip"'
    with zipfile.ZipFile(io.BytesIO(packed.content_)) as found:
        assert found.testzip() is None
        assert {name: found.read(name) for name in found.namelist()} == {
            name.removeprefix("runs/"): data for name, data in files.items() if name.startswith("runs/1")
        }
    with zipfile.ZipFile(io.BytesIO(bob("GET", archive).content_)) as found:
        assert set(found.namelist()) == set(files)
    # On systems that separate folders with a backslash, this name leads out of the folder into which the archive is unpacked.
    assert bob("PUT", f"{at}/other/..%5C..%5Cx.exe", b"x").status_code == 204
    assert bob("GET", f"{archive}?path=other").status_code == 409


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/../x", b"x", 422),
        ("GET", "/a/../../x", b"", 422),
        ("GET", "?path=../x", b"", 422),
        ("POST", "/a.txt", b'{"move": "../x"}', 422),
        ("POST", "/a.txt", b"{}", 422),
        ("POST", "/a.txt", b'{"move": "b", "copy": "c"}', 422),
        ("POST", "/absent.txt", b'{"move": "b"}', 404),
        ("DELETE", "/..", b"", 422),
    ],
)
def test_what_leads_out_or_means_nothing_is_refused(
    at: str, bob: Any, method: str, path: str, body: bytes, status: int
) -> None:
    bob("PUT", f"{at}/a.txt", b"x")
    assert bob(method, f"{at}{path}", body, "application/json").status_code == status
    assert bob("GET", f"{at}/a.txt").content_ == b"x"


class Unread:
    """A request body that has not arrived yet."""

    def read(self, *_: int) -> bytes:
        raise AssertionError("It is waited for.")

    readline = read


def test_a_browser_is_known_by_headers_alone_and_who_sends_slowly_holds_no_thread(at: str, people: Any) -> None:
    client, there = Client(enforce_csrf_checks=True), f"{at}/a.txt"
    client.force_login(people.bob)
    # With the cookie alone, Django would look for the CSRF token in the body.
    client.cookies["csrftoken"] = "x" * 32
    for content in ("application/json", "multipart/form-data; boundary=x"):
        slow = client.generic("POST", there, b"x" * 1000, content, **{"wsgi.input": Unread()})
        assert (slow.status_code, "CSRF" in slow.json()["detail"]) == (403, True)
    ours = {"X-CSRFToken": "x" * 32}
    assert client.put(there, b"x", headers=ours).status_code == 204
    made = client.post(there, {"move": "a 1%?.txt"}, "application/json", headers=ours)
    assert made["Location"].endswith("/files/a%201%25%3F.txt")
    assert client.get(made["Location"].removeprefix("http://testserver")).getvalue() == b"x"


NONSENSE = b"""<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>f/a</Key><Size>9223372036854775807</Size>
<ETag>"x&#10;y"</ETag><LastModified>2026-01-01T00:00:00Z</LastModified></Contents></ListBucketResult>"""


def test_a_server_whose_answers_make_no_sense_takes_nobody_s_place(people: Any, bob: Any, manifest: Any) -> None:
    from datastores.actions import create_datastore

    class Nonsense(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(NONSENSE) + NONSENSE)

        def log_message(self, *_: Any) -> None:
            """Logs nothing."""

    with ThreadingHTTPServer(("127.0.0.1", ports.free()), Nonsense) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        spec = {
            "server": f"http://127.0.0.1:{server.server_port}",
            "access_key": "k",
            "secret_key": "s",
            "bucket": "abc",
        }
        create_datastore(manifest("data", {"s3": spec}), acting_user=people.alice)
        for _ in range(3):
            answer = bob("GET", f"{ROOT.replace('/files', '/archive')}?path=f")
            assert (answer.status_code, answer.json()["detail"]) == (503, "The server says of a file what cannot be.")
        server.shutdown()


def test_a_file_of_a_year_that_no_calendar_has_is_still_seen() -> None:
    """Some file systems store any timestamp that a program sets."""
    facts: Any = SimpleNamespace(st_mtime=2.0**50, st_ctime=2.0**50, st_mtime_ns=2**50 * 10**9, st_size=1)
    assert local._file("a", "a", facts).modified.year == 9999


def test_a_kind_that_only_tasks_see_says_so(people: Any, bob: Any, manifest: Any) -> None:
    from datastores.actions import create_datastore

    create_datastore(manifest("data", {"nfs": {"server": "10.0.0.7", "path": "/data"}}), acting_user=people.alice)
    for answer in (bob("GET", ROOT), bob("GET", f"{ROOT}/x"), bob("PUT", f"{ROOT}/x", b"x")):
        assert (answer.status_code, "inside a cluster" in answer.json()["detail"]) == (409, True)


def test_without_an_etag_nobody_is_told_that_a_file_is_unchanged() -> None:
    from datastores.drivers.base import Entry
    from datastores.files.downloads import etag_header

    assert etag_header(Entry("a", "a", etag="1")) == {"ETag": '"1"'}
    assert etag_header(Entry("a", "a")) == {}


def test_files_are_found_and_counted_in_all_folders_below(at: str, bob: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("runs/1/Model.keras", "runs/1/log.txt", "runs/2/model.keras", "runs/top.txt", "other/model.keras"):
        assert bob("PUT", f"{at}/{path}", b"12345").status_code == 204
    found = bob("GET", f"{at}?path=runs&search=1%20MODEL&below=true").json()
    assert ([each["path"] for each in found["items"]], found["complete"]) == (["runs/1/Model.keras"], True)
    sizes = at.removesuffix("files") + "sizes"
    assert bob("GET", f"{sizes}?path=runs").json() == {
        "files": 4,
        "size": 20,
        "folders": [{"name": "1", "files": 2, "size": 10}, {"name": "2", "files": 1, "size": 5}],
        "complete": True,
    }
    monkeypatch.setattr(contents, "MOST_LOOKED_AT", 2)
    assert not bob("GET", f"{at}?search=nowhere&below=1").json()["complete"]
    counted = bob("GET", sizes).json()
    assert (counted["files"], counted["complete"]) == (2, False)


def test_many_small_files_come_together_and_one_event_tells_of_them(at: str, bob: Any) -> None:
    wanted = {f"many/{n}/a b%.txt": str(n).encode() for n in range(40)}
    form = {quote(path, safe=""): SimpleUploadedFile("x", data) for path, data in wanted.items()}
    body, kind = encode_multipart(BOUNDARY, form), MULTIPART_CONTENT
    assert bob("POST", at, body, kind).status_code == 204
    assert {path: bob("GET", f"{at}/{quote(path)}").content_ for path in wanted} == wanted
    event = Event.objects.get(verb="datastore.file-stored")
    assert (event.message, event.data["files"]) == ("Stored 40 files in many.", 40)

    # All files are validated before any is stored.
    form = {"fine": SimpleUploadedFile("x", b"x"), quote("../out", safe=""): SimpleUploadedFile("x", b"x")}
    refused = bob("POST", at, encode_multipart(BOUNDARY, form), kind)
    assert (refused.status_code, bob("GET", f"{at}/fine").status_code) == (422, 404)
    large = encode_multipart(BOUNDARY, {"large": SimpleUploadedFile("x", bytes(4 * 2**20))})
    assert bob("POST", at, large, kind).status_code == 413


@pytest.mark.parametrize("at", ["local"], indirect=True)
def test_of_many_files_one_that_cannot_be_stored_keeps_no_other_from_it(at: str, bob: Any) -> None:
    bob("PUT", f"{at}/file", b"no folder")
    form = {quote(path, safe=""): SimpleUploadedFile("x", b"new") for path in ("first", "file/below", "last")}
    refused = bob("POST", at, encode_multipart(BOUNDARY, form), MULTIPART_CONTENT)
    assert (refused.status_code, "where a folder should be" in refused.content_.decode()) == (503, True)
    assert [bob("GET", f"{at}/{path}").content_ for path in ("first", "last")] == [b"new", b"new"]
    assert Event.objects.latest("id").message == "Stored 2 files."


@pytest.mark.parametrize("size", [3, 9 * 2**20])
def test_nothing_is_stored_that_was_under_way_when_its_folder_was_frozen(store: Any, people: Any, size: int) -> None:
    contents.store_file(store, "in/a", io.BytesIO(b"1"), 1, acting_user=people.alice)

    class Freezing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if not store.versions.exists():
                versions.freeze(store, "v1", "in", acting_user=people.alice)
            return super().read(size)

    with pytest.raises(Conflict, match="belongs to the version data@v1"):
        contents.store_file(store, "in/b", Freezing(bytes(size)), size, acting_user=people.alice)
    assert [entry.path for entry in open_store(store).walk("")] == ["in/a"]


@pytest.mark.django_db(transaction=True)
def test_who_freezes_waits_for_those_who_store_and_nobody_begins_meanwhile(
    store: Any, people: Any, bob: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob("PUT", f"{ROOT}/in/a", b"1")
    monkeypatch.setattr(contents, "REST_SECONDS", 1)
    files = [Lock.FILES, str(store.pk)]
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock_shared(%s, hashtext(%s))", files)
            assert bob("PUT", f"{ROOT}/in/a", b"2").status_code == 204
            with pytest.raises(Conflict, match="Files are stored in data just now"):
                versions.freeze(store, "v1", "in", acting_user=people.alice)
            cursor.execute("SELECT pg_advisory_unlock_shared(%s, hashtext(%s))", files)
            cursor.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", files)
            refused = bob("PUT", f"{ROOT}/in/a", b"3")
            assert (refused.status_code, "A version of data is made just now" in refused.content_.decode()) == (
                503,
                True,
            )
            cursor.execute("SELECT pg_advisory_unlock(%s, hashtext(%s))", files)
    finally:
        other.close()
    versions.freeze(store, "v1", "in", acting_user=people.alice)
    assert bob("GET", f"{ROOT}/in/a").content_ == b"2"
