"""Administrators' pages of flavors and images."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "address", ["/admin/flavors", "/admin/flavors/new", "/admin/flavors/small", "/admin/images", "/admin/images/new"]
)
def test_only_administrators_know_these_pages(address, page_catalogue, people, as_person):
    assert as_person(people.root).get(address).status_code == 200
    for user in (people.alice, people.mallory):
        assert as_person(user).get(address).status_code == 404
        assert as_person(user).post(address, {}).status_code in (404, 405)


def test_a_new_flavor_is_offered_at_once(page_catalogue, people, as_person):
    from clusters.catalog.models import Flavor
    from portal.models import Event

    values = {
        "title": "Huge",
        "name": "huge",
        "cores": "16",
        "memory_gib": "64.5",
        "gpus": "8",
        "gpu_model": "A100",
        "enabled": "on",
    }
    assert as_person(people.root).post("/admin/flavors/new", values).status_code == 302
    flavor = Flavor.objects.get(name="huge")
    assert (flavor.cpu_milli, flavor.memory_mb, flavor.gpus, flavor.gpu_model) == (16000, 66048, 8, "A100")
    assert "Huge · 16 cores, 64.5 GiB" in as_person(people.alice).get("/clusters/new").content.decode()
    assert Event.objects.filter(verb="flavor.created", actor=people.root).exists()


def test_a_flavor_that_is_no_longer_offered_stays_for_those_who_use_it(make_cluster, people, as_person):
    make_cluster("demo", phase="Running")
    client = as_person(people.root)
    values = {"title": "Middle + 1 GPU", "cores": "1", "memory_gib": "2", "gpus": "1"}
    assert client.post("/admin/flavors/middle-1-gpu", values).status_code == 302
    page = as_person(people.alice).get("/clusters/new").content.decode()
    assert "Middle + 1 GPU ·" not in page
    assert '<small class="flavor">Middle + 1 GPU</small>' in as_person(people.alice).get("/").content.decode()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"name": "Not a slug"}, "name"), ({"name": "small"}, "name"), ({"title": "Small"}, "title"), ({"cores": "-1"}, "cores"),
     ({"gpus": "x"}, "gpus"), ({"memory_gib": "99999999999"}, "memory_gib"), ({"title": ""}, "title"),
     ({"title": "a\0"}, "title"), ({"resource": "gpu"}, "resource"), ({"node_labels": "pool"}, "node_labels"),
     ({"tolerations": "team=ml:Sometimes"}, "tolerations"), ({"extra": "rdma/hca=1e3"}, "extra")],
)  # fmt: skip
def test_bad_input_stands_beside_its_field(changes, sentence, page_catalogue, people, as_person):
    from clusters.catalog.models import Flavor
    from tests.clusters.forms import wrong_fields

    values = {"title": "Huge", "name": "huge", "cores": "16", "memory_gib": "64", "gpus": "8"}
    answer = as_person(people.root).post("/admin/flavors/new", values | changes)
    assert answer.status_code == 200
    assert list(wrong_fields(answer.content.decode())) == [sentence]
    assert Flavor.objects.count() == 2


def test_a_serving_runtime_is_enabled_and_the_portal_s_own_stays_what_it_is(page_catalogue, people, as_person):
    from clusters.catalog.models import ServingRuntime
    from tests.clusters.forms import wrong_fields

    client, name = as_person(people.root), "/admin/serving-runtimes"
    before = ServingRuntime.objects.values().get(name="triton")
    values = {key: value for key, value in before.items() if key not in ("id", "env")} | {"env": "A=1", "enabled": "on"}
    assert client.post(f"{name}/triton", values).status_code == 302
    after = ServingRuntime.objects.values().get(name="triton")
    assert {key for key in after if after[key] != before[key]} == {"env", "enabled"}
    assert [each["name"] for each in client.get("/api/v1/serving-runtimes").json()["items"]] == ["portal", "triton"]
    answer = client.post(f"{name}/triton", values | {"command": "run 'so", "env": "A"})
    assert list(wrong_fields(answer.content.decode())) == ["env"]
    answer = client.post(f"{name}/triton", values | {"command": "run 'so"})
    assert list(wrong_fields(answer.content.decode())) == ["command"]
    # A request can't change how the portal's own runtime starts.
    changes = {"title": "Ours", "command": "reboot", "image": "x", "drain_seconds": "9"}
    assert client.post(f"{name}/portal", changes).status_code == 302
    portal = ServingRuntime.objects.get(name="portal")
    assert (portal.title, portal.command, portal.image, portal.drain_seconds, portal.enabled) == (
        "Ours",
        "",
        "",
        9,
        False,
    )
    assert "saved-model" in portal.formats


def test_images_are_made_and_changed(page_catalogue, people, as_person):
    from clusters.catalog.models import Image

    client = as_person(people.root)
    values = {"title": "Torch", "name": "torch", "container": "x/torch:2", "enabled": "on"}
    assert client.post("/admin/images/new", values).status_code == 302
    assert (
        client.post("/admin/images/torch", values | {"name": "other", "environment": "/opt/torch"}).status_code == 302
    )
    assert Image.objects.get(name="torch").environment == "/opt/torch"
    assert client.get("/admin/images/no-such").status_code == 404


def test_rest_writes_what_the_pages_write(page_catalogue, people):
    """Errors name fields of the body. Only administrators see disabled flavors, and paths on this machine."""
    from clusters.catalog.actions import flavor_titles
    from tests.api.client import api_of

    root, alice = api_of(people.root), api_of(people.alice)
    huge = {"name": "huge", "title": "Huge", "cpuMilli": 16000, "memoryMb": 66048}
    assert "huge" not in flavor_titles()
    status, made = root.post("/flavors", huge)
    usual = {"gpus": 0, "gpuModel": "", "resource": "nvidia.com/gpu", "nodeLabels": {}, "tolerations": [], "extra": {}}
    assert (status, made) == (201, {**huge, **usual, "enabled": True})
    for changes, field in (
        ({}, "name"),
        ({"name": "No name"}, "name"),
        ({"name": "more"}, "title"),
        ({"gpus": 65}, "gpus"),
        ({"name": "more", "title": "More", "nodeLabels": {"pool": "no value!"}}, "nodeLabels"),
    ):
        status, answer = root.post("/flavors", huge | changes)
        assert (status, answer["errors"][0]["path"]) == (422, field)
    assert (
        root.post("/flavors", huge | {"name": "big", "title": "Big", "memoryMb": 2**40})[1]["errors"][0]["path"]
        == "memoryMb"
    )
    hidden = {key: value for key, value in huge.items() if key != "name"} | {"enabled": False}
    assert root.put("/flavors/huge", hidden)[1]["enabled"] is False
    assert alice.get("/flavors/huge")[0] == 404
    assert "huge" not in [each["name"] for each in alice.get("/flavors")[1]["items"]]
    assert "huge" in [each["name"] for each in root.get("/flavors")[1]["items"]]
    image = {"name": "own", "title": "Own", "environment": "/srv/venv", "frameworks": ["pytorch"]}
    assert root.post("/images", image | {"frameworks": ["cobol"]})[1]["errors"][0]["path"] == "frameworks.0"
    assert root.post("/images", image)[1]["environment"] == "/srv/venv"
    seen = alice.get("/images/own")[1]
    assert (seen["local"], seen["environment"], seen["program"]) == (True, None, None)


MIG = {
    "resource": "nvidia.com/mig-1g.10gb",
    "node_labels": {"gpu_pool": "a100"},
    "tolerations": [
        {"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Exists"},
    ],
    "extra": {"rdma/hca": "1"},
}


def test_what_a_flavor_demands_of_nodes_is_the_same_on_the_page_and_over_rest(page_catalogue, people, as_person):
    """The names of labels are not changed on the way; a page that is saved unchanged changes nothing."""
    from clusters.catalog.models import Flavor
    from tests.api.client import api_of

    values = {
        "title": "Slice", "name": "slice", "cores": "1", "memory_gib": "2", "gpus": "1", "gpu_model": "H100 1g.10gb",
        "resource": MIG["resource"], "node_labels": "gpu_pool=a100", "tolerations": "team=ml:NoSchedule\nspot",
        "extra": "rdma/hca=1", "enabled": "on",
    }  # fmt: skip
    page = as_person(people.root)
    assert page.post("/admin/flavors/new", values).status_code == 302
    read = api_of(people.alice).get("/flavors/slice")[1]
    assert {name: read[{"node_labels": "nodeLabels"}.get(name, name)] for name in MIG} == MIG
    shown = page.get("/admin/flavors/slice").context["form"].initial
    assert page.post("/admin/flavors/slice", shown).status_code == 302
    body = {name: value for name, value in read.items() if name != "name"}
    assert api_of(people.root).put("/flavors/slice", body)[1] == read | {"enabled": True}
    row = Flavor.objects.get(name="slice")
    assert {name: getattr(row, name) for name in MIG} == MIG


@pytest.mark.django_db
def test_the_organisation_is_written_over_rest(people):
    from portal.models import Event
    from tests.api.client import api_of

    root = api_of(people.root)
    line = {"title": "Research", "namespace": "research"}
    assert root.post("/org-nodes", {"path": "qunarcorp.research", **line}) == (
        201,
        {"path": "qunarcorp.research", **line},
    )
    wrong = [({"path": "qunarcorp.research"}, "path"), ({"path": "No Path"}, "path")]
    for body, field in (*wrong, ({"path": "a.b", **line}, "namespace")):
        status, answer = root.post("/org-nodes", body)
        assert (status, answer["errors"][0]["path"]) == (422, field)
    moved = root.put(f"/org-nodes/{people.ops.org_node.path}", {"namespace": "elsewhere"})
    assert moved[1]["errors"][0]["message"].startswith("Appcodes below live in")
    assert root.delete(f"/org-nodes/{people.ops.org_node.path}")[0] == 409
    assert root.delete("/org-nodes/qunarcorp.research")[0] == 204
    assert list(
        Event.objects.filter(object="org qunarcorp.research").values_list("verb", flat=True).order_by("pk")
    ) == [
        "org.created",
        "org.deleted",
    ]
