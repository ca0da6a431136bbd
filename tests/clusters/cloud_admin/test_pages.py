"""Administrators' pages of clouds, and what other pages show about where things run."""

from __future__ import annotations

import datetime as dt
import re

import pytest

# No server listens there, so a connection test fails at once.
CONFIG = """
kind: Config
current-context: main
contexts: [{name: main, context: {cluster: one, user: me}}]
clusters: [{name: one, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: me, user: {token: very-secret}}]
"""
VALUES = {"name": "training", "title": "Training", "how": "kubeconfig", "kubeconfig": CONFIG, "enabled": "on"}


@pytest.fixture
def training(page_catalogue, people):
    from clusters.clouds.models import Cloud

    return Cloud.objects.create(kind="kubernetes", name="training", title="Training", server="https://k.example.com")


@pytest.fixture
def root(people, as_person):
    return as_person(people.root)


def fill(client, address, values):
    """Posts the form as it is, with `values` filled in; "" stands for an unticked box."""
    from tests.clusters.forms import sent

    typed = sent(client.get(address).content.decode(), "cloud-form") | {"enabled": "on"} | values
    boxes = {name: value for name, value in typed.items() if value or name not in ("enabled", "default", "insecure")}
    return client.post(address, boxes, follow=True)


@pytest.mark.parametrize(
    "address",
    [
        "/admin/clouds",
        "/admin/clouds/new",
        "/admin/clouds/training/edit",
        "/admin/clouds/training/test",
        "/admin/clouds/training/remove",
        "/admin/clouds/training/give-up",
        "/admin/clouds/place",
    ],
)
def test_only_administrators_know_these_pages(address, training, people, as_person):
    for user in (people.alice, people.mallory):
        assert as_person(user).get(address).status_code in (404, 405)
        assert as_person(user).post(address, {}).status_code in (404, 405)
    assert as_person(people.root).get(address).status_code in (200, 405)


def test_what_is_to_know_of_machines_stands_beside_their_cloud(page_catalogue, root):
    assert "Memory limits are not enforced here." in root.get("/admin/clouds").content.decode()


def test_where_nothing_can_be_done_there_is_no_menu(page_catalogue, root):
    assert "Actions for" not in root.get("/admin/clouds").content.decode()


def test_a_cluster_is_registered_and_its_secret_never_shown_again(page_catalogue, root):
    from clusters.clouds.models import Cloud

    values = VALUES | {"setting_store_seconds": "7", "setting_quota": "pods=5\r\nrequests.nvidia.com/gpu = 16"}
    answer = fill(root, "/admin/clouds/new", values)
    text = answer.content.decode()
    assert "Training is saved. The API server does not answer" in text
    row = Cloud.objects.get(kind="kubernetes")
    named = row.settings.pop("portal")
    assert re.fullmatch(r"portal-[a-z0-9]+", named), named
    assert row.settings == {"store_seconds": 7, "quota": {"pods": "5", "requests.nvidia.com/gpu": "16"}}
    row.refresh_from_db()
    page = root.get("/admin/clouds/training/edit").content.decode()
    for each in (text, page):
        assert "very-secret" not in each
    assert "https://127.0.0.1:1" in page
    assert "requests.nvidia.com/gpu=16" in page
    kept = (row.credentials, row.settings, row.revision)
    assert fill(root, "/admin/clouds/training/edit", {"title": "Big"}).status_code == 200
    row.refresh_from_db()
    assert row.title == "Big"
    assert (row.credentials, row.settings, row.revision) == kept


def test_a_service_account_is_exchanged_for_a_kubeconfig_only_when_one_is_given(training, root):
    from tests.clusters.forms import wrong_fields

    # Only then is it needed, and no longer optional.
    optional = '>Kubeconfig <span class="optional">'
    assert optional in root.get("/admin/clouds/training/edit").content.decode()
    assert optional not in root.get("/admin/clouds/new").content.decode()
    answer = fill(root, "/admin/clouds/training/edit", {"how": "kubeconfig"})
    assert optional not in answer.content.decode()
    assert wrong_fields(answer.content.decode()) == {"kubeconfig": "Give a kubeconfig."}


