"""Drivers against the real S3 server and real folders: both behave alike, and each explains its failures."""

from __future__ import annotations

import datetime as dt
import io
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from datastores.drivers import driver_for
from datastores.drivers.base import Driver, DriverError, NotPossible, NotThere
from portal.network.outgoing import Rules
from tests import ports


@pytest.fixture
def s3_driver(s3: Any, bucket: str) -> Callable[..., Driver]:
    def make(**changes: str) -> Driver:
        secret = changes.pop("secret_key", s3.secret_key)
        fields = {"server": s3.url, "access_key": s3.access_key, "bucket": bucket} | changes
        return driver_for("s3", fields, secret)

    return make


@pytest.fixture(params=["s3", "s3 with a prefix", "local"])
def driver(request: pytest.FixtureRequest, s3_driver: Callable[..., Driver], tmp_path: Path) -> Driver:
    if request.param == "local":
        (tmp_path / "inside" / "deep").mkdir(parents=True)
        return driver_for("local", {"path": str(tmp_path / "inside" / "deep")}, root=str(tmp_path))
    return s3_driver(prefix="team/photos") if "prefix" in request.param else s3_driver()


def put(driver: Driver, path: str, data: bytes = b"x") -> None:
    driver.upload(path, io.BytesIO(data), len(data))


def names(driver: Driver, folder: str = "", **how: Any) -> list[str]:
    return [entry.name + "/" * entry.is_folder for entry in driver.list(folder, **how).entries]


def read(driver: Driver, path: str) -> bytes:
    content = driver.open(path)
    data = b"".join(content.chunks)
    assert len(data) == content.size
    return data


def test_a_stored_file_is_listed_read_and_removed(driver: Driver) -> None:
    assert "read" in driver.test()
    put(driver, "a/b/digits.npz", b"0123456789")
    put(driver, "readme.txt", b"hello")
    assert names(driver) == ["a/", "readme.txt"]
    assert names(driver, "a") == ["b/"]
    (entry,) = driver.list("a/b").entries
    assert (entry.name, entry.path, entry.size, entry.is_folder) == ("digits.npz", "a/b/digits.npz", 10, False)
    assert entry.modified is not None
    assert entry.modified.tzinfo is not None
    assert entry.etag
    assert read(driver, "a/b/digits.npz") == b"0123456789"
    assert driver.read_range("a/b/digits.npz", 2, 3) == b"234"
    assert driver.read_range("a/b/digits.npz", 8, 100) == b"89"
    assert driver.read_range("a/b/digits.npz", 10, 5) == b""
    assert {entry.path for entry in driver.walk("")} == {"a/b/digits.npz", "readme.txt"}
    assert [entry.path for entry in driver.walk("a")] == ["a/b/digits.npz"]
    driver.delete("readme.txt")
    driver.delete("readme.txt")
    assert names(driver) == ["a/"]
    with pytest.raises(NotThere):
        driver.open("readme.txt")
    with pytest.raises(NotThere):
        driver.read_range("readme.txt", 0, 1)


def test_storing_again_replaces_and_changes_the_etag(driver: Driver) -> None:
    put(driver, "model", b"old")
    before = driver.list("").entries[0].etag
    put(driver, "model", b"newer")
    assert read(driver, "model") == b"newer"
    assert driver.list("").entries[0].etag != before


def test_a_folder_that_does_not_exist_is_empty(driver: Driver) -> None:
    assert driver.list("nowhere/at/all").entries == ()
    assert list(driver.walk("nowhere")) == []


def test_pages_show_every_name_once_in_order(driver: Driver) -> None:
    wanted = [f"file-{n:02}" for n in range(25)]
    for name in wanted:
        put(driver, f"many/{name}")
    put(driver, "many-others/x")
    seen, cursor = [], ""
    while True:
        listing = driver.list("many", cursor=cursor, limit=10)
        assert len(listing.entries) <= 10
        seen += [entry.name for entry in listing.entries]
        cursor = listing.cursor
        if not cursor:
            break
    assert seen == wanted
    assert names(driver, "many", search="file-1", limit=5) == wanted[10:15]
    assert names(driver, "many", search="nothing") == []


def test_a_folder_is_removed_with_all_that_is_in_it_and_nothing_else(driver: Driver) -> None:
    for path in ("run/1/a", "run/1/b/c", "run/10/a", "run/1x"):
        put(driver, path)
    assert driver.delete_folder("run/1") == 2
    assert {entry.path for entry in driver.walk("")} == {"run/10/a", "run/1x"}


