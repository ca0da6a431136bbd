"""Pull secrets: administrators save and delete them by page and REST; no page or answer shows a secret."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from clusters.pull_secrets.models import PullSecret
from clusters.runs.models import Run
from tests.api.client import api_of


@pytest.mark.django_db
def test_what_is_saved_is_encrypted_replaced_forgotten_and_never_answered(people: Any, as_person: Any) -> None:
    api, path = api_of(people.root), people.ops.org_node.path
    address = f"/pull-secrets/{path}/registry.example.com:5000"
    for password in ("first-word", "second-word"):
        status, answer = api.put(address, {"username": "robot$a", "password": password})
        assert (status, answer["host"], answer["username"]) == (200, "registry.example.com:5000", "robot$a")
        assert "word" not in str(answer)
    assert PullSecret.objects.get().password == "second-word"
    with connection.cursor() as cursor:
        cursor.execute("SELECT password FROM clusters_pullsecret")
        assert "word" not in cursor.fetchone()[0]
    assert "word" not in str(api.get("/pull-secrets"))
    page = as_person(people.root).get("/admin/registries").content.decode()
    assert "registry.example.com:5000" in page
    assert "second-word" not in page
    assert api.delete(address)[0] == 204
    assert api.delete(address)[0] == 404
    for host, body, field in (
        ("Registry", {"username": "a", "password": "b"}, "host"),
        ("a.example", {"username": "a:b", "password": "b"}, "username"),
        ("a.example", {"username": "a", "password": "b\nc"}, "password"),
        ("a.example", {"username": "a"}, "password"),
    ):
        status, answer = api.put(f"/pull-secrets/{path}/{host}", body)
        assert (status, answer["errors"][0]["path"]) == (422, field)
    assert api.put("/pull-secrets/qunarcorp/a.example", {"username": "a", "password": "b"})[0] == 404


@pytest.mark.django_db
def test_only_living_runs_of_the_line_on_other_clouds_are_applied_again(make_cluster: Any, people: Any) -> None:
    facts: dict[str, dict[str, Any]] = {
        "kept-here": {"cloud": "local"},
        "over": {"gone": True},
        "elsewhere": {"namespace": "flight"},
        "living": {},
    }
    for name, more in facts.items():
        cluster = make_cluster(name)
        Run.objects.filter(cluster=cluster).update(
            **{"cloud": "training", "namespace": "ops", "applied_at": timezone.now(), **more}
        )
    api = api_of(people.root)
    assert api.put(f"/pull-secrets/{people.ops.org_node.path}/a.example", {"username": "a", "password": "b"})[0] == 200
    assert set(Run.objects.filter(applied_at=None).values_list("cluster__name", flat=True)) == {"living"}
