"""`manage.py backup` and `restore`: a drill on the whole portal while it works, and everything that is refused."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.cookiejar
import io
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datastores.files import versions
from datastores.models import Datastore, Version
from datastores.storage import actions, store
from portal.backup import buckets, database, load, main, save, storage
from portal.backup.archive import FORMAT, MANIFEST, BackupError, Reader, Writer
from portal.backup.progress import Progress
from portal.backup.source import Source
from portal.up import servers, services
from portal.up.data import RESTORING
from tests.datastores.test_object_storage import Bucket, switched_on
from tests.house import house
from tests.running import ROOT, Client, Portal, environment, eventually, up_once

PASSPHRASE = "correct horse battery staple"
SILENT = Progress(io.StringIO())


# The drill


def checksums(connection: Any) -> dict[str, tuple[int, int]]:
    """Of each table: its rows, and a sum over hashes of them."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
        names = [name for (name,) in cursor.fetchall()]
        found = {}
        for name in names:
            cursor.execute(
                f'SELECT count(*), coalesce(sum(hashtextextended(t::text, 0)::numeric), 0) FROM public."{name}" AS t'
            )
            found[name] = tuple(cursor.fetchone())
        return found


@contextlib.contextmanager
def repeated(act: Callable[[int], None]) -> Iterator[list[int]]:
    """Does it again and again, beside; the list has the numbers that are done."""
    done, stopped, failed = list[int](), threading.Event(), list[BaseException]()

    def work() -> None:
        number = 0
        try:
            while not stopped.is_set():
                act(number)
                done.append(number)
                number += 1
        except BaseException as error:  # noqa: BLE001  told below
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        stopped.set()
        thread.join()
    assert not failed, failed


def body_of(number: int) -> bytes:
    """Of different sizes, some with several chunks."""
    return f"{number:08}".encode() * (1 + number % 7 * 40_000)


def objects(own: Bucket) -> dict[str, tuple[Any, ...]]:
    """Everything that S3 says of each object, and its bytes."""
    client, found = own.client(attempts=5), {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=own.name):
        for each in page.get("Contents", ()):
            answer = client.get_object(Bucket=own.name, Key=each["Key"])
            said = each["LastModified"], each["ETag"], answer["ContentType"], answer["Metadata"]
            found[each["Key"]] = (*said, answer["Body"].read())
    return found


