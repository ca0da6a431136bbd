"""An input in S3 that many tasks read: the bytes fetched from the store, and the time that a cached input adds to a start.

The store is the S3 server of the tests, behind a socket that counts the bytes. The floor of a start is the start of the same
tasks without an input. Both alternate.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.portal.measures import api_of, manifest, until
from bench.results import Result, quantile
from bench.sizes import size
from clusters.runs.models import Run
from datastores.models import Datastore
from portal.models import Appcode
from portal.up import services
from portal.up.services import private_folder
from tests import ports, s3server
from tests.counted import Counted

if TYPE_CHECKING:
    from bench.seed import Seeded
    from bench.web import Client
    from tests.running import Portal

FILES, FILE_MB = size(50, 2), size(20, 1)
TASKS, ROUNDS = size(16, 2), size(5, 1)
KEYS = ("bench" * 4, "secret" * 6)


def reading(portal: Portal, tenants: Seeded) -> list[Result]:
    """an input of 1 GB for 16 tasks: bytes read from the store, and the tasks' start when it is cached on this machine"""
    api, numbers = api_of(portal, tenants), itertools.count()
    with bucket(tenants.codes[0], "bench-data") as (files, store):
        for number in range(FILES):
            (files / f"{number}.bin").write_bytes(os.urandom(1 << 16) * (FILE_MB * 1_000_000 >> 16))
        cached = {"datastore": "bench-data", "mode": "cache"}
        first = _start(api, tenants, f"read-{next(numbers)}", cached, 300)
        read = store.sent / 1e6
        with_it, without = [], []
        for _ in range(ROUNDS):
            without.append(_start(api, tenants, f"read-{next(numbers)}", None, 60))
            with_it.append(_start(api, tenants, f"read-{next(numbers)}", cached, 60))
        more = store.sent / 1e6 - read
    return [
        Result(f"input of 1 GB for {TASKS} tasks, cached: read from the store", read, "MB", None, FILES * FILE_MB, times=1.05),
        Result(f"the same, {ROUNDS} runs later: read from the store besides", more, "MB", 0.05 * FILES * FILE_MB),
        Result("POST → Running, the first run that reads it", first, "s"),
        Result(
            f"POST → Running for {TASKS} tasks whose input lies here, median of {ROUNDS}", quantile(with_it, 0.5), "s", None,
            quantile(without, 0.5), times=1.2,
        ),
    ]  # fmt: skip


def _start(api: Client, tenants: Seeded, name: str, reads: dict[str, str] | None, seconds: float) -> float:
    """Returns the seconds from the POST of a cluster until all its tasks run. Removes the cluster afterwards."""
    path = f"/appcodes/{tenants.codes[0]}/clusters"
    body = manifest(name, {"master": 1, "worker": TASKS - 1}, "exec sleep 600", gpus=False, input=reads)
    begin = time.perf_counter()
    api.send("POST", path, body)
    until(lambda: api.json("GET", f"{path}/{name}")["status"]["phase"] == "Running", seconds)
    running = time.perf_counter() - begin
    api.send("POST", f"{path}/{name}/disable", {})
    until(lambda: not Run.objects.filter(cluster__name=name, gone=False).exists(), 60)
    api.send("DELETE", f"{path}/{name}")
    return running


@contextmanager
def bucket(code: str, name: str) -> Iterator[tuple[Path, Counted]]:
    """Creates a datastore of this appcode. Yields the folder of its files, and the server that it reads them from."""
    with tempfile.TemporaryDirectory() as folder:
        server = s3server.s3(Path(folder) / "s3", ports.free(), *KEYS)
        files = private_folder(Path(folder) / "s3" / "data")
        with services.running([server], private_folder(Path(folder) / "log"), os.environ), Counted(server.url) as store:
            spec = {"server": store.url, "bucket": "data", "prefix": "", "access_key": KEYS[0], "region": "us-east-1"}
            appcode = Appcode.objects.get(code=code)
            Datastore.objects.create(appcode=appcode, name=name, kind="s3", spec=spec, secret=KEYS[1])
            yield files, store
