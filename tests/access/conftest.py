"""One world for all tables. Each request runs in a savepoint that is rolled back, so requests do not affect each other."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def files(s3: Any) -> str:
    """Makes a bucket with one file and returns its name. All test processes share the S3 server."""
    bucket = f"access-{uuid.uuid4()}"
    s3.client.create_bucket(Bucket=bucket)
    s3.client.put_object(Bucket=bucket, Key="file.txt", Body=b"data")
    s3.client.put_object(Bucket=bucket, Key="frozen/a.txt", Body=b"data")
    return bucket


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: Any, files: str) -> Iterator[Any]:
    from django.core.cache import cache
    from django.db import transaction
    from django.test import override_settings

    from tests.access.world import make

    # Keep sessions in the database only, so they are rolled back too; ignore a node agent that other tests started.
    apart = override_settings(
        SESSION_ENGINE="django.contrib.sessions.backends.db", LOCAL_CLOUD_SOCKET="/nonexistent/agent.sock"
    )
    with django_db_blocker.unblock(), apart, transaction.atomic():
        yield make(files)
        transaction.set_rollback(True)
        cache.clear()


@pytest.fixture(autouse=True)
def file(request: pytest.FixtureRequest, files: str, s3: Any) -> None:
    """Restores the files of the bucket that the test before may have deleted."""
    callspec = getattr(request.node, "callspec", None)
    if callspec and "/datastores/" in str(callspec.params.get("row")):
        s3.client.put_object(Bucket=files, Key="file.txt", Body=b"data")
        s3.client.put_object(Bucket=files, Key="frozen/a.txt", Body=b"data")


@pytest.fixture(autouse=True)
def unlimited(world: Any) -> None:
    """Resets the cache, which counts requests per person: these tests send more than the limit."""
    from django.core.cache import cache

    cache.clear()
