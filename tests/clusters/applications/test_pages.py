"""Application pages: the list, one application, and the four steps that create one."""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import Any

import pytest
from django.core.cache import cache
from hypothesis import given
from playwright.sync_api import expect

from clusters.applications.manifest import ApplicationManifest
from clusters.applications.pages.form import USUAL, document_of, fields_of
from clusters.applications.presets import PRESETS
from tests.browser import SOON, assert_fits, chromium
from tests.clusters.applications.test_manifest import documents
from tests.clusters.forms import sent, wrong_fields

NEW = "/applications/new"
ROWS = "/applications/rows"


@pytest.fixture
def make(page_catalogue: None, people: Any) -> Any:
    """make("notes", type="web", phase="Running", answers=True) → an application whose run is in that state."""
    from clusters.applications.actions import create_application
    from clusters.runs.models import Run

    def make(name: str, *, phase: str = "Queued", answers: bool = False, by: Any = None, **spec: Any) -> Any:
        served = [{"name": "web", "port": 8080}]
        of_web = {"type": "web", "command": "serve", "endpoints": served}
        spec = {"image": "tensorflow", "flavor": "middle-1-gpu", **(of_web if "type" not in spec else {}), **spec}
        body = {"metadata": {"name": name, "appcode": "ops-demo"}, "spec": spec}
        cluster = create_application(ApplicationManifest.model_validate(body), acting_user=by or people.alice)
        now = dt.datetime.now(dt.UTC).isoformat()
        there = {each: {"address": "127.0.0.1:1", "since": now, "routed": True} for each in cluster.origins}
        Run.objects.filter(pk=cluster.current_run_id).update(phase=phase, endpoints=there if answers else {})
        return cluster

    return make


@given(documents())
def test_what_a_form_is_filled_with_it_says_again(document: dict[str, Any]) -> None:
    manifest = ApplicationManifest.model_validate(document)
    again, complaints = document_of(fields_of(manifest))
    assert complaints == []
    assert ApplicationManifest.model_validate(again) == manifest
    assert not any(again["spec"].get(key, ...) == usual for key, usual in USUAL.items())


def test_an_input_of_many_brackets_is_an_input_that_is_not_there(
    people: Any, as_person: Any, page_catalogue: None
) -> None:
    said = {"appcode": "ops-demo", "type": "jupyter", "name": "notes", "input": '{"a":' * 20_000}
    answer = as_person(people.bob).post(NEW, {**said, "step": "3", "go": "4"})
    assert answer.status_code == 200


def test_the_list_has_applications_alone_and_tells_what_can_be_opened(
    make: Any, make_cluster: Any, people: Any, as_person: Any
) -> None:
    make_cluster("trains", phase="Running")
    make("waits")
    make("answers", phase="Running", answers=True)
    served = [{"name": "web", "port": 8080}, {"name": "docs", "port": 8081}]
    make("two", phase="Running", answers=True, endpoints=served, type="web", command="serve")
    make("over", phase="Stopped")
    client = as_person(people.bob)
    page = client.get("/applications").content.decode()
    rows = {name: page.split(f">{name}</b>")[1].split("</tr>")[0] for name in ("waits", "answers", "two", "over")}
    assert "trains" not in page
    assert 'href="/open/web-answers-ops-demo"' in rows["answers"]
    assert 'target="_blank" rel="noopener"' in rows["answers"]
    assert 'disabled title="Starts: Waiting for the scheduler."' in rows["waits"]
    assert rows["two"].count('target="_blank"') == 2
    assert "Open" not in rows["over"]
    # The list of clusters shows them too, with the same button.
    clusters = client.get("/").content.decode()
    assert 'href="/open/web-answers-ops-demo"' in clusters
    assert 'href="/applications/ops-demo/answers"' in clusters
    assert "Open ▸" in client.get("/clusters/ops-demo/answers", follow=True).content.decode()


