"""The portal's own object storage from the outside: enabled over REST, used by real clients, closed to everyone else."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import http.client
import io
import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore
import psutil
import psycopg2
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from datastores.models import Datastore, Storage, Upload
from datastores.storage import actions, leftovers, store
from datastores.storage.commands import commands
from datastores.storage.door import ALLOWED
from datastores.storage.inside import MEMORY, METRICS_PORT
from datastores.storage.operations import Confusing, read, split_path
from datastores.storage.server import REMEMBERED, measure
from portal.errors import Conflict
from portal.up import services
from tests.house import house as a_house
from tests.running import Client, Portal, eventually

MODEL = boto3.client("s3", region_name="us-east-1").meta.service_model


@dataclass(frozen=True)
class Bucket:
    code: str
    endpoint: str
    name: str
    access_key: str
    secret_key: str

    def client(self, access_key: str = "", secret_key: str = "", attempts: int = 1) -> Any:
        """Returns an S3 client. One attempt shows refusals; more retry transient errors, as programs do."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=access_key or self.access_key,
            aws_secret_access_key=secret_key or self.secret_key,
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": attempts}),
        )


def switched_on(portal: Portal, person: str, code: str) -> Bucket:
    said = Client(portal, person).call("POST", f"/appcodes/{code}/storage")
    if said["secretKey"] is None:
        said |= Client(portal, person).call("POST", f"/appcodes/{code}/storage/keys")
    return Bucket(code, said["endpoint"], said["bucket"], said["accessKey"], said["secretKey"])


@pytest.fixture(scope="module")
def own(portal_up: Portal) -> Bucket:
    return switched_on(portal_up, "alice", "ops-demo")


@pytest.fixture(scope="module")
def theirs(portal_up: Portal) -> Bucket:
    return switched_on(portal_up, "root", "vision")


def refused(act: Callable[..., Any], *args: Any, **named: Any) -> str:
    """Returns the error code with which S3 refuses the call."""
    with pytest.raises(ClientError) as error:
        act(*args, **named)
    return str(error.value.response["Error"]["Code"])


def test_data_goes_in_and_out_and_the_portal_sees_it(portal_up: Portal, own: Bucket) -> None:
    s3 = own.client()
    body = os.urandom(20 * 2**20)
    keys = ["a/b.txt", "x/y", "100 %25#?&;+ü.txt", "a%2Fb", "q'\"<>~*()!@$,=:[]{}|^`"]
    for key in keys:
        s3.put_object(Bucket=own.name, Key=key, Body=key.encode(), Metadata={"my_key": "1"})
        answer = s3.get_object(Bucket=own.name, Key=key)
        # Go capitalises header names; S3 treats them as case-insensitive.
        named = {name.lower(): value for name, value in answer["Metadata"].items()}
        assert (answer["Body"].read(), named) == (key.encode(), {"my_key": "1"})
    parts = boto3.s3.transfer.TransferConfig(multipart_threshold=5 * 2**20, multipart_chunksize=5 * 2**20)
    s3.upload_fileobj(io.BytesIO(body), own.name, "large", Config=parts)
    assert (
        s3.get_object(Bucket=own.name, Key="large", Range="bytes=6000000-6000099")["Body"].read()
        == body[6000000:6000100]
    )
    for version in ("s3v4", "s3"):
        signing = s3.meta.config.merge(Config(signature_version=version))
        signer = boto3.client(
            "s3", endpoint_url=own.endpoint, region_name="us-east-1", aws_access_key_id=own.access_key,
            aws_secret_access_key=own.secret_key, config=signing,
        )  # fmt: skip
        wanted = {"Bucket": own.name, "Key": "a/b.txt"}
        with urllib.request.urlopen(signer.generate_presigned_url("get_object", Params=wanted, ExpiresIn=60)) as answer:
            assert answer.read() == b"a/b.txt"
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(signer.generate_presigned_url("get_object", Params=wanted, ExpiresIn=8 * 24 * 3600))
        assert error.value.code == 400
    assert refused(s3.put_object, Bucket=own.name, Key="a/b.txt", Body=b"", IfNoneMatch="*") == "PreconditionFailed"
    assert [each["Name"] for each in s3.list_buckets()["Buckets"]] == [own.name]

    rest = Client(portal_up, "alice")
    name = rest.call("GET", f"/appcodes/{own.code}/storage")["datastore"]
    listed = rest.call("GET", f"/appcodes/{own.code}/datastores/{name}/files")
    assert "large" in json.dumps(listed)


