"""Shares: who has which part of a cloud, what each deserves, and who may see whose."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import expect

from billing.models import DecayedUse
from clusters.admission.order import Share
from clusters.clouds.drivers.base import Capacity
from clusters.clouds.models import Cloud
from clusters.runs.models import Run
from clusters.runs.placing.places import FOR_GPUS
from clusters.runs.queries.shares import DAY, HOUR, Part, _lent, trees
from clusters.runs.status.observe import save_capacity
from portal.models import Appcode
from tests.api.client import api_of
from tests.browser import assert_fits, chromium, give_session
from tests.clusters.gangs import gang, nodes
from tests.conftest import new_appcode

GPUS = 104
FIELDS = ("quota", "held", "borrowed", "spare", "lent", "waiting", "due")


def submit(user: Any, size: int, name: str, appcode: str = "ops-demo", **spec: Any) -> Run:
    assert api_of(user).post(f"/appcodes/{appcode}/clusters", gang(size, name, appcode, **spec))[0] == 201
    return Run.objects.get(cluster__name=name)


def hold(user: Any, size: int, name: str, appcode: str = "ops-demo", **spec: Any) -> None:
    at = now()
    facts = {"admitted_at": at, "placed_at": at, "whole_at": at, "applied_at": at, "started_at": at, "phase": "Running"}
    Run.objects.filter(pk=submit(user, size, name, appcode, **spec).pk).update(**facts, gpu_rate=size, wait_reason="")


def wait(user: Any, size: int, name: str, appcode: str = "ops-demo", **spec: Any) -> None:
    facts = {"admitted_at": now(), "wait_reason": FOR_GPUS}
    Run.objects.filter(pk=submit(user, size, name, appcode, **spec).pk).update(**facts)


@pytest.fixture
def shared(training: Any, people: Any) -> Any:
    """13 nodes of 8 GPUs. In the line OPS ops-demo holds 40 of its quota of 48, 8 of them spare, and ops-two borrows 32 beyond
    its quota of 16. flight-demo holds nothing of its 32 and waits for 24; it used 31 GPU-days lately."""
    save_capacity("training", Capacity(nodes(13)))
    new_appcode("ops-two", org="qunarcorp.ops", namespace="ops", quota=48, owner=people.root)
    hold(people.bob, 32, "ours")
    hold(people.bob, 8, "idle", priorityClass="spare")
    hold(people.root, 16, "first", "ops-two")
    hold(people.root, 32, "second", "ops-two")
    wait(people.root, 24, "theirs", "flight-demo")
    for code, quota, borrow, weight in (("ops-demo", 48, 0, 2), ("ops-two", 16, 40, 1), ("flight-demo", 32, 16, 3)):
        Appcode.objects.filter(code=code).update(gpu_quota=quota, gpu_borrow=borrow, weight=weight)
    DecayedUse.objects.create(appcode=people.flight, gpu_seconds=31 * DAY, at=now(), entry=0)
    return people


def seen_by(user: Any) -> tuple[str, dict[str, Any]]:
    """The page, and the cloud in REST."""
    client = Client()
    client.force_login(user)
    page = client.get("/queue/shares")
    assert page.status_code == 200
    [found] = [each for each in api_of(user).get("/shares")[1]["items"] if each["cloud"] == "training"]
    return html.unescape(page.content.decode()).split('id="shares"')[1], found


@pytest.mark.django_db
def test_each_share_adds_up(shared: Any) -> None:
    _, found = seen_by(shared.root)
    rows = {each["appcode"]: [each[name] for name in FIELDS] for line in found["lines"] for each in line["appcodes"]}
    assert rows == {
        # Of the 32 borrowed GPUs 8 belong to no quota, and 24 are lent: by quotas of which 8 and 32 are left.
        "ops-demo": [48, 32, 0, 8, 5, 0, 32],
        "ops-two": [16, 16, 32, 0, 0, 0, 48],
        "flight-demo": [32, 0, 0, 0, 19, 24, 24],
    }
    assert (found["gpus"], found["quotas"], found["others"]) == (GPUS, 96, None)
    for line in found["lines"]:
        for name in FIELDS:
            assert line[name] == sum(each[name] for each in line["appcodes"])
    due = sum(line["due"] for line in found["lines"])
    assert due <= GPUS


@pytest.mark.django_db
def test_own_lines_are_named_and_all_others_are_one_sum(shared: Any) -> None:
    """bob belongs to ops-demo, and so sees its neighbour in the line by name, but opens no page of it."""
    page, found = seen_by(shared.bob)
    assert [[each["appcode"] for each in line["appcodes"]] for line in found["lines"]] == [["ops-demo", "ops-two"]]
    assert [found["others"][name] for name in FIELDS] == [32, 0, 0, 0, 19, 24, 24]
    assert "flight" not in f"{page} {found}".lower()
    assert 'href="/appcodes/ops-demo"' in page
    assert 'href="/appcodes/ops-two"' not in page
    page, found = seen_by(shared.mallory)
    assert [[each["appcode"] for each in line["appcodes"]] for line in found["lines"]] == [["flight-demo"]]
    assert not set(re.findall(r"[\w-]+", f"{page} {found}".lower())) & {"ops", "ops-demo", "ops-two"}
    assert "31 GPU-days" in page
    assert "24 below" in page
    everything, _ = seen_by(shared.root)
    assert {"ops-demo", "ops-two", "flight-demo"} <= set(re.findall(r"[\w-]+", everything))


@pytest.mark.django_db
def test_oversold_quotas_are_said(shared: Any) -> None:
    assert "96 of 104 GPUs: each is promised" in seen_by(shared.bob)[0]
    Appcode.objects.filter(code="flight-demo").update(gpu_quota=56)
    assert (
        "The quotas of all appcodes together are 120 of 104 GPUs: oversold. If all ask, each gets a part of its quota."
        in seen_by(shared.bob)[0]
    )


@pytest.mark.django_db
def test_a_cloud_that_orders_runs_itself_lends_nothing(shared: Any) -> None:
    Cloud.objects.filter(name="training").update(settings={"nodes_on_demand": True})
    items = api_of(shared.root).get("/shares")[1]["items"]
    assert "training" not in {each["cloud"] for each in items}


@pytest.mark.django_db
def test_an_appcode_that_cannot_start_anything_is_listed_only_while_it_holds_gpus(shared: Any) -> None:
    Appcode.objects.filter(code__in=["ops-two", "flight-demo"]).update(state="disabled")
    Run.objects.filter(cluster__appcode__code="flight-demo").update(gone=True)
    [line] = seen_by(shared.root)[1]["lines"]
    assert [each["appcode"] for each in line["appcodes"]] == ["ops-demo", "ops-two"]


@pytest.mark.django_db
def test_the_number_of_queries_grows_with_nothing(shared: Any) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert trees([shared.ops.pk])
        return len(queries)

    before = count()
    for number in range(5):
        Cloud.objects.create(name=f"other-{number}", kind="kubernetes", title="Other")
        save_capacity(f"other-{number}", Capacity(nodes(1)))
        new_appcode(f"more-{number}", org=f"qunarcorp.more{number}", namespace=f"more{number}", owner=shared.root)
        hold(shared.root, 4, f"holds-{number}", f"more-{number}")
        Run.objects.filter(cluster__name=f"holds-{number}").update(cloud=f"other-{number}")
    assert count() == before <= 13


numbers = st.integers(0, 50)
several = st.dictionaries(st.sampled_from("abcdef"), st.builds(Share, numbers, numbers, numbers, numbers))


@given(several, st.integers(0, 300))
def test_no_more_is_lent_than_is_held_beyond_quotas_and_by_nobody_who_uses_it(shares: Any, gpus: int) -> None:
    lent = _lent(shares, gpus)
    assert all(0 <= lent[code] <= max(0, each.quota - each.held - each.spare) for code, each in shares.items())
    assert sum(lent.values()) <= sum(each.borrowed + each.spare for each in shares.values())


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (0, "nothing"), (100, "under an hour"), (HOUR, "1 GPU-hour"), (5 * HOUR, "5 GPU-hours"), (36 * HOUR, "1.5 GPU-days"),
        (31 * DAY, "31 GPU-days"), (3100 * DAY, "3,100 GPU-days"),
    ],
)  # fmt: skip
def test_use_in_words(used: int, expected: str) -> None:
    assert Part(used=used).lately == expected


@pytest.mark.django_db(transaction=True)
def test_the_tree_fits_a_phone(shared: Any, live_server: Any) -> None:
    with chromium() as browser:
        context = browser.new_context()
        give_session(context, live_server.url, "bob")
        page = context.new_page()
        page.goto(f"{live_server.url}/queue")
        page.get_by_role("link", name="Shares", exact=True).click()
        expect(page.get_by_role("row", name=re.compile("^ops-two")).first).to_be_visible()
        assert_fits(page, "shares")
