"""Offers of smaller changes, beside real rows: each is sent as it is and keeps its word."""

from __future__ import annotations

import datetime as dt
import html
import re
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from clusters.catalog.models import Flavor
from clusters.clouds.drivers.base import Capacity, Node
from clusters.clouds.models import CloudState
from clusters.manifest.cluster import ClusterManifest
from clusters.runs.models import Run
from clusters.runs.queries.offers import merged
from clusters.runs.queries.preview import preview
from clusters.runs.status.observe import save_capacity
from portal.models import Appcode
from tests.api.client import api_of
from tests.browser import assert_fits, chromium, give_session
from tests.clusters.forms import sent as fields
from tests.clusters.gangs import create_theirs, gang, node, nodes

pytestmark = pytest.mark.django_db


@pytest.fixture
def flavors(training: Any) -> None:
    """Two models of GPUs; on the nodes of the cloud there is one."""
    from billing.models import Price

    for gpus in (2, 4, 8, 16):
        Flavor.objects.create(
            name=f"h200-{gpus}", title=f"{gpus} H200", cpu_milli=1000, memory_mb=2048, gpus=gpus, gpu_model="H200"
        )
    Flavor.objects.create(name="l4-8", title="8 L4", cpu_milli=1000, memory_mb=2048, gpus=8, gpu_model="L4")
    see(nodes(15))
    since = timezone.now().replace(microsecond=0) - dt.timedelta(days=1)
    for sku, price in (("gpu", "1"), ("gpu:H200", "3"), ("gpu:L4", "0.5")):
        Price.objects.create(sku=sku, per_hour=price, valid_from=since)


def see(seen: tuple[Node, ...]) -> None:
    """The cloud has these nodes, and is not silent for the whole test."""
    save_capacity("training", Capacity(seen))
    CloudState.objects.update(heard_at=timezone.now() + dt.timedelta(hours=1))


def asking(role: str, flavor: str, count: int = 1, **spec: Any) -> dict[str, Any]:
    manifest = gang(1, "new", **spec)
    manifest["spec"]["roles"] = {"master": {"flavor": flavor}, "worker": {"flavor": flavor, "count": count - 1}}
    if count == 1 or role == "worker":
        manifest["spec"]["roles"] = {role: {"flavor": flavor, "count": count}}
    return manifest


def offered(people: Any, manifest: dict[str, Any]) -> list[Any]:
    """The changes of a preview, each of which was sent as it is and kept its word."""
    status, before = api_of(people.bob).post("/appcodes/ops-demo/preview", manifest)
    assert status == 200, before
    for change in before["admission"]["changes"]:
        status, after = api_of(people.bob).post("/appcodes/ops-demo/preview", merged(manifest, change["patch"]))
        assert (status, after["fits"]) == (200, change["verdict"])
        assert after["costPerHour"] == change["pricePerHour"]
    return [(each["kind"], each["words"], each["verdict"]) for each in before["admission"]["changes"]]


def test_a_task_too_large_for_any_node_is_offered_in_parts_also_where_these_have_to_wait(
    flavors: Any, people: Any
) -> None:
    assert offered(people, asking("master", "h200-16")) == [("split", "as 2 × 8 GPUs", "now")]
    assert offered(people, asking("worker", "h200-16")) == [("split", "as 2 × 8 GPUs", "now")]
    see(nodes(4, 4))
    assert offered(people, asking("master", "h200-16")) == [("split", "as 4 × 4 GPUs", "now")]
    see(nodes(2, 0))
    assert offered(people, asking("master", "h200-16")) == [("split", "as 2 × 8 GPUs", "waits")]


def test_a_run_larger_than_the_cloud_or_the_limit_is_offered_what_is_possible(flavors: Any, people: Any) -> None:
    assert offered(people, asking("master", "h200-8", 20)) == [("fewer", "as 15 × 8 GPUs", "now")]
    Appcode.objects.filter(code="ops-demo").update(gpu_quota=24)
    create_theirs(people, 1, "theirs")
    status, _ = api_of(people.bob).post("/appcodes/ops-demo/clusters", gang(8, "mine"))
    assert status == 201
    Run.objects.filter(cluster__name="mine").update(
        admitted_at=timezone.now(), placed_at=timezone.now(), whole_at=timezone.now()
    )
    assert offered(people, asking("master", "h200-8", 3)) == [
        ("fewer", "as 2 × 8 GPUs", "now"),
        ("spare", "as spare", "now"),
    ]


def test_another_model_and_smaller_parts_are_offered_where_others_hold_whole_nodes(flavors: Any, people: Any) -> None:
    free = node("l4", gpu_model="L4")
    see((*nodes(4, 4), free))
    assert offered(people, asking("master", "h200-8", timeLimit=3600)) == [
        ("split", "as 2 × 4 GPUs", "now"),
        ("model", "on L4", "now"),
    ]
    assert offered(people, asking("worker", "h200-8", 2, framework="parallel")) == []


