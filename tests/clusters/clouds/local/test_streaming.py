"""Input that a program reads over S3 itself, with boto3: through the storage image's program, and inside a task."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from clusters.clouds.drivers import stream
from clusters.clouds.drivers.base import Mount
from portal.up.services import dies_with_parent
from tests.clusters.clouds.local.agents import PATIENCE, Agent, Store, role

KEY = "0123456789abcdef" * 4


def streamed(store: Store, prefix: str = "in") -> Mount:
    return replace(store.input("data", prefix), stream_key=KEY)


def client(address: str, key: str = KEY) -> Any:
    names = {"aws_access_key_id": key[:20], "aws_secret_access_key": key[20:], "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=address, config=Config(retries={"max_attempts": 1}), **names)


@pytest.fixture
def program(store: Store, tmp_path: Path) -> Iterator[psutil.Process]:
    """The program as in a pod; its port is the one at which it listens."""
    env = {"HOME": str(tmp_path), "STREAM_KEY": KEY[:20], "RCLONE_CONFIG_DATA0_ENDPOINT": store.url}
    env |= {"RCLONE_CONFIG_DATA0_REGION": "us-east-1", "RCLONE_CONFIG_DATA0_ACCESS_KEY_ID": store.access_key}
    env |= {"RCLONE_CONFIG_DATA0_SECRET_ACCESS_KEY": store.secret_key}
    argv = [sys.executable, "-I", "-S", stream.__file__, "0", "data0:data/in/"]
    process = subprocess.Popen(dies_with_parent(argv), env=env)
    deadline = time.monotonic() + PATIENCE
    while not (tmp_path / "serving").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


def test_boto3_reads_it_in_pages_and_ranges_and_changes_nothing(program: psutil.Process, store: Store) -> None:
    for number in range(5):
        store.put(f"data/in/deep/{number} ü+%.txt", str(number) * 10)
    large = store.folder / "data" / "in" / "large"
    with open(large, "wb") as file:
        file.truncate(200_000_000)
    store.put("data/other/secret", "no")
    store.put("data/in/.portal-trash/1/gone", "no")
    port = next(each.laddr.port for each in program.net_connections("tcp4") if each.status == psutil.CONN_LISTEN)
    s3 = client(f"http://127.0.0.1:{port}")
    pages = list(
        s3.get_paginator("list_objects_v2").paginate(Bucket="data", Prefix="in", PaginationConfig={"PageSize": 2})
    )
    names = [each["Key"] for page in pages for each in page["Contents"]]
    assert (len(pages), names) == (4, [*(f"in/deep/{number} ü+%.txt" for number in range(5)), "in/large"])
    folders = s3.list_objects_v2(Bucket="data", Prefix="in/", Delimiter="/")["CommonPrefixes"]
    assert folders == [{"Prefix": "in/deep/"}]
    assert s3.get_object(Bucket="data", Key=names[3], Range="bytes=2-4")["Body"].read() == b"333"
    assert s3.head_object(Bucket="data", Key="in/large")["ContentLength"] == 200_000_000
    assert s3.head_bucket(Bucket="data")["ResponseMetadata"]["HTTPStatusCode"] == 200
    before = program.memory_info().rss
    body = s3.get_object(Bucket="data", Key="in/large")["Body"]
    assert sum(map(len, body.iter_chunks(1 << 20))) == 200_000_000
    assert program.memory_info().rss - before < 32_000_000

    for refused in (
        lambda: s3.put_object(Bucket="data", Key=names[0], Body=b"x" * 1_000_000),
        lambda: s3.delete_object(Bucket="data", Key=names[0]),
        lambda: s3.create_multipart_upload(Bucket="data", Key="in/new"),
        lambda: s3.copy_object(Bucket="data", Key="in/new", CopySource={"Bucket": "data", "Key": names[0]}),
        lambda: s3.delete_objects(Bucket="data", Delete={"Objects": [{"Key": names[0]}]}),
        lambda: s3.get_object(Bucket="data", Key="other/secret"),
        lambda: s3.list_objects_v2(Bucket="data", Prefix="other/"),
        lambda: s3.list_buckets(),
        lambda: client(f"http://127.0.0.1:{port}", "f" * 64).list_objects_v2(Bucket="data", Prefix="in/"),
    ):
        with pytest.raises(ClientError) as caught:
            refused()
        assert caught.value.response["Error"]["Code"] in (
            "AccessDenied", "MethodNotAllowed", "InvalidAccessKeyId", "405",
        ), caught.value  # fmt: skip
    with pytest.raises(ClientError, match="NoSuchKey"):
        s3.get_object(Bucket="data", Key="in/nothing")
    with pytest.raises(ClientError, match="NoSuchKey"):
        s3.get_object(Bucket="data", Key="in/.portal-trash/1/gone")
    assert (store.folder / "data" / names[0]).read_text() == "0" * 10
    assert not (store.folder / "data" / "in" / "new").exists()
    store.stop()
    with pytest.raises(ClientError, match="ServiceUnavailable"):
        s3.get_object(Bucket="data", Key=names[0])


# These tasks have only the standard library.
READS = """
import http.client, os, sys, time
host, port = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://").split(":")
bucket, _, folder = os.environ["PORTAL_INPUT"].removeprefix("s3://").partition("/")
def read(name):
    store = http.client.HTTPConnection(host, int(port))
    word = f"AWS4-HMAC-SHA256 Credential={os.environ['AWS_ACCESS_KEY_ID']}/x, SignedHeaders=host, Signature=0"
    store.request("GET", f"/{bucket}/{folder}/{name}", headers={"Authorization": word})
    return store.getresponse().read().decode()
