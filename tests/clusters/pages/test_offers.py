"""Administrators' pages of flavors and images."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "address", ["/admin/flavors", "/admin/flavors/new", "/admin/flavors/small", "/admin/images", "/admin/images/new"]
)
def test_only_administrators_know_these_pages(address, catalogue, people, as_person):
    assert as_person(people.root).get(address).status_code == 200
    for user in (people.alice, people.mallory):
        assert as_person(user).get(address).status_code == 404
        assert as_person(user).post(address, {}).status_code in (404, 405)


def test_a_new_flavor_is_offered_at_once(catalogue, people, as_person):
    from clusters.models import Flavor
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
     ({"title": "a\0"}, "title")],
)  # fmt: skip
def test_bad_input_stands_beside_its_field(changes, sentence, catalogue, people, as_person):
    from clusters.models import Flavor
    from tests.clusters.pages.browser import wrong_fields

    values = {"title": "Huge", "name": "huge", "cores": "16", "memory_gib": "64", "gpus": "8"}
    answer = as_person(people.root).post("/admin/flavors/new", values | changes)
    assert answer.status_code == 200
    assert list(wrong_fields(answer.content.decode())) == [sentence]
    assert Flavor.objects.count() == 2


def test_a_serving_runtime_is_enabled_and_the_portal_s_own_stays_what_it_is(catalogue, people, as_person):
    from clusters.models import ServingRuntime
    from tests.clusters.pages.browser import wrong_fields

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
    # Whatever is sent, how the portal's own is started is no matter of the catalogue.
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


def test_images_are_made_and_changed(catalogue, people, as_person):
    from clusters.models import Image

    client = as_person(people.root)
    values = {"title": "Torch", "name": "torch", "container": "x/torch:2", "enabled": "on"}
    assert client.post("/admin/images/new", values).status_code == 302
    assert (
        client.post("/admin/images/torch", values | {"name": "other", "environment": "/opt/torch"}).status_code == 302
    )
    assert Image.objects.get(name="torch").environment == "/opt/torch"
    assert client.get("/admin/images/no-such").status_code == 404
