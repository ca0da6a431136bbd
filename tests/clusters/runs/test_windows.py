"""Maintenance and reservations on a real database: who may start on the nodes, is told, is taken, and what comes after."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.utils.timezone import now

from clusters import tasks, wakeups
from clusters.clouds.models import Cloud, Window
from clusters.cluster import actions
from clusters.runs import reconcile, resync
from clusters.runs.models import Run
from clusters.runs.placing import closing, places
from portal.models import Event
from tests.api.client import api_of
from tests.clusters.gangs import Told, gang, nodes
from tests.clusters.runs.test_places import cloud, everywhere, gone, pods, see, started, submit, tell

__all__ = ["cloud"]
pytestmark = pytest.mark.django_db
HOUR, MINUTE = dt.timedelta(hours=1), dt.timedelta(minutes=1)


def window(people: Any, *names: str, starts: dt.timedelta = HOUR, lasts: dt.timedelta = HOUR, **facts: Any) -> Window:
    at = now() + starts
    facts = {"reason": "new disks", "created_by": people.root, **facts}
    return Window.objects.create(
        cloud=Cloud.objects.get(name="training"), nodes=list(names), starts_at=at, ends_at=at + lasts, **facts
    )


def later(row: Window, by: dt.timedelta) -> None:
    """As if that much time had passed for the window."""
    row.refresh_from_db()
    Window.objects.filter(pk=row.pk).update(starts_at=row.starts_at - by, ends_at=row.ends_at - by)


def turned(run: Run) -> Run:
    tasks.place_runs("training")
    run.refresh_from_db()
    return run


def test_before_it_only_runs_start_there_that_end_in_time_and_the_others_are_told_so(cloud: Told, people: Any) -> None:
    see(*nodes(1))
    row = window(people, "n0")
    endless, long, short = (
        submit(people, name, 2, **spec)
        for name, spec in (("endless", {}), ("long", {"timeLimit": 3600}), ("short", {"timeLimit": 57 * 60}))
    )
    assert turned(short).placed_at
    when = f"{row.starts_at:%Y-%m-%d %H:%M} UTC to {row.ends_at:%Y-%m-%d %H:%M} UTC"
    for run, why in ((endless, "it has no time limit"), (long, "its time limit is too long for that")):
        run.refresh_from_db()
        assert (run.placed_at, run.reason) == (None, "WaitingForGPUs")
        assert run.message == (
            f"n0 is closed for maintenance from {when}, and {why}. With a time limit of 55 min it would start now."
        )
    # What is offered holds, and the preview says the same by the same code.
    api = api_of(people.bob)
    asked = gang(2, "asked", timeLimit=55 * 60)
    assert api.post("/appcodes/ops-demo/preview", asked)[1]["code"] == "Fits"
    found = api.post("/appcodes/ops-demo/preview", gang(2, "asked"))[1]
    assert (found["fits"], found["code"], found["message"].split(". ")[0]) == (
        "waits",
        "Window",
        endless.message.split(". ")[0],
    )


def test_a_run_there_is_told_and_given_back_and_starts_again_after_it_in_its_old_place(
    cloud: Told, people: Any
) -> None:
    see(*nodes(1))
    run = started(people, "gang", 8)
    tell(run, *pods(run, *everywhere(run)))
    assert run.phase == "Running"
    waits = submit(people, "later", 8)
    row = window(people, "n0")
    turned(run)
    assert not Event.objects.filter(verb="run.window_announced").exists(), "this is told when the window is made"
    later(row, HOUR - closing.NOTICE)
    for _ in range(2):
        turned(run)
    [told] = Event.objects.filter(verb="run.window_announced")
    assert "Maintenance of n0 from" in told.message
    assert not run.times_given_back
    later(row, closing.NOTICE)
    assert closing.due(now()) == {"training"}
    turned(run)
    assert run.given_back_at
    last = run.decisions.last()
    assert last
    assert (last.code, last.values) == ("GivenBack", {"said": run.wait_message})
    assert run.wait_message.startswith("Maintenance of n0 until ")
    assert "by root: new disks. It is taken off its nodes" in run.wait_message
    assert closing.due(now()) == set()
    # It is billed until it is gone, and then it waits before those that came after it.
    assert run.gpu_rate == 8
    reconcile.reconcile(run.pk)
    assert cloud.deleted == [run.pk]
    tell(run, gone(run))
    turned(run)
    assert (run.placed_at, run.phase, run.reason) == (None, "Queued", "WaitingForGPUs")
    assert run.message.startswith("n0 is closed for maintenance until ")
    later(row, HOUR)
    assert turned(run).placed_at
    waits.refresh_from_db()
    assert waits.placed_at is None
    assert Event.objects.filter(verb="run.given_back").count() == 1
    assert Event.objects.filter(verb="window.begun").count() == 1


def test_a_reservation_takes_the_runs_of_others_and_lets_its_own_start_once_it_has_begun(
    cloud: Told, people: Any
) -> None:
    see(*nodes(2))
    own, others = started(people, "own", 8), started(people, "others", 8)
    tell(own, *pods(own, *everywhere(own)))
    tell(others, *pods(others, *everywhere(others)))
    others.cluster.appcode = people.flight
    others.cluster.save(update_fields=["appcode"])
    row = window(people, "n0", "n1", appcode=people.ops)
    later(row, HOUR)
    turned(own)
    others.refresh_from_db()
    assert (own.given_back_at, others.given_back_at is not None) == (None, True)
    assert others.wait_message.startswith("Reservation for another appcode of n0 and n1 until")
    reconcile.reconcile(others.pk)
    tell(others, gone(others))
    late = turned(submit(people, "late", 4))
    assert late.placed_at, "no time limit is asked of whom the nodes are for"
    others.refresh_from_db()
    assert others.placed_at is None


def test_a_run_that_came_to_the_nodes_of_a_window_later_leaves_them_after_a_pause(cloud: Told, people: Any) -> None:
    """A cloud chooses nodes itself for runs with volumes."""
    see(*nodes(2))
    row = window(people, "n0")
    later(row, HOUR)
    tasks.place_runs("training")
    run = started(people, "gang", 8)
    assert set(everywhere(run)) == {"n1"}
    tell(run, *pods(run, *["n0"] * 8))
    turned(run)
    assert run.given_back_at
    assert run.not_before
    assert run.not_before - run.given_back_at == places.PAUSE


def test_a_window_to_come_costs_no_placed_run_its_places(cloud: Told, people: Any) -> None:
    see(*nodes(1))
    run = started(people, "gang", 8)
    window(people, "n0")
    Run.objects.filter(pk=run.pk).update(applied_at=now() - HOUR, lacks_since=now() - MINUTE)
    assert turned(run).given_back_at is None


def test_the_sweep_begins_a_window_for_which_nobody_waits(
    cloud: Told, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started(people, "gang", 8)
    tell(run, *pods(run, *everywhere(run)))
    woken: list[str] = []
    monkeypatch.setattr(wakeups, "wake_places", woken.append)
    resync.sweep()
    assert woken == []
    row = window(people, "n0")
    resync.sweep()
    assert woken == []
    later(row, HOUR)
    resync.sweep()
    assert woken == ["training"]
    actions.disable(run.cluster, acting_user=people.bob)


@pytest.mark.parametrize("facts", [{"cancelled_at": dt.datetime.now(dt.UTC)}, {"starts": -2 * HOUR}])
def test_one_that_is_over_or_cancelled_holds_up_nobody(cloud: Told, people: Any, facts: dict[str, Any]) -> None:
    see(*nodes(1))
    run = submit(people, "gang", 8)
    window(people, "n0", **facts)
    assert turned(run).placed_at


def test_one_that_repeats_is_followed_by_the_next_also_if_the_portal_slept_through_it(cloud: Told, people: Any) -> None:
    see(*nodes(2))
    first = window(people, "n0", repeat="daily", starts=-MINUTE)
    asleep = window(people, "n1", repeat="weekly", starts=-15 * 24 * HOUR)
    assert closing.due(now()) == {"training"}
    for _ in range(2):
        tasks.place_runs("training")
    rows = [(row.nodes, row.starts_at, row.repeat) for row in Window.objects.order_by("pk")]
    assert rows == [
        (["n0"], first.starts_at, ""),
        (["n1"], asleep.starts_at, ""),
        (["n1"], asleep.starts_at + dt.timedelta(days=21), "weekly"),
        (["n0"], first.starts_at + dt.timedelta(days=1), "daily"),
    ]
    # Cancelling the next one ends the series.
    Window.objects.exclude(repeat="").update(cancelled_at=now())
    later(Window.objects.get(repeat="daily"), 24 * HOUR)
    tasks.place_runs("training")
    assert Window.objects.count() == 4
