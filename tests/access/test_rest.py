"""Access over REST: every operation of the OpenAPI description as every kind of person, against rest.txt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from jsonschema import Draft202012Validator

from tests.access.addresses import addresses
from tests.access.people import ask, assert_all_look_alike, browser, program
from tests.access.table import PEOPLE, Row, filled, name_of, read
from tests.access.world import UNKNOWN

pytestmark = [pytest.mark.django_db, pytest.mark.xdist_group("access-rest")]
TABLE = Path(__file__).parent / "rest.txt"
ROWS = read(TABLE)


def asked(client: Client, row: Row, values: Mapping[str, object], bodies: Mapping[str, str]) -> Any:
    """Sends `row.sent` as the query of a GET, else as JSON, or as CSV if it is a price table."""
    path = f"/api/v1{filled(row.address, values)}"
    body = bodies[row.sent[1:]] if row.sent.startswith("@") else row.sent
    if row.method == "GET":
        path, body = f"{path}?{filled(body, values)}", ""
    return ask(client, row.method, path, body, "text/csv" if body.startswith("sku") else "application/json")


def found(world: Any, row: Row) -> tuple[Row, list[Any]]:
    answers = [asked(program(world, name), row, world.values, world.bodies) for name in PEOPLE]
    return replace(row, expected=tuple(answer.status_code for answer in answers)), answers


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_everybody_gets_what_the_table_says(world: Any, schema: Any, row: Row) -> None:
    judged, answers = found(world, row)
    if judged != row:
        pytest.fail(f"{TABLE.name} says\n{row}\nand the portal\n{judged}", pytrace=False)
    for answer in answers:
        check(schema, row, answer)


def check(schema: Any, row: Row, answer: Any) -> None:
    """Asserts that the answer matches the OpenAPI description."""
    responses = schema["paths"][f"/api/v1{row.address}"][row.method.lower()]["responses"]
    described = responses.get(str(answer.status_code), responses["default"]).get("content", {})
    kind = answer.get("Content-Type", "").partition(";")[0]
    assert kind in described or not answer.getvalue(), (answer.status_code, kind)
    if "json" in kind:
        # The REST API of clusters, templates, hooks and services shows what is stored.
        body = json.loads(answer.content, object_hook=lambda each: {k: v for k, v in each.items() if k != UNKNOWN})
        Draft202012Validator({**described[kind]["schema"], "components": schema["components"]}).validate(body)
        if answer.status_code >= 400:
            assert (kind, body["status"], body["instance"]) == (
                "application/problem+json",
                answer.status_code,
                answer.request["PATH_INFO"],
            )
            assert body["detail"].endswith((".", "!"))
    if answer.status_code == 401:
        assert answer["WWW-Authenticate"].startswith("Bearer")


@pytest.fixture(scope="module")
def schema() -> Any:
    from drf_spectacular.generators import SchemaGenerator

    return SchemaGenerator().get_schema(request=None, public=True)


@pytest.fixture(scope="module")
def described(schema: Any) -> set[tuple[str, str]]:
    return {
        (method.upper(), path.removeprefix("/api/v1"))
        for path, methods in schema["paths"].items()
        for method in methods
    }


def test_every_operation_has_a_line(world: Any, described: set[tuple[str, str]]) -> None:
    missing = sorted(described - {row.operation for row in ROWS}, key=lambda operation: operation[::-1])
    lines = [str(found(world, Row(method, address, ()))[0]) for method, address in missing]
    idle = [str(row) for row in ROWS if row.operation not in described]
    assert not lines, f"Judge these and put them into tests/access/{TABLE.name}:\n" + "\n".join(lines)
    assert not idle, f"These are gone; take them out of tests/access/{TABLE.name}:\n" + "\n".join(idle)


def test_every_address_is_described(described: set[tuple[str, str]]) -> None:
    """The description itself is public: tests/api/test_api_schema.py."""
    there = {address.replace("{pk}", "{id}") for address, _ in addresses() if address.startswith("/api/v1/")}
    assert {address.removeprefix("/api/v1") for address in there} - {address for _, address in described} == {
        "/schema",
        "/docs",
    }


@pytest.mark.parametrize("row", [row for row in ROWS if row.of("mallory") == 404], ids=name_of)
def test_an_outsider_cannot_tell_what_exists(world: Any, row: Row) -> None:
    mallory = program(world, "mallory")
    assert_all_look_alike(world, row, lambda values: asked(mallory, row, values, world.bodies))


@pytest.mark.parametrize("row", [row for row in ROWS if row.method != "GET" and row.of("root") < 400], ids=name_of)
def test_a_session_alone_changes_nothing(world: Any, row: Row) -> None:
    """A cross-site request carries the session cookie, but neither a CSRF token nor an API token."""
    answer = asked(browser(world, "root", checked=True), row, world.values, world.bodies)
    assert (answer.status_code, answer.json()["detail"][:4]) == (403, "CSRF")
