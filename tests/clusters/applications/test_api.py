"""Applications over REST: requests, the clusters they create, and access by token."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.api.client import Api, api_of, manifest

APPLICATIONS = "/appcodes/ops-demo/applications"


def application(name: str = "notes", **spec: Any) -> dict[str, Any]:
    spec = {"type": "jupyter", "image": "lab", "flavor": "small", "storage": {"size": "2Gi"}, **spec}
    return {"kind": "application", "metadata": {"name": name, "appcode": "ops-demo"}, "spec": spec}


def web(name: str = "panel", **spec: Any) -> dict[str, Any]:
    served = [{"name": "web", "port": 8080}]
    return application(name, **{"type": "web", "command": "serve", "storage": None, "endpoints": served, **spec})


@pytest.fixture
def offers(db: None) -> None:
    from clusters.catalog.models import Flavor, Image

    Flavor.objects.create(name="small", title="Small", cpu_milli=500, memory_mb=512)
    Flavor.objects.create(name="middle-1-gpu", title="Middle + 1 GPU", cpu_milli=1000, memory_mb=2048, gpus=1)
    Flavor.objects.create(name="middle", title="Middle", cpu_milli=1000, memory_mb=2048)
    for name in ("lab", "tensorflow"):
        Image.objects.create(name=name, title=name.title(), environment="/usr", container="example.com/lab:1")


@pytest.fixture
def as_bob(bob: Any, offers: None) -> Api:
    return api_of(bob)


def errors(answer: dict[str, Any]) -> dict[str, str]:
    return {each["path"]: each["message"] for each in answer["errors"]}


def test_a_notebook_with_a_volume_of_its_own(as_bob: Api) -> None:
    from clusters.runs.models import Cluster
    from datastores.models import Datastore

    status, made = as_bob.post(APPLICATIONS, application())
    assert status == 201, made
    assert made["spec"]["storage"] == {"datastore": "notes-home"}
    assert made["status"]["phase"] == "Queued"
    [endpoint] = made["status"]["endpoints"]
    assert (endpoint["name"], endpoint["ready"]) == ("notebook", False)
    assert "//notebook-notes-ops-demo.apps." in endpoint["url"]
    assert as_bob.last.headers["Location"] == f"http://testserver/api/v1{APPLICATIONS}/notes"
    assert Datastore.objects.get(name="notes-home").spec["size"] == "2Gi"
    assert Cluster.objects.get(name="notes").spec["home"] == "notes-home"
    assert as_bob.get(f"{APPLICATIONS}/notes") == (200, made)
    # An application is a cluster like any other, but no other cluster is an application.
    assert as_bob.get("/appcodes/ops-demo/clusters/notes")[1]["spec"]["framework"] == "jupyter"
    assert as_bob.post("/appcodes/ops-demo/clusters", manifest("trains"))[0] == 201
    assert as_bob.get(f"{APPLICATIONS}/trains")[0] == 404
    assert [each["metadata"]["name"] for each in as_bob.get("/applications")[1]["items"]] == ["notes"]
    # Deleting the application keeps its volume.
    assert as_bob.delete(f"{APPLICATIONS}/notes")[0] == 202
    assert Datastore.objects.filter(name="notes-home").exists()


def test_a_new_notebook_without_storage_gets_a_volume_as_in_the_form(as_bob: Api) -> None:
    from datastores.models import Datastore

    smallest = {"kind": "application", "metadata": {"name": "n"}, "spec": application()["spec"]}
    del smallest["spec"]["storage"]
    assert as_bob.post(APPLICATIONS, smallest)[0] == 201
    assert Datastore.objects.get(name="n-home").spec["size"] == "10Gi"
    # A manifest that leaves storage out does not move the files of an existing application.
    status, answer = as_bob.put(f"{APPLICATIONS}/n", smallest)
    assert (status, set(errors(answer))) == (422, {"spec.storage"})


def test_what_is_refused_makes_nothing(as_bob: Api) -> None:
    from datastores.models import Datastore

    status, answer = as_bob.post(APPLICATIONS, application(image="absent", flavor="huge"))
    assert status == 422
    assert set(errors(answer)) == {"spec.image", "spec.flavor"}
    assert not Datastore.objects.exists()
    assert as_bob.post(APPLICATIONS, application())[0] == 201
    status, answer = as_bob.post(APPLICATIONS, application())
    assert (status, errors(answer)) == (
        422,
        {"spec.storage": "There is a datastore “notes-home” already; choose it, or another name for the application."},
    )
    status, answer = as_bob.post(APPLICATIONS, application(storage={"datastore": "notes-home"}))
    assert (status, list(errors(answer))) == (422, ["metadata.name"])
    for storage, path in (
        ({"datastore": "absent"}, "spec.storage"),
        ("20Gi", "spec.storage"),
        ({"size": "a lot"}, "spec.storage.size"),
        ({"size": "90Ti"}, "spec.storage.size"),
    ):
        status, answer = as_bob.post(APPLICATIONS, application("more", storage=storage))
        assert (status, list(errors(answer))) == (422, [path]), answer
        if storage == "20Gi":
            assert errors(answer)[path] == 'Give an object, {"datastore": …, "size": …}.'


def test_a_change_keeps_what_only_the_cluster_says_and_lets_its_volume_grow(as_bob: Api) -> None:
    from clusters.runs.models import Cluster
    from datastores.models import Datastore

    made = as_bob.post(APPLICATIONS, application())[1]
    Cluster.objects.update(spec={**Cluster.objects.get().spec, "retries": 7})
    assert as_bob.put(f"{APPLICATIONS}/notes", made)[1]["spec"] == made["spec"]
    status, changed = as_bob.put(f"{APPLICATIONS}/notes", application(flavor="middle-1-gpu", storage={"size": "3Gi"}))
    assert (status, changed["spec"]["flavor"], changed["spec"]["storage"]) == (
        200,
        "middle-1-gpu",
        {"datastore": "notes-home"},
    )
    assert Datastore.objects.get().spec["size"] == "3Gi"
    assert Cluster.objects.get().spec["retries"] == 7
    # An update may change the type, which is the framework of the cluster.
    assert as_bob.put(f"{APPLICATIONS}/notes", web("notes"))[1]["spec"]["type"] == "web"


def test_nothing_is_opened_where_nobody_can_come(as_bob: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from clusters.clouds.drivers.local.client import LocalCloud

    monkeypatch.setattr(LocalCloud, "gateway", lambda stored: None)
    status, answer = as_bob.post(APPLICATIONS, web())
    assert (status, list(errors(answer))) == (422, ["spec.type"])
    assert as_bob.post("/appcodes/ops-demo/clusters", manifest("trains"))[0] == 201


def test_actions_and_what_answers(as_bob: Api) -> None:
    from clusters.runs.models import Run

    as_bob.post(APPLICATIONS, web())
    now = dt.datetime.now(dt.UTC).isoformat()
    Run.objects.update(phase="Running", endpoints={"web": {"address": "127.0.0.1:1", "since": now, "routed": True}})
    assert as_bob.get(f"{APPLICATIONS}/panel")[1]["status"]["endpoints"][0]["ready"]
    assert as_bob.post(f"{APPLICATIONS}/panel/deploy")[0] == 409
    assert as_bob.post(f"{APPLICATIONS}/panel/cancel")[0] == 409
    status, answer = as_bob.post(f"{APPLICATIONS}/panel/disable")
    assert (status, answer["kind"]) == (202, "application")
    Run.objects.update(phase="Stopped", gone=True)
    assert as_bob.get(f"{APPLICATIONS}/panel")[1]["status"]["endpoints"][0]["ready"] is False
    assert as_bob.post(f"{APPLICATIONS}/panel/deploy")[1]["status"]["run"] == 2


def test_the_token_of_programs(as_bob: Api, victor: Any) -> None:
    as_bob.post(APPLICATIONS, web())
    assert as_bob.get(f"{APPLICATIONS}/panel/access") == (200, {"kind": "access", "token": None})
    first = as_bob.post(f"{APPLICATIONS}/panel/access/refresh")[1]["token"]
    second = as_bob.post(f"{APPLICATIONS}/panel/access/refresh")[1]["token"]
    assert first != second
    assert as_bob.get(f"{APPLICATIONS}/panel/access")[1]["token"] == second
    assert as_bob.last.headers["Cache-Control"] == "no-store"
    assert api_of(victor).get(f"{APPLICATIONS}/panel/access")[0] == 403
    assert as_bob.post(f"{APPLICATIONS}/panel/access/stop")[1]["token"] is None
    assert as_bob.get(f"{APPLICATIONS}/panel/access")[1]["token"] is None


def test_lists_are_pages_of_constant_cost(as_bob: Api) -> None:
    for n in range(5):
        assert as_bob.post(APPLICATIONS, web(f"panel-{n}"))[0] == 201
    as_bob.get("/applications?limit=1")

    def cost(address: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert as_bob.get(address)[0] == 200
        return len(queries)

    assert cost("/applications?limit=1") == cost("/applications?limit=5") <= 2
    assert cost("/clusters?limit=1") == cost("/clusters?limit=5")
    first = as_bob.get(f"{APPLICATIONS}?limit=3")[1]
    rest = as_bob.get(first["next"].partition("/api/v1")[2])[1]
    assert [each["metadata"]["name"] for each in first["items"] + rest["items"]] == [
        f"panel-{n}" for n in (4, 3, 2, 1, 0)
    ]
    assert as_bob.get("/applications?search=panel-2 bob&phase=queued")[1]["items"][0]["metadata"]["name"] == "panel-2"
    assert as_bob.get("/applications?phase=running")[1]["items"] == []
    assert as_bob.get("/applications?phase=lost")[0] == 422
