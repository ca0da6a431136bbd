"""One world for all tables. Each request has a savepoint that is rolled back, so that none sees what another did."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def files(s3: Any) -> str:
    """A bucket with one file. The server is shared by all test processes."""
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

    # Sessions that lie in the database alone are rolled back, too; no agent of other tests in this process answers.
    apart = override_settings(
        SESSION_ENGINE="django.contrib.sessions.backends.db", LOCAL_CLOUD_SOCKET="/nonexistent/agent.sock"
    )
    with django_db_blocker.unblock(), apart, transaction.atomic():
        yield make(files)
        transaction.set_rollback(True)
        cache.clear()


@pytest.fixture(autouse=True)
def file(request: pytest.FixtureRequest, files: str, s3: Any) -> None:
    """What was removed from the bucket is there again."""
    callspec = getattr(request.node, "callspec", None)
    if callspec and "/datastores/" in str(callspec.params.get("row")):
        s3.client.put_object(Bucket=files, Key="file.txt", Body=b"data")
        s3.client.put_object(Bucket=files, Key="frozen/a.txt", Body=b"data")


@pytest.fixture(autouse=True)
def unlimited(world: Any) -> None:
    """What one person asked is counted in the cache, and here they ask more than people do."""
    from django.core.cache import cache

    cache.clear()