def signed_in(portal: Portal, name: str, password: str) -> str:
    """Signs in at the page, and returns the address that it leads to."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    page = f"{portal.url}/accounts/login/"
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', browser.open(page).read().decode())
    assert token
    form = {"csrfmiddlewaretoken": token[1], "login": name, "password": password}
    request = urllib.request.Request(page, urllib.parse.urlencode(form).encode(), {"Referer": page})
    return str(browser.open(request).url)


def command(portal: Portal, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *argv], cwd=ROOT, env=environment(portal.data, portal.port, **more),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def restoring(file: Path, data: Path, *options: str, **more: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "manage.py", "restore", str(file), *options], cwd=ROOT, env=environment(data, 1, **more),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin
    process.stdin.write(PASSPHRASE + "\n")
    process.stdin.flush()
    return process


def restored(file: Path, data: Path, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    process = restoring(file, data, *options, **more)
    out, error = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


@pytest.mark.timeout(900)
def test_a_portal_that_is_backed_up_while_it_works_comes_back_as_it_was_at_one_moment(
    portal_up: Portal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = switched_on(portal_up, "alice", "ops-demo")
    s3 = own.client(attempts=5)
    for key in ("drill/a b&ü.txt", "drill/deep/er/file"):
        s3.put_object(Bucket=own.name, Key=key, Body=key.encode(), Metadata={"mine": "1"}, ContentType="text/x-mine")
    part = secrets.token_bytes(5 * 2**20)
    upload = s3.create_multipart_upload(Bucket=own.name, Key="drill/parts")["UploadId"]
    named = {"Bucket": own.name, "Key": "drill/parts", "UploadId": upload}
    etag = s3.upload_part(**named, PartNumber=1, Body=part)["ETag"]
    before = objects(own)
    assert len(before) >= 3
    alice = Client(portal_up, "alice")
    roles = {"master": {"flavor": "small"}}
    drill = alice.create("ops-demo", "drill", image="tensorflow-2-21", command="sleep 600", retries=0, roles=roles)
    assert eventually(lambda: alice.call("GET", drill)["status"]["phase"] == "Running", 240)

    # What the database was at the moment of the backup, by a second look at the same snapshot.
    seen: dict[str, Any] = {}
    running: list[str] = []
    dump = database.dump

    def dump_and_look(url: str, path: Path, snapshot: str = "") -> None:
        with psycopg2.connect(url) as connection:
            connection.set_session("REPEATABLE READ")
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION SNAPSHOT %s", [snapshot])
            seen.update(checksums(connection))
            with connection.cursor() as cursor:
                cursor.execute("SELECT uid FROM clusters_task WHERE phase = 'Running' AND role = 'master'")
                running.extend(uid for (uid,) in cursor.fetchall())
        connection.close()
        dump(url, path, snapshot)

    monkeypatch.setattr(database, "dump", dump_and_look)
    given = {
        name: value for name, value in os.environ.items() if not name.startswith(("PORTAL_", "DATABASE_", "REDIS_"))
    }
    source = Source.found(given | {"PORTAL_DATA": str(portal_up.data)})
    file = tmp_path / "portal.backup"

    def store(number: int) -> None:
        s3.put_object(Bucket=own.name, Key=f"drill/{number}", Body=body_of(number))
        if number % 3 == 2:
            s3.delete_object(Bucket=own.name, Key=f"drill/{number - 1}")

    root = Client(portal_up, "root")

    def pay(number: int) -> None:
        root.call("POST", "/appcodes/ops-demo/credits", {"amount": f"0.{number % 90 + 10}", "reason": "drill"})

    root.call("POST", "/prices", {"sku": "cpu", "perHour": "0.0317"})  # what was posted is posted anew
    with repeated(store) as stored, repeated(pay) as paid:
        assert eventually(lambda: len(stored) > 20 and len(paid) > 3)
        first = len(stored)
        save.save(source, file, PASSPHRASE, SILENT)
        last = len(stored) + 1
        assert eventually(lambda: len(stored) > last + 5), "the store works on"
    alice.call("POST", f"{drill}/disable")
    made_at = dt.datetime.now(dt.UTC)
    assert running
    assert file.stat().st_mode & 0o777 == 0o600
    sealed = file.read_bytes()
    for secret in (source.settings["PORTAL_SECRET_KEY"], "ops-demo", part[:32]):
        assert (secret if isinstance(secret, bytes) else secret.encode()) not in sealed

    again = Portal(tmp_path / "var", PORTAL_PACKAGE_INDEX=portal_up.index.url)
    killed = restoring(file, again.data)
    assert eventually((again.data / RESTORING / "postgres").exists)
    killed.kill()
    killed.wait()
    assert "is half restored" in up_once(again.data, again.port).stderr
    said = restored(file, again.data)
    assert said.returncode == 0, said.stderr
    assert not (again.data / RESTORING).exists()
    sockets = services.socket_folder(again.data)
    postgres = servers.postgres(again.data / "postgres", sockets, log=tmp_path / "initdb.log")
    with services.running([postgres], tmp_path, os.environ):
        connection = psycopg2.connect(postgres.url)
        assert checksums(connection) == seen
        with connection.cursor() as cursor:
            cursor.execute("SELECT max(id) + 1000 < nextval('clusters_run_id_seq') FROM clusters_run")
            assert cursor.fetchone() == (True,), "names of runs that came after the backup do not come again"
        connection.close()

    again.start()
    try:
        endpoint = Client(again, "alice").call("GET", "/appcodes/ops-demo/storage")["endpoint"]
        assert endpoint != own.endpoint, "another machine has other ports"
        there = Bucket(own.code, endpoint, own.name, own.access_key, own.secret_key)
        now = objects(there)
        assert {key: now.get(key) for key in before} == before
        numbers = {int(key.removeprefix("drill/")): said[-1] for key, said in now.items() if key[6:].isdigit()}
        assert all(body == body_of(number) for number, body in numbers.items())
        for number in range(first):
            if number % 3 != 1:
                assert number in numbers, "what was stored before the backup began is there"
            elif number + 1 < first:
                assert number not in numbers, "what was deleted before is not"
        assert max(numbers) <= last

        client = there.client()
        client.complete_multipart_upload(**named, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
        assert client.get_object(Bucket=own.name, Key="drill/parts")["Body"].read() == part

        password = portal_up.credentials["users"]["alice"]["password"]
        assert "/accounts/login" not in signed_in(again, "alice", password)
        rest = Client(again, "alice")
        name = rest.call("GET", "/appcodes/ops-demo/storage")["datastore"]
        files = rest.call("GET", f"/appcodes/ops-demo/datastores/{name}/files?path=drill")
        assert "deep" in json.dumps(files), "the datastore's secret opens"
        with contextlib.closing(psycopg2.connect(postgres.url)) as connection, connection.cursor() as cursor:
            connection.autocommit = True

            def ended() -> list[Any]:
                cursor.execute("SELECT ended FROM billing_usagesegment WHERE uid = ANY(%s)", [running])
                return [at for (at,) in cursor.fetchall()]

            assert eventually(lambda: len(ended()) == len(running) and all(ended()), 120), (
                "tasks of the old machine are lost"
            )
            assert max(ended()) < made_at, "and paid for until they were last seen"
            cursor.execute("SELECT count(*) FROM portal_event WHERE verb = 'run.vanished'")
            assert cursor.fetchone()[0] >= 1
        for check in (["replay", "--verify"], ["verify_invoices"]):
            done = command(again, *check)
            assert done.returncode == 0, done.stdout + done.stderr
    finally:
        again.stop()
    assert again.left() == []


# Servers of one's own


def database_url(name: str) -> str:
    return os.environ["DATABASE_URL"].replace("/portal?", f"/{name}?")


@pytest.fixture
def empty_database() -> Iterator[str]:
    name = f"restored_{secrets.token_hex(4)}"
    connection = psycopg2.connect(os.environ["DATABASE_URL"])
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        yield database_url(name)
        cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")
    connection.close()


def named(said: dict[str, str]) -> dict[str, str]:
    """The variables of a server of object storage."""
    keys = {"ACCESS_KEY": said["access_key"], "SECRET_KEY": said["secret"]}
    return {f"PORTAL_STORAGE_{name}": value for name, value in {"URL": said["url"], **keys}.items()}


@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(600)
def test_servers_of_ones_own_come_back_with_new_keys_and_the_same_versions(
    people: Any, settings: Any, tmp_path: Path, empty_database: str
) -> None:
    from django.conf import settings as django
    from django.db import connection

    with house(tmp_path / "one") as one, house(tmp_path / "two") as two:
        settings.STORAGE = settings.STORAGE | one | {"proof": "", "start": "", "bucket_prefix": ""}
        store._client.cache_clear()
        try:
            row, keys = actions.switch_on(people.ops, acting_user=people.alice)
            assert keys
            own = Bucket("ops-demo", one["url"], row.bucket, keys.access_key, keys.secret_key)
            bodies = {
                "data/a b&ü": b"1" * 9_000_000,
                "data/deep/x": b"",
                ".portal-trash/1/old": b"old",
                "q/100 %25#?": b"q",
            }
            for key, body in bodies.items():
                own.client().put_object(Bucket=own.name, Key=key, Body=body, Metadata={"mine": "1"}, ContentType="a/b")
            runs = Datastore.objects.get(appcode=people.ops)
            for name, folder in (("part", "data"), ("all", "")):
                versions.freeze(runs, name, folder, acting_user=people.alice)
            Version.objects.create(datastore=runs, name="lost", folder="q", digest="0" * 64, files=1, bytes=1)
        finally:
            store._client.cache_clear()
        given = {
            "PORTAL_SECRET_KEY": django.SECRET_KEY,
            "DATABASE_URL": database_url(connection.settings_dict["NAME"]),
            "REDIS_URL": os.environ["REDIS_URL"],
        }
        file = tmp_path / "own.backup"
        save.save(Source.found(given | named(one)), file, PASSPHRASE, SILENT)
        time.sleep(1.1)  # times of objects count in seconds

        target = given | named(two) | {"DATABASE_URL": empty_database}
        said = restored(file, tmp_path / "none", **target | {"PORTAL_SECRET_KEY": "another"})
        assert said.returncode == 1
        assert "PORTAL_SECRET_KEY is not the one" in said.stderr
        said = restored(file, tmp_path / "none", "--without-storage", **target)
        assert said.returncode == 0, said.stderr
        with contextlib.closing(psycopg2.connect(empty_database)) as there, there.cursor() as cursor:
            cursor.execute("SELECT spec ->> 'server' FROM datastores_datastore WHERE id = %s", [runs.pk])
            assert cursor.fetchall() == [(two["url"],)], "a datastore of the portal follows its server"
            cursor.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
            there.commit()
        said = restored(file, tmp_path / "none", **target)
        assert said.returncode == 0, said.stderr
        assert not (tmp_path / "none").exists(), "a data folder is of no use there"
        assert "2 versions are as they were, 1 had other files" in said.stdout

        root = boto3_of(two)
        for key, body in bodies.items():
            answer = root.get_object(Bucket=own.name, Key=key)
            assert (answer["Body"].read(), answer["ContentType"]) == (body, "a/b")
            # Go writes names of headers with a capital; S3 does not tell them apart.
            assert {name.lower(): value for name, value in answer["Metadata"].items()} == {"mine": "1"}
        keys_now = {each["Key"] for each in root.list_objects_v2(Bucket=own.name)["Contents"]}
        assert keys_now == bodies.keys()
        assert restored(file, tmp_path / "none", **target).stderr.startswith("The database is not empty")


def boto3_of(said: dict[str, str]) -> Any:
    return Bucket("", said["url"], "", said["access_key"], said["secret"]).client()


# The file


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small backup, of nothing that could be restored."""
    path = tmp_path_factory.mktemp("made") / "made.backup"
    manifest = {
        "format": FORMAT, "portal": "1.0", "made_at": "2026-11-28T10:00:00+00:00", "postgresql": 18, "migrations": [],
        "database": {"bytes": 1, "dump_bytes": 1}, "storage": {"folder": None, "buckets": []},
    }  # fmt: skip
    with Writer(path, PASSPHRASE) as writer:
        writer.add(MANIFEST, json.dumps(manifest).encode())
        writer.add("settings.env", b"PORTAL_SECRET_KEY=key\nOIDC_NAME=house\n")
        writer.add("large", secrets.token_bytes(3_000_000))
        writer.close()
    assert [each.name for each in path.parent.iterdir()] == ["made.backup"]
    return path


