"""What lists and addresses reveal over REST. Access rights per address are in tests/access/rest.txt."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.client import Api, manifest


@pytest.fixture
def show1(everybody: dict[str, Api], settings: Any) -> None:
    # A node agent that other tests started in this process must not answer.
    settings.LOCAL_CLOUD_SOCKET = "/nonexistent/agent.sock"
    status, answer = everybody["alice"].post("/appcodes/ops-demo/clusters", manifest())
    assert status == 201, answer


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
        "timeZone": "",
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
        for name in everybody:
            status, answer = everybody[name].get(path)
            assert (status, answer["type"]) == (404, "urn:problem-type:portal:not-found")
    assert "no '/'" in everybody["alice"].get("/clusters/")[1]["detail"]
