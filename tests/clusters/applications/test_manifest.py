"""An application's manifest converts to that of its cluster and back without loss."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.applications.manifest import (
    ApplicationManifest,
    application_spec,
    cluster_manifest,
    cluster_spec,
    own_path,
    role_of,
)
from clusters.frameworks import APPLICATIONS
from clusters.manifest.cluster import ClusterManifest
from portal.errors import Invalid
from portal.manifests import parse

names = st.from_regex(r"\A[a-z][a-z0-9]{0,9}\Z")
stores = st.none() | names
OWN = ("notebook", "tensorboard", "predict")
endpoints = st.lists(
    st.fixed_dictionaries({"name": names.filter(lambda name: name not in OWN), "port": st.integers(1024, 65535)}),
    min_size=1,
    max_size=5,
    unique_by=lambda each: each["name"],
)
access = st.sampled_from([{}, {"to": "members"}]) | st.builds(
    lambda people: {"to": "people", "people": people}, st.lists(names, min_size=1, max_size=3)
)


@st.composite
def documents(draw: Any) -> dict[str, Any]:
    """Valid applications."""
    kind = draw(st.sampled_from(sorted(APPLICATIONS)))
    policies = ["never", "announce", "stop"] if APPLICATIONS[kind].idle_signal else ["never"]
    idle = st.fixed_dictionaries({"policy": st.sampled_from(policies)}, optional={"after": st.integers(60, 30 * 86400)})
    spec = {
        "type": kind,
        "image": draw(names),
        "flavor": draw(names),
        "storage": draw(st.builds(lambda name: {"datastore": name}, names) | st.just({"size": "20Gi"})),
        "input": draw(stores),
        "output": draw(stores),
        "outputPath": draw(st.sampled_from(["{name}/{run}", "notes", ""])),
        "command": draw(st.sampled_from(["python app.py", "true\nfalse"])),
        "env": draw(st.dictionaries(st.from_regex(r"\AX_[A-Z]{1,5}\Z"), st.text(alphabet="ab =|'\"", max_size=9))),
        "timeLimit": draw(st.none() | st.integers(60, 60 * 86400)),
        "priorityClass": draw(st.sampled_from(["urgent", "normal", "spare"])),
        "endpoints": draw(endpoints),
        "idle": draw(idle),
        "access": draw(access),
    }
    optional = {"input", "output", "outputPath", "env", "timeLimit", "priorityClass", "access", "idle"}
    said = draw(st.sets(st.sampled_from(sorted(optional))))
    if spec["type"] == "tensorboard":
        spec["runs"] = draw(
            st.lists(st.builds("{}/{}".format, names, st.integers(1, 999)), min_size=1, unique=True, max_size=3)
        )
    if spec["type"] == "serving":
        spec["model"] = draw(
            st.builds("{}/{}".format, names, st.integers(1, 999)) | st.builds("{}@{}".format, names, names)
        )
    if spec["type"] == "web":
        spec["requirements"] = draw(st.lists(names, unique=True, max_size=3))
    if spec["type"] == "jupyter":
        spec["plugins"] = draw(st.lists(names, unique=True, max_size=3))
    return {
        "kind": "application",
        "metadata": {"name": draw(names), "appcode": "ops-demo"},
        "spec": {key: value for key, value in spec.items() if key not in optional or key in said},
    }


@given(documents(), st.integers(0, 10))
def test_there_and_back(document: dict[str, Any], retries: int) -> None:
    manifest = ApplicationManifest.model_validate(document)
    cluster = cluster_manifest(manifest, before={"retries": retries})
    assert cluster.spec.retries == retries
    assert cluster.spec.mode == "service"
    stored = cluster.spec.model_dump(mode="json", by_alias=True)
    shown = application_spec(stored)
    again = ApplicationManifest.model_validate({**document, "spec": shown})
    assert again.spec == manifest.spec.model_copy(update={"storage": again.spec.storage})
    # A manifest that was read can be sent back: the cluster keeps the fields that applications lack.
    assert cluster_manifest(again, before=stored) == cluster
    # What was stored before there were classes is normal.
    del stored["priorityClass"]
    assert application_spec(stored)["priorityClass"] == "normal"
    stored["priorityClass"] = cluster.spec.priority_class
    assert application_spec(cluster_manifest(again, before=stored).spec.model_dump(mode="json", by_alias=True)) == shown


def test_a_size_names_the_volume_that_is_made() -> None:
    spec = {"type": "jupyter", "image": "jupyter", "flavor": "small", "storage": {"size": "20Gi"}}
    body = {"kind": "application", "metadata": {"name": "notes", "appcode": "ops-demo"}, "spec": spec}
    assert cluster_manifest(ApplicationManifest.model_validate(body)).spec.home == "notes-home"


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"storage": None}, "spec.storage"),
        ({"env": {"SHELL": "zsh"}}, "spec.env"),
        ({"outputPath": "../x"}, "spec.outputPath"),
        ({"timeLimit": 1}, "spec.timeLimit"),
        ({"access": {"to": "everybody"}}, "spec.access.to"),
        ({"command": "a\0"}, "spec.command"),
        ({"endpoints": [{"name": "notebook", "port": 9999}]}, "spec.endpoints"),
        ({"type": "web", "command": ""}, "spec.command"),
        ({"type": "web", "command": "true"}, "spec.endpoints"),
        ({"requirements": ["pandas"]}, "spec.requirements"),
        (
            {"type": "web", "command": "a", "endpoints": [{"name": "a", "port": 8080}], "requirements": ["a b"]},
            "spec.requirements",
        ),
        ({"type": "tensorflow"}, "spec.type"),
        ({"storage": {}}, "spec.storage"),
        ({"storage": {"size": "20Gi", "datastore": "x"}}, "spec.storage"),
        ({"retries": 3}, "spec.retries"),
    ],
)
def test_what_is_wrong_is_said_at_the_field_of_the_application(changes: dict[str, Any], path: str) -> None:
    spec = {"type": "jupyter", "image": "jupyter", "flavor": "small", "storage": {"datastore": "files"}, **changes}
    body = {"kind": "application", "metadata": {"name": "notes", "appcode": "ops-demo"}, "spec": spec}
    with pytest.raises(Invalid) as invalid:
        cluster_manifest(parse(ApplicationManifest, body))
    assert [".".join(error.path) for error in invalid.value.errors] == [path]


OF_APPLICATION = ApplicationManifest.model_json_schema()["$defs"]["ApplicationSpec"]["properties"]
OF_CLUSTER = ClusterManifest.model_json_schema()["$defs"]["ClusterSpec"]["properties"]


@given(documents())
def test_every_field_of_the_cluster_has_one_of_the_application(document: dict[str, Any]) -> None:
    manifest = ApplicationManifest.model_validate(document)
    spec = cluster_spec(manifest.spec, "home")
    known = OF_APPLICATION
    for key in OF_CLUSTER:
        # The default of these fields is always valid.
        assert own_path(("spec", key))[1] in known or key in (
            "retries",
            "scheduleAfter",
            "terminationGracePeriod",
            "placement",
            "notebook",
            "code",
            "hooks",
            "server",
            "keras",
        )
    for key in spec["roles"][role_of(manifest.spec.type)]:
        assert own_path(("spec", "roles", role_of(manifest.spec.type), key))[1] in known
