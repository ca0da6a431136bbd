"""A template keeps a whole cluster definition; what has gone missing meanwhile is reported when the template is used."""

from __future__ import annotations

import json

import pytest

from tests.clusters.forms import sent, wrong_fields

CODE = {"code": {"files": {"lib/a.py": "A = 1\n", "train.py": "import lib.a\n"}}, "command": "python train.py"}


@pytest.fixture
def whole(make_cluster):
    return make_cluster(
        "demo", workers=3, env={"A": " x "}, timeLimit=7200, scheduleAfter="2099-01-01T00:00:00Z", **CODE
    )


def save(client, page, **said):
    """Posts the form of the page that saves a template."""
    return client.post("/templates/save", sent(page, "template-form") | said)


def test_what_one_saves_of_a_cluster_the_others_of_its_appcode_start_from(whole, people, as_person):
    from clusters.cluster_templates.models import Template
    from clusters.runs.models import Cluster
    from portal.models import Event

    page = as_person(people.alice).get("/clusters/ops-demo/demo/template").content.decode()
    answer = save(as_person(people.alice), page, name="digits", whose="ops-demo", description="Three workers")
    assert (answer.status_code, answer["Location"]) == (302, "/templates/ops-demo/digits")
    assert Template.objects.get().spec == {**whole.spec, "scheduleAfter": None}
    event = Event.objects.get(verb="template.created")
    assert (event.appcode, event.object) == ("ops-demo", "template ops-demo/digits")

    bob = as_person(people.bob)
    assert ">Three workers</p>" in bob.get("/clusters/new?appcode=ops-demo").content.decode()
    body = sent(bob.get("/clusters/new?template=ops-demo/digits").content.decode())
    assert bob.post("/clusters/new", body).status_code == 302
    assert bob.post("/clusters/start", {"template": "ops-demo/digits", "appcode": "ops-demo"}).status_code == 302
    made = Cluster.objects.filter(created_by=people.bob).order_by("pk")
    assert [(each.name, each.spec) for each in made] == [
        (name, {**whole.spec, "scheduleAfter": None}) for name in ("digits", "digits-2")
    ]


def test_as_much_code_as_a_cluster_may_have_is_saved(make_cluster, people, as_person):
    make_cluster("large", code={"files": {"a.txt": "\U0001f600" * 130_000}})
    client = as_person(people.alice)
    page = client.get("/clusters/ops-demo/large/template").content.decode()
    assert 'action="/templates/save" enctype="multipart/form-data"' in page
    assert save(client, page).status_code == 302


def test_what_stands_in_the_form_is_saved_and_what_is_wrong_in_it_is_said_there(page_catalogue, people, as_person):
    from clusters.cluster_templates.models import Template
    from clusters.runs.models import Cluster

    client = as_person(people.alice)
    typed = sent(client.get("/clusters/new").content.decode()) | {"command": "true", "input": "gone"}
    page = client.post("/templates/save", typed | {"retries": "x"}).content.decode()
    assert wrong_fields(page) == {"name": "Fill this in.", "retries": "Give a whole number."}
    # A template needs no cluster name, and what it refers to need not exist.
    page = client.post("/templates/save", typed).content.decode()
    assert wrong_fields(save(client, page, name="Ä").content.decode()).keys() == {"name"}
    assert save(client, page, name="mine").status_code == 302
    assert (Template.objects.get().spec["input"], Cluster.objects.count()) == ("gone", 0)


def test_a_changed_definition_is_saved_without_a_run_and_cancel_leads_back(whole, people, as_person):
    from clusters.cluster_templates.models import Template
    from clusters.runs.models import Run

    client = as_person(people.alice)
    typed = sent(client.get("/clusters/ops-demo/demo/change").content.decode()) | {"retries": "7"}
    page = client.post("/templates/save", typed | {"next": "/clusters/ops-demo/demo/change"}).content.decode()
    assert 'href="/clusters/ops-demo/demo/change">Cancel<' in page
    assert (
        'href="/templates">Cancel<'
        in client.post("/templates/save", typed | {"next": "//evil.example.com"}).content.decode()
    )
    assert save(client, page, name="seven").status_code == 302
    assert (Template.objects.get().spec["retries"], Run.objects.count()) == (7, 1)


def test_what_is_wrong_in_a_changed_definition_is_mended_in_its_own_form(whole, people, as_person):
    client = as_person(people.alice)
    page = client.get("/clusters/ops-demo/demo/change").content.decode()
    assert 'formaction="/templates/save?change=ops-demo/demo"' in page
    page = client.post("/templates/save?change=ops-demo/demo", sent(page) | {"retries": "x"}).content.decode()
    assert wrong_fields(page) == {"retries": "Give a whole number."}
    assert 'id="cluster-form" action="/clusters/ops-demo/demo/change"' in page
    assert client.post("/templates/save?change=a%00/b", {}).status_code == 404
    # After signing in again, a GET of a page that needs a POST redirects to the form, which still has the input.
    for address in ("/templates/save", "/clusters/start"):
        assert client.get(address)["Location"] == "/clusters/new"


