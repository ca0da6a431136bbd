"""The API's description of itself: valid, complete, and true of what is answered."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from django.core.management import call_command
from django.test import Client

from tests.api.client import Api, appcode, manifest
from tests.api.test_api_access import MATRIX


@pytest.fixture(scope="session")
def schema() -> dict[str, Any]:
    from drf_spectacular.generators import SchemaGenerator

    return SchemaGenerator().get_schema(request=None, public=True)


def test_the_schema_is_valid_and_without_warnings(tmp_path: Any) -> None:
    call_command("spectacular", "--validate", "--fail-on-warn", "--file", str(tmp_path / "schema.yaml"))


def test_every_operation_says_what_it_is_for_and_how_it_fails(schema: dict[str, Any]) -> None:
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            assert operation.get("summary"), (method, path)
            assert "application/problem+json" in operation["responses"]["default"]["content"]
            assert {"token": []} in operation["security"]


def check(schema: dict[str, Any], method: str, template: str, status: int, body: Any) -> None:
    responses = schema["paths"][template][method.lower()]["responses"]
    answer = responses.get(str(status), responses["default"])
    content = next(iter(answer["content"].values()))["schema"]
    jsonschema.validate(body, {**content, "components": schema["components"]})


def test_every_answer_is_as_described(schema: dict[str, Any], everybody: dict[str, Api]) -> None:
    alice, victor = everybody["alice"], everybody["victor"]
    assert alice.post("/appcodes/ops-demo/clusters", manifest())[0] == 201
    checked = 0
    for method, path, body, _ in MATRIX:
        template = "/api/v1" + path.replace("ops-demo", "{code}").replace("show1", "{name}").replace(
            "/runs/1", "/runs/{run}"
        ).replace("worker/0", "{role}/{index}")
        if method.lower() not in schema["paths"].get(template, {}) or method == "DELETE":
            continue
        for api in (victor, alice):
            status, answer = api(method, path, body)
            if not isinstance(answer, (dict, list)):
                answer = answer.content.decode()  # a log, where the node agent runs already
            check(schema, method, template, status, answer)
            checked += 1
    assert checked > 25


def test_the_examples_are_accepted(schema: dict[str, Any], as_root: Api) -> None:
    from clusters.api import EXAMPLE as CLUSTER
    from clusters.serializers import read_manifest
    from portal.api import EXAMPLE as APPCODE
    from portal.serializers import read_appcode

    assert read_manifest(CLUSTER.value, appcode="ops-demo").metadata.name == "show1"
    assert read_appcode(APPCODE.value).metadata.name == "npe_ix_test_gpu"


def test_schema_and_docs_are_there_for_everybody_and_load_nothing_from_elsewhere(db: None) -> None:
    client = Client()
    assert json.loads(client.get("/api/v1/schema?format=json").content)["openapi"].startswith("3.1")
    page = client.get("/api/v1/docs").content.decode()
    assert "swagger-ui-bundle.js" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<style" not in page
    assert "<script>" not in page
    script = client.get("/api/v1/docs?script=")
    assert script.status_code == 200
    assert "/api/v1/schema" in script.content.decode()


def test_what_is_read_can_be_posted_again(as_alice: Api) -> None:
    as_alice.post(
        "/appcodes/ops-demo/clusters",
        manifest(env={"A": "1"}, timeLimit=3600, scheduleAfter="2026-01-31T18:00:00+01:00"),
    )
    _, read = as_alice.get("/appcodes/ops-demo/clusters/show1")
    assert as_alice.put("/appcodes/ops-demo/clusters/show1", read)[0] == 200
    assert as_alice.delete("/appcodes/ops-demo/clusters/show1")[0] == 202
    status, again = as_alice.post("/appcodes/ops-demo/clusters", read)
    assert (status, again["spec"]) == (201, read["spec"])
    assert as_alice.post("/appcodes/ops-demo/clusters", appcode())[0] == 422
