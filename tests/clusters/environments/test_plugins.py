"""Plugins, resolved by the real uv from an index with password, on top of the image's own packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from django.http import Http404

from clusters.applications.actions import create_application
from clusters.applications.manifest import ApplicationManifest
from clusters.catalog.locks import PLUGINS, versions
from clusters.catalog.models import Image
from clusters.environments.models import Plugin
from clusters.environments.plugin import PluginManifest
from clusters.environments.plugins import delete_plugin, plugin_for, save_plugin
from clusters.environments.resolve import installed_in
from clusters.frameworks.inside.install import PLUGINS as MARK
from clusters.runs.models import Run
from clusters.runs.reconcile import plan_of
from datastores.actions import create_datastore
from datastores.specs import DatastoreManifest
from portal.errors import Conflict, Invalid
from portal.manifests import parse
from tests.index import PASSWORD, Index


@pytest.fixture
def index(settings: Any) -> Iterator[Index]:
    with closing(Index()) as index:
        settings.PACKAGE_INDEX = index.url
        yield index


@pytest.fixture
def save(catalogue: None, people: Any, index: Index) -> Any:
    """save("tree", "labtree>=1") → that plugin for the tests' image."""

    def save(
        name: str, *requirements: str, by: Any = None, new: bool = True, image: str = "python", title: str = "T"
    ) -> Plugin:
        document = {
            "metadata": {"name": name, "image": image},
            "spec": {"title": title, "requirements": list(requirements)},
        }
        return save_plugin(parse(PluginManifest, document), acting_user=by or people.root, new=new)

    return save


@pytest.fixture
def make_lab(catalogue: None, people: Any, node_agent: Any) -> Any:
    """make_lab("lab", "tree") → a notebook with these plugins, whose run waits."""
    store = {"metadata": {"name": "files", "appcode": "ops-demo"}, "spec": {"volume": {"size": "1Gi"}}}
    create_datastore(parse(DatastoreManifest, store), acting_user=people.alice)

    def make(name: str, *plugins: str, **changes: Any) -> Any:
        spec = {
            "type": "jupyter",
            "image": "python",
            "flavor": "small",
            "plugins": plugins,
            "storage": {"datastore": "files"},
        }
        document = {"metadata": {"name": name, "appcode": "ops-demo"}, "spec": spec | changes}
        return create_application(parse(ApplicationManifest, document), acting_user=people.alice)

    return make


def at(refused: pytest.ExceptionInfo[Invalid]) -> list[tuple[str, ...]]:
    return [error.path for error in refused.value.errors]


def test_a_plugin_brings_what_the_image_lacks_and_replaces_nothing(save: Any, index: Index) -> None:
    here = installed_in(sys.prefix)
    assert here is not None
    assert here.python == ".".join(map(str, sys.version_info[:3]))
    index.add("django", here.packages["django"])
    index.add("labtree", "1.0", ["django", "leaf>=1"])
    index.add("leaf", "1.5")
    assert versions(save("tree", "labtree").lock) == {"labtree": "1.0", "leaf": "1.5"}
    index.add("labother", "1.0", ["django==1.0"])
    with pytest.raises(Invalid, match=r"labother.* django==1.0 .*") as refused:
        save("other", "labother")
    assert at(refused) == [("spec", "requirements")]
    assert PASSWORD not in str(refused.value)


def test_plugins_of_one_image_fit_together(save: Any, index: Index) -> None:
    index.add("leaf", "1.5")
    index.add("labtree", "1.0", ["leaf"])
    save("tree", "labtree")
    index.add("leaf", "2.0")
    index.add("labbush", "1.0", ["leaf"])
    assert versions(save("bush", "labbush").lock)["leaf"] == "1.5"
    index.add("labmoss", "1.0", ["leaf>=2"])
    with pytest.raises(Invalid, match="leaf"):
        save("moss", "labmoss")