def test_who_may_not_open_it_sees_no_button(make: Any, people: Any, as_person: Any, stores: None) -> None:
    make("plain", phase="Running", answers=True)
    make("lab", phase="Running", answers=True, type="jupyter", storage={"datastore": "data"})
    invited = {"to": "people", "people": ["victor"]}
    make("shared", phase="Running", answers=True, type="jupyter", storage={"datastore": "data"}, access=invited)
    page = as_person(people.victor).get("/applications").content.decode()
    opened = [name for name in ("plain", "lab", "shared") if f'-{name}-ops-demo"' in page]
    assert opened == ["plain", "shared"]


def test_the_list_is_sent_only_when_it_says_something_else(make: Any, people: Any, as_person: Any) -> None:
    from clusters.runs.models import Run

    make("waits")
    client = as_person(people.alice)
    etag = client.get(ROWS)["ETag"]
    assert client.get(ROWS, headers={"If-None-Match": etag}).status_code == 304
    Run.objects.update(message="It waits for quota.")
    assert client.get(ROWS, headers={"If-None-Match": etag}).status_code == 200


@pytest.mark.parametrize("address", ["/applications", ROWS, "/applications?search=panel&phase=Queued", "/"])
def test_a_page_takes_as_many_queries_however_many_there_are(
    address: str, make: Any, people: Any, as_person: Any, django_assert_max_num_queries: Any
) -> None:
    for n in range(6):
        make(f"panel-{n}", phase="Running", answers=True)
    client = as_person(people.victor)
    client.get(address)
    with django_assert_max_num_queries(6 if address == "/" else 4):
        client.get(address)


def test_the_page_of_one(make: Any, people: Any, as_person: Any, stores: None) -> None:
    make("notes", phase="Running", answers=True, type="jupyter", storage={"size": "2Gi"}, input="data")
    client = as_person(people.bob)
    page = client.get("/applications/ops-demo/notes").content.decode()
    for words in (
        "notes-home",
        "Volume, 2Gi",
        "http://notebook-notes-ops-demo.apps.",
        "Middle + 1 GPU",
        "/datastores/ops-demo/data",
    ):
        assert words in page
    assert "Subtotal" in client.get("/applications/ops-demo/notes/billing").content.decode()
    address = "/applications/ops-demo/notes/token"
    shown = client.post(address, {"do": "refresh"})
    assert shown["Cache-Control"] == "no-store"
    token = shown.content.decode().split('<div class="secret"><code>')[1].split("<")[0]
    assert token in client.get(address).content.decode()
    page = client.get("/applications/ops-demo/notes").content.decode()
    assert token not in page
    assert "••••" in page
    client.post(address, {"do": "stop"})
    assert "There is no token" in client.get(address).content.decode()
    assert client.get("/applications/ops-demo/notes/boxes").status_code == 200
    assert as_person(people.victor).get(address).status_code == 403


def test_what_is_announced_is_seen_and_kept_where_people_look(
    make: Any, people: Any, as_person: Any, stores: None
) -> None:
    from clusters.runs.models import Run

    make("notes", phase="Running", answers=True, type="jupyter", storage={"datastore": "data"})
    now = dt.datetime.now(dt.UTC)
    stops = now + dt.timedelta(minutes=7, seconds=-5)
    Run.objects.update(
        activity="idle", activity_since=now, started_at=now, idle_announced_at=now, idle_stops_at=stops, gpu_rate=1
    )
    said = "It does nothing and is stopped in 7 minutes."
    for person in (people.victor, people.bob):
        client = as_person(person)
        for page in ("/applications", "/applications/ops-demo/notes", "/clusters/ops-demo/notes/head"):
            text = client.get(page).content.decode()
            assert said in text
            assert ("/clusters/ops-demo/notes/keep" in text) == (person == people.bob)
    client.post("/clusters/ops-demo/notes/keep")
    assert said not in client.get("/applications").content.decode()
    # The same button answers the question whether the application is still needed.
    Run.objects.update(needed_asked_at=now, kept_at=None)
    text = client.get("/applications/ops-demo/notes").content.decode()
    assert "Is it still needed?" in text
    assert "/clusters/ops-demo/notes/keep" in text
    cache.clear()
    Run.objects.update(stop_reason="Idle", phase="Stopped", finished_at=now - dt.timedelta(hours=3), gpus=2)
    assert "6.00 GPU-hours given back" in client.get("/applications").content.decode()
    assert "6.00 GPU-hours" in client.get("/applications/ops-demo/notes").content.decode()