def test_what_a_file_system_would_lose_is_refused_by_a_code_of_s3(own: Bucket) -> None:
    s3, named = own.client(), {"Bucket": own.name}
    s3.put_object(**named, Key="z/b", Body=b"one")
    for act, more, code in (
        (s3.put_object, {"Key": "z//b", "Body": b"two"}, "NotImplemented"),
        (s3.put_object, {"Key": "z/d/", "Body": b"body"}, "NotImplemented"),
        (s3.create_multipart_upload, {"Key": "z/d/"}, "NotImplemented"),
        (s3.copy_object, {"Key": "z/d/", "CopySource": f"{own.name}/z/b"}, "NotImplemented"),
        (s3.get_object, {"Key": "z//b"}, "NoSuchKey"),
        (s3.delete_object, {"Key": "z//b"}, "NotImplemented"),
        (s3.put_object, {"Key": "z/e", "Body": b"1", "ServerSideEncryption": "AES256"}, "NotImplemented"),
        (s3.put_object, {"Key": "z/e", "Body": b"1", "ServerSideEncryption": "aws:kms"}, "NotImplemented"),
        (s3.create_multipart_upload, {"Key": "z/e", "ServerSideEncryption": "aws:kms"}, "NotImplemented"),
    ):
        assert refused(act, **named, **more) == code, more
    s3.put_object(**named, Key="z/folder/", Body=b"")
    assert s3.get_object(**named, Key="z/b")["Body"].read() == b"one"
    listed = [each["Key"] for each in s3.list_objects_v2(**named, Prefix="z/")["Contents"]]
    assert listed == ["z/b", "z/folder/"]
    for version, status in (("s3", 400), ("s3v4", 200)):
        signer = boto3.client(
            "s3", endpoint_url=own.endpoint, region_name="us-east-1", aws_access_key_id=own.access_key,
            aws_secret_access_key=own.secret_key, config=s3.meta.config.merge(Config(signature_version=version)),
        )  # fmt: skip
        wanted = {**named, "Key": "z/b", "ResponseContentType": "text/plain"}
        at = urlsplit(signer.generate_presigned_url("get_object", Params=wanted, ExpiresIn=60))
        client = http.client.HTTPConnection(at.netloc, timeout=20)
        client.request("GET", f"{at.path}?{at.query}")
        answer = client.getresponse()
        assert (answer.status, b"s3v4" in answer.read()) == (status, status == 400)


def test_a_refreshed_key_works_and_the_old_one_stops_within_two_seconds(portal_up: Portal, theirs: Bucket) -> None:
    rest, path = Client(portal_up, "root"), "/appcodes/vision/storage/keys"
    signed = theirs.client().generate_presigned_url("list_objects_v2", Params={"Bucket": theirs.name}, ExpiresIn=600)
    theirs.client().list_objects_v2(Bucket=theirs.name)
    made = rest.call("POST", path)
    began = time.monotonic()
    made_client = theirs.client(made["accessKey"], made["secretKey"])
    assert eventually(lambda: refused_or_none(theirs.client()) == "InvalidAccessKeyId", 2)
    assert time.monotonic() - began < 2
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(signed)
    assert error.value.code == 403
    assert made_client.list_objects_v2(Bucket=theirs.name)["KeyCount"] >= 0
    request = urllib.request.Request(
        f"{rest.url}{path}", method="DELETE", headers={"Authorization": f"Bearer {rest.token}"}
    )
    assert urllib.request.urlopen(request).status == 204
    assert eventually(lambda: refused_or_none(made_client, theirs.name) == "InvalidAccessKeyId", 2)
    # Repairing the storage does not create keys again that someone disabled.
    mended = rest.call("POST", "/appcodes/vision/storage")
    assert (mended["on"], mended["accessKey"], mended["secretKey"]) == (True, None, None)
    # The datastore uses a key of its own, and runs continue.
    assert rest.call("POST", "/appcodes/vision/datastores/storage/test")["ok"] is True


