"""Runs on their way through the passes, step by step: submitted, placed, told to the cloud, and what the cloud says of them."""

from __future__ import annotations

import datetime as dt
import itertools
from dataclasses import replace
from typing import Any

import pytest
from django.utils.timezone import now

from clusters.clouds.drivers.base import Batch, Capacity, Node, RunGone, TaskSeen
from clusters.runs import reconcile
from clusters.runs.models import Run
from clusters.runs.placing import places
from clusters.runs.status import observe
from tests.api.client import api_of
from tests.clusters.gangs import Told, gang

position = itertools.count(1)
SECOND = dt.timedelta(seconds=1)
TIMES = ("admitted_at", "placed_at", "whole_at", "lacks_since", "given_back_at", "applied_at", "not_before")


def told_by(monkeypatch: pytest.MonkeyPatch) -> Told:
    """The cloud that notes what the loop tells it."""
    told = Told()
    monkeypatch.setattr(reconcile, "cloud_of", lambda run: told)
    return told


def see(*seen: Node) -> None:
    observe.save_capacity("training", Capacity(seen))


def submit(people: Any, name: str, size: int, appcode: str = "ops-demo", **spec: Any) -> Run:
    """Creates a run by REST, and has it admitted. It waits for its places then."""
    who = people.bob if appcode == "ops-demo" else people.root
    status, answer = api_of(who).post(f"/appcodes/{appcode}/clusters", gang(size, name, appcode, **spec))
    assert status == 201, answer
    run = Run.objects.get(cluster__name=name)
    reconcile.reconcile(run.pk)
    run.refresh_from_db()
    return run


def place(run: Run) -> Run:
    places.place("training")
    run.refresh_from_db()
    return run


def started(people: Any, name: str, size: int, appcode: str = "ops-demo", **spec: Any) -> Run:
    """A run that got its places and of which the cloud was told."""
    run = place(submit(people, name, size, appcode, **spec))
    assert run.placed_at
    reconcile.reconcile(run.pk)
    run.refresh_from_db()
    assert run.applied_at
    return run


def older(run: Run, by: dt.timedelta) -> None:
    """Moves all that happened to the run into the past."""
    run.refresh_from_db()
    Run.objects.filter(pk=run.pk).update(**{name: at - by for name in TIMES if (at := getattr(run, name))})


def tell(run: Run, *items: Any) -> None:
    observe.apply_batch("training", Batch(f"p.{next(position)}", items))
    run.refresh_from_db()


def pod(run: Run, role: str = "master", index: int = 0, at: str = "", attempt: int = 0, **more: Any) -> TaskSeen:
    """A pod that waits, or that runs on the node `at`."""
    uid, begun = f"{run.pk}-{role}-{index}-{attempt}", now() - SECOND
    if not at:
        return TaskSeen(run.pk, role, index, attempt, uid, "Pending", "Unschedulable", **more)
    times = {"scheduled_at": begun, "began_at": begun, "started_at": begun}
    return TaskSeen(run.pk, role, index, attempt, uid, "Running", node=at, **{**times, **more})


def failed(task: TaskSeen, reason: str = "Error") -> TaskSeen:
    return replace(task, phase="Failed", reason=reason, finished_at=now(), exit_code=1, disrupted=reason != "Error")


def gone(run: Run) -> RunGone:
    run.refresh_from_db()
    return RunGone(run.pk, life=run.life)


def pods(run: Run, *where: str) -> list[TaskSeen]:
    """All pods of a gang, on these nodes."""
    names = [("master", 0), *(("worker", index) for index in range(len(where) - 1))]
    return [pod(run, role, index, at) for (role, index), at in zip(names, where, strict=True)]


def everywhere(run: Run) -> list[str]:
    """A node for each task, as the layout of a run that takes whole nodes has them."""
    found = [name for held in run.layout.values() for name, count in held.items() for _ in range(count)]
    assert len(found) == run.gpus
    return found