@pytest.mark.parametrize(
    ("changes", "field", "sentence"),
    [
        (
            {"kubeconfig": CONFIG.replace("token: very-secret", "exec: {command: aws}")},
            "kubeconfig",
            "the program “aws”",
        ),
        ({"kubeconfig": CONFIG.replace("token:", "tokenFile:")}, "kubeconfig", "reads a file by “tokenFile”"),
        ({"kubeconfig": ""}, "kubeconfig", "Give a kubeconfig"),
        ({"name": "Not a label"}, "name", "lower-case"),
        ({"name": "local"}, "name", "own machine"),
        ({"how": "in-cluster"}, "how", "either a kubeconfig or this"),
        ({"setting_store_seconds": "long"}, "setting_store_seconds", "whole number"),
        ({"setting_quota": "pods"}, "setting_quota", "as Kubernetes does"),
        ({"setting_closed_networks": "10.0.0.0/8\r\nnonsense"}, "setting_closed_networks", "Write networks like"),
        ({"default": "on", "enabled": ""}, "default", "cannot be the default"),
    ],
)
def test_bad_input_stands_beside_its_field(changes, field, sentence, page_catalogue, root):
    from clusters.clouds.models import Cloud
    from tests.clusters.forms import wrong_fields

    answer = fill(root, "/admin/clouds/new", VALUES | changes)
    assert answer.status_code == 200
    wrong = wrong_fields(answer.content.decode())
    assert sentence in wrong.get(field, ""), wrong
    assert not Cloud.objects.filter(kind="kubernetes").exists()


def test_buttons_do_what_they_say(training, people, root, make_cluster):
    from clusters.clouds.models import Cloud, Placement
    from portal.models import Event

    def row():
        return Cloud.objects.get(kind="kubernetes")

    assert "Make it the default" in root.get("/admin/clouds").content.decode()
    root.post("/admin/clouds/training/default")
    assert row().is_default
    answer = root.post("/admin/clouds/training/disable", follow=True).content.decode()
    assert "cannot be the default" in answer
    assert row().enabled
    root.post("/admin/clouds/local/default")
    assert not row().is_default
    root.post("/admin/clouds/place", {"line": "qunarcorp.ops", "cloud": "training"})
    assert Placement.objects.get().cloud == row()
    assert "would have no place" in root.post("/admin/clouds/training/remove", follow=True).content.decode()
    root.post("/admin/clouds/training/disable")
    assert not row().enabled
    root.post("/admin/clouds/training/enable")
    root.post("/admin/clouds/place", {"line": "qunarcorp.ops", "cloud": ""})
    assert not Placement.objects.exists()
    assert root.post("/admin/clouds/place", {"line": "no.where", "cloud": ""}).status_code == 404
    root.post("/admin/clouds/training/remove")
    assert not Cloud.objects.filter(kind="kubernetes").exists()
    verbs = set(Event.objects.filter(actor=people.root).values_list("verb", flat=True))
    assert {"kubernetes.changed", "kubernetes.removed", "org.placed"} <= verbs


def test_business_lines_are_placed_together_or_not_at_all(training, people, root, make_appcode):
    from clusters.clouds.models import Cloud, Placement
    from portal.models import OrgNode

    ops = OrgNode.objects.get(path="qunarcorp.ops")
    flight = OrgNode.objects.get(path="qunarcorp.flight")
    lines = {"line": [ops.path, flight.path], "was": ["", ""]}
    Cloud.objects.create(
        kind="kubernetes", name="closed", title="Closed", server="https://c.example.com", enabled=False
    )
    answer = root.post("/admin/clouds/place", lines | {"cloud": ["training", "closed"]})
    page = answer.content.decode()
    assert "Closed takes no new runs" in page.split(flight.path)[-1]
    assert 'value="training" selected' in page, "what was chosen stays"
    assert page.count("aria-invalid") == 1
    assert not Placement.objects.exists()
    root.post("/admin/clouds/place", lines | {"cloud": ["training", "training"]})
    assert Placement.objects.filter(cloud__name="training").count() == 2
    # What the form leaves as it was is not touched, whatever somebody else has made of it meanwhile.
    Placement.objects.filter(org_node=ops).delete()
    same = {"line": [ops.path, flight.path], "was": ["training", "training"], "cloud": ["training", ""]}
    assert flight.path in root.post("/admin/clouds/place", same, follow=True).content.decode()
    assert not Placement.objects.exists()


def test_a_line_on_a_cloud_that_takes_no_new_runs_keeps_it(training, root):
    from clusters.clouds.models import Cloud

    root.post("/admin/clouds/place", {"line": "qunarcorp.ops", "cloud": "training"})
    Cloud.objects.filter(name="training").update(enabled=False)
    assert 'value="training" selected' in root.get("/admin/clouds").content.decode()