def test_what_nobody_can_tell_is_not_offered(people: Any, as_person: Any, page_catalogue: None, stores: None) -> None:
    client = as_person(people.bob)

    def step(kind: str) -> str:
        filled = f"appcode=ops-demo&type={kind}&name=x&image=tensorflow&command=serve&endpoints=web%3D8080&step=3"
        return str(client.get(f"{NEW}?{filled}").content.decode())

    assert 'name="idle_after" value="2"' in " ".join(step("jupyter").split())
    assert "nobody can tell whether it works" in step("web")
    review = go(client, step("jupyter"), "4", idle_policy="stop", idle_after="90", idle_after_unit="minutes")
    assert at(review) == "Review"
    assert "&quot;after&quot;: 5400" in review
    assert "90 minutes" in review
    wrong = go(client, step("jupyter"), "4", idle_after="soon")
    assert (at(wrong), wrong_fields(wrong)) == ("Resources", {"idle_after": "Give a whole number."})


def go(client: Any, page: str, to: str, address: str = NEW, **typed: Any) -> str:
    """Presses a button of the page; returns the next page, or the address of a redirect."""
    answer = client.post(address, {**sent(page, "application-form"), **typed, "go": to})
    return str(answer.url if answer.status_code == 302 else answer.content.decode())


def at(page: str) -> str:
    return page.split('aria-current="step">')[1].split("</li>")[0].split("</span> ")[1].split("<")[0]


def test_four_steps_there_and_back_lose_nothing(
    people: Any, as_person: Any, page_catalogue: None, stores: None
) -> None:
    from clusters.runs.models import Cluster
    from datastores.models import Datastore

    client = as_person(people.bob)
    page = client.get(NEW).content.decode()
    assert at(page) == "Kind"
    page = go(client, page, "2", appcode="ops-demo")
    assert at(page) == "Application"
    assert wrong_fields(page) == {}
    page = go(client, page, "3")
    assert (at(page), wrong_fields(page)) == ("Application", {"name": "Fill this in."})
    page = go(client, page, "3", type="web", name="panel", image="tensorflow")
    assert list(wrong_fields(page)) == ["command"]
    page = go(client, page, "3", command="python\n  serve.py", endpoints="web=8080", env="A=1")
    assert at(page) == "Resources"
    assert "Starts now" in page
    page = go(client, page, "4", flavor="middle-1-gpu", size="lots", input="data", people="victor", access="people")
    assert (at(page), list(wrong_fields(page))) == ("Resources", ["size"])
    page = go(client, page, "1", size="3Gi")
    assert at(page) == "Kind"
    assert not Datastore.objects.filter(name="panel-home").exists()
    page = go(client, page, "2")
    page = go(client, page, "3")
    assert sent(page, "application-form")["size"] == "3Gi"
    page = go(client, page, "4")
    assert at(page) == "Review"
    assert "curl -X POST http://testserver/api/v1/appcodes/ops-demo/applications" in page
    assert not Cluster.objects.exists()
    assert go(client, page, "deploy") == "/applications/ops-demo/panel"
    spec = Cluster.objects.get().spec
    assert (spec["command"], spec["home"], spec["env"]) == ("python\n  serve.py", "panel-home", {"A": "1"})
    assert spec["access"] == {"to": "people", "people": ["victor"]}
    assert Datastore.objects.get(name="panel-home").spec["size"] == "3Gi"
    # A web program that says no port has one, which it gets as PORT.
    page = client.get(f"{NEW}?type=web&appcode=ops-demo&name=panel&command=x&storage=&step=4").content.decode()
    assert at(page) == "Review"
    assert "&quot;port&quot;: 8080" in page
    # Errors found only on creation are shown at their step, too.
    page = client.get(f"{NEW}?type=web&appcode=ops-demo&name=panel&command=x&endpoints=web%3D80800&storage=&step=4")
    assert at(page.content.decode()) == "Application"
    page = go(client, page.content.decode(), "4", endpoints="web=8080", storage="")
    page = go(client, page, "deploy")
    assert (at(page), list(wrong_fields(page))) == ("Application", ["name"])