def test_offers_cost_a_constant_number_of_statements(flavors: Any, people: Any) -> None:
    see(nodes(15, 4))
    manifest = ClusterManifest.model_validate(asking("master", "h200-8", 2))
    counts = []
    for number in range(3):
        create_theirs(people, 5, f"theirs-{number}")
        Run.objects.update(admitted_at=timezone.now())
        with CaptureQueriesContext(connection) as seen:
            found = preview(manifest, acting_user=people.bob, with_offers=True)
        assert found.offers
        counts.append(len(seen))
    with CaptureQueriesContext(connection) as seen:
        preview(manifest, acting_user=people.bob)
    assert len(set(counts[1:])) == 1
    assert counts[-1] - len(seen) <= 4


def test_a_waiting_run_is_offered_what_change_would_start_by_those_who_may_and_only_fields_of_size_are_filled_in(
    flavors: Any, people: Any, client: Any
) -> None:
    see(nodes(4, 4))
    bob, victor = api_of(people.bob), api_of(people.victor)
    assert bob.post("/appcodes/ops-demo/clusters", asking("master", "h200-8"))[0] == 201
    of_run = "/appcodes/ops-demo/clusters/new/runs/1/admission"
    assert [each["words"] for each in bob.get(of_run)[1]["changes"]] == ["as 2 × 4 GPUs"]
    assert victor.get(of_run)[1]["changes"] == []
    client.force_login(people.bob)
    links = client.get("/clusters/ops-demo/new/offers").content.decode()
    assert "Start now as 2 × 4 GPUs" in links
    [to] = re.findall(r'href="([^"]+)"', links)
    form = fields(client.get(html.unescape(to) + "&command=evil").content.decode())
    assert (form["master_flavor"], form["worker_flavor"], form["worker_count"]) == ("h200-4", "h200-4", "1")
    assert form["command"] == "true"
    assert "Start sooner?" in client.get("/queue").content.decode()
    assert client.post(html.unescape(to), form).status_code == 302
    assert "Start now" not in client.get("/clusters/ops-demo/new/offers").content.decode()


def test_what_no_change_helps_says_what_an_administrator_would_have_to_add(flavors: Any, people: Any) -> None:
    Flavor.objects.exclude(name="h200-16").update(enabled=False)
    status, found = api_of(people.bob).post("/appcodes/ops-demo/preview", asking("master", "h200-16"))
    assert (status, found["fits"], found["admission"]["changes"]) == (200, "never", [])
    assert found["admission"]["mustAdd"] == "An administrator would have to add a node with 16 GPUs for tasks."


@pytest.mark.django_db(transaction=True)
def test_one_click_changes_the_form_and_the_preview_says_that_it_starts(
    flavors: Any, people: Any, live_server: Any
) -> None:
    see(nodes(4, 4))
    with chromium() as browser:
        context = browser.new_context()
        give_session(context, live_server.url, "bob")
        page = context.new_page()
        page.goto(f"{live_server.url}/clusters/new?appcode=ops-demo")
        page.fill("[name=name]", "typed")
        page.fill("[name=command]", "true")
        page.select_option("[name=master_flavor]", "h200-8")
        button = page.get_by_role("button", name="Start now as 2 × 4 GPUs")
        button.wait_for()
        assert_fits(page, "offers")
        button.click()
        page.locator("#estimate").get_by_text("✓ Starts now", exact=True).wait_for()
        assert page.input_value("[name=master_flavor]") == page.input_value("[name=worker_flavor]") == "h200-4"
        assert page.input_value("[name=worker_count]") == "1"
        assert not page.locator("[data-fields]").count()
        # Nobody judges what is typed after the session has ended: the numbers stay, and the verdict goes.
        cookies = context.cookies()
        context.clear_cookies(name=settings.SESSION_COOKIE_NAME)
        page.fill("[name=worker_count]", "2")
        page.get_by_text("You have been signed out: what you typed since is not judged.").wait_for()
        assert not page.locator("#summary").get_by_text("✓ Starts now").locator("visible=true").count()
        context.add_cookies(cookies)
        page.fill("[name=worker_count]", "1")
        page.locator("#estimate").get_by_text("✓ Starts now", exact=True).locator("visible=true").wait_for()

        assert api_of(people.bob).post("/appcodes/ops-demo/clusters", asking("master", "h200-8"))[0] == 201
        page.goto(f"{live_server.url}/queue")
        page.get_by_role("button", name="Start sooner? new").click()
        page.get_by_role("link", name="Start now as 2 × 4 GPUs").wait_for()
        assert_fits(page, "offers of the queue")
