"""Access to pages: GET and POST to every address of the URL conf as every kind of person, against pages.txt."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern

from tests.access.addresses import addresses
from tests.access.people import ask, assert_all_look_alike, browser
from tests.access.table import PEOPLE, Row, filled, name_of, read

pytestmark = [pytest.mark.django_db, pytest.mark.xdist_group("access-pages")]
TABLE = Path(__file__).parent / "pages.txt"
ROWS = read(TABLE)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
OURS = ("portal.", "billing.", "datastores.", "clusters.")
FORM = "application/x-www-form-urlencoded"


def asked(client: Client, row: Row, values: Mapping[str, object], bodies: Mapping[str, str]) -> Any:
    """Sends `row.sent` as a form, or as the query if the method is GET or it begins with a question mark."""
    sent = bodies[row.sent[1:]] if row.sent.startswith("@") else filled(row.sent, values)
    path = filled(row.address, values)
    if row.method == "GET" or sent.startswith("?"):
        path, sent = f"{path}?{sent.removeprefix('?')}", "" if row.method == "GET" else "data"
    return ask(client, row.method, path, sent, FORM)


def found(world: Any, row: Row) -> tuple[Row, list[Any]]:
    answers = [asked(browser(world, name), row, world.values, world.bodies) for name in PEOPLE]
    return replace(row, expected=tuple(answer.status_code for answer in answers)), answers


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_everybody_gets_what_the_table_says(world: Any, row: Row) -> None:
    judged, answers = found(world, row)
    if judged != row:
        pytest.fail(f"{TABLE.name} says\n{row}\nand the portal\n{judged}", pytrace=False)
    # Who is not signed in is led there.
    if row.of("anonymous") == 302 and not row.address.startswith("/accounts/") and row.address != "/frame/theme":
        assert answers[PEOPLE.index("anonymous")]["Location"].startswith("/accounts/login/?next=/")


def test_every_address_has_lines(world: Any) -> None:
    pages = {address: pattern for address, pattern in addresses() if not address.startswith("/api/v1/")}
    judged = {row.operation for row in ROWS}
    others = [
        Row(method, page, ())
        for page, pattern in pages.items()
        for method in (METHODS if _is_ours(page, pattern) else METHODS[:2])
        if (method, page) not in judged
    ]
    root = browser(world, "root")
    missing = [found(world, row)[0] for row in others if asked(root, row, world.values, {}).status_code != 405]
    idle = [str(row) for row in ROWS if row.address not in pages]
    assert not missing, f"Judge these and put them into tests/access/{TABLE.name}:\n" + "\n".join(map(str, missing))
    assert not idle, f"These are gone; take them out of tests/access/{TABLE.name}:\n" + "\n".join(idle)


def _is_ours(page: str, pattern: URLPattern) -> bool:
    """Excludes library views and our wrappers of them: they accept every HTTP method and treat several alike."""
    return pattern.callback.__module__.startswith(OURS) and not page.startswith("/accounts/")


@pytest.mark.parametrize("row", [row for row in ROWS if row.of("mallory") == 404], ids=name_of)
def test_an_outsider_cannot_tell_what_exists(world: Any, row: Row) -> None:
    mallory = browser(world, "mallory")
    assert_all_look_alike(world, row, lambda values: asked(mallory, row, values, world.bodies))


# What is typed, and the address that it has to find.
NAMES = {
    "show": "/clusters/ops-demo/show1",
    "pane": "/applications/ops-demo/panel",
    "notebooks pan": "/applications/ops-demo/panel",
    "sweep LR": "/sweeps/ops-demo/lr",
    "scale": "/benchmarks/ops-demo/scale",
    "nightl": "/pipelines/ops-demo/nightly",
    "schedule ops-demo": "/schedules/ops-demo/night",
    "digits": "/models/ops-demo/digits",
    "dig ops": "/templates/ops-demo/digits",
    "nswer": "/services/ops-demo/answers",
    "torch": "/appcodes/ops-demo/environments/torch",
    "dat": "/datastores/ops-demo/data",
    "ops-d": "/appcodes/ops-demo",
    "invoice ops": "/invoices/ops-demo/",
    "stop show1": "/clusters/ops-demo/show1/cancel",
    "logs show1": "/clusters/ops-demo/show1/logs",
    "show1 log": "/clusters/ops-demo/show1/logs",
    "metrics of show1": "/clusters/ops-demo/show1/metrics",
    "panel events": "/clusters/ops-demo/panel/events",
    "answers history": "/services/ops-demo/answers/history",
    "ops-demo hooks": "/appcodes/ops-demo/hooks",
    "stop lr": "/sweeps/ops-demo/lr/cancel",
    "stop answers": "/services/ops-demo/answers/disable",
    "kill show1": "/clusters/ops-demo/show1/cancel",
    "show1 stop": "/clusters/ops-demo/show1/cancel",
    "edit show1": "/clusters/ops-demo/show1/change",
    "delete show1": "/clusters/ops-demo/show1/delete",
    "stop nightly": "/pipelines/ops-demo/nightly/cancel",
}
# These are for developers and owners.
ACTS = ("cancel", "disable", "change", "delete")


@pytest.mark.parametrize(("typed", "address"), NAMES.items(), ids=str)
def test_the_search_finds_what_one_may_see(
    world: Any, django_assert_max_num_queries: Any, typed: str, address: str
) -> None:
    asks = address.endswith(ACTS)
    for name, sees in (("root", True), ("alice", True), ("victor", not asks), ("mallory", False)):
        client = browser(world, name)
        # The session, the user, whether this is a demonstration, and one for all kinds.
        with django_assert_max_num_queries(4):
            page = client.get("/search/palette", {"q": typed}).content.decode()
        there = re.findall(rf'(?:href|formaction)="({re.escape(address)}[^"]*)"', page)
        assert bool(there) == sees, (name, page)
        if sees:
            assert client.get(there[0]).status_code in (200, 405 if asks else 200)
    assert not browser(world, "mallory").get("/search", {"q": "ops-demo"}).context["groups"]


@pytest.mark.parametrize("row", [row for row in ROWS if row.method != "GET" and row.of("root") != 401], ids=name_of)
def test_a_session_without_the_token_of_a_form_changes_nothing(world: Any, row: Row) -> None:
    client = browser(world, "root", checked=True)
    assert asked(client, row, world.values, world.bodies).status_code == 403
