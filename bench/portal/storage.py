"""The portal's own object storage, compared with direct access to the server behind it: the cost of gateway and door.

The floor is the same program with the same options, without gateway, door and its own network. Rounds alternate, and
all clients are boto3. BENCH_GB and BENCH_KEYS set the size of the file and the number of keys in the long folder.
"""

from __future__ import annotations

import os
import signal
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import psutil
from botocore.config import Config

from bench.floors import running
from bench.portal.measures import api_of, until
from bench.results import Result, quantile
from bench.sizes import size
from bench.web import one_by_one
from datastores.storage.inside import MEMORY, OPTIONS
from portal.up.services import free_port, http_ready

if TYPE_CHECKING:
    from bench.seed import Seeded
    from tests.running import Portal

MBS = round(float(os.environ.get("BENCH_GB", "1")) * size(1000, 1))
KEYS = int(os.environ.get("BENCH_KEYS", size(100_000, 4)))
ROUNDS, FILES, FILE_BYTES, SENDERS = size(3, 1), size(1_000, 2), 10_000, 8
PAGE, PAGES = size(200, 2), size(50, 1)
MB = 10**6
NAMES = ("AKBENCH" * 2, "secret" * 6)


def storage(portal: Portal, tenants: Seeded) -> list[Result]:
    """the portal's own object storage beside its bare server: a large file, small files, a long folder"""
    api, code = api_of(portal, tenants), tenants.codes[0]
    made = api.json("POST", f"/appcodes/{code}/storage", {})
    own, bucket = _client(made["endpoint"], made["accessKey"], made["secretKey"]), made["bucket"]
    with tempfile.TemporaryDirectory() as folder, _bare(Path(folder)) as url:
        bare = _client(url, *NAMES)
        bare.create_bucket(Bucket=bucket)
        source, target = Path(folder) / "large", Path(folder) / "back"
        with source.open("wb") as file:
            for _ in range(MBS):
                file.write(os.urandom(MB))
        both = (own, bare)
        with _peak(portal) as peak:
            up = _turns(both, lambda s3: s3.upload_file(str(source), bucket, "large"))
            down = _turns(both, lambda s3: s3.download_file(bucket, "large", str(target)))
        assert target.stat().st_size == source.stat().st_size
        small = _turns(both, lambda s3: _put(s3, bucket, "small", FILES))
    _put(own, bucket, "long", KEYS)
    api = api_of(portal, tenants)  # the old connection was idle for longer than the portal keeps one
    store = f"/appcodes/{code}/datastores/{made['datastore']}"
    page = f"{store}/files?path=long&limit={PAGE}"
    assert len(api.json("GET", page)["items"]) == PAGE
    rest = one_by_one(PAGES, lambda: api.send("GET", page))
    asked = {"Bucket": bucket, "Prefix": "long/", "Delimiter": "/", "MaxKeys": PAGE}
    listed = one_by_one(PAGES, lambda: own.list_objects_v2(**asked))
    return [
        Result(f"{MBS / 1000:g} GB into the object storage by boto3", up[0], "s", None, up[1], times=1 / 0.8),
        Result(f"{MBS / 1000:g} GB out of it", down[0], "s", None, down[1], times=1 / 0.8),
        Result("The most memory of its store and door meanwhile", peak[0] / MB, "MB", 256),
        Result(f"{FILES:,} files of 10 KB into it", small[0], "s", None, small[1], times=1 / 0.7),
        Result(
            f"First page of a folder of {KEYS:,} files by REST: median", quantile(rest, 0.5) * 1000, "ms", None,
            quantile(listed, 0.5) * 1000, times=1.2,
        ),
    ]  # fmt: skip


def _turns(clients: tuple[Any, Any], job: Callable[[Any], object]) -> tuple[float, float]:
    """Runs a job with each of two clients in turns. Returns the median seconds of each."""
    times = [[one_by_one(1, partial(job, client))[0] for client in clients] for _ in range(ROUNDS)]
    first, second = (quantile(each, 0.5) for each in zip(*times, strict=True))
    return first, second


def _put(s3: Any, bucket: str, folder: str, count: int) -> None:
    body = os.urandom(FILE_BYTES) if folder == "small" else b"x"
    with ThreadPoolExecutor(SENDERS) as pool:
        for done in [
            pool.submit(s3.put_object, Bucket=bucket, Key=f"{folder}/{n:06}", Body=body) for n in range(count)
        ]:
            done.result()


@contextmanager
def _peak(portal: Portal) -> Iterator[list[int]]:
    """Yields the peak memory of the storage's processes in bytes (shared pages counted once), sampled 5 times a second."""
    [pid] = [pid for pid, line in portal.programs().items() if "datastores.storage.server" in line]
    peak, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.2):
            found = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
            sizes = []
            for process in found:
                try:
                    sizes.append(process.memory_full_info().pss)
                except psutil.NoSuchProcess:
                    continue
            peak[0] = max(peak[0], sum(sizes))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield peak
    finally:
        over.set()
        looking.join()


@contextmanager
def _bare(folder: Path) -> Iterator[str]:
    """Yields the address of a SeaweedFS on this machine's ports, started as datastores/storage/inside.py starts it."""
    at, ports = "127.0.0.1", {name: free_port() for name in ("master", "volume", "filer", "s3")}
    argv = [
        str(Path(sysconfig.get_path("scripts")) / "weed"),
        "server",
        f"-dir={folder}",
        f"-ip={at}",
        f"-ip.bind={at}",
    ]
    argv += ["-filer", "-s3", *OPTIONS]
    for name, port in ports.items():
        argv += [f"-{name}.port={port}", f"-{name}.port.grpc={free_port()}"]
    argv += [f"-filer.localSocket={folder}/filer.sock", f"-s3.localSocket={folder}/s3.sock"]
    env = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": NAMES[0],
        "AWS_SECRET_ACCESS_KEY": NAMES[1],
        **MEMORY,
    }
    with running(argv, env, signal.SIGKILL):
        until(http_ready(ports["s3"]), 60)
        url = f"http://{at}:{ports['s3']}"
        until(lambda: _answers(url), 60)
        yield url


def _answers(url: str) -> bool:
    try:
        _client(url, *NAMES).list_buckets()
    except Exception:  # noqa: BLE001  it has many ways to say that it is not ready
        return False
    return True


def _client(url: str, access_key: str, secret_key: str) -> Any:
    config = Config(s3={"addressing_style": "path"}, max_pool_connections=16, retries={"total_max_attempts": 1})
    return boto3.client(
        "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id=access_key, aws_secret_access_key=secret_key,
        config=config,
    )  # fmt: skip