def test_a_full_bucket_takes_nothing_more_and_can_be_emptied(portal_up: Portal, own: Bucket) -> None:
    rest, s3 = Client(portal_up, "alice"), own.client()
    s3.put_object(Bucket=own.name, Key="filling", Body=os.urandom(2**20))

    def used() -> int:
        usage = rest.call("GET", f"/appcodes/{own.code}/storage")["usage"]
        return usage["bytes"] if usage else 0

    assert eventually(lambda: used() > 2**20, 200), "the store counts once a minute"

    def limit(gib: int) -> None:
        with (
            contextlib.closing(
                psycopg2.connect(f"postgresql://portal@/portal?host={portal_up.data / 'run'}")
            ) as database,
            database,
            database.cursor() as cursor,
        ):
            cursor.execute("UPDATE datastores_storage SET limit_gib = %s WHERE bucket = %s", [gib, own.name])

    limit(0)
    try:
        time.sleep(REMEMBERED)
        assert refused(s3.put_object, Bucket=own.name, Key="more", Body=b"x") == "QuotaExceeded"
        assert s3.get_object(Bucket=own.name, Key="filling")["ContentLength"] == 2**20
        s3.delete_object(Bucket=own.name, Key="filling")
    finally:
        limit(100)
        time.sleep(REMEMBERED)  # until the door's cache expires, for the tests that follow


def test_who_deletes_its_datastore_and_switches_it_on_again_takes_the_key_from_no_other(
    portal_up: Portal, own: Bucket
) -> None:
    alice, stores = Client(portal_up, "alice"), "/appcodes/ops-demo/datastores"
    keys = [alice.call("GET", f"{stores}/{name}")["spec"]["s3"]["access_key"] for name in ("demo-input", "storage")]
    assert keys[0] == keys[1]
    deleted = urllib.request.Request(
        f"{alice.url}{stores}/storage", method="DELETE", headers={"Authorization": f"Bearer {alice.token}"}
    )
    urllib.request.urlopen(deleted).close()
    assert alice.call("POST", "/appcodes/ops-demo/storage")["datastore"] == "storage"
    assert alice.call("GET", f"{stores}/storage")["spec"]["s3"]["access_key"] == keys[0]
    for name in ("demo-input", "storage"):
        assert alice.call("GET", f"{stores}/{name}/files")["items"]


def test_datastores_go_where_the_storage_is_now_and_no_others_do(people: Any, settings: Any) -> None:
    settings.STORAGE = settings.STORAGE | {"url": "http://localhost:2"}
    Storage.objects.create(appcode=people.ops, bucket="ops", own_key="O", limit_gib=1)
    for name, key in (("own", "O"), ("other", "X")):
        spec = {"server": "http://localhost:1", "access_key": key, "bucket": "ops", "prefix": ""}
        Datastore.objects.create(appcode=people.ops, name=name, kind="s3", spec=spec, secret="s")
    actions.follow_server()
    servers = {store.name: store.spec["server"] for store in Datastore.objects.all()}
    assert servers == {"own": "http://localhost:2", "other": "http://localhost:1"}


def test_keys_at_a_store_without_a_door_are_stopped_when_it_was_told(people: Any, settings: Any) -> None:
    away = {
        "url": "http://127.0.0.1:9",
        "inner_url": "http://127.0.0.1:9",
        "access_key": "A",
        "secret": "s",
        "proof": "",
    }
    settings.STORAGE = settings.STORAGE | away
    row = Storage.objects.create(appcode=people.ops, bucket="ops", access_key="K", own_key="O", limit_gib=1)
    store._client.cache_clear()
    try:
        with pytest.raises(Conflict, match="does not answer"):
            actions.stop_keys(row, acting_user=people.alice)
        row.refresh_from_db()
        assert row.access_key == "K"
        settings.STORAGE["proof"] = "of the door, which asks the row"
        actions.stop_keys(row, acting_user=people.alice)
        row.refresh_from_db()
        assert row.access_key is None
    finally:
        store._client.cache_clear()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Returns PORTAL_STORAGE_… for an S3 and IAM server that the operator already has, without the portal's gateway in front."""
    with a_house(tmp_path_factory.mktemp("house")) as said:
        yield said


