"""Files of a datastore over REST, on the real S3 server and in a local folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import Client

ROOT = "/api/v1/appcodes/ops-demo/datastores/data/files"


@pytest.fixture(params=["s3", "local"])
def at(request: pytest.FixtureRequest, people: Any) -> str:
    """Returns the URL of the files of a datastore of ops-demo."""
    from datastores.actions import create_datastore

    if request.param == "s3":
        request.getfixturevalue("store")
    else:
        folder: Path = request.getfixturevalue("folder")
        create_datastore(
            request.getfixturevalue("manifest")("data", {"local": {"path": str(folder)}}), acting_user=people.alice
        )
    return ROOT


@pytest.fixture
def bob(people: Any) -> Any:
    """bob("PUT", url, b"…") → the answer, with its body read to the end."""
    from tests.api.client import api_of

    token = api_of(people.bob).token

    def ask(
        method: str, address: str, data: bytes = b"", kind: str = "application/octet-stream", **headers: str
    ) -> Any:
        answer = Client().generic(
            method, address, data, content_type=kind, headers={"Authorization": f"Bearer {token}", **headers}
        )
        answer.content_ = b"".join(answer.streaming_content) if answer.streaming else answer.content
        return answer

    return ask