SPECIFIC = ("model", "runs", "command", "endpoints", "requirements")


def shown(page: str) -> list[str]:
    """The fields of some kinds that people see."""
    return [name for name in SPECIFIC if re.search(rf'<(?:input type="text"|textarea)[^>]* ?name="{name}"', page)]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("jupyter", ["runs", "command", "endpoints"]),
        ("web", ["command", "endpoints", "requirements"]),
        ("serving", ["model", "command", "requirements"]),
        ("tensorboard", ["runs", "command", "requirements"]),
    ],
)
def test_a_card_leads_to_a_form_with_the_fields_of_its_kind(
    kind: str, fields: list[str], people: Any, as_person: Any, page_catalogue: None
) -> None:
    client = as_person(people.bob)
    assert f'href="{NEW}?type={kind}"' in client.get("/applications").content.decode() or kind == "jupyter"
    page = client.get(f"{NEW}?type={kind}").content.decode()
    assert (at(page), shown(page)) == ("Application", fields)
    needed = {"web": ["Command"], "serving": ["Model"], "tensorboard": ["Runs"]}.get(kind, [])
    for label in ("Model", "Runs", "Command", "Serves"):
        if found := re.search(rf">{label}(.*?)</label>", page):
            assert ("optional" not in found[1]) == (label in needed), label
    # The same from the first step, whose cards are buttons.
    first = client.get(NEW).content.decode()
    assert f'<button name="type" value="{kind}">' in first
    again = client.post(NEW, {**sent(first, "application-form"), "type": kind}).content.decode()
    assert (at(again), shown(again)) == ("Application", fields)
    one, other = (sent(each, "application-form") for each in (again, page))
    assert one == other | {"csrfmiddlewaretoken": one["csrfmiddlewaretoken"]}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_a_whole_web_program(preset: str, people: Any, as_person: Any, page_catalogue: None) -> None:
    client = as_person(people.bob)
    page = client.get(f"{NEW}?type=web&name=first&image=tensorflow&storage=").content.decode()
    said = {**sent(page, "application-form"), "preset": preset}
    page = client.post(NEW, said).content.decode()
    assert (at(page), wrong_fields(page), page.count('name="preset"')) == ("Application", {}, len(PRESETS))
    # Never in place of what somebody has written.
    own = go(client, go(client, page, "3", command="python mine.py"), "2")
    assert 'name="preset"' not in own
    assert at(go(client, page, "4", storage="")) == "Review"
    command = sent(page, "application-form")["command"].replace("\r\n", "\n")
    compile(command.partition("<<'END'\n")[2].partition("\nEND\n")[0], preset, "exec")
    assert command.endswith(f"\nexec {PRESETS[preset].start}")


def test_another_kind_has_its_own_choices_and_what_was_typed_for_all(
    people: Any, as_person: Any, page_catalogue: None
) -> None:
    client = as_person(people.bob)
    page = client.get(f"{NEW}?type=web&name=panel&command=serve&model=digits%401").content.decode()
    assert "model" in shown(page), "what would be refused is never hidden"
    page = go(client, page, "1", endpoints="web=8080", env="A=1")
    page = client.post(NEW, {**sent(page, "application-form"), "type": "tensorboard"}).content.decode()
    said = sent(page, "application-form")
    assert (said["type"], said["name"], said["command"], said["env"]) == ("tensorboard", "panel", "serve", "A=1")
    assert (said["endpoints"], said["model"]) == ("", "")