def test_gpus_of_nodes_are_squares_and_the_pool_stands_beside_the_quotas(training, root):
    from clusters.clouds.models import CloudState

    node = {"gpu_model": "A100", "cpu_milli": 64000, "memory_mb": 64000}
    nodes = [
        node | {"name": "n1", "gpus": 8, "gpus_free": 5, "note": "It has no internet."},
        node | {"name": "n2", "gpus": 4, "gpus_free": 0, "takes_tasks": False, "note": "It takes no new tasks."},
    ]
    CloudState.objects.update_or_create(name="training", defaults={"capacity": {"nodes": nodes}})
    CloudState.objects.filter(name="training").update(notes=["It has no internet."])
    page = root.get("/admin/clouds").content.decode()
    assert "n1: 8 GPUs (A100), 3 held by runs, 5 free." in page
    assert "n2: 4 GPUs (A100), all on nodes that take no tasks. It takes no new tasks." in page
    assert page.count("It has no internet.") == 1, "what holds for the whole cloud is not repeated at its nodes"
    assert "The quotas of all appcodes together are" in page
    assert 'href="/queue/shares"' in page


def test_each_cloud_says_first_how_it_is_and_what_is_wrong(training, root):
    """The worst first; what needs somebody stands before the others."""
    from clusters.clouds.models import Cloud, CloudState

    now = dt.datetime.now(dt.UTC)

    def said(state, **row):
        Cloud.objects.filter(name="training").update(**row)
        node = {"name": "n1", "gpu_model": "", "gpus": 4, "gpus_free": 4, "cpu_milli": 1, "memory_mb": 1}
        capacity = {"nodes": [node | state.pop("node", {})]}
        facts = {"heard_at": now, "trouble": "", "capacity": capacity} | state
        CloudState.objects.update_or_create(name="training", defaults=facts)
        page = root.get("/admin/clouds").content.decode()
        card = page.split('id="cloud-training"')[1].split("</article>")[0]
        return (
            re.search(r"</svg>([^<]+)</span>", card)[1],
            card,
            page.index("cloud-training") < page.index("cloud-local"),
        )

    assert said({"heard_at": None})[0] == "Not heard yet"
    state, card, first = said({})
    assert (state, first, "notice" in card) == ("Ready", False, False)
    assert said({"node": {"gpus_free": 0}})[0] == "Full"
    state, card, _ = said({"node": {"takes_tasks": False}})
    assert "<dd>0 <small>of 4</small>" in card, "GPUs of a closed node are not free"
    assert "1 closed" in card
    assert said({}, enabled=False)[0] == "Takes no new runs"
    state, card, _ = said({"node": {"silent_since": "?", "takes_tasks": False}})
    assert state == "1 silent node"
    state, card, first = said({}, tested_at=now, test={"ok": False, "message": "It may not make pods."})
    assert (state, first) == ("Test failed", True)
    assert "It may not make pods." in card.split('class="figures"')[0]
    state, card, first = said({"heard_at": now - dt.timedelta(minutes=22), "trouble": "Refused."})
    assert (state, first) == ("Does not answer", True)
    assert "has not answered for 22 minutes" in card.split('class="figures"')[0]
    assert "takes no new runs" in card
    assert said({}, given_up_at=now)[0] == "Given up"
    assert "1 in trouble" not in root.get("/admin/clouds").content.decode()


def test_with_one_cloud_there_is_nothing_to_place(page_catalogue, root):
    page = root.get("/admin/clouds").content.decode()
    assert 'class="placements"' not in page
    assert "all on this machine. With a second cloud, each can be placed on its own." in page


def test_a_setting_that_is_on_or_off_is_ticked_and_unticked(training, root):
    from clusters.clouds import registry
    from clusters.clouds.models import Cloud
    from tests.clusters.forms import sent

    assert (registry.places_runs("training"), registry.adds_nodes("training")) == (True, False)
    edit = "/admin/clouds/training/edit"
    fill(root, edit, {"setting_nodes_on_demand": "on"})
    assert Cloud.objects.get(kind="kubernetes").settings == {"nodes_on_demand": True}
    assert (registry.places_runs("training"), registry.adds_nodes("training")) == (False, True)
    assert root.get("/api/v1/kubernetes/training").json()["spec"]["settings"]["nodes_on_demand"] is True
    page = root.get(edit).content.decode()
    assert '<details class="fold panel" open>' in page
    assert sent(page, "cloud-form")["setting_nodes_on_demand"] == ["on"]
    fill(root, edit, {"setting_nodes_on_demand": []})
    assert Cloud.objects.get(kind="kubernetes").settings == {}
    assert '<details class="fold panel">' in root.get(edit).content.decode()


