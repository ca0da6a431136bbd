"""The API description: valid, complete, and true of the answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import openapi_spec_validator
import pytest
from django.core.management import call_command
from django.test import Client
from pydantic import BaseModel

from tests.api.client import Api, appcode, manifest

OURS = ("portal", "billing", "datastores", "clusters")


@pytest.fixture(scope="session")
def schema() -> dict[str, Any]:
    from drf_spectacular.generators import SchemaGenerator

    return SchemaGenerator().get_schema(request=None, public=True)


def test_the_schema_is_valid_and_without_warnings(tmp_path: Any) -> None:
    call_command("spectacular", "--validate", "--fail-on-warn", "--file", str(tmp_path / "schema.yaml"))


def test_its_defaults_and_examples_are_valid_too(schema: dict[str, Any]) -> None:
    """A strict validator checks each default against its own schema."""
    openapi_spec_validator.validate(json.loads(json.dumps(schema)))


def test_amounts_of_money_are_one_component(schema: dict[str, Any]) -> None:
    components = schema["components"]["schemas"]
    fields = {name: {*said.get("properties", {})} for name, said in components.items()}
    assert [name for name, has in fields.items() if has == {"amount", "currency"}] == ["Money"]


def test_no_two_models_share_a_name(schema: dict[str, Any]) -> None:
    """Two models of one name would silently become one in the description, which would then be wrong for some answers."""

    def below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
        for each in model.__subclasses__():
            yield from (each, *below(each))

    ours = {each for each in below(BaseModel) if each.__module__.partition(".")[0] in OURS}
    names = Counter(each.__name__ for each in ours)
    assert len(names) > 50
    assert [name for name, times in names.items() if times > 1 and name in schema["components"]["schemas"]] == []


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("/clusters?appcode=ops-demo", "appcode"), ("/me?x=1", "x"), ("/appcodes?limit=1&Limit=2", "Limit"),
        ("/clusters?limit=", "limit"), ("/clusters?limit=0", "limit"), ("/clusters?limit=501", "limit"),
        ("/clusters?phase=", "phase"), ("/dashboard/spending?to=", "to"), ("/appcodes/ops-demo/usage?to=", "to"),
        ("/appcodes/ops-demo/usage?from=", "from"), ("/invoices?month=", "month"), ("/dashboard/waste?columns=", "columns"),
        # Refused before any lookup, so the answer does not reveal what exists.
        ("/appcodes/absent/clusters?x=1", "x"),
    ],
)  # fmt: skip
def test_what_is_not_described_is_refused_at_its_name(as_alice: Api, path: str, wrong: str) -> None:
    status, answer = as_alice.get(path)
    assert (status, [error["path"] for error in answer["errors"]]) == (422, [wrong])


def test_deletes_are_as_strict_and_words_to_look_for_may_be_empty(as_alice: Api) -> None:
    assert as_alice.delete("/appcodes/ops-demo/clusters/show1?force=1")[0] == 422
    assert as_alice.get("/clusters?search=&cursor=")[0] == 200


def test_who_is_not_signed_in_learns_no_parameters(db: None) -> None:
    assert Api("").get("/clusters?appcode=x")[0] == 401


def test_every_limit_says_from_what_to_what(schema: dict[str, Any]) -> None:
    asked = [
        each
        for operations in schema["paths"].values()
        for operation in operations.values()
        for each in operation.get("parameters", [])
        if each["in"] == "query" and each["schema"]["type"] == "integer"
    ]
    assert len(asked) > 20
    assert all({"minimum", "maximum"} <= each["schema"].keys() for each in asked)


def test_every_operation_says_what_it_is_for_and_how_it_fails(schema: dict[str, Any]) -> None:
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            assert operation.get("summary"), (method, path)
            assert "application/problem+json" in operation["responses"]["default"]["content"]
            # The version alone is open to everybody.
            assert ({"token": []} in operation.get("security", [])) == (path != "/api/v1/version"), (method, path)


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
