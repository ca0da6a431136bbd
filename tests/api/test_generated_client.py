"""A client that openapi-python-client generates from the API description has every operation, and works."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from django.test import Client
from drf_spectacular.generators import SchemaGenerator

from tests.api.client import Api, manifest


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Returns the generated package, importable as `generated_portal`."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "schema.json").write_text(json.dumps(SchemaGenerator().get_schema(request=None, public=True)))
    # The generator formats its output with ruff, which it finds on PATH.
    subprocess.run(
        [
            Path(sys.executable).with_name("openapi-python-client"), "generate", "--path", folder / "schema.json",
            "--output-path", folder / "generated_portal", "--meta", "none",
        ],
        check=True, timeout=300, env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    sys.path.insert(0, str(folder))
    yield importlib.import_module("generated_portal")
    sys.path.remove(str(folder))


def test_it_has_every_operation(generated: Any) -> None:
    api = importlib.import_module("generated_portal.api")
    found = {
        each.name.rpartition(".")[2]
        for each in pkgutil.walk_packages(api.__path__, f"{api.__name__}.")
        if not each.ispkg
    }
    schema = SchemaGenerator().get_schema(request=None, public=True)
    wanted = {each["operationId"] for operations in schema["paths"].values() for each in operations.values()}
    assert found == wanted


def _answer(request: httpx.Request) -> httpx.Response:
    """Returns the portal's answer. Django's own test client keeps the transaction of the test, which a WSGI server would end."""
    given = {name: value for name, value in request.headers.items() if name not in ("content-type", "content-length")}
    answer = Client().generic(
        request.method, request.url.raw_path.decode(), request.content, headers=given,
        content_type=request.headers.get("content-type", ""),
    )  # fmt: skip
    return httpx.Response(answer.status_code, headers=dict(answer.headers), content=answer.content)


@pytest.mark.django_db
def test_a_cluster_is_created_listed_and_disabled(generated: Any, as_alice: Api) -> None:
    client = generated.AuthenticatedClient(
        base_url="http://portal.localhost:8000",
        token=as_alice.token,
        httpx_args={"transport": httpx.MockTransport(_answer)},
        raise_on_unexpected_status=True,
    )
    models = importlib.import_module("generated_portal.models")

    def call(module: str, *args: Any, **more: Any) -> Any:
        answer = importlib.import_module(f"generated_portal.api.{module}").sync_detailed(*args, client=client, **more)
        return SimpleNamespace(status=int(answer.status_code), value=answer.parsed)

    wanted = models.ClusterManifestRequest.from_dict(manifest())
    made = call("clusters.clusters_create", "ops-demo", body=wanted)
    assert (made.status, made.value.metadata.name, made.value.status.phase) == (201, "show1", "Queued")
    assert [each.metadata.name for each in call("clusters.clusters_list", "ops-demo").value.items] == ["show1"]
    assert call("clusters.clusters_disable", "ops-demo", "show1").status == 202
    refused = call("clusters.clusters_create", "ops-demo", body=wanted)
    assert isinstance(refused.value, models.Problem)
