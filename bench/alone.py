"""Parts that are measured apart from the portal: each in a process of its own, with a durable PostgreSQL and a broker that
nobody else uses."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.results import Result
from bench.sizes import is_smallest

ROOT = Path(__file__).resolve().parent.parent


def measured(module: str, folder: Path) -> list[Result]:
    """Runs `python -m MODULE FOLDER`, which ends with `tell`."""
    argv = [sys.executable, "-m", module, str(folder)]
    done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return [Result(**told) for told in json.loads(done.stdout)]


def tell(found: Sequence[Result]) -> None:
    json.dump([dataclasses.asdict(result) for result in found], sys.stdout)


@contextmanager
def database(folder: Path) -> Iterator[None]:
    """Sets Django up on servers of its own, with empty tables."""
    from portal.up import servers, services

    (folder / "log").mkdir(parents=True)
    postgres = servers.postgres(
        folder / "postgres", folder / "run", log=folder / "log" / "initdb.log", durable=not is_smallest()
    )
    broker = servers.valkey(folder / "valkey", folder / "run")
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "portal.settings", "DATABASE_URL": postgres.url, "PORTAL_SECRET_KEY": "bench",
        "REDIS_URL": broker.url, "PORTAL_DATA": str(folder),
    }  # fmt: skip
    with services.running([postgres, broker], folder / "log", os.environ):
        import django
        from django.db import connection

        from tests import tables

        django.setup()
        tables.make(connection)
        yield
