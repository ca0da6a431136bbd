"""Runs wait for places on a real database: who gets them, who loses them, and what becomes of a run meanwhile. Only the cloud is
not real: it notes what it is told, and tests give its news."""

from __future__ import annotations

import datetime as dt
import itertools
import threading
import uuid
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from clusters import tasks, wakeups
from clusters.admission.packing import asking
from clusters.clouds.drivers.base import RunFound, RunGone
from clusters.cluster import actions
from clusters.runs import reconcile
from clusters.runs.models import Cluster, Run
from clusters.runs.placing import known, places, room
from portal.db.advisory_lock import Lock
from portal.models import Event
from tests import mortal
from tests.api.client import api_of
from tests.clusters.gangs import Told, node, nodes
from tests.clusters.runs.placing import (
    SECOND,
    everywhere,
    failed,
    gone,
    older,
    place,
    pod,
    pods,
    see,
    started,
    submit,
    tell,
    told_by,
)  # fmt: skip

pytestmark = pytest.mark.django_db


@pytest.fixture
def cloud(training: Any, monkeypatch: pytest.MonkeyPatch) -> Told:
    return told_by(monkeypatch)


def gave_back(run: Run, then: dt.timedelta) -> bool:
    """Whether the run loses its places in a pass, when all that happened is `then` in the past."""
    older(run, then)
    return place(run).given_back_at is not None


