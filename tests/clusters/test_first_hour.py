"""The first hour on *Help* is read from what a person did."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from clusters.runs.models import Cluster, Run

pytestmark = pytest.mark.django_db


def _done(client: Client) -> list[str]:
    return [step.title for step in client.get("/help").context["first_hour"] if step.done]


def test_steps_are_done_by_doing_them_and_for_nobody_else(client: Client, people: Any) -> None:
    client.force_login(people.bob)
    assert _done(client) == []
    cluster = Cluster.objects.create(appcode=people.ops, name="hello", spec={}, created_by=people.bob)

    def ran(number: int, phase: str, **spec: Any) -> None:
        Run.objects.create(
            cluster=cluster, number=number, created_by=people.bob, phase=phase, spec=spec, resources={}, gpus=0
        )

    ran(1, "Failed", framework="tensorflow", command="python train.py")
    assert _done(client) == [], "a run of one's own is no example"
    ran(
        5, "Failed", framework="tensorflow", command="python digits_single.py --sample --output /tmp/output --steps 600"
    )
    assert _done(client) == ["Run an example"]
    ran(2, "Succeeded", framework="tensorflow", code={"files": {"train.py": "1"}})
    ran(3, "Stopped", framework="jupyter")
    assert _done(client) == ["Run an example", "Look at a result", "Open a notebook", "Run your own program"]
    ran(4, "Running", framework="tensorflow", input="mine")
    assert len(_done(client)) == 5
    client.force_login(people.alice)
    assert _done(client) == []