def test_what_is_missing_by_now_is_said_when_it_is_used_and_not_lost(whole, people, as_person):
    from clusters.catalog.models import Image
    from clusters.runs.models import Cluster

    client = as_person(people.alice)
    save(client, client.get("/clusters/ops-demo/demo/template").content.decode(), name="mine")
    Image.objects.filter(name="tensorflow").update(enabled=False)
    page = client.get("/clusters/new?template=me/mine&appcode=ops-demo").content.decode()
    body = sent(page)
    assert body["image"] == "tensorflow"
    gone = "The catalogue has no image “tensorflow”."
    assert wrong_fields(client.post("/clusters/new", body).content.decode()) == {"image": gone}
    page = client.post("/clusters/start", {"template": "me/mine", "appcode": "ops-demo"}).content.decode()
    assert (wrong_fields(page), sent(page)["command"]) == ({"image": gone}, "python train.py")
    assert Cluster.objects.count() == 1


def test_ones_own_templates_nobody_else_meets(whole, people, as_person):
    alice = as_person(people.alice)
    page = alice.get("/clusters/ops-demo/demo/template").content.decode()
    assert save(alice, page, name="secretive").status_code == 302
    shown = ("/templates", "/clusters/new?appcode=ops-demo", "/search?q=secretive")
    for user, seen in ((people.alice, True), (people.bob, False), (people.root, False)):
        client = as_person(user)
        pages = [client.get(address).content.decode() for address in shown]
        assert ["/templates/me/secretive" in pages[0], "me/secretive" in pages[1], "/templates/me/" in pages[2]] == [
            seen
        ] * 3
        assert (client.get("/clusters/new?template=me/secretive").status_code == 200) is seen
    assert (
        as_person(people.bob).post("/clusters/start", {"template": "me/secretive", "appcode": "ops-demo"}).status_code
        == 404
    )


def test_a_name_is_one_templates_and_a_person_has_so_many(whole, people, as_person, monkeypatch):
    from clusters.cluster_templates import actions as templates
    from clusters.cluster_templates.models import Template

    client = as_person(people.alice)
    page = client.get("/clusters/ops-demo/demo/template").content.decode()
    assert save(client, page, name="one").status_code == save(client, page, name="two").status_code == 302
    taken = "You have a template “one” already."
    assert wrong_fields(save(client, page, name="one").content.decode()) == {"name": taken}
    assert save(client, page, name="one", description="Newer", replace="on").status_code == 302
    assert wrong_fields(client.post("/templates/me/two", {"name": "one"}).content.decode()) == {"name": taken}
    assert (
        client.post("/templates/me/two", {"name": "three", "description": "Was two"})["Location"]
        == "/templates/me/three"
    )
    saved = [(each.name, each.description, each.spec) for each in Template.objects.order_by("pk")]
    spec = {**whole.spec, "scheduleAfter": None}
    assert saved == [("one", "Newer", spec), ("three", "Was two", spec)]
    monkeypatch.setattr(templates, "MOST", 2)
    assert wrong_fields(save(client, page, name="four").content.decode()) == {
        "name": "You have 2 templates already; delete one."
    }
    # The templates of the appcode have their own limit.
    assert save(client, page, name="one", whose="ops-demo").status_code == 302
    assert client.post("/templates/me/one/delete").status_code == 302
    assert [str(each) for each in Template.objects.order_by("pk")] == ["me/three", "ops-demo/one"]


def test_what_no_column_takes_is_refused_and_not_an_error(whole, people, as_person):
    client = as_person(people.alice)
    for address in ("template=me/a%00", "template=a%00/b", "clone=a%00/b"):
        assert client.get(f"/clusters/new?{address}").status_code == 404
    for card in ({"template": "me/a\0", "appcode": "ops-demo"}, {"start": "hello-gpu", "appcode": "a\0"}):
        assert client.post("/clusters/start", card).status_code == 404
    for image, said in (("a\0", "image: NUL characters are not allowed."), ("\ud800", "spec: Give an object, {")):
        spec = json.dumps({**whole.spec, "image": image})
        assert said in client.post("/templates/save", {"spec": spec, "name": "x", "whose": "me"}).content.decode()
        document = json.dumps(
            {"kind": "cluster", "metadata": {"name": "q", "appcode": "ops-demo"}, "spec": json.loads(spec)}
        )
        assert client.post("/clusters/import", {"manifest": document}).status_code == 200