def read(path: Path, passphrase: str = PASSPHRASE) -> dict[str, int]:
    reader, found = Reader(path, lambda: passphrase), {}
    with reader.members() as members:
        for name, member, stream in members:
            found[name] = member.size
            stream.read(10)
    return found


def test_a_file_has_what_was_written(made: Path) -> None:
    assert [*read(made).values()][-1] == 3_000_000
    assert made.stat().st_mode & 0o777 == 0o600


def test_a_wrong_passphrase_is_refused(made: Path) -> None:
    with pytest.raises(BackupError, match="not the passphrase"):
        read(made, "another passphrase")


@pytest.mark.parametrize("left", [0, 400, 2000, 5000, 1_000_000, -1024 - 512])
def test_a_file_that_is_cut_off_is_refused(made: Path, tmp_path: Path, left: int) -> None:
    path = tmp_path / "cut"
    path.write_bytes(made.read_bytes()[:left])
    with pytest.raises(BackupError, match=r"cut off|not a backup|damaged"):
        read(path)


@pytest.mark.parametrize("at", [1100, 2600, 4000, 5000, 1_500_000, -1024 - 512])
def test_a_changed_byte_is_found(made: Path, tmp_path: Path, at: int) -> None:
    """In the readme, in the sealed key, in headers and in the data."""
    data = bytearray(made.read_bytes())
    data[at] ^= 1
    path = tmp_path / "changed"
    path.write_bytes(data)
    with pytest.raises(BackupError, match=r"not the passphrase|damaged|not a backup|cut off"):
        read(path)