@pytest.mark.parametrize("name", ["Zürich 100%.txt", "a&b=c+d?.bin", "Привет/мир 世界", "quote'\"<b>.html", "~tilde"])
def test_names_are_kept_as_they_are(driver: Driver, name: str) -> None:
    put(driver, name, b"data")
    assert [entry.path for entry in driver.walk("")] == [name]
    assert read(driver, name) == b"data"


def test_a_large_file_passes_through_in_pieces(driver: Driver) -> None:
    block = os.urandom(1024 * 1024)
    put(driver, "large", block * 20)
    content = driver.open("large")
    assert content.size == 20 * len(block)
    assert sum(len(chunk) for chunk in content.chunks) == content.size


def test_an_upload_that_is_cut_off_leaves_nothing(driver: Driver) -> None:
    for size in (100, 20 * 2**20):
        with pytest.raises(DriverError, match="cut off"):
            driver.upload("half", io.BytesIO(b"x" * (size // 2)), size)
    assert driver.list("").entries == ()
    assert list(driver.walk("")) == []


def test_an_upload_takes_no_more_than_was_announced(driver: Driver) -> None:
    driver.upload("some", io.BytesIO(b"0123456789"), 4)
    assert read(driver, "some") == b"0123"


def test_an_empty_file_is_a_file(driver: Driver) -> None:
    put(driver, "empty", b"")
    assert read(driver, "empty") == b""
    assert driver.read_range("empty", 0, 10) == b""
    assert driver.list("").entries[0].size == 0


# Errors, in words, at the field to correct


@pytest.mark.parametrize(
    ("changes", "field", "sentence"),
    [
        ({"bucket": "no-such-bucket"}, "bucket", "no such bucket"),
        ({"access_key": "SOMEBODYELSE123"}, "access_key", "does not know this access key"),
        ({"secret_key": "notthesecretatall"}, "secret_key", "does not belong"),
        ({"server": "http://127.0.0.1:1"}, "server", "the connection is refused at 127.0.0.1:1"),
        ({"server": "http://no-such-host.invalid"}, "server", "no server of this name"),
        ({"server": "http://169.254.169.254"}, "server", "169.254.169.254 is closed: its address is link-local"),
        ({"server": "http://[::ffff:169.254.169.254]"}, "server", "stands for another one"),
        ({"server": "http://[2002:a9fe:a9fe::]"}, "server", "stands for another one"),
    ],
)
def test_s3_says_what_is_wrong(
    s3_driver: Callable[..., Driver], changes: dict[str, str], field: str, sentence: str
) -> None:
    with pytest.raises(DriverError, match=sentence) as caught:
        s3_driver(**changes).test()
    assert caught.value.field == field


@pytest.fixture
def server() -> Iterator[Callable[[bytes], int]]:
    """server(answer) → the port of a server that gives this answer to the first request of each connection."""
    sockets = []

    def start(answer: bytes) -> int:
        listener = socket.create_server(("127.0.0.1", ports.free()))
        sockets.append(listener)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for listener in sockets:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _listing(modified: str = "2026-11-23T10:00:00", size: str = "1") -> bytes:
    """Returns the listing of a bucket with one file."""
    file = f"<Key>a</Key><LastModified>{modified}</LastModified><ETag>x</ETag><Size>{size}</Size>"
    body = f"<ListBucketResult><IsTruncated>false</IsTruncated><Contents>{file}</Contents></ListBucketResult>"
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n<html></html>", "not as an S3 server"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n<html><br></", "is this an S3 server"),
        (b"HTTP/1.1 404 No\r\nContent-Length: 13\r\n\r\n<html></html>", "not as an S3 server"),
        (b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n", "refuses these keys"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not as an S3 server|broke"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "error of its own"),
        (
            b"HTTP/1.1 301 Moved\r\nLocation: http://169.254.169.254/\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            "another region",
        ),
        (b"", "not as an S3 server|broke"),
        *((_listing(each), "not as an S3 server") for each in ("never", "1e300", "0001-01-01T00:00:00+14:00")),
        (_listing(size="many"), "not as an S3 server"),
    ],
)
def test_a_server_that_is_no_s3_is_told_apart(
    s3_driver: Callable[..., Driver], server: Callable[[bytes], int], answer: bytes, sentence: str
) -> None:
    with pytest.raises(DriverError, match=sentence):
        s3_driver(server=f"http://127.0.0.1:{server(answer)}").test()