def test_changed_and_cloned_by_the_same_steps(make: Any, people: Any, as_person: Any) -> None:
    from clusters.runs.models import Cluster
    from datastores.models import Datastore

    make("notes", phase="Stopped", type="jupyter", storage={"size": "2Gi"})
    client = as_person(people.alice)
    address = "/applications/ops-demo/notes/change"
    page = client.get(address).content.decode()
    assert at(page) == "Application"
    page = go(client, page, "4", address, flavor="small", name="another", command="pip list")
    assert at(page) == "Review"
    assert "curl -X PUT http://testserver/api/v1/appcodes/ops-demo/applications/notes " in page
    assert go(client, page, "deploy", address) == "/applications/ops-demo/notes"
    changed = Cluster.objects.get(name="notes")
    assert (changed.spec["command"], changed.run_count) == ("pip list", 2)
    page = client.get(f"{NEW}?clone=ops-demo/notes&step=4").content.decode()
    assert at(page) == "Review"
    assert go(client, page, "deploy") == "/applications/ops-demo/notes-2"
    # The clone of a notebook gets its own home.
    assert Cluster.objects.get(name="notes-2").spec["home"] == "notes-2-home"
    assert Datastore.objects.get(name="notes-2-home").spec["size"] == "2Gi"


@pytest.mark.django_db(transaction=True)
def test_from_the_list_to_open_in_a_browser(live_server: Any, people: Any, page_catalogue: None, settings: Any) -> None:
    from clusters.runs.models import Run

    cache.clear()
    complaints: list[str] = []
    with chromium() as browser:
        page = browser.new_page(base_url=live_server.url, viewport={"width": 1440, "height": 900})
        page.set_default_timeout(SOON)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto("/accounts/login/?next=/applications")
        page.fill("#id_login", "bob")
        page.fill("#id_password", "bob-password")
        page.click("#login-form button")
        expect(page.get_by_role("heading", name="No applications yet")).to_be_visible()
        assert_fits(page, "applications-none")
        page.get_by_role("button", name="New notebook").click()
        expect(page.get_by_role("heading", name="New application")).to_be_visible()
        expect(page.get_by_role("button", name="Deploy")).to_be_visible()
        page.get_by_role("button", name="Application").click()
        page.fill("#id_name", "lab")
        assert_fits(page, "application-2")
        page.press("#id_name", "Enter")
        page.select_option("#id_flavor", "middle-1-gpu")
        expect(page.locator("#preview .figures dd").first).to_have_text("1")
        assert_fits(page, "application-3")
        page.get_by_role("button", name="Next").click()
        assert json.loads(page.inner_text("#manifest-text"))["spec"]["storage"] == {"size": "10Gi"}
        assert_fits(page, "application-4")
        page.get_by_role("button", name="Deploy").click()
        page.wait_for_url("**/applications/ops-demo/lab")
        expect(page.get_by_role("button", name="Open. Starts: Waiting for the scheduler.")).to_be_disabled()
        assert_fits(page, "application")
        there = {"notebook": {"address": "127.0.0.1:1", "since": "2026-01-01T00:00:00Z", "routed": True}}
        Run.objects.update(phase="Running", endpoints=there)
        opened = page.get_by_role("link", name="Open ▸")
        expect(opened).to_have_attribute("href", "/open/notebook-lab-ops-demo")
        page.goto("/applications")
        expect(opened).to_be_visible()
        assert_fits(page, "applications")
    assert complaints == []


def test_plugins_are_chosen_by_boxes_and_come_along(make: Any, people: Any, as_person: Any, stores: None) -> None:
    from clusters.catalog.models import Image
    from clusters.environments.models import Plugin
    from clusters.runs.models import Cluster

    image = Image.objects.get(name="tensorflow")
    for name in ("archive", "lsp", "theme"):
        Plugin.objects.create(
            image=image, name=name, version=1, title=name.title(), description="<b>", lock="", digest=name
        )
    client = as_person(people.bob)
    page = client.get(f"{NEW}?appcode=ops-demo&type=jupyter&name=lab&image=tensorflow&step=2").content.decode()
    assert page.count('type="checkbox" name="plugins"') == 3
    assert "Archive – &lt;b&gt;" in page
    page = go(client, page, "3", plugins=["archive", "lsp"])
    page = go(client, page, "2")
    assert page.count("checked") == 2
    page = go(client, page, "3", plugins=["archive", "theme"], storage="store:data")
    page = go(client, page, "4")
    assert "archive, theme" in page
    assert go(client, page, "deploy") == "/applications/ops-demo/lab"
    assert Cluster.objects.get().spec["plugins"] == ["archive", "theme"]
    shown = client.get("/applications/ops-demo/lab").content.decode()
    assert "Archive <code>archive:1</code>, Theme <code>theme:1</code>" in shown


