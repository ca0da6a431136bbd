"""Saved environments as rows: version numbers never repeat, used versions stay, and a cluster gets the one it names."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied

from clusters.applications.actions import create_application
from clusters.applications.manifest import ApplicationManifest
from clusters.catalog.models import Image
from clusters.cluster.actions import create_cluster, deploy, disable
from clusters.environments import actions
from clusters.environments.access import environment_for
from clusters.environments.actions import delete_environment
from clusters.environments.context import build_context
from clusters.environments.models import Environment
from clusters.runs.models import Run
from clusters.runs.reconcile import plan_of
from datastores.actions import create_datastore
from datastores.specs import DatastoreManifest
from portal.errors import Conflict, Invalid
from portal.manifests import parse
from portal.models import Event


@pytest.fixture
def make_cluster(catalogue: None, manifest: Any, people: Any) -> Any:
    """make_cluster("trains", environment="torch") → that cluster in ops-demo, with a waiting run."""

    def make(name: str, by: Any = None, **spec: Any) -> Any:
        return create_cluster(manifest(name, **spec), acting_user=by or people.alice)

    return make


@pytest.fixture
def saved(catalogue: None, people: Any) -> Any:
    """saved("torch") → a saved version of that environment, built on the tests' image."""

    def saved(name: str = "torch", digest: str = "", **values: Any) -> Environment:
        row = Environment(
            appcode=people.ops,
            name=name,
            image="python",
            python="3.11.7",
            platform="Linux-x86_64",
            lock="a==1 --hash=sha256:0\n",
            digest=digest,
            application="lab",
            created_by=people.alice,
            **values,
        )
        return actions._keep(row, people.alice)[0]

    return saved


def test_the_same_once_more_is_the_same_version_and_a_number_never_comes_again(saved: Any, people: Any) -> None:
    one = saved(digest="1")
    assert saved(digest="1") == one
    two = saved(digest="2")
    assert [str(one), str(two), str(saved("other", digest="2"))] == ["torch:1", "torch:2", "other:1"]
    delete_environment(two, acting_user=people.alice, every_version=True)
    assert str(saved(digest="2")) == "torch:3"
    gone = Environment.objects.get(pk=two.pk)
    assert (gone.lock, gone.script, gone.packages) == ("", "", [])
    verbs = list(Event.objects.filter(verb__startswith="environment.").order_by("id").values_list("verb", "object"))
    assert verbs.count(("environment.deleted", "environment ops-demo/torch:2")) == 1
    assert len([verb for verb, _ in verbs if verb == "environment.saved"]) == 4


def test_an_appcode_has_only_so_many(saved: Any, settings: Any) -> None:
    settings.ENVIRONMENTS_PER_APPCODE = 1
    saved(digest="1")
    with pytest.raises(Invalid, match="no appcode may have more"):
        saved(digest="2")


def test_a_run_keeps_the_version_that_was_the_newest_when_it_was_made(
    saved: Any, make_cluster: Any, people: Any, node_agent: Any
) -> None:
    saved(digest="1")
    cluster = make_cluster("trains", environment="torch")
    saved(digest="2")
    run = cluster.current_run
    assert (cluster.spec["environment"], run.spec["environment"]) == ("torch", "torch:1")
    planned = plan_of(run).environment
    assert planned is not None
    assert (planned.name, planned.digest) == ("torch:1", "1")
    disable(cluster, acting_user=people.alice)
    Run.objects.filter(pk=run.pk).update(phase="Stopped", gone=True)
    cluster.refresh_from_db()
    assert deploy(cluster, acting_user=people.alice).spec["environment"] == "torch:2"


def test_what_is_used_is_not_deleted(saved: Any, make_cluster: Any, people: Any) -> None:
    one, two = saved(digest="1"), saved(digest="2")
    make_cluster("trains", environment="torch")  # its run uses torch:2
    with pytest.raises(Conflict, match="torch:2 is used by trains"):
        delete_environment(two, acting_user=people.alice, every_version=False)
    delete_environment(one, acting_user=people.alice, every_version=False)
    with pytest.raises(Conflict, match="trains"):
        delete_environment(two, acting_user=people.alice, every_version=True)
    with pytest.raises(PermissionDenied):
        delete_environment(two, acting_user=people.victor, every_version=True)


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ("absent", "has no environment"),
        ("torch:2", "has no environment"),
        ("elsewhere", "was saved over the image other"),
    ],
)
def test_what_cannot_be_started_from_is_refused_at_its_field(
    saved: Any, make_cluster: Any, named: str, sentence: str
) -> None:
    saved(digest="1")
    row = saved("elsewhere", digest="1")
    Image.objects.create(name="other", title="Other", environment="/usr")
    Environment.objects.filter(pk=row.pk).update(image="other")
    with pytest.raises(Invalid, match=sentence) as refused:
        make_cluster("trains", environment=named)
    assert [error.path for error in refused.value.errors] == [("spec", "environment")]


def test_nobody_starts_from_the_environment_of_another_appcode(saved: Any, make_cluster: Any, people: Any) -> None:
    saved(digest="1")
    with pytest.raises(Invalid, match="has no environment"):
        make_cluster("trains", environment="torch", appcode="flight-demo", by=people.mallory)


def test_a_cloud_that_makes_none_says_so(saved: Any, make_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
    from clusters.clouds.drivers.local.client import LocalCloud

    saved(digest="1")
    monkeypatch.setattr(LocalCloud, "why_no_environments", KubernetesCloud.why_no_environments)
    with pytest.raises(Invalid, match="cannot be used on this machine: An administrator has to name a package index"):
        make_cluster("trains", environment="torch")


def test_the_newest_is_read_where_no_version_is_said(saved: Any, people: Any) -> None:
    saved(digest="1")
    saved(digest="2")
    assert environment_for(people.victor, "ops-demo", "torch").version == 2
    assert environment_for(people.victor, "ops-demo", "torch", 1).version == 1


def test_nothing_is_saved_where_nothing_runs(people: Any, make_cluster: Any) -> None:
    volume = {"metadata": {"name": "home", "appcode": "ops-demo"}, "spec": {"volume": {"size": "1Gi"}}}
    create_datastore(parse(DatastoreManifest, volume), acting_user=people.alice)
    lab = {"type": "jupyter", "image": "python", "flavor": "small", "storage": {"datastore": "home"}}
    asked = parse(ApplicationManifest, {"metadata": {"name": "lab", "appcode": "ops-demo"}, "spec": lab})
    with pytest.raises(Conflict, match="does not run"):
        actions.what_is_new(create_application(asked, acting_user=people.alice), acting_user=people.alice)
    with pytest.raises(Conflict, match="not kept"):
        actions.what_is_new(make_cluster("trains"), acting_user=people.alice)


def test_an_image_is_built_from_the_lock_the_script_and_the_container(saved: Any) -> None:
    row = saved(digest="1", script="mkdir models")
    with pytest.raises(Conflict, match="has no container"):
        Image.objects.filter(name="python").update(container="")
        build_context(row)
    Image.objects.filter(name="python").update(container="example.com/python:3")
    packed = build_context(row)
    assert packed == build_context(row)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        files = {each.name: tar.extractfile(each).read().decode() for each in tar}  # type: ignore[union-attr]
    assert (files["requirements.txt"], files["script.sh"]) == (row.lock, row.script)
    assert files["Dockerfile"].startswith("FROM example.com/python:3\n")
