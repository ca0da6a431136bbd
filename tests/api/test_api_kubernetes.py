"""Kubernetes clusters and placements over REST: only for administrators, and a kubeconfig is never returned."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.client import Api

# Nothing listens on this port, so a connection test fails at once.
CONFIG = """
kind: Config
current-context: main
contexts: [{name: main, context: {cluster: one, user: me}}]
clusters: [{name: one, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: me, user: {token: very-secret}}]
"""
ONE = "/kubernetes/training"
LINE = "/placements/qunarcorp.ops"


def body(name: str = "training", **spec: Any) -> dict[str, Any]:
    return {
        "kind": "kubernetes-cluster",
        "metadata": {"name": name},
        "spec": {"title": "Training", "kubeconfig": CONFIG, **spec},
    }


@pytest.fixture
def training(as_root: Api) -> dict[str, Any]:
    status, answer = as_root.post("/kubernetes", body())
    assert status == 201, answer
    return answer


def test_the_kubeconfig_never_comes_out(as_root: Api, training: dict[str, Any]) -> None:
    from portal.models import Event

    assert training["spec"]["server"] == "https://127.0.0.1:1"
    assert training["status"]["test"]["ok"] is False
    for path in ("/kubernetes", ONE):
        as_root.get(path)
        assert b"very-secret" not in as_root.last.content
    as_root.post(f"{ONE}/test")
    assert b"very-secret" not in as_root.last.content
    assert "very-secret" not in json.dumps(list(Event.objects.values("message", "data")))
    broken = body(settings={"nonsense": 1}, kubeconfig=CONFIG + "\n]")
    as_root.put(ONE, broken)
    assert b"very-secret" not in as_root.last.content


def test_a_row_keeps_it_encrypted(training: dict[str, Any]) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT credentials FROM clusters_cloud WHERE kind = 'kubernetes'")
        assert "very-secret" not in cursor.fetchone()[0]


def test_a_change_keeps_what_is_not_said_and_repeats_for_free(as_root: Api, training: dict[str, Any]) -> None:
    from clusters.clouds.models import Cloud
    from portal.models import Event

    said = body(settings={"store_seconds": 5})
    del said["spec"]["kubeconfig"]
    for _ in range(2):
        status, answer = as_root.put(ONE, said)
        assert status == 200, answer
    assert answer["spec"]["server"] == "https://127.0.0.1:1"
    assert answer["spec"]["settings"]["store_seconds"] == 5
    row = Cloud.objects.get(kind="kubernetes")
    assert "very-secret" in row.credentials
    assert row.revision == 2
    assert Event.objects.filter(verb="kubernetes.changed").count() == 1


def test_one_default_at_most(as_root: Api, training: dict[str, Any]) -> None:
    assert as_root.put(ONE, body(default=True))[0] == 200
    assert as_root.post("/kubernetes", body("other", default=True))[0] == 201
    defaults = {item["metadata"]["name"]: item["spec"]["default"] for item in as_root.get("/kubernetes")[1]["items"]}
    assert defaults == {"training": False, "other": True}
    assert as_root.put("/kubernetes/other", body("other", default=True, enabled=False))[0] == 422
    places = as_root.get("/placements")[1]["items"]
    assert {item["businessLine"]: item["runsOn"] for item in places} == {
        "qunarcorp.flight": "other",
        "qunarcorp.ops": "other",
    }


def test_a_cluster_on_which_something_depends_stays(as_root: Api, training: dict[str, Any]) -> None:
    assert as_root.put(LINE, {"cloud": "training"})[0] == 200
    status, answer = as_root.delete(ONE)
    assert (status, "qunarcorp.ops would have no place" in answer["detail"]) == (409, True)
    assert as_root.put(LINE, {"cloud": None})[0] == 200
    assert as_root.delete(ONE)[0] == 204
    assert as_root.get(ONE)[0] == 404


@pytest.mark.parametrize(
    ("spec", "path", "sentence"),
    [
        ({"kubeconfig": None}, "spec.kubeconfig", "Give a kubeconfig"),
        ({"kubeconfig": "kind: Secret"}, "spec.kubeconfig", "not a kubeconfig"),
        ({"kubeconfig": CONFIG.replace("token: very-secret", "exec: {command: aws}")}, "spec.kubeconfig", "“aws”"),
        ({"kubeconfig": CONFIG.replace("token:", "tokenFile:")}, "spec.kubeconfig", "reads a file"),
        ({"kubeconfig": CONFIG.replace("https", "http")}, "spec.kubeconfig", "could read and change everything"),
        ({"kubeconfig": "x" * 300_000}, "spec.kubeconfig", "At most 262144 characters"),
        ({"kubeconfig": 5}, "spec.kubeconfig", "Give text"),
        ({"context": "other"}, "spec.kubeconfig", "no context “other”"),
        ({"inCluster": True}, "spec.inCluster", "either a kubeconfig or this"),
        ({"default": True, "enabled": False}, "spec.default", "cannot be the default"),
        ({"settings": {"nonsense": 1}}, "spec.settings.nonsense", "no such field"),
        ({"settings": {"store_seconds": "long"}}, "spec.settings.store_seconds", "whole number"),
        ({"settings": {"quota": {"pods": "many"}}}, "spec.settings.quota.pods", "as Kubernetes does"),
        ({"settings": {"portal": "Not A Label"}}, "spec.settings.portal", "lower-case"),
        ({"title": "x" * 101}, "spec.title", "100"),
        ({"title": "a\nb"}, "spec.title", "one line"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(as_root: Api, spec: Any, path: str, sentence: str) -> None:
    status, answer = as_root.post("/kubernetes", body(**spec))
    assert status == 422, answer
    errors = {each["path"]: each["message"] for each in answer["errors"]}
    assert sentence in errors.get(path, ""), errors
    assert b"very-secret" not in as_root.last.content


@pytest.mark.parametrize("name", ["local", "Training", "a b", "-x", "x" * 41, "", None, "ü"])
def test_names_are_labels(as_root: Api, name: Any) -> None:
    status, answer = as_root.post("/kubernetes", body(name))
    assert status == 422
    assert answer["errors"][0]["path"] == "metadata.name"


def test_a_name_is_taken_once(as_root: Api, training: dict[str, Any]) -> None:
    status, answer = as_root.post("/kubernetes", body())
    assert (status, answer["errors"][0]["path"]) == (422, "metadata.name")


@pytest.mark.parametrize(
    ("sent", "path"),
    [({"cloud": "nowhere"}, "cloud"), ({"cloud": 5}, "cloud"), ({}, "cloud"), ({"cloud": None, "x": 1}, "x"), ([], "")],
)
def test_placements_name_what_exists(as_root: Api, sent: Any, path: str) -> None:
    status, answer = as_root.put(LINE, sent)
    assert status in (400, 422)
    assert path in [each["path"] for each in answer["errors"]] or not answer["errors"]
    assert as_root.put("/placements/no.where", {"cloud": None})[0] == 404
