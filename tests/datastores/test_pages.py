"""Datastore pages as different users see them, and unchanged file contents in both directions."""

from __future__ import annotations

import html
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from datastores.files import contents, pages, trash
from datastores.models import Datastore, Storage

UPLOADS = "/uploads/ops-demo/data"
ONE = "/datastores/ops-demo/data"


@pytest.fixture
def as_(people: Any) -> Any:
    """as_("alice") → a browser in which she is signed in."""

    def sign_in(name: str) -> Client:
        client = Client()
        client.force_login(getattr(people, name))
        return client

    return sign_in


def said(response: Any) -> str:
    return " ".join(str(message) for message in get_messages(response.wsgi_request))


def typed(s3: Any, bucket_: str, **changes: str) -> dict[str, str]:
    fields = {"name": "data", "appcode": "ops-demo", "server": s3.url, "bucket": bucket_, "folder": "", "region": ""}
    return fields | {"access_key": s3.access_key, "secret_key": s3.secret_key} | changes


def put(client: Client, path: str, data: bytes) -> Any:
    return client.generic("PUT", f"{UPLOADS}?path={path}", data, content_type="application/octet-stream")


# The list


def test_the_list_shows_mine_and_says_how_to_begin(as_: Any, store: Any) -> None:
    page = as_("bob").get("/datastores").content.decode()
    assert "data" in page
    assert store.where in page
    assert "New datastore" in page
    assert "New datastore" not in as_("victor").get("/datastores").content.decode()
    empty = as_("mallory").get("/datastores").content.decode()
    assert store.where not in empty
    assert "No datastore yet" in empty


def test_the_list_is_searched_and_narrowed(as_: Any, store: Any) -> None:
    client = as_("alice")
    assert store.where in client.get("/datastores?search=DAT").content.decode()
    assert store.where not in client.get("/datastores?search=other").content.decode()
    assert store.where not in client.get("/datastores?kind=nfs").content.decode()
    assert store.where not in client.get("/datastores?appcode=flight-demo").content.decode()
    assert client.get("/datastores?cursor=%00&search=%00&kind=x").status_code == 200


def test_a_whole_bucket_names_the_datastores_inside_it(as_: Any, store: Any, people: Any) -> None:
    spec = store.spec | {"prefix": "runs"}
    for name, appcode in (("runs", people.ops), ("theirs", people.flight)):
        Datastore.objects.create(appcode=appcode, name=name, kind="s3", spec=spec, secret="s")
    for address in ("/datastores", ONE):
        page = as_("alice").get(address).content.decode()
        assert "runs (inside it)</span>" in page
        assert "theirs" not in page
    for address in (f"/datastores/{people.ops.code}/runs", f"{ONE}?folder=other"):
        assert "(inside it)" not in as_("alice").get(address).content.decode()


def test_a_list_costs_few_queries(
    as_: Any, store: Any, manifest: Any, people: Any, django_assert_max_num_queries: Any
) -> None:
    from datastores.actions import create_datastore

    for n in range(30):
        wish = manifest(f"nfs-{n}", {"nfs": {"server": "10.0.0.7", "path": f"/{n}"}})
        create_datastore(wish, acting_user=people.alice)
    client = as_("alice")
    with django_assert_max_num_queries(10):
        client.get("/datastores")


# The form


def test_the_form_creates_a_datastore(as_: Any, s3: Any, bucket: str) -> None:
    client = as_("bob")
    assert "Secret key" in client.get("/datastores/new").content.decode()
    response = client.post("/datastores/new", typed(s3, bucket))
    assert response["Location"] == ONE
    store = Datastore.objects.get()
    assert (store.spec["region"], store.spec["prefix"], store.secret) == ("us-east-1", "", s3.secret_key)


