"""Origins, tickets, cookies and tokens as rows: who gets access, once, and until when."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from clusters.gateway import origins, visits
from clusters.gateway import portal_proof as own
from clusters.gateway.models import Origin, Visit

pytestmark = pytest.mark.django_db(transaction=True)
WEB = {
    "framework": "web",
    "command": "serve",
    "roles": {"server": {"flavor": "small", "endpoints": [{"name": "web", "port": 8080}]}},
}


@pytest.fixture
def web(catalogue: None, manifest: Any, alice: Any, ops: Any) -> Any:
    from clusters.cluster.actions import create_cluster
    from clusters.manifest.cluster import ClusterManifest

    def make(name: str = "app", appcode: str = "ops-demo", user: Any = None, **spec: Any) -> Any:
        body = {"metadata": {"name": name, "appcode": appcode}, "spec": {"image": "python", **WEB, **spec}}
        return create_cluster(ClusterManifest.model_validate(body), acting_user=user or alice)

    return make


@pytest.fixture(autouse=True)
def _nothing_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "_believed", visits.Believed())


def opened(person: Any, label: str, state: str = "state") -> tuple[Client, str]:
    """A browser with a session of the portal, and the ticket with which the portal sends it back."""
    browser = Client()
    browser.force_login(person)
    answer = browser.get(f"/open/{label}?state={state}&next=/lab")
    if answer.status_code != 200:
        return browser, ""
    ticket = answer.content.decode().partition("ticket?ticket=")[2].partition("&amp;")[0]
    return browser, ticket


def test_a_ticket_is_good_once_in_one_browser_at_one_origin(web: Any, alice: Any) -> None:
    app, _ = web(), web("other")
    _, ticket = opened(alice, "web-app-ops-demo")
    assert visits.exchange(ticket, "another browser", "web-app-ops-demo") == ""
    assert visits.exchange(ticket, "", "web-app-ops-demo") == ""
    assert visits.exchange(ticket, "state", "web-other-ops-demo") == ""
    cookie = visits.exchange(ticket, "state", "web-app-ops-demo")
    found = visits.Found(person="alice", may_open=True, proof=app.proof)
    assert visits.person_by(cookie, "web-app-ops-demo") == found
    assert visits.exchange(ticket, "state", "web-app-ops-demo") == ""
    assert visits.person_by(cookie, "web-other-ops-demo") == visits.Found()
    assert cookie not in str(Visit.objects.values())


def test_a_cookie_ends_with_the_session_the_password_and_the_person(web: Any, alice: Any) -> None:
    web()
    label = "web-app-ops-demo"
    ends = {
        "signed out": lambda browser: browser.post("/accounts/logout/"),
        "password": lambda browser: (alice.set_password("another-long-one"), alice.save()),
        "deactivated": lambda browser: type(alice).objects.filter(pk=alice.pk).update(is_active=False),
    }
    for end in ends.values():
        browser, ticket = opened(alice, label)
        cookie = visits.exchange(ticket, "state", label)
        assert visits.person_by(cookie, label).may_open
        end(browser)
        assert visits.person_by(cookie, label) == visits.Found()


@pytest.mark.parametrize(
    ("host", "portal"),
    [
        ("portal.localhost:8000", "http://portal.localhost:8000"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("evil.example:8000", "http://portal.localhost:8000"),
        ("127.0.0.1:9000", "http://portal.localhost:8000"),
    ],
)
def test_a_browser_returns_to_the_name_of_the_portal_where_it_is_signed_in(
    host: str, portal: str, web: Any, alice: Any
) -> None:
    web()
    label, browser = "web-app-ops-demo", Client()
    there = {"Host": f"{label}.apps.localhost:8000", "Accept": "text/html"}
    asked = {"portal": host, "rd": "/lab"}
    answer = browser.get("/.portal/sign-in", asked, headers=there)
    assert answer["Location"].startswith(f"{portal}/open/{label}?state=")
    if portal.endswith(host):
        browser.force_login(alice)
        sent = browser.get(f"/open/{label}", headers={"Host": host})["Location"]
        via = "" if host.startswith("portal.") else f".portal/sign-in?portal={host}"
        assert sent == f"http://{label}.apps.localhost:8000/{via}"


def test_who_may_open_what(web: Any, alice: Any, bob: Any, victor: Any, mallory: Any, root: Any) -> None:
    members = web("members")
    named = web("named", access={"to": "people", "people": ["mallory"]})
    everybody = web("everybody", access={"to": "everybody"})
    lab = {"framework": "jupyter", "command": "", "home": "home", "roles": {"notebook": {"flavor": "small"}}}
    from datastores.actions import create_datastore
    from datastores.specs import DatastoreManifest

    home = {"metadata": {"name": "home", "appcode": "ops-demo"}, "spec": {"volume": {"size": "1Gi"}}}
    create_datastore(DatastoreManifest.model_validate(home), acting_user=alice)
    notebook = web("lab", **lab)
    who = {each.username: each for each in (alice, bob, victor, mallory, root)}
    table = {
        row.name: [name for name, each in who.items() if visits.may_open(each, row)]
        for row in (members, named, everybody, notebook)
    }
    insiders = ["alice", "bob", "root"]
    assert table == {
        "members": ["alice", "bob", "victor", "root"],
        "named": ["alice", "bob", "victor", "mallory", "root"],
        "everybody": list(who),
        "lab": insiders,
    }
    _, ticket = opened(mallory, "web-members-ops-demo")
    assert not ticket


def test_a_token_opens_one_application_until_the_next_one(web: Any, alice: Any, victor: Any) -> None:
    first, second = web("first"), web("second")
    token = visits.new_token(first, acting_user=alice)
    assert visits.proof_of("web-first-ops-demo", token) == first.proof
    assert not visits.proof_of("web-second-ops-demo", token)
    assert first.proof != second.proof
    assert visits.token_of(first) == token
    assert visits.token_of(second) == ""
    newer = visits.new_token(first, acting_user=alice)
    assert not visits.proof_of("web-first-ops-demo", token)
    assert visits.proof_of("web-first-ops-demo", newer)
    visits.stop_token(first, acting_user=alice)
    assert not visits.proof_of("web-first-ops-demo", newer)
    assert not visits.proof_of("web-first-ops-demo", "")
    first.refresh_from_db()
    assert newer not in str(first.__dict__)


def test_an_origin_is_of_one_endpoint_for_ever(web: Any, alice: Any, mallory: Any, flight: Any) -> None:
    from clusters.cluster.actions import delete_cluster

    one = web("a-b")
    assert one.origins == {"web": "web-a-b-ops-demo"}
    delete_cluster(one, acting_user=alice)
    again = web("a-b")
    assert again.origins == {"web": "web-a-b-ops-demo"}
    # Endpoint “web” of “taken” would have this label, but another appcode has it already.
    Origin.objects.create(label="web-taken-ops-demo", appcode=flight, cluster_name="x", endpoint="web")
    taken = web("taken")
    (label,) = taken.origins.values()
    assert label != "web-taken-ops-demo"
    assert label.startswith("web-taken-ops-demo-")
    assert origins.label_of(f"{label}.apps.localhost:8000") == label
    assert origins.label_of("portal.localhost:8000") == origins.label_of(f"{label}.apps.localhost:9") == ""


def test_long_names_and_underscores_have_a_label_of_their_own() -> None:
    labels = {origins.label("e" * 15, "c" * 40, f"a{n}" * 20) for n in range(9)}
    assert len(labels) == 9
    assert all(len(each) <= 63 for each in labels)
    assert origins.label("web", "x", "a_b") != origins.label("web", "x", "a-b")


def test_who_has_it_open_is_told_what_is_announced_and_keeps_it(
    web: Any, alice: Any, victor: Any, settings: Any
) -> None:
    from django.utils import timezone

    from clusters.runs.models import Run

    web()
    host = f"web-app-ops-demo.{settings.APPS_DOMAIN}" + (
        "" if settings.APPS_PORT == settings.APPS_USUAL_PORT else f":{settings.APPS_PORT}"
    )
    own = {"Host": host, "Origin": f"{settings.APPS_SCHEME}://{host}", "X-Portal-Gateway": settings.GATEWAY_SECRET}

    def ask(person: Any, method: str, path: str, **headers: str) -> Any:
        browser = Client()
        if person:
            _, ticket = opened(person, "web-app-ops-demo")
            browser.cookies["portal-app"] = visits.exchange(ticket, "state", "web-app-ops-demo")
        return browser.generic(method, path, headers={**own, **headers})

    assert ask(alice, "GET", "/.portal/idle").json() == {"announced": "", "sentence": "", "mayKeep": False}
    now = timezone.now()
    Run.objects.update(phase="Running", started_at=now, idle_announced_at=now, idle_stops_at=now)
    told = ask(alice, "GET", "/.portal/idle").json()
    assert told["announced"]
    assert told["mayKeep"]
    assert f"stopped at {now:%H:%M} UTC" in told["sentence"]
    # A viewer sees the announcement, but may not keep the application.
    assert not ask(victor, "GET", "/.portal/idle").json()["mayKeep"]
    assert ask(victor, "POST", "/.portal/keep").status_code == 403
    for person, headers in ((None, {}), (alice, {"Origin": "http://elsewhere.example"})):
        assert ask(person, "POST", "/.portal/keep", **headers).status_code in (401, 403)
    assert ask(alice, "GET", "/.portal/keep").status_code == 404
    assert Run.objects.get().idle_announced_at
    assert ask(alice, "POST", "/.portal/keep").json() == {"sentence": "It is kept; its idle time begins anew."}
    assert Run.objects.get().idle_announced_at is None
    Run.objects.update(phase="Stopped")
    assert ask(alice, "POST", "/.portal/keep").status_code == 409


def test_a_gateway_that_knows_only_yes_and_no_sends_people_to_an_address_of_the_same_origin(
    web: Any, alice: Any, mallory: Any
) -> None:
    """The requests of NGINX, and the sign-in address to which it then redirects users."""
    cluster = web(access={"to": "people", "people": ["mallory"]})
    label, name = "web-app-ops-demo", "web-app-ops-demo.apps.localhost:8000"

    def judged(cookie: str = "", uri: str = "/lab?a=1", **more: str) -> Any:
        about = {"X-Original-URL": f"http://{name}{uri}", "X-Original-Method": "GET", "Cookie": cookie}
        return Client().get("/gateway/judge/nginx", headers={**about, **more})

    def sent(cookie: str = "", rd: str = "/lab?a=1", **more: str) -> Any:
        there = {"Host": name, "Cookie": cookie, "Accept": "text/html", **more}
        return Client().get("/.portal/sign-in", {"rd": rd}, headers=there)

    def cookie_of(person: Any) -> str:
        _, ticket = opened(person, label)
        return f"portal-app={visits.exchange(ticket, 'state', label)}" if ticket else ""

    theirs = f"{cookie_of(alice)}; theme=dark"
    answer = judged(theirs)
    assert (answer.status_code, answer["X-Portal-User"], answer["Cookie"]) == (200, "alice", "theme=dark")
    # Refused: anonymous users and pages of other origins. A client's other headers change nothing.
    lies = {"X-Forwarded-Host": name, "X-Forwarded-Uri": "/lab"}
    for cookie, more in (("", {}), ("", lies), (theirs, {"Origin": "http://web-b-flight.apps.localhost:8000"})):
        answer = judged(cookie, **more)
        assert (answer.status_code, answer.content, "X-Portal-User" in answer) == (401, b"", False)
    other = {"X-Original-URL": "http://web-b-flight.apps.localhost:8000/lab"}
    assert judged(theirs, **{**lies, **other}).status_code == 401

    answer = sent()
    assert answer.status_code == 302
    assert answer["Location"].startswith("http://portal.localhost:8000/open/web-app-ops-demo?state=")
    assert answer["Location"].endswith("next=%2Flab%3Fa%3D1")
    assert answer.cookies["portal-app-state"].value in answer["Location"]
    assert sent(Accept="application/json").status_code == 401
    assert sent(theirs)["Location"] == f"http://{name}/lab?a=1"
    for elsewhere in ("//evil.example/", "/\\evil.example", "https://evil.example/", "/.portal/sign-in?rd=/"):
        assert sent(theirs, elsewhere)["Location"] == f"http://{name}/"
    guest = cookie_of(mallory)
    type(cluster).objects.update(spec={**cluster.spec, "access": {"to": "members"}})
    assert judged(guest).status_code == 401
    assert sent(guest).status_code == 404


def test_the_portal_itself_asks_one_address_for_a_minute_and_that_is_no_use(
    web: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    web(), web("other")
    monkeypatch.setattr(visits, "_noted", {})
    label, path = "web-app-ops-demo", "/api/portal/activity"
    proof = own.authorization(label, path)

    def judged(uri: str = path, *, proof: str = proof, name: str = label, method: str = "GET", **more: str) -> Any:
        about = {
            "X-Forwarded-Host": f"{name}.apps.localhost:8000",
            "X-Forwarded-Uri": uri,
            "X-Forwarded-Method": method,
        }
        return Client().get("/gateway/judge", headers={**about, "Authorization": proof, **more})

    answer = judged(Cookie="portal-app=x; theme=dark")
    assert (answer.status_code, answer.headers.get("Cookie")) == (200, "theme=dark")
    assert not {"Authorization", "X-Portal-User"} & answer.headers.keys()
    assert Origin.objects.get(label=label).used_at is None
    refused = [
        judged("/api/contents"),
        judged(f"{path}?x=1"),
        judged(f"{path}/"),
        judged(name="web-other-ops-demo"),
        judged(method="POST"),
        judged(method="DELETE"),
        judged(**{"Sec-WebSocket-Key": "dGhlIHNhbXBsZQ=="}),
        judged(proof=proof[:-1]),
        judged(proof=proof.replace("Portal", "token")),
        judged(proof="Portal "),
        judged("/api/contents", proof=f"Portal {proof}"),
    ]
    assert {each.status_code for each in refused} == {401}
    # A reserved path stays closed even to a valid proof.
    assert judged("/.portal/idle", proof=own.authorization(label, "/.portal/idle")).status_code == 404
    moment = time.time()
    monkeypatch.setattr(time, "time", lambda: moment + own.GOOD_FOR + 2)
    assert judged().status_code == 401


def test_a_cloud_with_a_domain_of_its_own_has_its_origins_there(web: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from clusters.clouds.models import Cloud

    host = "web-app-ops-demo.apps.second.example:8000"
    monkeypatch.setattr(origins, "_domains", origins._Domains())
    assert origins.label_of(host) == ""
    settings = {"gateway": "traefik", "gateway_namespace": "traefik", "apps_domain": "apps.second.example"}
    Cloud.objects.create(kind="kubernetes", name="second", title="Second", settings=settings)
    monkeypatch.setattr(origins, "_domains", origins._Domains())
    assert origins.label_of(host) == "web-app-ops-demo"
    assert origins.label_of(host.replace(":8000", "")) == origins.label_of("a.b.apps.second.example:8000") == ""

    cluster = web()
    origins.move(cluster, "apps.second.example")
    assert [each.url for each in origins.openings(cluster, None)] == [f"http://{host}/"]
    # That host serves applications; the portal only redirects from there.
    answer = Client().get("/", headers={"Host": host, "Accept": "text/html"})
    assert answer["Location"].startswith("http://portal.localhost:8000/open/web-app-ops-demo?")
    origins.move(cluster, "")
    assert cluster.origins == {"web": "web-app-ops-demo"}