@pytest.mark.parametrize("status", ["200 OK", "201 Created", "405 Method Not Allowed", "500 Error"])
def test_who_writes_to_what_answers_no_xml_is_told_so(
    s3_driver: Callable[..., Driver], server: Callable[[bytes], int], status: str
) -> None:
    """Such as a server that answers JSON, which botocore does not expect as the answer to a write."""
    answer = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n".encode() + b'{"a": 1}'
    driver = s3_driver(server=f"http://127.0.0.1:{server(answer)}")
    for ask in (lambda: driver.begin("x"), lambda: driver.finish("x", "1", ["e"]), lambda: driver.copy("x", "y")):
        with pytest.raises(DriverError):
            ask()


def test_a_time_without_a_zone_is_utc(s3_driver: Callable[..., Driver], server: Callable[[bytes], int]) -> None:
    (found,) = s3_driver(server=f"http://127.0.0.1:{server(_listing())}").walk("")
    assert found.modified == dt.datetime(2026, 11, 23, 10, tzinfo=dt.UTC)


def test_nfs_tells_whether_a_server_answers_and_shows_no_files(settings: Any) -> None:
    nfs = driver_for("nfs", {"server": "127.0.0.9", "path": "/data"})
    with pytest.raises(DriverError, match=r"refused at 127\.0\.0\.9:2049") as caught:
        nfs.test()
    assert caught.value.field == "server"
    with pytest.raises(NotPossible, match="inside a cluster"):
        nfs.list("")
    settings.OUTGOING = Rules()
    with pytest.raises(DriverError, match="own machine"):
        nfs.test()


# Local folders


def test_links_are_neither_shown_nor_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("private")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "sub" / "file").symlink_to(tmp_path / "secret" / "key")
    os.mkfifo(root / "pipe")
    driver = driver_for("local", {"path": str(root)}, root=str(root))
    assert names(driver) == ["sub/"]
    assert list(driver.walk("")) == []
    for attempt in (
        lambda: driver.open("link/key"),
        lambda: driver.open("sub/file"),
        lambda: driver.open("pipe"),
        lambda: driver.read_range("sub/file", 0, 10),
        lambda: driver.list("link"),
        lambda: put(driver, "link/new"),
        lambda: driver.delete("link/key"),
        lambda: driver.delete_folder("link"),
    ):
        with pytest.raises(DriverError):
            attempt()
    put(driver, "sub/file", b"mine")
    assert read(driver, "sub/file") == b"mine", "the link itself was replaced"
    assert (tmp_path / "secret" / "key").read_text() == "private"
    assert sorted(path.name for path in (tmp_path / "secret").iterdir()) == ["key"]


def test_a_datastore_whose_own_folder_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "mine").symlink_to("/etc")
    driver = driver_for("local", {"path": str(tmp_path / "root" / "mine")}, root=str(tmp_path / "root"))
    with pytest.raises(DriverError, match="link") as caught:
        driver.test()
    assert caught.value.field == "path"
    with pytest.raises(DriverError):
        driver.open("passwd")


def test_an_absent_folder_is_said_at_its_field(tmp_path: Path) -> None:
    driver = driver_for("local", {"path": str(tmp_path / "absent")}, root=str(tmp_path))
    with pytest.raises(DriverError, match="no such folder") as caught:
        driver.test()
    assert caught.value.field == "path"


def test_a_folder_for_reading_only_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    driver = driver_for("local", {"path": str(tmp_path)}, root=str(tmp_path), read_only=True)
    assert "read" in driver.test()
    for attempt in (lambda: put(driver, "new"), lambda: driver.delete("data"), lambda: driver.delete_folder("")):
        with pytest.raises(NotPossible, match="reading only"):
            attempt()
    assert read(driver, "data") == b"x"


def test_names_that_are_no_text_are_left_out(tmp_path: Path) -> None:
    os.mkdir(os.fsencode(tmp_path) + b"/\xff\xfe")
    (tmp_path / "line\nbreak").touch()
    (tmp_path / "fine").touch()
    driver = driver_for("local", {"path": str(tmp_path)}, root=str(tmp_path))
    assert names(driver) == ["fine"]