@pytest.mark.parametrize(
    ("requirement", "sentence"),
    [
        ("absent-thing", "was not found"),
        ("--index-url=http://x", "is no requirement"),
        ("a @ https://example.com/a.whl", "from the index only"),
        ("django", "The image has all of this already"),
        ("", "is no requirement"),
    ],
)
def test_what_cannot_be_had_is_refused_at_its_field(save: Any, index: Index, requirement: str, sentence: str) -> None:
    here = installed_in(sys.prefix)
    assert here is not None
    index.add("django", here.packages["django"])
    with pytest.raises(Invalid, match=sentence) as refused:
        save("x", requirement)
    assert at(refused)[0][:2] == ("spec", "requirements")
    assert PASSWORD not in str(refused.value)
    assert not Plugin.objects.exists()


def test_an_image_that_nobody_can_look_into_has_to_run_first(save: Any, index: Index, people: Any) -> None:
    index.add("leaf", "1.5")
    with pytest.raises(Invalid, match="start a notebook with it") as refused:
        save("leaf", "leaf", image="container-only")
    assert at(refused) == [("metadata", "image")]
    with pytest.raises(Invalid, match="no image"):
        save("leaf", "leaf", image="absent")
    with pytest.raises(Http404):
        save("leaf", "leaf", by=people.alice)


def test_a_run_keeps_the_version_that_was_the_newest_and_the_next_one_gets_another(
    save: Any, index: Index, make_lab: Any, people: Any
) -> None:
    index.add("leaf", "1.5")
    one = save("tree", "leaf")
    assert save("tree", "leaf", new=False, title="Tree") == one
    assert plugin_for("python", "tree").title == "Tree"
    with pytest.raises(Conflict, match="has a plugin “tree” already"):
        save("tree", "leaf")
    lab = make_lab("lab", "tree")
    index.add("leaf", "2.0")
    assert str(save("tree", "leaf", new=False)) == "tree:2"
    planned = plan_of(lab.current_run).environment
    assert planned is not None
    assert (planned.name, planned.lock) == ("tree:1", f"{PLUGINS}{one.lock}")
    assert PLUGINS == MARK
    assert lab.current_run.spec["plugins"] == ["tree:1"]
    assert make_lab("two", "tree", environment=None).current_run.spec["plugins"] == ["tree:2"]


def test_what_is_used_stays(save: Any, index: Index, make_lab: Any, people: Any) -> None:
    index.add("leaf", "1.5")
    index.add("moss", "1.0")
    tree, moss = save("tree", "leaf"), save("moss", "moss")
    lab = make_lab("lab", "tree:1")
    with pytest.raises(Conflict, match="tree is used by ops-demo/lab"):
        delete_plugin(tree, acting_user=people.root)
    delete_plugin(moss, acting_user=people.root)
    with pytest.raises(Http404):
        plugin_for("python", "moss")
    assert str(save("moss", "moss")) == "moss:2"
    type(lab).objects.filter(pk=lab.pk).update(deleted_at="2026-01-01T00:00Z")
    Run.objects.update(gone=True)
    delete_plugin(tree, acting_user=people.root)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"plugins": ["moss"]}, "no plugin “moss” is offered; there are: tree"),
        ({"plugins": ["tree:2"]}, "no plugin “tree:2”"),
        ({"plugins": ["tree", "tree:1"]}, "each plugin once"),
        ({"plugins": ["tree"], "image": "other"}, "With the image other no plugin"),
        ({"plugins": ["tree"], "type": "web", "command": "true"}, "takes no plugins"),
    ],
)
def test_what_is_not_offered_is_refused_at_its_field(
    save: Any, index: Index, make_lab: Any, changes: dict[str, Any], sentence: str
) -> None:
    index.add("leaf", "1.5")
    save("tree", "leaf")
    Image.objects.create(name="other", title="Other", environment="/usr")
    with pytest.raises(Invalid, match=sentence) as refused:
        make_lab("lab", **changes)
    assert at(refused) == [("spec", "plugins")]