@pytest.mark.parametrize("kind", ["s3", "nfs", "volume", "local"])
def test_an_empty_form_is_refused_field_by_field(as_: Any, kind: str) -> None:
    page = as_("bob").post(f"/datastores/new?kind={kind}", {}).content.decode()
    assert page.count("Fill this in.") >= 2


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "Not a label"}, "name"),
        ({"appcode": "flight-demo"}, "appcode"),
        ({"server": "ftp://x"}, "server"),
        ({"server": "http://169.254.169.254"}, "server"),
        ({"bucket": "X"}, "bucket"),
        ({"folder": "../x"}, "folder"),
        ({"secret_key": ""}, "secret_key"),
    ],
)
def test_a_refusal_stands_beside_its_field_and_keeps_what_was_typed(
    as_: Any, s3: Any, bucket: str, changes: dict[str, str], field: str
) -> None:
    response = as_("bob").post("/datastores/new", typed(s3, bucket, **changes))
    assert response.status_code == 200
    assert list(response.context["form"].errors) == [field]
    page = response.content.decode()
    assert s3.access_key in page
    assert s3.secret_key not in page


def test_the_connection_is_tried_before_saving(as_: Any, s3: Any, bucket: str) -> None:
    client, htmx = as_("bob"), {"HX-Request": "true"}
    good = client.post("/datastores/new", typed(s3, bucket, test="1"), headers=htmx)
    assert "can be read" in good.content.decode()
    assert json.loads(good["HX-Trigger"])["form:wrong"]["fields"] == {}
    bad = client.post("/datastores/new", typed(s3, "no-such-bucket", test="1"), headers=htmx)
    assert "no such bucket" in json.loads(bad["HX-Trigger"])["form:wrong"]["fields"]["bucket"]
    assert s3.secret_key not in bad.content.decode() + bad["HX-Trigger"]
    assert not Datastore.objects.exists()
    saved = client.post("/datastores/new", typed(s3, bucket), headers=htmx)
    assert saved["HX-Redirect"] == ONE


def test_changing_keeps_the_secret_and_the_name(as_: Any, s3: Any, store: Any, bucket: str) -> None:
    client = as_("alice")
    page = client.get(f"{ONE}/change").content.decode()
    assert s3.secret_key not in page
    assert 'placeholder="kept"' in page
    client.post(f"{ONE}/change", typed(s3, bucket, secret_key="", folder="x", name="other", appcode="flight-demo"))
    store.refresh_from_db()
    assert (store.name, store.secret, store.spec["prefix"]) == ("data", s3.secret_key, "x")
    assert store.appcode.code == "ops-demo"


def test_buttons_test_and_delete(as_: Any, store: Any) -> None:
    client = as_("bob")
    response = client.post(f"{ONE}/test?next=/datastores")
    assert response["Location"] == "/datastores"
    assert "can be read" in said(response)
    assert client.post(f"{ONE}/test?next=https://evil.example")["Location"] == ONE
    response = client.post(f"{ONE}/delete")
    assert "still at" in said(response)
    assert client.get(ONE).status_code == 404


def test_a_row_of_the_list_is_tested_in_place(as_: Any, store: Any, s3: Any) -> None:
    bob = as_("bob")
    page = bob.get("/datastores").content.decode()
    assert 'hx-post="/datastores/ops-demo/data/test"' in page
    assert 'hx-post="/datastores/ops-demo/data/test"' not in as_("victor").get("/datastores").content.decode()
    good = bob.post(f"{ONE}/test", headers={"HX-Request": "true"})
    cell = good.content.decode()
    assert "state-succeeded" in cell
    assert "can be read" in cell
    assert "<html" not in cell
    assert said(good) == "", "no toast repeats it"
    store.spec["bucket"] = "no-such-bucket"
    store.save()
    assert "is-failed" in bob.post(f"{ONE}/test", headers={"HX-Request": "true"}).content.decode()
    assert "is-failed" in bob.get("/datastores").content.decode(), "the row keeps saying why"