def test_settings_of_another_version_can_be_saved_again(training, root):
    from clusters.clouds import registry
    from clusters.clouds.drivers.base import CloudError
    from clusters.clouds.models import Cloud

    Cloud.objects.filter(kind="kubernetes").update(settings={"of_yesterday": 1, "store_seconds": 7})
    with pytest.raises(CloudError, match="can save them again"):
        registry.cloud("training")
    assert root.get("/api/v1/kubernetes/training").json()["spec"]["settings"]["store_seconds"] == 7
    fill(root, "/admin/clouds/training/edit", {"title": "Training"})
    assert Cloud.objects.get(kind="kubernetes").settings == {"store_seconds": 7}


def test_without_any_cloud_the_page_says_what_to_do(page_catalogue, root, settings):
    settings.LOCAL_CLOUD_SOCKET = ""
    assert "Nothing can run yet" in root.get("/admin/clouds").content.decode()


class TestWhere:
    """Lists, pages, the form and REST show where a run is, and the age of stale data."""

    @pytest.fixture
    def there(self, training, people, make_cluster):
        from clusters.catalog.models import Image
        from clusters.cloud_admin import actions
        from portal.models import OrgNode

        Image.objects.update(container="example/tensorflow:2")
        actions.place(OrgNode.objects.get(path="qunarcorp.ops"), "training", acting_user=people.root)
        return make_cluster("demo", phase="Running")

    def silent(self, seconds, trouble):
        from clusters.clouds.models import CloudState

        heard = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=seconds)
        CloudState.objects.update_or_create(name="training", defaults={"heard_at": heard, "trouble": trouble})

    def test_a_run_elsewhere_says_so(self, there, people, as_person):
        client = as_person(people.victor)
        for address in ("/", "/clusters/rows", "/clusters/ops-demo/demo", "/clusters/ops-demo/demo/head"):
            assert "training/ops" in client.get(address).content.decode(), address
        status = client.get("/api/v1/appcodes/ops-demo/clusters/demo").json()["status"]
        assert (status["cloud"], status["namespace"], status["notice"]) == ("training", "ops", "")

    def test_the_form_says_where_it_would_run(self, there, people, as_person, document):
        client = as_person(people.bob)
        values = {"appcode": "ops-demo", "image": "tensorflow", "command": "true", "master_flavor": "small"}
        values |= {"ps_count": "0", "worker_count": "0", "evaluator_count": "0", "retries": "1", "name": "x"}
        answer = client.post("/clusters/preview", values).content.decode()
        assert "Training" in answer
        assert "namespace <code>ops</code>" in answer

    def test_images_are_offered_for_the_place_of_the_appcode(self, there, people, as_person):
        from clusters.catalog.models import Image

        Image.objects.create(name="here", title="Here", environment="/usr")
        page = as_person(people.bob).get("/clusters/new").content.decode()
        assert "Here (not on Training)" in page
        assert "Container only (not" not in page

    @pytest.mark.parametrize(
        ("seconds", "trouble", "sentence"),
        [
            (5, "", ""),
            (12, "It does not answer.", "Training has not answered for 12 s; what you see is from then."),
            (200, "", "The controller has told nothing of Training for 3 minutes; what you see is from then."),
        ],
    )
    def test_silence_is_told_with_its_age(self, there, people, as_person, seconds, trouble, sentence):
        client = as_person(people.victor)
        for address in ("/", "/clusters/rows", "/clusters/ops-demo/demo", "/clusters/ops-demo/demo/head"):
            self.silent(seconds, trouble)
            text = client.get(address).content.decode()
            assert ("what you see is from then" in text) == bool(sentence), address
            assert sentence.partition(" for ")[0] in text
        for address in ("/api/v1/appcodes/ops-demo/clusters/demo", "/api/v1/clusters"):
            self.silent(seconds, trouble)
            answer = client.get(address).json()
            notice = answer.get("items", [answer])[0]["status"]["notice"]
            # The test itself may have taken some seconds.
            assert re.sub(r"\b(1[2-9]|[2-5]\d) s;", "12 s;", notice) == sentence

    def test_what_is_over_is_not_old(self, there, people, as_person):
        from clusters.runs.models import Run

        self.silent(60, "away")
        Run.objects.update(phase="Succeeded", verdict="Succeeded", gone=True)
        client = as_person(people.victor)
        assert "what you see is from then" not in client.get("/clusters/ops-demo/demo/head").content.decode()
        assert client.get("/api/v1/appcodes/ops-demo/clusters/demo").json()["status"]["notice"] == ""

    def test_the_nodes_page_shows_the_age_of_every_cloud(self, there, root):
        self.silent(30, "The API server does not answer: refused")
        text = root.get("/admin/flavors").content.decode()
        assert "Nodes of Training" in text
        assert "The API server does not answer: refused" in text