def test_my_notebook_is_one_click_after_the_first(make: Any, people: Any, as_person: Any) -> None:
    from clusters.gateway import origins
    from clusters.runs.models import Cluster, Run

    bob, mine = as_person(people.bob), "/applications/notebook"
    # The first time, bob chooses; what alice has is not his.
    make("hers", type="jupyter")
    first = bob.post(mine)["Location"]
    assert first == f"{NEW}?type=jupyter&name=notebook&step=4"
    page = bob.get(f"{first}&appcode=ops-demo").content.decode()
    assert 'value="deploy"' in page, "one more click makes it as it stands there"
    assert sent(page, "application-form")["flavor"] == "middle-1-gpu"
    make("older", type="jupyter", by=people.bob, phase="Stopped")
    notes = make("notes", type="jupyter", by=people.bob, phase="Running", answers=True)
    assert bob.post(mine)["Location"] == mine
    opens = f'url={origins.url(notes.origins["notebook"])}"'
    assert opens in bob.get(mine, headers={"Host": "portal.localhost:8000"}).content.decode()
    # What has ended is started as it was, and the page waits for it.
    Run.objects.filter(cluster=notes).update(phase="Stopped", endpoints={})
    assert bob.get(mine)["Location"] == "/applications/ops-demo/notes"
    assert bob.post(mine)["Location"] == mine
    notes.refresh_from_db()
    assert notes.current_run.number == 2
    assert "It opens here as soon as it answers." in bob.get(mine).content.decode()
    assert Cluster.objects.get(name="older").run_count == 1


def test_the_page_leads_with_the_notebook(
    make: Any, people: Any, as_person: Any, django_assert_max_num_queries: Any
) -> None:
    from clusters.runs.models import Run

    assert "My notebook</h2>" not in as_person(people.victor).get("/applications").content.decode()
    bob = as_person(people.bob)
    assert "New notebook" in bob.get("/applications").content.decode()
    make("notes", type="jupyter", by=people.bob, phase="Running", answers=True)
    page = bob.get("/applications").content.decode()
    door = page.split("My notebook</h2>")[1].split("</section>")[0]
    for words in ("/applications/ops-demo/notes", "Middle + 1 GPU", ">Open</button>", "Another notebook"):
        assert words in door
    Run.objects.update(phase="Stopped", endpoints={})
    assert ">Start and open</button>" in bob.get("/applications").content.decode()
    with django_assert_max_num_queries(5):
        bob.get("/applications")


def test_filters_that_find_nothing_are_left_out_unless_they_are_set(make: Any, people: Any, as_person: Any) -> None:
    bob = as_person(people.bob)
    assert ">Mine<" not in bob.get("/applications").content.decode(), "there is nothing to filter"
    make("notes", phase="Running", answers=True)
    cache.clear()
    page = bob.get("/applications").content.decode()
    assert "phase=Running" in page
    assert "phase=Failed" not in page
    assert ">Mine<" in page
    assert "Failed <span" in bob.get("/applications?phase=Failed").content.decode()


def test_an_image_that_does_not_run_here_is_shown_and_not_chosen(
    page_catalogue: Any, people: Any, as_person: Any
) -> None:
    client = as_person(people.bob)
    for address in (f"{NEW}?type=jupyter&appcode=ops-demo", "/clusters/new", "/pipelines/new"):
        page = client.get(address)
        assert '<option value="container-only" disabled>Container only (not on' in page.content.decode()