def test_what_a_newer_portal_made_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "newer"
    with Writer(path, PASSPHRASE) as writer:
        writer.add(MANIFEST, json.dumps({"format": FORMAT + 1, "portal": "7.1"}).encode())
        writer.close()
    with pytest.raises(BackupError, match=r"has format 2, .* version 7\.1 or newer"):
        Reader(path, lambda: PASSPHRASE).manifest()
    load.check_migrations({"migrations": ["portal.0001_tables", "knox.9999_elsewhere"]})
    with pytest.raises(BackupError, match=r"newer portal \(7\.1\).*portal\.9999_later"):
        load.check_migrations({"portal": "7.1", "migrations": ["portal.9999_later"]})


def test_nothing_is_left_of_a_backup_that_fails(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="became shorter"), Writer(tmp_path / "short", PASSPHRASE) as writer:
        writer.add_stream("data", io.BytesIO(b"12"), 3)
    assert [*tmp_path.iterdir()] == []


def test_settings_are_written_for_who_sets_the_portal_up_elsewhere(made: Path, tmp_path: Path) -> None:
    to = tmp_path / "settings.env"
    load.extract_settings(made, to, lambda: PASSPHRASE)
    assert to.read_text() == "PORTAL_SECRET_KEY=key\nOIDC_NAME=house\n"
    assert to.stat().st_mode & 0o777 == 0o600


