"""The S3 server that comes with the portal, for real."""

from __future__ import annotations

import io
import os
import re
import secrets
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import boto3
from botocore.config import Config

from datastores.drivers import driver_for
from portal.up import servers, services
from portal.up.services import Service
from tests.running import ROOT, eventually, listening

MIB = 2**20
# What it does as S3 does. It answers 200 to much else and destroys the object: PUT and DELETE of ?tagging, ?acl, ?legal-hold and
# ?retention, parts that are copied, conditions.
QUERIES = {
    "list-type", "prefix", "delimiter", "max-keys", "continuation-token", "encoding-type", "uploads", "uploadId", "partNumber",
    "delete", "x-id",
}  # fmt: skip
HARMFUL = re.compile(
    rb"^(if-(none-)?match|if-unmodified-since|x-amz-(copy-source|tagging|acl)[a-z-]*):", re.IGNORECASE | re.MULTILINE
)
HEAD = re.compile(rb"^(GET|HEAD|PUT|POST|DELETE) (\S+) HTTP/1\.1\r\n(.*?)\r\n\r\n", re.DOTALL | re.MULTILINE)


@contextmanager
def serving(service: Service, log: Path) -> Iterator[int]:
    """Yields its process id."""
    process = services.spawn(service, log, os.environ)
    try:
        services.wait_ready(service, process, log)
        yield process.pid
    finally:
        services.stop(service, process)


def read_so_far(process: int) -> int:
    """Bytes that it has read, from files and connections."""
    lines = Path(f"/proc/{process}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def test_a_file_is_not_read_to_be_listed_and_only_once_to_be_downloaded(tmp_path):
    """In a folder with a name that rclone would take apart. Started again, it has nothing in memory."""
    keys = "KEY", secrets.token_hex(20)
    service = servers.s3(tmp_path / 'an "S3", folder' / "s3", services.free_port(), *keys)
    config = Config(response_checksum_validation="when_required", read_timeout=120)
    client = boto3.client(
        "s3", endpoint_url=service.url, aws_access_key_id=keys[0], aws_secret_access_key=keys[1], config=config,
        region_name="us-east-1",
    )  # fmt: skip
    whole = {"Bucket": "data", "Key": "weights"}
    with serving(service, tmp_path / "log"):
        client.create_bucket(Bucket="data")
        etag = client.put_object(**whole, Body=os.urandom(32 * MIB))["ETag"]
    with serving(service, tmp_path / "log") as process:
        before = read_so_far(process)
        (listed,) = client.list_objects_v2(Bucket="data")["Contents"]
        assert listed["ETag"] == etag.strip('"')
        assert client.head_object(**whole)["ETag"] == etag
        assert len(client.get_object(**whole, Range="bytes=5-5")["Body"].read()) == 1
        assert read_so_far(process) - before < MIB
        # In parts, as boto3 has them.
        client.download_file("data", "weights", str(tmp_path / "weights"))
        assert read_so_far(process) - before < 40 * MIB


@contextmanager
def overheard(port: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yields a port that leads to `port`, and all that came in there, by connection."""
    heard: list[bytes] = []
    server = socket.create_server(("127.0.0.1", 0))

    def copy(source: socket.socket, target: socket.socket, number: int | None = None) -> None:
        with suppress(OSError):
            while data := source.recv(MIB):
                if number is not None:
                    heard[number] += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                behind = socket.create_connection(("127.0.0.1", port))
                heard.append(b"")
                threading.Thread(target=copy, args=(client, behind, len(heard) - 1), daemon=True).start()
                threading.Thread(target=copy, args=(behind, client), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1], heard
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def test_what_the_portal_and_its_runs_ask_is_what_it_does_right(s3, bucket, tmp_path):
    """It is behind no gateway, and nobody but they has its key."""
    with overheard(urlsplit(s3.url).port) as (port, heard):
        url = f"http://127.0.0.1:{port}"
        fields = {"server": url, "access_key": s3.access_key, "bucket": bucket, "prefix": "", "region": "us-east-1"}
        driver = driver_for("s3", fields, s3.secret_key)
        driver.test()
        driver.upload("in/large", io.BytesIO(bytes(9 * MIB)), 9 * MIB)
        driver.upload("in/small", io.BytesIO(b"1234"), 4)
        assert driver.read_range("in/small", 1, 2) == b"23"
        assert b"".join(driver.open("in/small").chunks) == b"1234"
        assert [entry.path for entry in driver.list("in", search="s").entries] == ["in/small"]
        folder = tmp_path / "in"
        folder.mkdir()
        _fetch_and_store(s3, url, f"data:{bucket}/in/", folder)
        assert {entry.path for entry in driver.walk("in")} == {"in/large", "in/small", "in/new"}
        driver.delete("in/small")
        assert driver.delete_folder("in") == 2
    requests = [found for said in heard for found in HEAD.findall(said)]
    assert {method for method, *_ in requests} == {b"GET", b"HEAD", b"PUT", b"POST", b"DELETE"}
    for method, target, head in requests:
        assert parse_qs(urlsplit(target.decode()).query, keep_blank_values=True).keys() <= QUERIES, (method, target)
        assert not HARMFUL.search(head), (method, target, head)


def _fetch_and_store(s3, url: str, remote: str, folder: Path) -> None:
    """As pods do it: one file is new, and one was written again without a change."""
    names = {"TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": url, "ACCESS_KEY_ID": s3.access_key}
    env = {f"RCLONE_CONFIG_DATA_{name}": value for name, value in names.items()}
    env |= {"RCLONE_CONFIG_DATA_SECRET_ACCESS_KEY": s3.secret_key, "HOME": str(folder.parent), "SAYS": os.devnull}
    env["PATH"] = f"{Path(services.program('rclone')).parent}:{os.environ['PATH']}"
    programs = ROOT / "docker" / "rclone"
    subprocess.run([programs / "fetch", remote, folder], env=env, check=True)
    store = subprocess.Popen([programs / "store", "--every", "600", remote, folder], env=env)
    assert eventually((folder.parent / "stored").exists)
    listening(store.pid, signal.SIGTERM)
    (folder / "new").write_text("5")
    (folder / "large").write_bytes(bytes(9 * MIB))
    store.send_signal(signal.SIGTERM)
    assert store.wait(60) == 0
