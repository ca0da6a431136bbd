"""Budget pages and REST: access, errors at their fields, and layout on a phone."""

import datetime as dt
from decimal import Decimal

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import timezone
from playwright.sync_api import expect

from billing.budgets import actions, figures, loop
from billing.budgets.actions import Asked
from billing.models import Budget, BudgetStep, Price
from portal.models import Event, OrgNode
from tests.access.table import TOKEN
from tests.api.client import api_of
from tests.billing.dashboards.test_usage import use
from tests.browser import SOON, assert_fits, chromium, give_session
from tests.clock import stop_the_clock

EVERYBODY = ("anonymous", "alice", "bob", "victor", "mallory", "root")
HOUR = 3600


def who(*answers: int) -> dict[str, int]:
    return dict(zip(EVERYBODY, answers, strict=True))


IN, ADMINISTRATORS = who(302, 200, 200, 200, 200, 200), who(302, 404, 404, 404, 404, 200)


def ask(amount="100", policy="stop_all", countdown=60):
    return Asked(Decimal(amount), policy, countdown)


@pytest.fixture
def spent(db, people, monkeypatch):
    """OPS has used 90 this month, and half of the month is over."""
    now = stop_the_clock(monkeypatch)
    Price.objects.create(sku="gpu", per_hour=Decimal(90), valid_from=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    use(people.ops, now - dt.timedelta(hours=2), HOUR)
    return now


@pytest.fixture
def three(spent, people):
    """Three budgets: alice's, mallory's, and one of business line OPS."""
    return (
        actions.add(people.ops, ask(), acting_user=people.alice),
        actions.add(people.flight, ask(), acting_user=people.mallory),
        actions.add(OrgNode.objects.get(path="qunarcorp.ops"), ask("80", countdown=25), acting_user=people.root),
    )


# tests/access covers every address with alice's budget; this adds another owner's, a business line's, and odd queries.
PAGES = {
    "/budgets?search=ops": IN,
    "/budgets?cursor=x": IN,
    "/budgets/{1}": who(302, 404, 404, 404, 200, 200),
    "/budgets/{2}": ADMINISTRATORS,
}
CHANGE = (("amount", "120"), ("policy", "block"), ("countdown", "2"), ("unit", "60"))
WHY = (("reason", "The paper is due."),)
LINE_IS_CHANGED = who(302, 404, 404, 404, 404, 302)


def test_whose_budget_it_is_decides_who_sees_and_changes_it(people, three):
    for name in EVERYBODY:
        client = Client()
        if name != "anonymous":
            client.force_login(getattr(people, name))
        found = {path: client.get(path.format(*(each.pk for each in three))).status_code for path in PAGES}
        assert found == {path: of[name] for path, of in PAGES.items()}, name
        before = Event.objects.count()
        for path, typed in ((f"/budgets/{three[2].pk}", CHANGE), (f"/budgets/{three[2].pk}/lift", WHY)):
            assert client.post(path, dict(typed)).status_code == LINE_IS_CHANGED[name], (name, path)
        assert (Event.objects.count() > before) == (name == "root")


def test_what_was_lifted_or_paused_is_taken_back(client, people, three):
    client.force_login(people.root)
    for path, typed in (("lift", WHY), ("enforce", ()), ("pause", WHY), ("resume", ())):
        assert client.post(f"/budgets/{three[0].pk}/{path}", dict(typed)).status_code == 302


def test_absent_and_forbidden_look_the_same(client, people, three):
    client.force_login(people.mallory)
    theirs, nothing = client.get(f"/budgets/{three[0].pk}"), client.get("/budgets/999999")
    texts = [
        TOKEN.sub("", answer.content.decode()).replace(answer["X-Request-ID"], "ID") for answer in (theirs, nothing)
    ]
    # Both answers repeat the id in the address, and its last part in the search field.
    for written in ("/budgets/{}", 'value="{}"'):
        texts[1] = texts[1].replace(written.format(999999), written.format(three[0].pk))
    assert texts[0] == texts[1]
    page = client.get("/budgets").content.decode()
    assert "flight-demo" in page
    assert "ops-demo" not in page


@pytest.mark.parametrize(
    ("typed", "field", "sentence"),
    [
        ({"amount": "0"}, "amount", "Give an amount"),
        ({"amount": "1.005"}, "amount", "Give an amount"),
        ({"amount": ""}, "amount", "This field is required"),
        ({"countdown": "200", "unit": "60"}, "countdown", "Give from 1 minute to 7 days"),
        ({"policy": "explode"}, "policy", "Select a valid choice"),
        ({"appcode": ""}, "appcode", "Choose an appcode or a business line"),
        ({"appcode": "flight-demo"}, "appcode", "There is no appcode"),
    ],
)
def test_errors_are_at_their_fields_and_nothing_typed_is_lost(client, people, typed, field, sentence):
    client.force_login(people.alice)
    given = {"appcode": "ops-demo", "amount": "12.50", "policy": "block", "countdown": "3", "unit": "60"} | typed
    answer = client.post("/budgets/new", given)
    assert answer.status_code == 422
    assert sentence in str(answer.context["form"].errors[field])
    assert not Budget.objects.exists()
    answer = client.post(
        "/budgets/new", given | {"appcode": "ops-demo", "amount": "12.50", "policy": "block", "countdown": "3"}
    )
    assert answer.status_code == 302
    made = Budget.objects.get()
    assert (made.amount, made.policy, made.countdown_minutes) == (Decimal("12.50"), "block", 180)
    assert client.post("/budgets/new", given | {"amount": "1", "countdown": "1", "policy": "block"}).status_code == 422


def test_a_reason_has_to_be_given(client, people, three):
    client.force_login(people.root)
    answer = client.post(f"/budgets/{three[0].pk}/lift", {"reason": " "})
    assert answer.status_code == 422
    assert "Say why" in answer.content.decode()
    three[0].refresh_from_db()
    assert three[0].lifted_until is None


def test_what_an_administrator_set_has_no_form_for_its_owner(client, people, three):
    actions.change(three[0], ask("100"), acting_user=people.root)
    client.force_login(people.alice)
    page = client.get(f"/budgets/{three[0].pk}").content.decode()
    assert "An administrator set it; ask one to change it." in page
    assert client.post(f"/budgets/{three[0].pk}", dict(CHANGE)).status_code == 403


def test_members_are_told_where_they_look(client, people, three):
    """The line's budget is used up and alice's nearly so: the cluster list and the billing pages both show it."""
    loop.turn()
    client.force_login(people.victor)
    told = client.get("/budgets/notices").content.decode()
    assert "New runs of qunarcorp.ops will be blocked" in told
    assert "in 25 min" in told
    assert "the budget of business line qunarcorp.ops for " in told
    assert "/budgets/" not in told, "the budget of a line is an administrator's page"
    assert client.get("/budgets/notices", headers={"If-None-Match": '"x"'}).status_code == 200
    spent = client.get("/clusters/spent").content.decode()
    assert "90.00" in spent
    assert "of the budget of" in spent
    assert "100.00" in spent
    page = client.get("/billing/ops-demo").content.decode()
    for words in ("Forecast for the month", "90 % spent", "Tight", "The budget"):
        assert words in page
    assert f"Forecast for {timezone.now():%B}" in client.get("/dashboard").content.decode()
    client.force_login(people.mallory)
    assert "qunarcorp.ops" not in client.get("/budgets/notices").content.decode()


def test_an_administrators_spent_line_names_the_tightest(client, people, three):
    client.force_login(people.root)
    spent = client.get("/clusters/spent").content.decode()
    assert "90 % of the budget of ops-demo, " in spent
    assert f'class="budget-part is-near" href="/budgets/{three[0].pk}"' in spent
    Budget.objects.update(amount=Decimal(1_000_000))
    cache.clear()
    assert "of the budget of" not in client.get("/clusters/spent").content.decode(), "nearly nothing is used"


def test_an_overrun_looks_like_one_and_counts_the_others(client, people, three):
    Budget.objects.filter(appcode__isnull=False).update(amount=Decimal(80))
    use(people.flight, timezone.now() - dt.timedelta(hours=2), HOUR)
    client.force_login(people.root)
    spent = client.get("/clusters/spent").content.decode()
    assert spent.count('class="budget-part is-over"') == 2
    assert "112 % of the budget of ops-demo" in spent
    assert "1 more used up" in spent


def test_the_list_takes_as_many_queries_for_many_budgets(
    client, people, three, make_appcode, django_assert_max_num_queries
):
    for n in range(20):
        appcode = make_appcode(f"code-{n}", org="qunarcorp.ops", namespace="ops", owner=people.alice)
        actions.add(appcode, ask(), acting_user=people.alice)
    client.force_login(people.root)
    client.get("/budgets")
    with django_assert_max_num_queries(21):
        assert client.get("/budgets").content.decode().count("budget-bar") == 23


# REST


BODY = {"amount": "150.00", "policy": "block", "countdownMinutes": 30}
# tests/access covers the basics; this adds budgets of business lines, and calls that undo earlier ones.
REST = (
    ("POST", "/budgets", {**BODY, "appcode": "ops-demo"}, (422, 422)),
    ("POST", "/budgets", {**BODY, "businessLine": "qunarcorp.flight"}, (422, 201)),
    ("GET", "/budgets/{2}", None, (404, 200)),
    ("POST", "/budgets/{0}/lift", {"reason": "because"}, (403, 200)),
    ("DELETE", "/budgets/{0}/lift", None, (403, 204)),
    ("POST", "/budgets/{0}/pause", {"reason": "because"}, (403, 200)),
    ("DELETE", "/budgets/{0}/pause", None, (403, 204)),
    ("POST", "/budgets/{2}/lift", {"reason": "because"}, (404, 200)),
    ("PATCH", "/budgets/{2}", {}, (405, 405)),
)


def test_budgets_of_lines_and_what_is_taken_back_over_rest(people, three):
    for place, name in enumerate(("alice", "root")):
        api = api_of(getattr(people, name))
        for method, path, body, expected in REST:
            status, answer = api(method, path.format(*(each.pk for each in three)), body)
            assert status == expected[place], (name, method, path, answer)
            if status >= 400:
                assert api.last.headers["Content-Type"] == "application/problem+json", answer
                assert answer["detail"].endswith((".", "!"))


def test_page_and_rest_say_the_same(client, people, three):
    loop.turn()
    api = api_of(people.alice)
    status, body = api.get(f"/budgets/{three[0].pk}")
    assert status == 200
    assert (body["appcode"], body["amount"], body["policy"], body["state"]) == (
        "ops-demo",
        "100.00",
        "stop_all",
        "tight",
    )
    assert body["spent"] == {"amount": "90.000000", "currency": "USD"}
    assert [step["kind"] for step in body["steps"]] == ["spent_50", "spent_80"]
    assert [each["id"] for each in api.get("/budgets")[1]["items"]] == [three[0].pk]
    client.force_login(people.alice)
    page = client.get(f"/budgets/{three[0].pk}").content.decode()
    for words in ("90.00", "100.00", "80 % spent", "Tight", "budget.set"):
        assert words in page
    status, answer = api.post("/budgets", {**BODY, "appcode": "ops-demo", "amount": 1.5, "policy": "x"})
    assert status == 422
    assert {error["path"] for error in answer["errors"]} == {"amount", "policy"}
    status, answer = api("PUT", f"/budgets/{three[0].pk}", {**BODY, "countdownMinutes": 0})
    assert (status, answer["errors"][0]["path"]) == (422, "countdownMinutes")


def test_a_blocked_appcode_is_refused_by_form_rest_and_preview(client, people, three, catalogue_for_forms):
    BudgetStep.objects.create(
        budget=three[0], month=figures.month_of(timezone.now()), kind="block",
        announced_at=timezone.now() - dt.timedelta(hours=2), due_at=timezone.now() - dt.timedelta(hours=1),
        done_at=timezone.now(),
    )  # fmt: skip
    body = {
        "kind": "cluster",
        "metadata": {"name": "demo", "appcode": "ops-demo"},
        "spec": {"image": "tensorflow", "command": "true", "roles": {"master": {"flavor": "small"}}},
    }
    status, answer = api_of(people.bob).post("/appcodes/ops-demo/clusters", body)
    assert status == 422
    [error] = answer["errors"]
    assert error["path"] == "metadata.appcode"
    assert "New runs of ops-demo are blocked: the budget of ops-demo for " in error["message"]
    client.force_login(people.bob)
    typed = {
        "appcode": "ops-demo", "name": "demo", "image": "tensorflow", "command": "true", "framework": "tensorflow",
        "master_flavor": "small", "mode": "batch", "completion": "master", "retries": "0",
    }  # fmt: skip
    for address in ("/clusters/new", "/clusters/preview"):
        assert "New runs of ops-demo are blocked" in client.post(address, typed).content.decode()


@pytest.fixture
def catalogue_for_forms(db):
    from clusters.catalog.models import Flavor, Image

    Flavor.objects.create(name="small", title="Small", cpu_milli=500, memory_mb=512)
    Image.objects.create(name="tensorflow", title="TensorFlow", environment="/usr")


# In a browser


@pytest.mark.django_db(transaction=True)
def test_pages_fit_and_every_control_has_a_label(live_server, people, three, catalogue_for_forms):
    from clusters.cluster.actions import create_cluster
    from clusters.manifest.cluster import ClusterManifest

    spec = {"image": "tensorflow", "command": "true", "roles": {"master": {"flavor": "small"}}}
    body = {"metadata": {"name": "demo", "appcode": "ops-demo"}, "spec": spec}
    create_cluster(ClusterManifest.model_validate(body), acting_user=people.alice)
    loop.turn()
    actions.pause(three[1], "We move to another building.", acting_user=people.root)
    pages = ("/budgets", f"/budgets/{three[2].pk}", f"/budgets/{three[1].pk}", "/budgets/new", "/billing/ops-demo", "/")
    complaints = []
    with chromium() as browser:
        page = browser.new_page(base_url=live_server.url)
        page.set_default_timeout(SOON)
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        give_session(page.context, live_server.url, "root")
        for address in (*pages, "/clusters/ops-demo/demo"):
            page.goto(address)
            page.wait_for_load_state("networkidle")
            if address in ("/", "/clusters/ops-demo/demo"):
                expect(page.locator("#budget-notices")).to_contain_text("New runs of qunarcorp.ops will be blocked")
            assert_fits(page, address.strip("/").replace("/", "-") or "clusters")
    # htmx reports a live request that navigation aborts.
    assert [said for said in complaints if not said.startswith(("htmx:afterRequest", "htmx:sendAbort"))] == []
