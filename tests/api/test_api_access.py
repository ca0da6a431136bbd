"""Who may do what over REST: every address and verb, for every person."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.client import Api, appcode, manifest

OPS = "/appcodes/ops-demo"
SHOW1 = f"{OPS}/clusters/show1"
# Statuses for alice (owner), bob (developer), victor (viewer), mallory (outsider), root (administrator), nobody.
READ = (200, 200, 200, 404, 200, 401)
OPEN = (200, 200, 200, 200, 200, 401)


def operate(status: int) -> tuple[int, ...]:
    return (status, status, 403, 404, status, 401)


def owns(status: int) -> tuple[int, ...]:
    return (status, 403, 403, 404, status, 401)


OPS_MANIFEST = appcode("ops-demo", orgNode="qunarcorp.ops")

MATRIX: list[tuple[str, str, Any, tuple[int, ...]]] = [
    ("GET", "/me", None, OPEN),
    ("GET", "/clusters", None, OPEN),
    ("GET", "/appcodes", None, OPEN),
    # Everybody may ask; alice and root are named as owners and only an administrator may ask for others alone.
    ("POST", "/appcodes", appcode("ops-new"), (201, 422, 422, 422, 201, 401)),
    ("GET", OPS, None, READ),
    ("PUT", OPS, OPS_MANIFEST, owns(200)),
    ("GET", "/flavors", None, OPEN),
    ("GET", "/images", None, OPEN),
    ("GET", f"{OPS}/clusters", None, READ),
    ("POST", f"{OPS}/clusters", manifest("show2"), operate(201)),
    ("POST", f"{OPS}/preview", manifest("show2"), operate(200)),
    ("GET", SHOW1, None, READ),
    ("PUT", SHOW1, manifest(command="true"), operate(200)),
    ("DELETE", SHOW1, None, operate(202)),
    ("POST", f"{SHOW1}/deploy", None, operate(409)),
    ("POST", f"{SHOW1}/disable", None, operate(202)),
    ("POST", f"{SHOW1}/cancel", None, operate(202)),
    ("GET", f"{SHOW1}/runs", None, READ),
    ("GET", f"{SHOW1}/runs/1", None, READ),
    ("GET", f"{SHOW1}/runs/1/tasks", None, READ),
    ("GET", f"{SHOW1}/runs/2", None, (404, 404, 404, 404, 404, 401)),
    ("GET", f"{SHOW1}/usage", None, READ),
    # Without a node agent; with one see test_api_logs.py.
    ("GET", f"{SHOW1}/runs/1/tasks/worker/0/log", None, (503, 503, 503, 404, 503, 401)),
    # Nothing of it runs.
    ("POST", f"{SHOW1}/runs/1/tasks/worker/0/exec", {"argv": ["true"]}, operate(409)),
    ("GET", f"{SHOW1}/runs/1/tasks/worker/2/log", None, (404, 404, 404, 404, 404, 401)),
    # A task that does not run.
    ("POST", f"{SHOW1}/runs/1/tasks/worker/0/exec", {"argv": ["true"]}, operate(409)),
    ("POST", f"{SHOW1}/runs/1/tasks/worker/2/exec", {"argv": ["true"]}, (404, 404, 404, 404, 404, 401)),
    ("PATCH", SHOW1, {}, (405, 405, 405, 405, 405, 401)),
    ("DELETE", f"{OPS}/clusters", None, (405, 405, 405, 405, 405, 401)),
]
PEOPLE = ("alice", "bob", "victor", "mallory", "root", "nobody")


@pytest.fixture
def show1(everybody: dict[str, Api], settings: Any) -> None:
    # An agent of other tests in this process must not answer.
    settings.LOCAL_CLOUD_SOCKET = "/nonexistent/agent.sock"
    status, answer = everybody["alice"].post(f"{OPS}/clusters", manifest())
    assert status == 201, answer


@pytest.mark.parametrize(("method", "path", "body", "expected"), MATRIX, ids=[f"{row[0]} {row[1]}" for row in MATRIX])
def test_every_address_and_verb(
    everybody: dict[str, Api], show1: None, method: str, path: str, body: Any, expected: tuple[int, ...]
) -> None:
    # Those who may not go first, because those who may change what is there.
    for name, wanted in sorted(zip(PEOPLE, expected, strict=True), key=lambda pair: pair[1] < 400):
        status, answer = everybody[name](method, path, body)
        again = wanted == 201 and status == 422 and answer["errors"][0]["path"] == "metadata.name"
        gone = method == "DELETE" and wanted == 202 and status == 404
        assert status == wanted or again or gone, (name, answer)
        if status >= 400:
            assert everybody[name].last.headers["Content-Type"] == "application/problem+json"
            assert answer["status"] == status
            assert answer["instance"] == f"/api/v1{path}"
            assert answer["detail"].endswith((".", "!")), answer["detail"]
        if status == 401:
            assert everybody[name].last.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize(("method", "path", "body", "expected"), MATRIX, ids=[f"{row[0]} {row[1]}" for row in MATRIX])
def test_an_outsider_cannot_tell_what_exists(
    everybody: dict[str, Api], show1: None, method: str, path: str, body: Any, expected: tuple[int, ...]
) -> None:
    if not path.startswith(OPS):
        return
    mallory = everybody["mallory"]

    def answer(path: str, *names: tuple[str, str]) -> tuple[int, str, dict[str, str]]:
        status, _ = mallory(method, path, body)
        text = mallory.last.content.decode()
        for name, placeholder in names:
            text = text.replace(name, placeholder)
        return (
            status,
            text,
            {
                key: value
                for key, value in mallory.last.headers.items()
                if key not in ("Content-Length", "X-Request-ID")
            },
        )

    existing = answer(path, ("ops-demo", "CODE"), ("show1", "NAME"))
    absent_cluster = answer(path.replace("show1", "show9"), ("ops-demo", "CODE"), ("show9", "NAME"))
    absent_appcode = answer(path.replace("ops-demo", "ops-demx"), ("ops-demx", "CODE"), ("show1", "NAME"))
    assert existing == absent_cluster == absent_appcode


def test_lists_show_only_what_is_ones_own(everybody: dict[str, Api], show1: None) -> None:
    assert everybody["mallory"].post("/appcodes/flight-demo/clusters", manifest("fly", "flight-demo"))[0] == 201
    seen = {
        name: [item["metadata"]["name"] for item in everybody[name].get("/clusters")[1]["items"]]
        for name in ("alice", "bob", "victor", "mallory", "root")
    }
    assert seen == {
        "alice": ["show1"],
        "bob": ["show1"],
        "victor": ["show1"],
        "mallory": ["fly"],
        "root": ["fly", "show1"],
    }


def test_me_tells_roles(everybody: dict[str, Api]) -> None:
    _, me = everybody["bob"].get("/me")
    assert me == {
        "username": "bob",
        "name": "bob",
        "email": "bob@example.com",
        "administrator": False,
        "memberships": [{"appcode": "ops-demo", "role": "developer"}],
    }
    assert everybody["root"].get("/me")[1]["administrator"] is True


def test_unknown_addresses_are_problems_for_everybody(everybody: dict[str, Api]) -> None:
    for path in (
        "/nothing",
        "/clusters/",
        "/appcodes/ops demo/clusters",
        "/appcodes/x%00y/clusters",
        "/appcodes/../admin",
    ):
        for name in PEOPLE:
            status, answer = everybody[name].get(path)
            assert (status, answer["type"]) == (404, "urn:problem-type:portal:not-found")
    assert "no '/'" in everybody["alice"].get("/clusters/")[1]["detail"]


def test_every_operation_of_the_schema_is_in_the_matrix() -> None:
    """A new address has to say who may use it."""
    from drf_spectacular.generators import SchemaGenerator

    known = {(method, path.replace("ops-demo", "{code}").replace("show1", "{name}")) for method, path, _, _ in MATRIX}
    known = {
        (method, path.replace("/runs/1", "/runs/{run}").replace("worker/0", "{role}/{index}")) for method, path in known
    }
    described = {
        (method.upper(), path.removeprefix("/api/v1"))
        for path, operations in SchemaGenerator().get_schema(request=None, public=True)["paths"].items()
        for method in operations
    }
    # tests/datastores, tests/billing, tests/portal/test_webhooks.py and test_api_kubernetes.py
    elsewhere = (
        "datastores", "{code}/usage", "/invoices", "/months", "/prices", "/discounts", "/credits", "/kubernetes", "/placements",
        "/dashboard", "/segments", "/examples", "/budgets", "/webhooks", "/exports",
    )  # fmt: skip
    missing = {(method, path) for method, path in described - known if not any(part in path for part in elsewhere)}
    assert missing == set()