def test_the_worker_that_admits_a_run_places_and_starts_it_unless_another_makes_a_pass(
    cloud: Told, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[str] = []
    monkeypatch.setattr(tasks, "wake_places", woken.append)
    runs = [submit(people, name, 8) for name in ("first", "second")]
    Run.objects.update(admitted_at=None, wait_reason="", wait_message="")
    tasks.reconcile_run(runs[0].pk)
    other = connection.copy()
    try:
        other.cursor().execute("SELECT pg_advisory_lock(%s, hashtext('training'))", [Lock.PASS])
        tasks.reconcile_run(runs[1].pk)
    finally:
        other.close()
    assert ([plan.run.id for plan in cloud.applied], woken) == ([runs[0].pk], ["training"])
    runs[1].refresh_from_db()
    assert (runs[1].placed_at, runs[1].message) == (None, places.TURN)


def test_of_two_gangs_that_fit_alone_one_gets_all_its_places_and_the_other_waits_for_its_end(
    cloud: Told, people: Any, as_person: Any
) -> None:
    first, second = (submit(people, name, 80) for name in ("first", "second"))
    assert cloud.applied == []
    for run in (first, second):
        assert (run.phase, run.reason, run.message) == ("Queued", "WaitingForGPUs", places.TURN)
    assert place(first).placed_at
    where = everywhere(first)
    assert sorted(Counter(where).values()) == [8] * 10
    reconcile.reconcile(first.pk)
    assert place(second).placed_at is None
    reconcile.reconcile(second.pk)
    [plan] = cloud.applied
    assert (plan.run.id, {role.nodes for role in plan.roles}) == (first.pk, {tuple(sorted(set(where)))})
    waits = "It needs 80 GPUs; 40 of 120 are free. It starts as soon as enough are free."
    api = api_of(people.bob)
    answer = api.get("/appcodes/ops-demo/clusters/second")[1]["status"]
    assert [answer[name] for name in ("phase", "reason", "message")] == ["Queued", "WaitingForGPUs", waits]
    [queue] = [each for each in api.get("/queue")[1]["items"] if each["cloud"] == "training"]
    assert ("second", waits) in [(each["cluster"], each["message"]) for each in queue["waiting"]]
    assert waits in " ".join(as_person(people.bob).get("/queue").content.decode().split())
    # Its pods run, and are counted where they are.
    tell(first, RunFound(first.pk, plan.run), *pods(first, *everywhere(first)))
    assert (first.phase, first.whole_at is not None) == ("Running", True)
    assert (place(second).placed_at, second.message) == (None, waits)
    actions.disable(first.cluster, acting_user=people.bob)
    assert place(second).placed_at is None
    tell(first, gone(first))
    assert place(second).placed_at
    assert len(everywhere(second)) == 80
    assert (second.phase, second.wait_reason) == ("Queued", "")
    reconcile.reconcile(second.pk)
    assert [plan.run.id for plan in cloud.applied] == [first.pk, second.pk]


def test_a_small_run_starts_beside_nodes_that_are_kept_for_a_large_one_and_not_on_them(
    cloud: Told, people: Any
) -> None:
    see(*nodes(4))
    before = started(people, "before", 28)
    tell(before, *pods(before, *[f"n{number % 4}" for number in range(28)]))
    large, small, late = submit(people, "large", 16), submit(people, "small", 2), submit(people, "late", 1)
    place(large)
    assert (large.placed_at, large.message) == (
        None, "It needs 16 GPUs; 4 of 32 are free. It starts as soon as enough are free.",
    )  # fmt: skip
    small.refresh_from_db()
    assert set(everywhere(small)) == {"n2", "n3"}
    late.refresh_from_db()
    assert (late.placed_at, late.reason, late.message) == (
        None,
        "WaitingForGPUs",
        "There is room for it, which is kept for runs that wait before it. It starts after them.",
    )
    # What is kept is taken by the run for which it was, as soon as all of it is free.
    actions.disable(before.cluster, acting_user=people.bob)
    tell(before, gone(before))
    assert set(everywhere(place(large))) == {"n0", "n1"}
    late.refresh_from_db()
    assert late.placed_at


def test_a_node_that_goes_before_its_tasks_came_costs_a_run_its_places(cloud: Told, people: Any) -> None:
    run = started(people, "gang", 16)
    assert set(everywhere(run)) == {"n0", "n1"}
    tell(run, RunFound(run.pk, cloud.applied[0].run), *pods(run, *["n0"] * 8, *[""] * 8))
    see(*[each for each in nodes(15) if each.name != "n1"])
    assert not gave_back(run, places.BLINK), "this pass is the first to see that it lacks nodes"
    assert run.lacks_since
    assert not gave_back(run, places.BLINK / 2)
    assert gave_back(run, places.BLINK / 2)
    assert (run.reason, run.times_given_back) == ("WaitingForGPUs", 1)
    assert run.message.startswith("Not all of its tasks got a node where they had their places.")
    assert Event.objects.filter(verb="run.given_back").count() == 1
    place(run)
    assert Event.objects.filter(verb="run.given_back").count() == 1
    # Until it is gone it holds what its tasks hold, and no more.
    other = place(submit(people, "other", 105))
    assert (other.placed_at, "runs that are ending still hold" in other.message) == (None, True)
    actions.disable(other.cluster, acting_user=people.bob)
    assert "n0" not in everywhere(place(submit(people, "third", 104)))


def test_one_that_lost_its_places_is_cleared_away_and_placed_elsewhere(cloud: Told, people: Any) -> None:
    run = started(people, "gang", 16)
    see(*[each for each in nodes(15) if each.name != "n1"])
    place(run)
    assert gave_back(run, places.BLINK)
    reconcile.reconcile(run.pk)
    run.refresh_from_db()
    assert (cloud.deleted, len(cloud.applied)) == ([run.pk], 1)
    assert run.release_asked_at
    tell(run, gone(run))
    assert (run.phase, run.reason, run.layout, run.gone) == ("Queued", "WaitingForGPUs", {}, False)
    assert place(run).placed_at is None, "its pause is not over"
    older(run, places.PAUSE)
    assert place(run).placed_at
    assert "n1" not in everywhere(run)
    reconcile.reconcile(run.pk)
    assert [(plan.run.id, plan.run.life) for plan in cloud.applied] == [(run.pk, 0), (run.pk, 1)]
    run.refresh_from_db()
    tell(run, *pods(run, *everywhere(run)))
    assert [run.phase, run.given_back_at, run.release_asked_at] == ["Running", None, None]


@pytest.mark.parametrize(
    ("lost", "wait"),
    [(("deleted",), places.REPAIR), (("not ready",), places.REPAIR), (("not ready", "ready"), places.PATIENCE)],
)
def test_a_whole_run_that_loses_one_of_its_tasks_waits_with_the_others_for_a_while_a_short_one_if_its_node_is_lost(
    cloud: Told, people: Any, lost: tuple[str, ...], wait: dt.timedelta
) -> None:
    run = started(people, "gang", 16)
    running = pods(run, *everywhere(run))
    tell(run, *running)
    tell(run, failed(running[-1], "Evicted"), pod(run, "worker", 14, attempt=1))
    others = [each for each in nodes(15) if each.name != running[-1].node]
    for how in lost:
        see(*others, *([] if how == "deleted" else [node(running[-1].node, takes_tasks=how == "ready")]))
        assert not gave_back(run, dt.timedelta(0))
    assert run.lacks_since
    assert not gave_back(run, wait / 2)
    assert gave_back(run, wait / 2)
    assert run.message.startswith("Some of its tasks lost their nodes and find no room there.")
    assert run.not_before == run.given_back_at, "it may have places again at once"


def test_a_whole_run_that_gets_its_node_back_in_time_keeps_its_places(cloud: Told, people: Any) -> None:
    run = started(people, "gang", 16)
    running = pods(run, *everywhere(run))
    tell(run, *running)
    tell(run, failed(running[-1], "Evicted"), pod(run, "worker", 14, attempt=1))
    place(run)
    assert not gave_back(run, places.PATIENCE / 2)
    tell(run, pod(run, "worker", 14, running[-1].node, attempt=1))
    assert not gave_back(run, places.PATIENCE / 2)
    assert run.lacks_since is None
    # The next loss counts from its own beginning.
    tell(run, failed(pod(run, "worker", 14, running[-1].node, attempt=1)), pod(run, "worker", 14, attempt=2))
    place(run)
    assert not gave_back(run, places.PATIENCE / 2)


@pytest.mark.parametrize("lost", [1, 16])
def test_a_task_that_failed_and_has_no_pod_yet_costs_no_places(cloud: Told, people: Any, lost: int) -> None:
    """Kubernetes makes the next pod after a back-off of up to six minutes. Others do not get its room meanwhile."""
    run = started(people, "gang", 16, retries=3)
    running = pods(run, *everywhere(run))
    tell(run, *running)
    tell(run, *[failed(each) for each in running[-lost:]])
    assert run.verdict == ""
    place(run)
    assert run.lacks_since
    assert not gave_back(run, places.PATIENCE * 2)
    other = place(submit(people, "other", 105))
    assert (other.placed_at, "104 of 120 are free" in other.message) == (None, True)


def test_a_whole_run_without_any_task_left_loses_nothing_by_being_placed_anew_at_once(cloud: Told, people: Any) -> None:
    run = started(people, "gang", 8)
    running = pods(run, *["n0"] * 8)
    tell(run, *running)
    tell(run, *[failed(each, "Lost") for each in running], *[replace(each, attempt=1, uid=f"{each.uid}+") for each in
        pods(run, *[""] * 8)])  # fmt: skip
    place(run)
    assert not gave_back(run, places.BLINK), "there is room where it has its places"
    see(*[each for each in nodes(15) if each.name != "n0"])
    assert gave_back(run, dt.timedelta(0))


def test_a_stranger_that_takes_the_last_gpu_of_its_node_costs_a_run_its_places(cloud: Told, people: Any) -> None:
    run = started(people, "gang", 8)
    assert run.layout == {"master": {"n0": 8}}
    see(node("n0", 7), *nodes(15)[1:])
    place(run)
    assert gave_back(run, places.BLINK)
    tell(run, gone(run))
    older(run, places.PAUSE)
    assert "n0" not in everywhere(place(run))


def test_a_stranger_that_leaves_room_enough_costs_nothing_before_patience_ends(cloud: Told, people: Any) -> None:
    run = started(people, "gang", 4)
    assert run.layout == {"master": {"n0": 4}}
    see(node("n0", 4), *nodes(15)[1:])
    place(run)
    assert not gave_back(run, places.PATIENCE / 2)
    assert gave_back(run, places.PATIENCE / 2), "whatever keeps its tasks from that room"


def test_independent_tasks_that_run_are_not_ended_for_others_that_wait(cloud: Told, people: Any) -> None:
    spec = {"framework": "parallel", "roles": {"worker": {"flavor": "middle-1-gpu", "count": 8}}}
    run = started(people, "copies", 1, **spec)
    tell(run, pod(run, "worker", 0, "n0"), *[pod(run, "worker", index) for index in range(1, 8)])
    see(node("n0", 1), *nodes(15)[1:])
    place(run)
    assert not gave_back(run, places.PATIENCE * 2)
    tell(run, failed(pod(run, "worker", 0, "n0"), "Lost"), pod(run, "worker", 0, attempt=1))
    assert (run.verdict, gave_back(run, dt.timedelta(0))) == ("", True), "none of them runs any more"


def test_what_a_run_used_before_it_lost_its_places_stays_in_its_bill(cloud: Told, people: Any) -> None:
    run = started(people, "gang", 8)
    begun = now() - dt.timedelta(seconds=100)
    running = [replace(each, scheduled_at=begun, began_at=begun, started_at=begun) for each in pods(run, *["n0"] * 8)]
    Run.objects.update(placed_at=begun - SECOND, applied_at=begun - SECOND)
    tell(run, *running)
    see(*nodes(15)[1:])
    ends = [replace(failed(each, "Lost"), finished_at=begun + 50 * SECOND) for each in running]
    tell(run, *ends, *[replace(each, attempt=1, uid=f"{each.uid}+") for each in pods(run, *[""] * 8)])
    place(run)
    assert gave_back(run, places.BLINK)
    tell(run, gone(run))
    assert (run.tasks.count(), run.layout, run.started_at, run.whole_at) == (0, {}, None, None)
    assert (run.phase, run.reason, run.gpu_rate) == ("Queued", "WaitingForGPUs", 0)
    used = run.gpu_seconds
    assert used >= 8 * 50
    older(run, places.PAUSE)
    place(run)
    reconcile.reconcile(run.pk)
    run.refresh_from_db()
    tell(run, *[replace(each, uid=f"{each.uid}*") for each in pods(run, *everywhere(run))])
    assert (run.phase, run.gpu_rate, run.gpu_seconds >= used) == ("Running", 8, True)


def test_a_run_that_is_stopped_while_it_is_cleared_away_ends_for_good(cloud: Told, people: Any) -> None:
    run = started(people, "gang", 8)
    see(*nodes(15)[1:])
    place(run)
    assert gave_back(run, places.BLINK)
    reconcile.reconcile(run.pk)
    actions.disable(run.cluster, acting_user=people.bob)
    run.refresh_from_db()
    assert "waits again" not in run.message
    tell(run, gone(run))
    assert (run.phase, run.gone, run.message) == ("Stopped", True, "Stopped by bob.")
    assert place(run).placed_at, "nothing is placed any more"
    assert run.phase == "Stopped"


def test_a_run_that_is_stopped_while_it_waits_gets_no_places(cloud: Told, people: Any) -> None:
    run = submit(people, "gang", 8)
    actions.disable(run.cluster, acting_user=people.bob)
    assert place(run).placed_at is None
    reconcile.reconcile(run.pk)
    assert (cloud.applied, cloud.deleted) == ([], [run.pk])
    tell(run, gone(run))
    assert run.phase == "Stopped"


def test_each_time_that_a_run_does_not_get_its_nodes_it_pauses_twice_as_long(cloud: Told, people: Any) -> None:
    run, pauses = submit(people, "gang", 8), []
    for number in range(6):
        place(run)
        assert run.placed_at, number
        [[name]] = [list(held) for held in run.layout.values()]
        reconcile.reconcile(run.pk)
        see(*[each for each in nodes(15) if each.name != name])
        place(run)
        assert gave_back(run, places.BLINK)
        assert run.not_before
        assert run.given_back_at
        pauses.append((run.not_before - run.given_back_at).total_seconds())
        tell(run, gone(run))
        see(*nodes(15))
        older(run, places.LONGEST_PAUSE)
    assert pauses == [30, 60, 120, 240, 480, 600]


@pytest.mark.parametrize("placed", [False, True])
def test_a_repeated_end_of_what_was_cleared_away_does_not_end_the_run(cloud: Told, people: Any, placed: bool) -> None:
    """A worker asked the cloud once more before it knew that all was gone."""
    run = started(people, "gang", 8)
    see(*nodes(15)[1:])
    place(run)
    assert gave_back(run, places.BLINK)
    again = gone(run)
    tell(run, again)
    if placed:
        older(run, places.PAUSE)
        place(run)
        reconcile.reconcile(run.pk)
        run.refresh_from_db()
        assert run.applied_at
    tell(run, again)
    assert (run.gone, run.phase, run.placed_at is not None) == (False, "Queued", placed)


def test_a_cloud_that_is_away_while_a_run_is_cleared_away_costs_time_alone(
    cloud: Told, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started(people, "gang", 8)
    see(*nodes(15)[1:])
    place(run)
    assert gave_back(run, places.BLINK)
    with monkeypatch.context() as patch:
        patch.setattr(cloud, "delete", lambda run: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            reconcile.reconcile(run.pk)
    assert Run.objects.get().reason == reconcile.TROUBLE
    Run.objects.update(claimed_until=None)
    reconcile.reconcile(run.pk)
    assert cloud.deleted == [run.pk]
    tell(run, gone(run))
    older(run, places.PAUSE)
    reconcile.reconcile(run.pk)
    place(run)
    assert (len(cloud.applied), len(everywhere(run))) == (1, 8)


def test_roles_that_ask_for_the_same_share_their_nodes_and_others_have_their_own(cloud: Told, people: Any) -> None:
    see(*nodes(2), node("cpu", gpus=0, free=0, cpu_milli=2000))
    roles = {
        "master": {"flavor": "middle-1-gpu"},
        "worker": {"flavor": "middle-1-gpu", "count": 9},
        "ps": {"flavor": "small", "count": 2},
    }
    run = started(people, "gang", 10, roles=roles)
    both, own = ("n0", "n1"), places.nodes_of(run, "ps")
    assert places.nodes_of(run, "master") == places.nodes_of(run, "worker") == both
    assert own == ("cpu",)
    [plan] = cloud.applied
    assert {role.role: role.nodes for role in plan.roles} == {"master": both, "worker": both, "ps": own}
    # After it is whole, the layout names both roles, which still share all of it.
    tell(run, *pods(run, *["n0"] * 8, "n1", "n1"), *[pod(run, "ps", index, "cpu") for index in (0, 1)])
    assert run.layout == {"master": {"n0": 1}, "worker": {"n0": 7, "n1": 2}, "ps": {"cpu": 2}}
    assert places.nodes_of(run, "master") == both


def test_places_of_which_the_cloud_is_not_told_in_time_go_to_others(cloud: Told, people: Any) -> None:
    first = place(submit(people, "first", 80))
    second = place(submit(people, "second", 80))
    Run.objects.filter(pk=first.pk).update(wait_reason=reconcile.TROUBLE)
    older(first, places.PATIENCE / 2)
    assert [place(run).placed_at is not None for run in (first, second)] == [True, False]
    older(first, places.PATIENCE / 2)
    # A worker is telling the cloud of it at this moment.
    Run.objects.filter(pk=first.pk).update(claim_token=uuid.uuid4(), claimed_until=now() + reconcile.CLAIM)
    assert place(first).placed_at
    Run.objects.filter(pk=first.pk).update(claimed_until=now() - SECOND)
    place(first)
    assert [first.placed_at, first.layout] == [None, {}]
    assert place(second).placed_at


@pytest.mark.parametrize("facts", [{"kueue_queue": "gpus"}, {"nodes_on_demand": True}])
def test_the_runs_that_wait_when_others_begin_to_place_them_are_told_to_the_cloud(
    cloud: Told, people: Any, training: Any, facts: dict[str, Any]
) -> None:
    waiting = [submit(people, name, 80) for name in ("one", "two")]
    training.objects.filter(name="training").update(settings=facts)
    for run in waiting:
        assert (place(run).placed_at, run.wait_reason) == (None, "")
        reconcile.reconcile(run.pk)
    assert [(plan.run.id, {role.nodes for role in plan.roles}) for plan in cloud.applied] == [
        (run.pk, {()}) for run in waiting
    ]


def test_a_run_without_gpus_waits_for_room_and_not_for_gpus(cloud: Told, people: Any) -> None:
    roles = {"master": {"flavor": "small"}, "worker": {"flavor": "small", "count": 3}}
    see(node(cpu_milli=2000, cpu_milli_others=1000))
    run = place(submit(people, "gang", 4, roles=roles))
    assert (run.placed_at, run.phase, run.reason) == (None, "Queued", "WaitingForResources")
    assert "there is room for 1 now" in run.message
    see(node(cpu_milli=2000))
    assert place(run).placed_at


def test_what_can_never_fit_waits_and_holds_up_nobody(cloud: Told, people: Any) -> None:
    large, small = submit(people, "large", 121), submit(people, "small", 120)
    assert place(large).placed_at is None
    assert large.message.startswith("It needs 121 GPUs at one time; all machines together have 120 GPUs for tasks.")
    small.refresh_from_db()
    assert small.placed_at


def test_no_run_is_told_its_place_in_numbers_beyond_the_first_hundred(
    cloud: Told, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "TOLD", 1)
    see(*nodes(1, 0))
    first, second = (submit(people, name, 8) for name in ("first", "second"))
    assert place(first).message.startswith("It needs 8 GPUs; 0 of 8 are free")
    second.refresh_from_db()
    assert (second.reason, second.message) == ("WaitingForGPUs", places.TURN)


@pytest.mark.parametrize("lose", [False, True])
def test_a_pass_takes_as_many_queries_for_2_runs_as_for_20(cloud: Told, people: Any, lose: bool) -> None:
    def queries() -> list[str]:
        with CaptureQueriesContext(connection) as captured:
            places.place("training")
        return [query["sql"] for query in captured]

    def more(name: str, count: int) -> list[Run]:
        runs = [submit(people, f"{name}-{number}", 4) for number in range(count)]
        if lose:
            places.place("training")
            for run in runs:
                reconcile.reconcile(run.pk)
            see(*[replace(each, gpus_others=8) for each in nodes(15)])
            places.place("training")
            for run in runs:
                older(run, places.BLINK)
        return runs

    def changed(runs: list[Run]) -> int:
        rows = Run.objects.filter(pk__in=[run.pk for run in runs])
        return (rows.exclude(given_back_at=None) if lose else rows.exclude(placed_at=None)).count()

    # A run of each kind stays, so that no query has nothing to look for.
    keeper = started(people, "keeper", 4)
    tell(keeper, *pods(keeper, *[next(iter(next(iter(keeper.layout.values()))))] * 4))
    small = more("a", 2)
    few = queries()
    assert changed(small) == 2
    for run in small:
        actions.disable(run.cluster, acting_user=people.bob)
        tell(run, gone(run))
    see(*nodes(15))
    large = more("b", 20)
    many = queries()
    assert changed(large) == 20
    assert len(few) == len(many), (few, many)


def test_news_between_two_statements_of_a_pass_promises_no_node_twice(cloud: Told, people: Any) -> None:
    """All tasks of a run get their nodes while the pass reads, before its first statement, its second, …"""
    see(*nodes(2))
    first, second = started(people, "first", 16), submit(people, "second", 8)
    news = pods(first, *everywhere(first))
    statements, came = 0, True

    def execute(run: Any, *about: Any) -> Any:
        nonlocal came
        if next(seen) == statements:
            came = True
            tell(first, *news)
        return run(*about)

    while came:
        seen, came = itertools.count(), False
        with transaction.atomic():
            with connection.execute_wrapper(execute):
                places.place("training")
            second.refresh_from_db()
            transaction.set_rollback(True)
        assert second.placed_at is None, f"news came before statement {statements}"
        statements += 1
    assert statements > 10


@pytest.mark.django_db(transaction=True)
def test_a_pass_between_two_statements_of_a_preview_hides_no_run(cloud: Told, people: Any) -> None:
    """The run that waits for all GPUs gets them while a preview reads, before its first statement, its second, …"""
    see(*nodes(1))
    first = submit(people, "first", 8)
    waits = Run.objects.filter(pk=first.pk).values().get()
    statements, came = 0, True

    def one_pass() -> None:
        places.place("training")
        connection.close()

    def execute(run: Any, *about: Any) -> Any:
        nonlocal came
        if next(seen) == statements:
            came = True
            thread = threading.Thread(target=one_pass)
            thread.start()
            thread.join()
        return run(*about)

    while came:
        seen, came = itertools.count(), False
        with connection.execute_wrapper(execute):
            asked = [asking("master", 1, 8, "", 1000, 1000)]
            told = room.judge(asked, known.capacity_of("training"), "training", room.Wish(people.ops, "ops"))
        first.refresh_from_db()
        assert bool(first.placed_at) == came
        assert told.fits == "waits", f"the pass came before statement {statements}: {told}"
        Run.objects.filter(pk=first.pk).update(**waits)
        first.decisions.filter(number__gt=waits["noted"].get("number", 0)).delete()
        statements += 1
    assert statements > 5


@pytest.mark.django_db(transaction=True)
def test_a_second_pass_decides_on_what_the_first_has_written(
    cloud: Told, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has read when an older run comes that would fit alone, too; a second pass that did not wait would place both."""
    old, new = submit(people, "old", 80), submit(people, "new", 80)
    Run.objects.filter(pk=old.pk).update(not_before=now() + dt.timedelta(hours=1))
    has_read, go_on, decide_all = threading.Event(), threading.Event(), places.room.decide_all

    def slow(*about: Any) -> Any:
        has_read.set()
        assert go_on.wait(60)
        return decide_all(*about)

    def one() -> None:
        try:
            places.place("training")
        finally:
            connection.close()

    monkeypatch.setattr(places.room, "decide_all", slow)
    thread = threading.Thread(target=one)
    thread.start()
    assert has_read.wait(60)
    monkeypatch.setattr(places.room, "decide_all", decide_all)
    Run.objects.filter(pk=old.pk).update(not_before=None)
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '300ms'")
        with pytest.raises(OperationalError, match="lock timeout"):
            places.place("training")
        cursor.execute("RESET lock_timeout")
    go_on.set()
    thread.join(60)
    assert not thread.is_alive()
    assert place(old).placed_at is None
    new.refresh_from_db()
    assert len(everywhere(new)) == 80


def test_one_worker_makes_passes_and_one_more_for_whom_was_woken_meanwhile(
    cloud: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight threads of a worker would soon all wait for a long pass, and no run would be started."""
    passes = []

    def other_worker() -> None:
        try:
            tasks.place_runs("training")
        finally:
            connection.close()

    def slow(name: str) -> None:
        passes.append(name)
        if len(passes) == 1:
            wakeups.wake_places(name)
            thread = threading.Thread(target=other_worker)
            thread.start()
            thread.join(60)
            assert not thread.is_alive()
            assert len(passes) == 1

    monkeypatch.setattr(places, "place", slow)
    tasks.place_runs("training")
    assert len(passes) == 2
    tasks.place_runs("training")
    assert len(passes) == 3


@pytest.mark.django_db(transaction=True)
def test_a_pass_that_dies_leaves_nothing_half_done_and_the_next_one_does_all(cloud: Told, people: Any) -> None:
    lost = started(people, "lost", 4)
    runs = [submit(people, name, size) for name, size in (("one", 80), ("two", 80), ("three", 8))]
    see(*[each for each in nodes(15) if each.name not in places.nodes_of(lost, "master")])
    Run.objects.filter(pk=lost.pk).update(lacks_since=now() - places.BLINK, applied_at=now() - places.BLINK)
    facts = ("placed_at", "layout", "wait_message", "given_back_at", "lacks_since")
    before = list(Run.objects.order_by("pk").values_list(*facts))

    def work() -> None:
        places.place("training")

    for allowed in range(100):
        if mortal.child(allowed, work) == 0:
            break
        found = list(Run.objects.order_by("pk").values_list(*facts))
        for each in Run.objects.all():
            assert each.noted["number"] == each.decisions.count(), "a line is written with its run, or neither"
        if found != before:
            # It died between its two transactions: places are given, and none is taken.
            assert [bool(placed) for placed, *_ in found] == [True, True, False, False], allowed
            assert found[0] == before[0], allowed
    else:
        pytest.fail("it never came to its end")
    assert allowed > 10
    for run in (*runs, lost):
        run.refresh_from_db()
    assert [run.placed_at is not None for run in runs] == [True, False, False]
    assert lost.given_back_at


def test_a_run_that_kubernetes_does_not_start_on_a_node_tries_others_for_a_while(cloud: Told, people: Any) -> None:
    run = started(people, "gang", 8)
    [[name]] = [list(held) for held in run.layout.values()]
    place(run)
    assert gave_back(run, places.PATIENCE)
    assert run.avoided == [name]
    tell(run, RunGone(run.pk))
    older(run, places.LONGEST_PAUSE / 2)
    place(run)
    assert run.placed_at
    assert name not in {node for held in run.layout.values() for node in held}
    # If there is no other, it comes back to it in the end.
    Run.objects.filter(pk=run.pk).update(placed_at=None, layout={}, wait_reason=places.FOR_GPUS)
    see(node(name))
    place(run)
    assert (run.placed_at, run.wait_message.startswith("It needs")) == (None, True)
    older(run, known.AVOIDED)
    assert place(run).layout == {"master": {name: 8}}


def test_replicas_of_a_service_get_places_on_different_nodes(cloud: Told, people: Any) -> None:
    runs = [submit(people, name, 1) for name in ("one", "two", "alone")]
    Cluster.objects.filter(name__in=["one", "two"]).update(part_of="services/shop")
    found = [next(iter(place(run).layout["master"])) for run in runs]
    assert len(set(found[:2])) == 2
    assert found[2] in found[:2], "others are packed"
