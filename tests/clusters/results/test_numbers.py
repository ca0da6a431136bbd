"""When the numbers of runs are read: at their end, and while somebody looks."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

from django.core.cache import cache
from django.utils import timezone

from clusters import wakeups
from clusters.clouds.drivers.base import CloudError
from clusters.cluster import actions
from clusters.results import numbers
from clusters.results.models import RunMetric
from clusters.runs.models import Run


def kept() -> dict[str, tuple[float, int]]:
    rows = RunMetric.objects.values_list("metric__name", "last", "step")
    return {name: (last, step) for name, last, step in rows}


def test_numbers_are_read_while_somebody_looks_and_once_the_run_is_gone(
    loop: Any, people: Any, manifest: Any, monkeypatch: Any, as_person: Any
) -> None:
    # It prints its second step when it is stopped.
    said = "trap 'echo step 2: loss = 0.25; exit' TERM; echo step 1: loss = 0.5; while :; do sleep 0.1; done # --lr 0.1"
    cluster = actions.create_cluster(manifest("train", said), acting_user=people.bob)
    loop.until_phase(cluster, "Running")
    run = Run.objects.get()
    assert run.parameters == {}
    woken: list[int] = []
    monkeypatch.setattr(wakeups, "wake_numbers", woken.append)

    # Nobody looks, so nothing is read.
    numbers.advance(people.ops.pk)
    assert (kept(), run.numbers_at) == ({}, None)
    cache.delete(f"results.looked.{people.ops.pk}")
    numbers.look_at(people.ops.pk, [run])
    assert woken == [people.ops.pk]

    def has(step: int) -> bool:
        numbers.look_at(people.ops.pk, [Run.objects.get()])
        numbers.advance(people.ops.pk)
        return kept().get("loss", (0, 0))[1] == step

    monkeypatch.setattr(numbers, "FRESH", dt.timedelta(0))
    loop.until(lambda: has(1))
    actions.disable(cluster, acting_user=people.bob)
    loop.until_phase(cluster, "Stopped")
    loop.until(lambda: Run.objects.get().gone)
    assert Run.objects.get().numbers_due
    woken.clear()
    numbers.resync()
    assert woken == [people.ops.pk]
    numbers.advance(people.ops.pk)
    assert (kept(), Run.objects.get().numbers_due) == ({"loss": (0.25, 2)}, False)
    woken.clear()
    numbers.resync()
    assert woken == []

    curves = as_person(people.victor).get("/api/v1/appcodes/ops-demo/clusters/train/runs/1/metrics").json()
    [loss] = curves["items"]
    assert (loss["name"], loss["steps"], loss["values"]) == ("loss", [1, 2], [0.5, 0.25])
    assert loss["times"][0] < loss["times"][1] <= time.time()
    chosen = (
        as_person(people.victor).get("/api/v1/appcodes/ops-demo/clusters/train/runs/1/metrics?name=other&name=x").json()
    )
    assert chosen["items"] == []


def test_numbers_that_cannot_be_read_are_tried_again_for_a_while(people: Any, monkeypatch: Any) -> None:
    from tests.clusters.results.test_results import run_of

    def silent(run: Run) -> Any:
        raise CloudError("silent")

    monkeypatch.setattr(numbers, "all_scalars", silent)
    run = run_of(people, "a")
    numbers.advance(people.ops.pk)
    assert Run.objects.get().numbers_due
    Run.objects.filter(pk=run.pk).update(phase_since=timezone.now() - 2 * numbers.PATIENCE)
    numbers.advance(people.ops.pk)
    assert not Run.objects.get().numbers_due