def test_a_store_of_the_house_keeps_buckets_apart_by_its_own_policies(
    people: Any, settings: Any, house: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.STORAGE = settings.STORAGE | house | {"proof": "", "start": "", "bucket_prefix": "cloud-"}
    store._client.cache_clear()
    try:
        row, keys = actions.switch_on(people.ops, acting_user=people.alice)
        _, others = actions.switch_on(people.flight, acting_user=people.mallory)
        assert row.bucket.startswith("cloud-ops-demo-")
        assert keys
        assert others
        mine = Bucket("ops-demo", house["url"], row.bucket, keys.access_key, keys.secret_key)
        mine.client().put_object(Bucket=row.bucket, Key="a", Body=b"1")
        theirs = mine.client(others.access_key, others.secret_key)
        for act in (theirs.get_object, theirs.delete_object):
            assert refused(act, Bucket=row.bucket, Key="a") == "AccessDenied"
        assert refused(theirs.put_object, Bucket=row.bucket, Key="a", Body=b"2") == "AccessDenied"
        assert refused(theirs.list_objects_v2, Bucket=row.bucket) == "AccessDenied"

        # Multipart uploads that a client abandoned are aborted; those that the portal continues stay.
        begun = [
            mine.client().create_multipart_upload(Bucket=row.bucket, Key=key)["UploadId"] for key in ("left", "on")
        ]
        leftovers.drop_old()
        root = store._client("s3")
        facts = {"path": "on", "size": 1, "part_size": 1, "remote": begun[1]}
        Upload.objects.create(datastore=Datastore.objects.get(appcode=people.ops), **facts)
        time.sleep(1.1)  # the store's clock has a resolution of one second
        with monkeypatch.context() as patch:
            patch.setattr(leftovers, "GIVEN_UP", dt.timedelta(0))
            assert len(root.list_multipart_uploads(Bucket=row.bucket)["Uploads"]) == 2
            Upload.objects.update(touched_at=timezone.now() + dt.timedelta(hours=1))
            leftovers.drop_old()
        (kept,) = root.list_multipart_uploads(Bucket=row.bucket)["Uploads"]
        assert (kept["Key"], kept["UploadId"]) == ("on", begun[1])
        assert (
            refused(
                mine.client().upload_part, Bucket=row.bucket, Key="left", UploadId=begun[0], PartNumber=1, Body=b"1"
            )
            == "NoSuchUpload"
        )

        anew = actions.refresh_keys(row, acting_user=people.alice)
        again = mine.client(anew.access_key, anew.secret_key)
        assert again.get_object(Bucket=row.bucket, Key="a")["Body"].read() == b"1"
        assert refused(mine.client().get_object, Bucket=row.bucket, Key="a") == "InvalidAccessKeyId"
        actions.stop_keys(row, acting_user=people.alice)
        assert refused(again.get_object, Bucket=row.bucket, Key="a") == "InvalidAccessKeyId"
        runs = Datastore.objects.get(appcode=people.ops)
        own = mine.client(runs.spec["access_key"], runs.secret)
        assert own.get_object(Bucket=row.bucket, Key="a")["Body"].read() == b"1"
    finally:
        store._client.cache_clear()


def test_a_machine_that_starts_no_program_just_now_does_not_end_the_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    tries, start, noted = [], asyncio.create_subprocess_exec, {}

    async def starts(*_: str, **streams: int) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise BlockingIOError
        return await start("echo", 'SeaweedFS_s3_bucket_size_bytes{bucket="own"} 5', **streams)

    class Told:
        async def note(self, sizes: dict[str, int]) -> None:
            noted.update(sizes)

    async def some() -> None:
        counting = asyncio.create_task(measure(0, Told()))  # type: ignore[arg-type]
        while not noted and not counting.done():
            await asyncio.sleep(0.01)
        counting.cancel()

    monkeypatch.setattr("datastores.storage.server.MEASURE_SECONDS", 0.01)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", starts)
    asyncio.run(some())
    assert noted == {"own": 5}


def refused_or_none(s3: Any, bucket: str = "vision") -> str | None:
    try:
        s3.list_objects_v2(Bucket=bucket)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return None


def value(name: str, shape: Any) -> Any:
    """Returns a value that botocore accepts for a required member."""
    if name == "CopySource":
        return "ops-demo/kept"
    if shape.type_name == "structure":
        members = {n: each for n, each in shape.members.items() if n in shape.required_members or shape.is_tagged_union}
        return {n: value(n, each) for n, each in [*members.items()][: 1 if shape.is_tagged_union else None]}
    if shape.type_name == "string" and shape.enum:
        return shape.enum[0]
    some = {"integer": 1, "long": 1, "boolean": True, "timestamp": "2030-01-01", "blob": b"x", "list": [], "map": {}}
    return some.get(shape.type_name, "x1x2" * 5)


def asked(operation: str, bucket: str) -> dict[str, Any]:
    shape = MODEL.operation_model(operation).input_shape
    wanted = {name: value(name, shape.members[name]) for name in (shape.required_members if shape else ())}
    return wanted | {name: said for name, said in {"Bucket": bucket, "Key": "kept"}.items() if name in wanted}


# These go to other hosts than the bucket's, or have no bucket.
ELSEWHERE = {"WriteGetObjectResponse", "ListDirectoryBuckets", "ListBuckets"}


@pytest.mark.parametrize("operation", sorted({*MODEL.operation_names} - ELSEWHERE))
def test_nobody_does_anything_to_somebody_elses_bucket(
    portal_up: Portal, own: Bucket, stranger: Any, operation: str
) -> None:
    with pytest.raises(ClientError) as error:
        getattr(stranger, botocore.xform_name(operation))(**asked(operation, own.name))
    status = error.value.response["ResponseMetadata"]["HTTPStatusCode"]
    assert status == (403 if operation in ALLOWED else 501), error.value
    kept = own.client().get_object(Bucket=own.name, Key="kept")
    assert (kept["Body"].read(), kept["Metadata"]) == (b"unchanged", {"Of": "alice"})
    assert own.client().get_object_tagging(Bucket=own.name, Key="kept")["TagSet"] == []


@pytest.fixture(scope="module")
def other(portal_up: Portal, own: Bucket) -> Bucket:
    own.client(attempts=5).put_object(Bucket=own.name, Key="kept", Body=b"unchanged", Metadata={"of": "alice"})
    other = switched_on(portal_up, "root", "ads")
    other.client(attempts=5).put_object(Bucket=other.name, Key="mine", Body=b"mine")
    return other


@pytest.fixture(scope="module")
def stranger(other: Bucket) -> Any:
    return other.client()


@pytest.mark.parametrize(
    "path",
    ["/ads/../ops-demo/kept", "/ads/%2e%2e/ops-demo/kept", "/ads/..%2fops-demo%2fkept", "//ops-demo/kept",
     "/ads%2f..%2fops-demo/kept", "/ops%2ddemo/kept", "/ads\\..\\ops-demo/kept", "/ads/mine/../../ops-demo/kept"],
)  # fmt: skip
def test_no_way_of_writing_a_path_leads_to_another_bucket(own: Bucket, other: Bucket, path: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        request = AWSRequest(method, other.endpoint + path, data=b"evil" if method == "PUT" else None)
        S3SigV4Auth(Credentials(other.access_key, other.secret_key), "s3", "us-east-1").add_auth(request)
        place = other.endpoint.removeprefix("http://")
        client = http.client.HTTPConnection(place, timeout=20)
        client.request(method, path, body=request.data or None, headers=dict(request.headers))
        assert client.getresponse().status in (400, 403), path
    assert own.client().get_object(Bucket=own.name, Key="kept")["Body"].read() == b"unchanged"


def test_keys_in_bodies_and_sources_of_copies_lead_to_no_other_bucket(own: Bucket, stranger: Any) -> None:
    out = "../ops-demo/kept"
    said = stranger.delete_objects(Bucket="ads", Delete={"Objects": [{"Key": out}, {"Key": "/" + out}]})
    assert len(said["Errors"]) == 2
    for source in ("ops-demo/kept", "/ops-demo/kept", "ads/" + out, "ads/%2e%2e/ops-demo/kept"):
        assert refused(stranger.copy_object, Bucket="ads", Key="stolen", CopySource=source)
    assert own.client().get_object(Bucket=own.name, Key="kept")["Body"].read() == b"unchanged"


def test_the_ports_without_a_password_are_reached_by_nobody_and_its_memory_has_room(
    portal_up: Portal, own: Bucket
) -> None:
    [server] = [pid for pid, line in portal_up.programs().items() if "datastores.storage.server" in line]
    [store] = psutil.Process(server).children()
    inside = subprocess.run(
        ["nsenter", "--target", str(store.pid), "--net", "cat", "/proc/net/tcp"],
        capture_output=True,
        text=True,
        check=True,
    )
    listening = {
        int(line.split()[1].split(":")[1], 16) for line in inside.stdout.splitlines()[1:] if line.split()[3] == "0A"
    }
    assert {8080, 8888, 9333, 18080, 18888, 19333} <= listening, "what is looked for below"
    assert os.readlink(f"/proc/{store.pid}/ns/net") != os.readlink("/proc/self/ns/net")
    assert len(net_of(psutil.Process(server))) == 2
    for each in net_of(psutil.Process(server)):
        assert each.laddr.ip == "127.0.0.1"
        assert services.ask(each.laddr.port, b"GET /cluster/status HTTP/1.0\r\n\r\n").partition(b"\r\n")[0] in (
            b"",  # STORE_PORT: the client does not prove to be the portal or its gateway
            b"HTTP/1.0 400 Bad Request",  # DOOR_PORT: the request carries nothing to judge
        )
    # If the heap starts above GOMEMLIMIT, Go collects garbage all the time, even when idle.
    asked = ["nsenter", "--target", str(store.pid), "--net", "curl", "-s", f"http://127.0.0.1:{METRICS_PORT}/metrics"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    heap = float(re.search(r"^go_memstats_heap_alloc_bytes (\S+)", told, re.MULTILINE)[1])  # type: ignore[index]
    assert 1.3 * heap < int(MEMORY["GOMEMLIMIT"].removesuffix("MiB")) * 2**20
    with open(f"/proc/{store.pid}/mounts") as mounts:
        assert "/tmp" in {line.split()[1] for line in mounts}, "its sockets there are seen by nobody"
    log = (portal_up.data / "log" / "storage.log").read_text()
    assert "s3_sse_s3.go" in log, "warnings are there"
    for key in (portal_up.secret("PORTAL_STORAGE_ACCESS_KEY"), own.access_key):
        assert key[:12] not in log, "ids of keys are not"


def net_of(process: psutil.Process) -> list[Any]:
    return [each for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]


def test_rclone_comes_in_by_the_command_of_the_page(own: Bucket, tmp_path: Any) -> None:
    (tmp_path / "FOLDER").mkdir()
    (tmp_path / "FOLDER" / "f.txt").write_text("by rclone")
    found = commands(own.endpoint, "us-east-1", own.name, own.access_key, own.secret_key)
    [text] = [each.text for each in found if each.title == "rclone"]
    env = os.environ | {
        "PATH": f"{services.program('rclone').rpartition('/')[0]}:{os.environ['PATH']}",
        "RCLONE_CONFIG": "",
    }
    done = subprocess.run(
        ["sh", "-ec", text], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert own.client().get_object(Bucket=own.name, Key="FOLDER/f.txt")["Body"].read() == b"by rclone"


@pytest.mark.parametrize("operation", MODEL.operation_names)
def test_every_operation_is_read_as_what_it_is(operation: str) -> None:
    s3 = boto3.client(
        "s3", endpoint_url="http://s3.test", region_name="us-east-1", aws_access_key_id="KEY", aws_secret_access_key="s",
        config=Config(s3={"addressing_style": "path"}),
    )  # fmt: skip
    sent = []

    def keep(request: Any, **_: Any) -> None:
        sent.append(request)
        raise InterruptedError

    s3.meta.events.register("before-send.s3", keep)
    with pytest.raises(InterruptedError):
        getattr(s3, botocore.xform_name(operation))(**asked(operation, "own"))
    said = {name: value.decode() if isinstance(value, bytes) else value for name, value in sent[0].headers.items()}
    uri = sent[0].url.split("s3.test", 1)[1]
    found = read(
        sent[0].method, uri, authorization=said.get("Authorization", ""), copy_source=said.get("x-amz-copy-source", "")
    )
    same = {"ListDirectoryBuckets": "ListBuckets", "WriteGetObjectResponse": ""}
    older = operation.replace("LifecycleConfiguration", "Lifecycle").replace(
        "NotificationConfiguration", "Notification"
    )
    assert found.operation in (same.get(operation, operation), older)
    assert found.access_key == "KEY"


@given(st.text(max_size=20).map(lambda text: "/own/" + text))
def test_a_path_is_read_as_the_store_reads_it_or_not_at_all(path: str) -> None:
    with contextlib.suppress(Confusing):
        bucket, key = split_path(path)
        assert bucket == "own"
        assert os.path.normpath(f"/own/{key}").startswith("/own")


def test_an_address_of_a_part_is_good_for_that_part_alone_and_for_pages_of_the_portal(
    portal_up: Portal, own: Bucket
) -> None:
    rest, parts = Client(portal_up, "alice"), [os.urandom(8 * 2**20), b"the end"]
    name = rest.call("GET", f"/appcodes/{own.code}/storage")["datastore"]
    path = f"/appcodes/{own.code}/datastores/{name}"
    begun = rest.call("POST", f"{path}/uploads", {"path": "direct/x", "size": sum(map(len, parts))})
    made = rest.call("POST", f"{path}/uploads/{begun['id']}/urls", {"parts": [1, 2]})
    first, last = (item["url"] for item in made["items"])

    def ask(method: str, url: str, data: bytes | None = None, **headers: str) -> tuple[int, Any]:
        request = urllib.request.Request(url, method=method, data=data, headers=headers)
        request.add_unredirected_header("Content-type", "")
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.headers

    other = last.replace("partNumber=2", "partNumber=1")
    elsewhere = last.replace("direct/x", "direct/y")
    longer = last.replace("X-Amz-Expires=900", "X-Amz-Expires=90000")
    for method, url, data in (
        ("PUT", last, parts[1] + b"!"), ("PUT", last, parts[1][1:]), ("PUT", other, parts[1]), ("PUT", elsewhere, parts[1]),
        ("PUT", longer, parts[1]), ("PUT", last.partition("?")[0], parts[1]), ("GET", last, None), ("DELETE", last, None),
        ("POST", last, b""),
    ):  # fmt: skip
        assert ask(method, url, data)[0] in (400, 403, 501), (method, url)
    assert rest.call("POST", f"{path}/uploads/{begun['id']}/urls", {"parts": [1]})["stored"] == []

    named = "Access-Control-Allow-Origin"
    for origin, allowed in ((portal_up.origin, portal_up.origin), ("http://elsewhere.example", None)):
        preflight = {"Origin": origin, "Access-Control-Request-Method": "PUT"}
        assert ask("OPTIONS", last, **preflight)[1][named] == allowed
        status, headers = ask("PUT", last, parts[1], Origin=origin)
        assert (status, headers[named]) == (200, allowed)
    assert ask("PUT", first, parts[0])[0] == 200
    assert rest.call("POST", f"{path}/uploads/{begun['id']}/finish")["size"] == begun["size"]
    assert own.client().get_object(Bucket=own.name, Key="direct/x")["Body"].read() == b"".join(parts)
    # The upload that the URL belongs to has ended.
    assert ask("PUT", last, parts[1])[0] == 404
