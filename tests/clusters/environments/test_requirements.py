"""A cluster's requirements: checked on submission against an index with password; equal ones share an environment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from clusters.catalog.locks import REQUIREMENTS
from clusters.catalog.models import Image
from clusters.cluster.actions import change_cluster, create_cluster
from clusters.frameworks.inside.install import REQUIREMENTS as MARK
from clusters.manifest.cluster import ClusterManifest
from clusters.runs.models import Cluster
from clusters.runs.reconcile import plan_of
from datastores.models import Datastore
from portal.errors import Invalid
from portal.manifests import parse
from tests.index import PASSWORD, Index


@pytest.fixture
def index(settings: Any) -> Iterator[Index]:
    with closing(Index()) as index:
        settings.PACKAGE_INDEX = index.url
        index.add("greeting", "1.0")
        yield index


def manifest(*requirements: str, name: str = "train", **spec: Any) -> ClusterManifest:
    said = {"image": "python", "command": "true", "roles": {"master": {"flavor": "small"}}, **spec}
    document = {"metadata": {"name": name, "appcode": "ops-demo"}, "spec": said | {"requirements": requirements}}
    return parse(ClusterManifest, document)


@pytest.mark.parametrize(
    ("requirement", "sentence"),
    [
        ("absent-thing", "absent-thing was not found in the package registry"),
        ("greeting==9", "no version of greeting==9"),
        ("greeting>=2", "only greeting==1.0 is available"),
    ],
)
def test_what_no_index_has_is_refused_at_its_field(
    catalogue: None, people: Any, index: Index, requirement: str, sentence: str
) -> None:
    """Recognized by the messages of the real uv: if an upgrade rephrased them, everything would be accepted."""
    with pytest.raises(Invalid, match=sentence) as refused:
        create_cluster(manifest(requirement), acting_user=people.alice)
    assert [error.path for error in refused.value.errors] == [("spec", "requirements")]
    assert PASSWORD not in str(refused.value)
    assert not Cluster.objects.exists()
    cluster = create_cluster(manifest("greeting"), acting_user=people.alice)
    with pytest.raises(Invalid, match=sentence):
        change_cluster(cluster, manifest(requirement), acting_user=people.alice)


def test_the_index_is_asked_for_nobody_who_may_not_run_and_once_for_the_same(
    catalogue: None, people: Any, index: Index, node_agent: Any
) -> None:
    with pytest.raises(Invalid, match="no appcode"):
        create_cluster(manifest("greeting"), acting_user=people.mallory)
    assert index.asked == []
    for name in ("one", "two"):
        create_cluster(manifest("greeting", name=name), acting_user=people.alice)
    assert index.asked.count("/simple/greeting/") == 1


def test_an_index_that_is_away_refuses_nothing(catalogue: None, people: Any, index: Index) -> None:
    """The tasks may reach another index that has the packages."""
    index.close()
    assert create_cluster(manifest("greeting", "unheard-of"), acting_user=people.alice)


def test_the_same_over_the_same_image_is_one_environment(
    catalogue: None, people: Any, index: Index, node_agent: Any
) -> None:
    index.add("leaf", "1.5")
    Image.objects.create(name="other", title="Other", environment=Image.objects.get(name="python").environment)

    def planned(name: str, *requirements: str, **spec: Any) -> Any:
        run = create_cluster(manifest(*requirements, name=name, **spec), acting_user=people.alice).current_run
        assert run is not None
        return plan_of(run).environment

    one = planned("one", "leaf", "greeting  # says hello")
    assert one.lock == f"{REQUIREMENTS}greeting\nleaf\n"
    assert REQUIREMENTS == MARK
    code = {"files": {"requirements.txt": "greeting\n"}}
    assert planned("two", "-r requirements.txt", "leaf", code=code) == one
    assert planned("three", "leaf").digest != one.digest
    assert planned("four", "leaf", "greeting", image="other").digest != one.digest


def test_the_form_and_rest_have_it_at_its_field(client: Any, catalogue: None, people: Any, index: Index) -> None:
    client.force_login(people.alice)
    fields = {"appcode": "ops-demo", "name": "train", "image": "python", "command": "true", "master_flavor": "small"}
    page = client.post("/clusters/new", fields | {"requirements": "greeting\nabsent-thing"})
    assert "absent-thing was not found" in page.context["form"].errors["requirements"][0]
    # The summary repeats the refusal, without another query, and promises no start until it is mended.
    asked = len(index.asked)
    summary = client.post("/clusters/preview", fields | {"requirements": "greeting\nabsent-thing"}).content.decode()
    assert "absent-thing was not found" in summary
    assert "Starts now" not in summary
    assert "Starts now" in client.post("/clusters/preview", fields | {"requirements": "greeting"}).content.decode()
    assert len(index.asked) == asked
    body = json.loads(manifest("absent-thing").model_dump_json(by_alias=True))
    answer = client.post("/api/v1/appcodes/ops-demo/clusters", body, content_type="application/json")
    assert answer.status_code == 422
    assert [each["path"] for each in answer.json()["errors"]] == ["spec.requirements"]
    client.post("/clusters/new", fields | {"requirements": "greeting\r\n\r\n# ours\r\n"})
    assert Cluster.objects.get().spec["requirements"] == ["greeting", "# ours"]
    assert "greeting&#10;# ours</pre>" in client.get("/clusters/ops-demo/train").content.decode()


def test_a_web_program_and_a_sweep_have_it_at_their_fields(
    client: Any, catalogue: None, people: Any, index: Index, node_agent: Any
) -> None:
    client.force_login(people.alice)
    spec = {"image": "python", "command": "true", "requirements": ["absent-thing"]}
    web = {"type": "web", "flavor": "small", "endpoints": [{"name": "web", "port": 8080}], "storage": {"size": "1Gi"}}
    sweep = {
        "template": {**spec, "command": "true $lr", "roles": {"master": {"flavor": "small"}}},
        "parameters": {"lr": {"type": "float", "low": 0.1, "high": 1}},
        "trials": 2,
    }
    asked = {
        "applications": ({**spec, **web}, "spec.requirements"),
        "sweeps": (sweep, "spec.template.requirements"),
    }
    for kind, (document, field) in asked.items():
        body = {"kind": kind[:-1], "metadata": {"name": "board"}, "spec": document}
        answer = client.post(f"/api/v1/appcodes/ops-demo/{kind}", body, content_type="application/json")
        assert (answer.status_code, [each["path"] for each in answer.json()["errors"]]) == (422, [field]), answer.json()
    fields = {
        "appcode": "ops-demo",
        "type": "web",
        "name": "board",
        "image": "python",
        "command": "true",
        "flavor": "small",
    }
    for required, starts in (("absent-thing", False), ("greeting", True)):
        page = client.get(
            "/applications/new", fields | {"endpoints": "web=8080", "requirements": required, "step": "3"}
        )
        assert ("Starts now" in page.content.decode()) == starts
    # The refused application leaves no volume behind.
    assert not Datastore.objects.filter(name="board-home").exists()
    body = {"kind": "application", "metadata": {"name": "board"}, "spec": {**spec, **web, "requirements": ["greeting"]}}
    assert (
        client.post("/api/v1/appcodes/ops-demo/applications", body, content_type="application/json").status_code == 201
    )
    cluster = Cluster.objects.select_related("current_run__cluster__appcode").get()
    environment = plan_of(cluster.current_run).environment
    assert environment is not None
    assert environment.lock == MARK + "greeting\n"
    body["spec"]["requirements"] = ["absent-thing"]
    answer = client.put("/api/v1/appcodes/ops-demo/applications/board", body, content_type="application/json")
    assert (answer.status_code, [each["path"] for each in answer.json()["errors"]]) == (422, ["spec.requirements"])
