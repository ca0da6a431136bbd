"""The S3 server that comes with the portal, for real."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
from botocore.config import Config

from portal import servers, services
from portal.services import Service

MIB = 2**20


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