"""


@pytest.mark.as_user
@pytest.mark.parametrize("at_once", [0, 1], ids=["in the network of its run", "in one of its own"])
def test_a_task_reads_it_itself_and_nobody_else_does(agent: Agent, store: Store, at_once: int) -> None:
    store.put("data/in/a", "one\n")
    store.put("data/in/b", "two\n")
    script = f"{READS}\nprint(read('a'), end='', flush=True)\nwhile not os.path.exists('/tmp/go'): time.sleep(0.05)\n"
    script += "for _ in range(200):\n  try:\n    print(read('b'), end=''); break\n  except OSError: time.sleep(0.1)\n"
    script += "print(os.listdir('/elearn/input'), store_key in str(os.environ))"
    run = agent.apply(
        replace(role("", at_once=at_once), argv=("python", "-c", f"store_key = {store.secret_key!r}\n{script}")),
        mounts=(streamed(store),),
    )
    agent.until_output(run, "one\n")
    # The address does not exist in another run's network, and nothing listens there on this machine.
    alone = agent.says("exec 3<>/dev/tcp/127.0.0.54/3142 && echo in || echo out")
    assert alone.splitlines()[-1] == "out"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.54", 3142))
    # Its server ends with the process that stores data, and restarts with it.
    folder = agent.folder / "cloud" / "runs" / str(run.id)
    os.kill(int((folder / "storage" / "lock").read_text()), signal.SIGKILL)
    (agent.room(run) / "tmp" / "worker-0-0" / "go").touch()
    assert agent.ended(run).phase == "Succeeded"
    assert agent.output(run) == "one\ntwo\n[] False\n"


def test_it_is_led_nowhere_that_is_closed(make_agent: Any, store: Store) -> None:
    agent = make_agent(before="os.environ['PORTAL_OPEN_NETWORKS'] = ''")
    store.put("data/in/a", "one\n")
    run = agent.apply(replace(role(""), argv=("python", "-c", f"{READS}\nprint(read('a'))")), mounts=(streamed(store),))
    assert agent.ended(run).phase == "Succeeded"
    assert "An administrator can open it (PORTAL_OPEN_NETWORKS)" in agent.output(run)