@given(st.text(min_size=1).filter(lambda key: "\0" not in key))
def test_a_member_names_any_key(key: str) -> None:
    member = buckets.member_of("bucket", key)
    assert buckets.key_of(member) == ("bucket", key)
    assert not {"", ".", ".."} & {*member.split("/")}


# What is refused before anything is written


def test_a_folder_with_something_in_it_is_left_alone(made: Path, tmp_path: Path) -> None:
    data = tmp_path / "var"
    data.mkdir()
    (data / "mine").write_text("1")
    said = restored(made, data)
    assert (said.returncode, said.stdout) == (1, "")
    assert f"The data folder {data} is not empty: there is mine." in said.stderr
    assert [each.name for each in data.iterdir()] == ["mine"]


def test_a_restore_that_was_cut_off_is_not_started_and_may_begin_again(made: Path, tmp_path: Path) -> None:
    data = tmp_path / "var"
    (data / RESTORING).mkdir(parents=True)
    (data / "secrets.env").write_text("half")
    said = up_once(data, services.free_port())
    assert said.returncode == 1
    assert "is half restored" in said.stderr
    said = restored(made, data)
    # It came as far as the database, of which this backup has none.
    assert "is not empty" not in said.stderr
    assert said.returncode == 1
    assert not (data / "secrets.env").exists()


@pytest.mark.parametrize(
    ("said", "sentence"), [("", "There is no passphrase."), ("short", "The passphrase is short")]
)  # fmt: skip
def test_a_backup_has_a_passphrase(said: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(main.PASSPHRASE_FILE, raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO(said))
    with pytest.raises(BackupError, match=sentence):
        main.passphrase(new=True)


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("1")
    with pytest.raises(BackupError, match="exists; name a new file"):
        save.save(Source({}, None, 0), tmp_path / "old", PASSPHRASE, SILENT)


# The folder of the object storage


def test_a_copy_is_of_its_moment_whatever_becomes_of_the_files(tmp_path: Path) -> None:
    large, small = secrets.token_bytes(storage.READ_AT_ONCE + 1), b"small"
    (tmp_path / "in").mkdir()
    for name in ("grows", "renamed", "removed"):
        (tmp_path / "in" / name).write_bytes(large)
    (tmp_path / "rewritten").write_bytes(small)
    copy = storage.take(tmp_path)
    with (tmp_path / "in" / "grows").open("ab") as file:
        file.write(b"more")
    (tmp_path / "in" / "renamed").rename(tmp_path / "elsewhere")
    (tmp_path / "in" / "removed").unlink()
    (tmp_path / "rewritten").write_bytes(b"later")
    found = {path: stream.read(size) for path, stream, size in copy.streams()}
    copy.close()
    assert found == {"in/grows": large, "in/renamed": large, "in/removed": large, "rewritten": small}
    assert copy.folders == ["in"]


FREEZE = """
import os, sys, time
from pathlib import Path
from portal.backup import storage
with storage.frozen(Path(sys.argv[1]), int(sys.argv[2])):
    print("frozen", flush=True)
    time.sleep(60)
"""


def test_a_store_whose_backup_is_killed_goes_on(tmp_path: Path) -> None:
    line = "import subprocess, sys; subprocess.run(['sleep', '60'])"
    server = subprocess.Popen([sys.executable, "-c", line, storage.SERVER, str(tmp_path)])
    try:
        parent = psutil.Process(server.pid)
        assert eventually(lambda: [each.name() for each in parent.children()] == ["sleep"])
        (store,) = parent.children()
        backup = subprocess.Popen(
            [sys.executable, "-c", FREEZE, str(tmp_path), str(os.getpid())], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert backup.stdout
        assert backup.stdout.readline() == "frozen\n"
        assert store.status() == psutil.STATUS_STOPPED
        backup.send_signal(signal.SIGKILL)
        backup.wait()
        assert eventually(lambda: store.status() == psutil.STATUS_SLEEPING)
        store.kill()
    finally:
        server.kill()
        server.wait()
