"""GPU usage measured by clouds: settings, access, and error messages."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from billing.models import MeasuredHour, Measuring
from clusters.clouds import gpu_usage
from clusters.clouds.drivers.base import GpuUse, Measurements
from clusters.clouds.models import Cloud
from portal.models import Event

pytestmark = pytest.mark.django_db

# No server listens at either address.
CONFIG = """
kind: Config
current-context: main
contexts: [{name: main, context: {cluster: one, user: me}}]
clusters: [{name: one, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: me, user: {token: very-secret}}]
"""
NOWHERE = "http://127.0.0.1:1"
ONE = "/api/v1/kubernetes/training"


def body(settings: dict[str, Any], **spec: Any) -> dict[str, Any]:
    said = {"title": "Training", "settings": settings, **spec}
    return {"kind": "kubernetes-cluster", "metadata": {"name": "training"}, "spec": said}


@pytest.fixture
def training(client, people) -> Cloud:
    client.force_login(people.root)
    sent = body({"prometheus": NOWHERE}, kubeconfig=CONFIG, prometheusToken="s3cret-token")
    answer = client.post("/api/v1/kubernetes", sent, content_type="application/json")
    assert answer.status_code == 201, answer.content
    assert b"s3cret-token" not in answer.content
    return Cloud.objects.get(kind="kubernetes")


def put(client, sent: dict[str, Any]) -> Cloud:
    answer = client.put(ONE, sent, content_type="application/json")
    assert answer.status_code == 200, answer.content
    assert b"s3cret-token" not in answer.content
    return Cloud.objects.get(kind="kubernetes")


def test_the_token_is_encrypted_kept_and_told_to_no_other_address(client, training: Cloud):
    assert training.prometheus_token == "s3cret-token"
    with connection.cursor() as cursor:
        cursor.execute("SELECT prometheus_token FROM clusters_cloud WHERE kind = 'kubernetes'")
        assert "s3cret-token" not in cursor.fetchone()[0]
    assert "s3cret-token" not in str(list(Event.objects.values("message", "data")))
    same = put(client, body({"prometheus": NOWHERE, "store_seconds": 7}))
    assert same.prometheus_token == "s3cret-token"
    other = put(client, body({"prometheus": "http://127.0.0.1:2"}))
    assert (other.prometheus_token, other.revision) == (None, training.revision + 2)
    assert put(client, body({"prometheus": NOWHERE}, prometheusToken="new")).prometheus_token == "new"
    assert put(client, body({"prometheus": NOWHERE}, prometheusToken="")).prometheus_token is None


@pytest.mark.parametrize(
    ("sent", "path", "sentence"),
    [
        (body({"prometheus": "not an address"}), "spec.settings.prometheus", "Write an address"),
        (body({}, prometheusToken="x"), "spec.prometheusToken", "address of Prometheus"),
        (body({"prometheus": NOWHERE}, prometheusToken="a\nb"), "spec.prometheusToken", "one line"),
    ],
)
def test_what_cannot_be_is_said_at_its_field(client, training, sent: dict[str, Any], path: str, sentence: str):
    answer = client.put(ONE, sent, content_type="application/json")
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["path"] == path
    assert sentence in error["message"]


def test_the_form_keeps_the_token_and_never_shows_it(client, training: Cloud):
    page = client.get("/admin/clouds/training/edit").content.decode()
    assert NOWHERE in page
    assert "s3cret-token" not in page
    fields = {"title": "Training", "how": "kubeconfig", "enabled": "on", "setting_prometheus": NOWHERE}
    shown = {each.html_name: each.value() for each in client.get("/admin/clouds/training/edit").context["form"]}
    client.post("/admin/clouds/training/edit", {**{k: v for k, v in shown.items() if v not in (None, False)}, **fields})
    assert Cloud.objects.get(kind="kubernetes").prometheus_token == "s3cret-token"
    client.post(
        "/admin/clouds/training/edit",
        {**{k: v for k, v in shown.items() if v not in (None, False)}, **fields, "prometheus_token": "other"},
    )
    assert Cloud.objects.get(kind="kubernetes").prometheus_token == "other"


def test_what_cannot_be_read_is_said_to_administrators_and_asked_again(client, people, training: Cloud):
    gpu_usage.measure("training")
    told = Measuring.objects.get()
    assert (told.position, told.read_at) == ("", None)
    assert "Prometheus does not answer: nothing listens at the address." in told.trouble
    assert told.trouble in client.get("/admin/clouds").content.decode()
    assert client.get(ONE).json()["status"]["gpuUse"] == told.trouble
    put(client, body({}))
    gpu_usage.measure("training")
    told = Measuring.objects.get()
    assert (told.trouble, told.note[:7]) == ("", "Nothing")
    client.delete(ONE)
    assert not Measuring.objects.exists()
    # A measurement that was already under way stores nothing.
    gpu_usage.measure("training")
    assert not Measuring.objects.exists()


def test_nothing_is_noted_of_a_cloud_that_is_removed_while_it_is_asked(
    client, training: Cloud, monkeypatch: pytest.MonkeyPatch
):
    class Told:
        def gpu_use(self, since: str) -> Measurements:
            assert client.delete(ONE).status_code in (200, 204)
            return Measurements("a/1", (), "Nothing is measured here.")

    monkeypatch.setattr(gpu_usage, "cloud", lambda name: Told())
    gpu_usage.measure("training")
    assert not Cloud.objects.filter(kind="kubernetes").exists()
    assert not Measuring.objects.exists()


def test_the_next_question_goes_on_where_the_last_answer_ended(people, monkeypatch: pytest.MonkeyPatch):
    """The cloud is a list of answers; billing has its own tests for what follows."""
    minute = dt.datetime(2026, 3, 4, 21, 0, tzinfo=dt.UTC)
    answers = {
        "": Measurements("a/1", (GpuUse("pod-a", minute, 60.0, 0.5),)),
        "a/1": Measurements("a/2", (GpuUse("pod-a", minute + dt.timedelta(minutes=1), 60.0, 0.5),)),
        "a/2": Measurements("a/2"),
    }
    asked: list[str] = []

    class Told:
        def gpu_use(self, since: str) -> Measurements:
            asked.append(since)
            return answers[since]

    monkeypatch.setattr(gpu_usage, "cloud", lambda name: Told())
    gpu_usage.measure("local")
    gpu_usage.measure("local")
    assert asked == ["", "a/1", "a/2", "a/2"]
    assert Measuring.objects.get().position == "a/2"
    # Billing does not know the pod yet.
    assert not MeasuredHour.objects.exists()


@override_settings(LOCAL_CLOUD_SOCKET="/nowhere/agent.sock")
def test_every_cloud_is_asked(training: Cloud):
    assert gpu_usage.clouds() == ["local", "training"]
    gpu_usage.measure("local")
    assert "does not answer" in Measuring.objects.get(cloud="local").trouble
