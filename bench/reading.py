"""An input in S3 that many tasks read: what is fetched from the store, and what finding it on this machine adds to a start.

The store is rclone's server behind a socket that counts what goes through it. The floor of a start is the same start of the same
tasks without an input, in turns with those that have one.
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.measures import api_of, until
from bench.results import Result, quantile
from bench.sizes import size
from clusters.models import Run
from datastores.models import Datastore
from portal.models import Appcode
from portal.up.services import free_port
from tests.counted import Counted

if TYPE_CHECKING:
    from bench.seed import Seeded
    from bench.web import Client
    from tests.running import Portal

FILES, FILE_MB = size(50, 2), size(20, 1)
TASKS, ROUNDS = size(16, 2), size(5, 1)
KEYS = ("bench" * 4, "secret" * 6)


def reading(portal: Portal, tenants: Seeded) -> list[Result]:
    """an input of 1 GB for 16 tasks: what is read of the store, and their start when it lies here already"""
    api, numbers = api_of(portal, tenants), itertools.count()
    with _store() as store:
        appcode = Appcode.objects.get(code=tenants.codes[0])
        spec = {"server": store.url, "bucket": "data", "prefix": "", "access_key": KEYS[0], "region": "us-east-1"}
        Datastore.objects.create(appcode=appcode, name="bench-data", kind="s3", spec=spec, secret=KEYS[1])
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
    """Seconds from the POST of a cluster until all its tasks run; nothing of it is left afterwards."""
    path = f"/appcodes/{tenants.codes[0]}/clusters"
    roles = {"master": {"flavor": "cpu", "count": 1}, "worker": {"flavor": "cpu", "count": TASKS - 1}}
    spec: dict[str, Any] = {"image": "bench", "command": "exec sleep 600", "retries": 0, "roles": roles, "input": reads}
    begin = time.perf_counter()
    api.send("POST", path, {"kind": "cluster", "metadata": {"name": name}, "spec": spec})
    until(lambda: api.json("GET", f"{path}/{name}")["status"]["phase"] == "Running", seconds)
    running = time.perf_counter() - begin
    api.send("POST", f"{path}/{name}/disable", {})
    until(lambda: not Run.objects.filter(cluster__name=name, gone=False).exists(), 60)
    api.send("DELETE", f"{path}/{name}")
    return running


@contextmanager
def _store() -> Iterator[Counted]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        for number in range(FILES):
            (data / f"{number}.bin").write_bytes(os.urandom(1 << 16) * (FILE_MB * 1_000_000 >> 16))
        port = free_port()
        argv = [
            str(Path(sys.executable).with_name("rclone")),
            "serve",
            "s3",
            "--config=",
            f"--addr=127.0.0.1:{port}",
            folder,
        ]
        env = {"RCLONE_AUTH_KEY": f'"{KEYS[0]},{KEYS[1]}"', "HOME": folder}
        process = subprocess.Popen(argv, env=env, stderr=subprocess.DEVNULL)
        try:
            until(lambda: _answers(port))
            with Counted(f"http://127.0.0.1:{port}") as store:
                yield store
        finally:
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