def test_a_size_that_is_not_known_says_why_and_a_measured_bucket_has_one(as_: Any, store: Any, people: Any) -> None:
    def size() -> str:
        page = as_("bob").get("/datastores").content.decode()
        return page.split('data-label="Size">')[1].split("</td>")[0]

    assert "Test it, or open it" in size()
    assert ">–<" in size()
    bucket = Storage.objects.create(
        appcode=people.ops, bucket="ops", limit_gib=1, access_key="a", own_key=store.spec["access_key"]
    )
    assert "measured within minutes" in size()
    Storage.objects.filter(pk=bucket.pk).update(used_bytes=3 * 1024**2)
    assert "3.0 MiB" in size()
    store.spec["prefix"] = "photos"
    store.save()
    assert "Test it, or open it" in size(), "a folder of the bucket is less than the bucket"


def test_a_test_counts_what_is_in_a_bucket_of_somebody_else(
    as_: Any, store: Any, s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        s3.client.put_object(Bucket=bucket, Key=f"runs/{n}", Body=b"x" * 1024)
    cell = as_("bob").post(f"{ONE}/test", headers={"HX-Request": "true"}).content.decode()
    assert "It has 3 files, 3.0 KiB." in cell
    assert f'id="size-{store.pk}" hx-swap-oob="true">3.0 KiB' in cell

    def size() -> str:
        page = as_("victor").get("/datastores").content.decode()
        return page.split('data-label="Size">')[1].split("</td>")[0]

    assert "3.0 KiB<small>" in size()
    assert "3 files" in size()
    monkeypatch.setattr("datastores.actions.FOUND_MOST", 2)
    monkeypatch.setattr("datastores.models.FOUND_MOST", 2)
    assert "The first 2 files have 2.0 KiB." in said(as_("bob").post(f"{ONE}/test"))
    assert "first 2 files" in size()
    store.refresh_from_db()
    store.spec["bucket"] = "no-such-bucket"
    store.save()
    as_("bob").post(f"{ONE}/test")
    assert ">–<" in size(), "what was counted is not there any more"


# Files


def test_a_file_goes_in_is_seen_and_comes_out(as_: Any, store: Any, s3: Any, bucket: str) -> None:
    client = as_("bob")
    data = bytes(range(256)) * 100
    assert put(client, "runs/1/model.bin", data).status_code == 204
    assert s3.client.get_object(Bucket=bucket, Key="runs/1/model.bin")["Body"].read() == data
    page = as_("victor").get(f"{ONE}?folder=runs/1").content.decode()
    assert "model.bin" in page
    assert "25.0 KiB" in page
    assert "?folder=runs" in page
    response = as_("victor").get(f"{ONE}/file?path=runs/1/model.bin")
    assert b"".join(response.streaming_content) == data
    assert response["Content-Length"] == str(len(data))
    from portal.models import Event

    assert Event.objects.get(verb="datastore.file-stored").message == "Stored runs/1/model.bin."


def test_what_a_listing_does_not_know_is_said(as_: Any, store: Any, s3: Any, bucket: str) -> None:
    s3.client.put_object(Bucket=bucket, Key="runs/1/model.bin", Body=b"1")
    client = as_("bob")
    page = client.get(ONE).content.decode()
    assert page.count('class="muted" title="A listing has no') == 2, "a folder has neither size nor date"


def test_names_are_found_by_any_part_and_the_page_says_how_many_it_looked_at(
    as_: Any, store: Any, s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("best-Model.keras", "other", "runs/model/1", "the-models/1", "zebra"):
        s3.client.put_object(Bucket=bucket, Key=name, Body=b"1")

    def found(query: str) -> tuple[list[str], str]:
        page = as_("victor").get(f"{ONE}?{query}").content.decode()
        return re.findall(r'aria-label="Choose ([^"]+)"', page)[1:], page

    names, page = found("search=model")
    assert names == ["the-models", "best-Model.keras"]
    assert "Searched the whole folder: 5 names." in page
    names, page = found("search=model&below=1")
    assert names == ["best-Model.keras", "runs/model/1", "the-models/1"]
    assert "Searched everything here and below: 5 files." in page
    names, page = found("below=1")
    assert names == ["best-Model.keras", "other", "runs/model/1", "the-models/1", "zebra"]
    assert "All files here and below: 5." in page
    monkeypatch.setattr(contents, "MOST_NAMES", 1)
    monkeypatch.setattr(contents, "NAMES_AT_ONCE", 1)
    names, page = found("search=zeb")
    assert names == ["zebra"], "a beginning is found beyond what was looked at"
    assert "Searched the first 1 names in this folder." in page
    # What is not here is searched below at once, and the page says how far.
    names, page = found("search=bra")
    assert names == ["zebra"]
    assert "No name in this folder has “bra” in it. Searched everything here and below: 5 files." in page
    monkeypatch.setattr(contents, "MOST_LOOKED_AT", 2)
    names, page = found("search=bra")
    assert names == []
    assert "Searched the first 2 files here and below. Open a folder to search the rest." in page
    monkeypatch.setattr(pages, "ROWS", 1)
    names, page = found("search=o")
    assert len(names) == 1
    assert "The first 1 that fit are shown" in page
    assert "1 of the files here and below are shown" in found("below=1")[1]


def test_files_are_never_shown_in_the_portal(as_: Any, store: Any, s3: Any, bucket: str) -> None:
    name = 'evil"<script>.html'
    s3.client.put_object(Bucket=bucket, Key=name, Body=b"<script>alert(1)</script>", ContentType="text/html")
    client = as_("alice")
    response = client.get(f"{ONE}/file", {"path": name})
    assert response["Content-Type"] == "application/octet-stream"
    assert response["Content-Disposition"].startswith("attachment;")
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response.getvalue() == b"<script>alert(1)</script>"
    assert "<script>.html" not in client.get(ONE).content.decode()


def test_a_viewer_reads_and_changes_nothing(as_: Any, store: Any, s3: Any, bucket: str) -> None:
    s3.client.put_object(Bucket=bucket, Key="keep", Body=b"1")
    victor = as_("victor")
    page = victor.get(ONE).content.decode()
    assert "keep" in page
    for word in ("Choose files", "Remove", "Test connection", f"{ONE}/change"):
        assert word not in page
    assert put(victor, "new", b"x").status_code == 403
    assert victor.post(UPLOADS, {}).status_code == 403
    for path in ("remove?path=keep", "remove?folder=keep", "delete", "test"):
        assert victor.post(f"{ONE}/{path}").status_code == 403
    assert victor.get(f"{ONE}/change").status_code == 403
    assert [item["Key"] for item in s3.client.list_objects_v2(Bucket=bucket)["Contents"]] == ["keep"]


def test_an_outsider_finds_nothing_at_all(as_: Any, store: Any) -> None:
    mallory = as_("mallory")
    for path in ("", "/file?path=x", "/change", "/remove?path=x"):
        assert mallory.get(f"{ONE}{path}").status_code == 404
    assert put(mallory, "x", b"x").status_code == 404
    for path in (f"{ONE}/delete", f"{ONE}/test", UPLOADS, f"{ONE}/remove?path=x"):
        assert mallory.post(path).status_code == 404


def test_a_large_folder_is_seen_page_by_page(as_: Any, store: Any, s3: Any, bucket: str) -> None:
    for n in range(205):
        s3.client.put_object(Bucket=bucket, Key=f"many/file-{n:03}", Body=b"")
    client = as_("alice")
    first = client.get(f"{ONE}?folder=many")
    assert len(first.context["listing"].entries) == 200
    second = client.get(f"{ONE}", {"folder": "many", "cursor": first.context["next_cursor"]})
    assert [entry.name for entry in second.context["listing"].entries] == [f"file-{n}" for n in range(200, 205)]
    found = client.get(f"{ONE}?folder=many&search=file-01").context["listing"].entries
    assert len(found) == 10


def test_removing_a_folder_asks_and_names_what_is_lost(as_: Any, store: Any, s3: Any, bucket: str) -> None:
    for key in ("run/1/a", "run/1/b", "run/2"):
        s3.client.put_object(Bucket=bucket, Key=key, Body=b"12345")
    client = as_("bob")
    page = client.get(f"{ONE}/remove?folder=run/1").content.decode()
    assert "2 files" in page
    assert "10 B" in page
    response = client.post(f"{ONE}/remove?folder=run/1")
    assert response["Location"] == f"{ONE}?folder=run"
    said = [str(each) for each in get_messages(response.wsgi_request)]
    left = [item["Key"] for item in s3.client.list_objects_v2(Bucket=bucket)["Contents"]]
    assert [key for key in left if not key.startswith(".portal-trash/")] == ["run/2"], said
    # The toast's Undo restores the files and returns to the same folder.
    undo = re.search(r'formaction="([^"]+/restore[^"]+)">Undo', client.get(response["Location"]).content.decode())
    assert undo
    assert client.post(html.unescape(undo[1]))["Location"] == f"{ONE}?folder=run"
    assert {item["Key"] for item in s3.client.list_objects_v2(Bucket=bucket)["Contents"]} == {
        "run/1/a",
        "run/1/b",
        "run/2",
    }
    for named in ("", "run"):
        refused = client.post(f"{ONE}/remove?folder=run/1", {"forever": "yes", "name": named})
        assert "the name of the folder; nothing was removed" in refused.content.decode()
    assert [item["Key"] for item in s3.client.list_objects_v2(Bucket=bucket, Prefix="run/1/")["Contents"]] == [
        "run/1/a",
        "run/1/b",
    ]
    for way in ({"forever": "yes", "name": "run/1"}, {}):
        assert client.post(f"{ONE}/remove?folder=run/1", way).status_code == 302
    client.post(f"{ONE}/remove?path=run/2")
    assert "run/2" in client.get(f"{ONE}/trash").content.decode()
    assert "nobody can restore it" in client.post(f"{ONE}/trash/empty").content.decode()
    trash.sweep()
    assert "Contents" in s3.client.list_objects_v2(Bucket=bucket), "without the dialog the page asks first"
    client.post(f"{ONE}/trash/empty", {"confirmed": "yes"})
    trash.sweep()
    assert "Contents" not in s3.client.list_objects_v2(Bucket=bucket)
    assert client.post(f"{ONE}/remove").status_code == 404


def test_what_is_too_large_is_refused_before_it_is_read(as_: Any, store: Any, settings: Any) -> None:
    settings.UPLOAD_MAX_BYTES = 10
    response = put(as_("bob"), "large", b"x" * 11)
    assert (response.status_code, "at most" in response.json()["detail"]) == (422, True)


@pytest.mark.parametrize("path", ["", "..", "a/../b", "a%00b", "a%0Ab", "x" * 1100])
def test_no_path_leaves_the_datastore(as_: Any, store: Any, path: str) -> None:
    client = as_("bob")
    assert put(client, path, b"x").status_code == 422
    assert client.get(f"{ONE}/remove?path={path}").status_code == 404
    if path:
        assert client.get(f"{ONE}?folder={path}").status_code == 404
        assert client.get(f"{ONE}/file?path={path}").status_code == 404


def test_uploads_work_without_javascript(as_: Any, store: Any, s3: Any, bucket: str) -> None:
    files = [SimpleUploadedFile(name, name.encode()) for name in ("a.txt", "b.txt")]
    response = as_("bob").post(UPLOADS, {"folder": "new/folder/", "files": files})
    assert response["Location"] == f"{ONE}?folder=new/folder"
    assert s3.client.get_object(Bucket=bucket, Key="new/folder/b.txt")["Body"].read() == b"b.txt"


def test_a_file_gets_another_name_and_never_that_of_another_file(as_: Any, store: Any) -> None:
    bob = as_("bob")
    for name in ("a.txt", "b.txt"):
        put(bob, name, name.encode())
    refused = bob.post(f"{ONE}/rename?path=a.txt", {"to": "b.txt"})
    assert "There is a file b.txt already" in refused.content.decode()
    moved = bob.post(f"{ONE}/rename?path=a.txt", {"to": "best/a.txt"})
    assert (moved["Location"], said(moved)) == (f"{ONE}?folder=best", "a.txt is called best/a.txt now.")
    copied = bob.post(f"{ONE}/rename?path=b.txt", {"to": "best/b.txt", "copy": "1"})
    assert said(copied).endswith("b.txt is copied to best/b.txt.")
    assert bob.get(f"{ONE}/file?path=a.txt").status_code == 404
    assert [bob.get(f"{ONE}/file?path={name}").getvalue() for name in ("best/a.txt", "b.txt", "best/b.txt")] == [
        b"a.txt", b"b.txt", b"b.txt",
    ]  # fmt: skip


def test_what_is_chosen_is_downloaded_and_removed_together(as_: Any, store: Any) -> None:
    bob = as_("bob")
    for name in ("a/b/1.txt", "a/2.txt", "a/3.txt"):
        put(bob, name, name.encode())
    wanted = {"paths": ["a/b/", "a/2.txt"], "folder": "a"}
    packed = as_("victor").post(f"{ONE}/chosen", wanted)
    assert packed["Content-Disposition"] == 'attachment; filename="a.zip"'
    with zipfile.ZipFile(io.BytesIO(packed.getvalue())) as found:
        assert set(found.namelist()) == {"b/1.txt", "2.txt"}
    removed = bob.post(f"{ONE}/chosen", {**wanted, "do": "remove"})
    assert removed["Location"] == f"{ONE}?folder=a"
    assert said(removed).startswith("2 files or folders are in the trash for 7 days.")
    page = bob.get(f"{ONE}?folder=a").content.decode()
    assert ("3.txt" in page, "2.txt" in page, 'value="b/"' in page) == (True, False, False)
    assert said(bob.post(f"{ONE}/chosen", {"folder": "a"})).endswith("Choose files or folders first.")
    assert bob.post(f"{ONE}/chosen", {"paths": ["../x"]}).status_code == 404


def test_uploads_need_the_token_of_the_page(people: Any, store: Any) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(people.bob)
    assert put(client, "x", b"x").status_code == 403
    assert client.post(UPLOADS, {"files": io.BytesIO(b"x")}).status_code == 403


def test_a_store_that_cannot_be_reached_still_has_a_page(as_: Any, store: Any) -> None:
    type(store).objects.update(spec=store.spec | {"server": "http://127.0.0.1:1"})
    page = as_("alice").get(ONE).content.decode()
    assert "cannot be listed" in page
    assert "the connection is refused" in page
    response = put(as_("alice"), "x", b"x")
    assert (response.status_code, "the connection is refused" in response.json()["detail"]) == (502, True)
    assert as_("alice").get(f"{ONE}/remove?folder=x").status_code == 302


def test_nfs_says_that_its_files_are_seen_inside_a_cluster(as_: Any, people: Any, manifest: Any) -> None:
    from datastores.actions import create_datastore

    wish = manifest("nfs", {"nfs": {"server": "10.0.0.7", "path": "/data"}})
    create_datastore(wish, acting_user=people.alice)
    assert "inside a cluster" in as_("alice").get("/datastores/ops-demo/nfs").content.decode()


def test_a_store_is_found_by_the_search_over_everything(as_: Any, store: Any) -> None:
    assert ONE in as_("victor").get("/search?q=dat").content.decode()
    assert ONE not in as_("mallory").get("/search?q=dat").content.decode()


# Allowed folders


def test_an_administrator_allows_and_closes_a_folder(as_: Any, people: Any, tmp_path: Path) -> None:
    from datastores.models import AllowedFolder

    root = as_("root")
    assert "No folder is allowed" in root.get("/admin/folders").content.decode()
    sent = {"path": f"{tmp_path}/", "read_only": "on", "appcodes": "ops-demo"}
    assert root.post("/admin/folders/new", sent)["Location"] == "/admin/folders"
    folder = AllowedFolder.objects.get()
    assert (folder.path, folder.read_only) == (str(tmp_path), True)
    assert [appcode.code for appcode in folder.appcodes.all()] == ["ops-demo"]
    assert str(tmp_path) in root.get("/admin/folders").content.decode()
    root.post(f"/admin/folders/{folder.pk}", sent | {"appcodes": ""})
    assert not folder.appcodes.exists()
    root.post(f"/admin/folders/{folder.pk}/delete")
    assert not AllowedFolder.objects.exists()


def test_folders_of_the_machine_and_of_the_portal_are_never_allowed(as_: Any, settings: Any) -> None:
    from datastores.models import AllowedFolder

    data = settings.DATA_DIR
    for path in ("/", "/etc", "relative", str(data), str(data.parent), str(data / "static"), "/no/such/folder"):
        response = as_("root").post("/admin/folders/new", {"path": path})
        assert list(response.context["form"].errors) == ["path"], path
    response = as_("root").post("/admin/folders/new", {"path": "/srv", "appcodes": "no-such"})
    assert list(response.context["form"].errors) == ["appcodes"]
    assert not AllowedFolder.objects.exists()


def test_folders_are_for_administrators(as_: Any, folder: Path) -> None:
    for path in ("/admin/folders", "/admin/folders/new"):
        assert as_("alice").get(path).status_code == 404
    assert as_("alice").post("/admin/folders/1/delete").status_code == 404


def test_the_form_says_what_is_allowed(as_: Any, people: Any, settings: Any) -> None:
    settings.NFS_SERVERS = ["nas.example.com:/tenants/{appcode}"]
    assert "nas.example.com:/tenants/ops-demo" in as_("bob").get("/datastores/new?kind=nfs").content.decode()
    settings.NFS_SERVERS = []
    assert "not allowed any NFS server yet" in as_("bob").get("/datastores/new?kind=nfs").content.decode()


def test_what_a_run_wrote_leads_to_it(as_: Any, store: Any, people: Any) -> None:
    from clusters.runs.models import Cluster, Run

    train = Cluster.objects.create(
        appcode=people.ops, name="train", created_by=people.bob, framework="tensorflow", spec={}
    )
    spec = {"output": store.name, "outputPath": "runs/{name}/{run}"}
    Run.objects.create(cluster=train, number=3, spec=spec, resources={}, gpus=0, created_by=people.bob)
    link = 'written by run <a href="/clusters/ops-demo/train?run=3">train/3</a>'
    seen = {
        folder: link in as_("victor").get(ONE, {"folder": folder}).content.decode()
        for folder in (
            "runs/train/3",
            "runs/train/3/logs",
            "runs/train/4",
            "runs/train",
            "train/3",
            "runs/train/33",
            "",
        )
    }
    assert [folder for folder, is_said in seen.items() if is_said] == ["runs/train/3", "runs/train/3/logs"]
    assert put(as_("bob"), "runs/train/3/loss.txt", b"0.1").status_code < 300
    assert link in as_("victor").get(f"{ONE}/preview", {"path": "runs/train/3/loss.txt"}).content.decode()
    train.deleted_at = timezone.now()
    train.save()
    assert link not in as_("victor").get(ONE, {"folder": "runs/train/3"}).content.decode()
