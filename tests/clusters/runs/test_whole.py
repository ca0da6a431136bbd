"""A run that the portal places is billed from the moment at which all its tasks have nodes. On the real database."""

import datetime as dt
from dataclasses import replace

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from billing.models import UsageSegment
from clusters import wakeups
from clusters.clouds.drivers.base import Batch, RunFound, TaskSeen
from clusters.clouds.registry import run_ref
from clusters.cluster import actions
from clusters.runs.models import Run
from clusters.runs.status import observe
from clusters.runs.status.whole import Span, whole_since

ZERO = now().replace(microsecond=0) - dt.timedelta(hours=1)
MASTER, FIRST, SECOND = PLACES = [("master", 0), ("worker", 0), ("worker", 1)]


def at(seconds):
    return ZERO + dt.timedelta(seconds=seconds)


@pytest.fixture
def run(db, catalogue, people, manifest):
    """A placed run of 1 master and 2 workers with a GPU each."""
    return _placed(actions.create_cluster(manifest(flavor="one-gpu", workers=2, retries=9), acting_user=people.bob))


def _placed(cluster):
    layout = {"master": {"n-1": 1}, "worker": {"n-1": 2}}
    Run.objects.update(admitted_at=at(-9), applied_at=at(-9), placed_at=at(-9), layout=layout)
    return Run.objects.get(current_of=cluster)


def bound(run, place, scheduled, node="n-1", attempt=0):
    role, index = place
    uid = f"{role}-{index}-{attempt}"
    return TaskSeen(run.pk, role, index, attempt, uid, "Pending", "Starting", node=node, scheduled_at=at(scheduled))


def running(run, place, scheduled, began, **more):
    return replace(
        bound(run, place, scheduled, **more), phase="Running", reason="", began_at=at(began), started_at=at(began)
    )


def failed(task, finished):
    return replace(task, phase="Failed", reason="Error", finished_at=at(finished), exit_code=1)


def tell(run, *items):
    observe.apply_batch("local", Batch("t.1", items))
    run.refresh_from_db()


def billed():
    """The seconds after ZERO of each segment, by uid."""
    rows = {row.uid: (row.started, row.ended) for row in UsageSegment.objects.all()}
    return {uid: tuple(time and (time - ZERO).total_seconds() for time in times) for uid, times in rows.items()}


def test_nothing_is_billed_until_the_last_task_has_a_node(run, monkeypatch, django_capture_on_commit_callbacks):
    woken = []
    monkeypatch.setattr(wakeups, "send", lambda task, *keys, once="": woken.append((task, *keys)))
    first = running(run, MASTER, 10, 20), running(run, FIRST, 10, 400)
    tell(run, *first)
    assert (run.gpu_seconds, run.gpu_rate, run.cost, run.whole_at) == (0, 0, 0, None)
    assert billed() == {}
    with django_capture_on_commit_callbacks(execute=True):
        tell(run, bound(run, SECOND, 300, node="n-2"))
    assert run.whole_at == at(300)
    assert run.layout == {"master": {"n-1": 1}, "worker": {"n-1": 1, "n-2": 1}}
    assert ("clusters.tasks.place_runs", "local") in woken
    # The third has its node, and fetches its image for free as always.
    assert billed() == {"master-0-0": (300, None), "worker-0-0": (400, None)}
    # The sums came with the news, in its transaction.
    assert run.gpu_rate == 2
    tell(run, running(run, SECOND, 300, 350), *first)
    assert billed() == {"master-0-0": (300, None), "worker-0-0": (400, None), "worker-1-0": (350, None)}


def test_a_task_that_dies_before_the_run_is_whole_costs_nothing(run):
    dead = running(run, FIRST, 10, 20)
    tell(run, running(run, MASTER, 10, 20), dead)
    tell(run, failed(dead, 100))
    # It waits for its next attempt, so the run is not whole with the last worker.
    tell(run, running(run, SECOND, 200, 210))
    assert (run.whole_at, billed()) == (None, {})
    tell(run, running(run, FIRST, 300, 310, attempt=1, node="n-3"))
    assert run.whole_at == at(300)
    assert billed() == {"master-0-0": (300, None), "worker-1-0": (300, None), "worker-0-1": (310, None)}
    assert run.layout == {"master": {"n-1": 1}, "worker": {"n-1": 1, "n-3": 1}}
    # Told again by a listing.
    listing = (
        RunFound(run.pk, run_ref(run)),
        failed(dead, 100),
        *(running(run, *each) for each in ((MASTER, 10, 20), (SECOND, 200, 210))),
        running(run, FIRST, 300, 310, attempt=1, node="n-3"),
    )
    observe.apply_listing("local", Batch("t.2", listing), now())
    assert billed() == {"master-0-0": (300, None), "worker-1-0": (300, None), "worker-0-1": (310, None)}


def test_a_restart_of_a_whole_run_is_billed_from_its_own_start(run):
    tasks = [running(run, place, 10, 20) for place in PLACES]
    tell(run, *tasks)
    tell(run, failed(tasks[2], 100))
    tell(run, bound(run, SECOND, 200, attempt=1))
    assert run.whole_at == at(10)
    tell(run, running(run, SECOND, 200, 250, attempt=1))
    assert billed()["worker-1-0"] == (20, 100)
    assert billed()["worker-1-1"] == (250, None)


def test_a_run_that_was_whole_and_over_before_anybody_heard_of_it_is_billed(run):
    """As after minutes without a controller. The end of one task is an estimate, and stays one."""
    ends = [
        failed(running(run, place, scheduled, 60), 100) for place, scheduled in zip(PLACES, (10, 50, 90), strict=True)
    ]
    tell(run, replace(ends[0], estimated=True), *ends[1:])
    assert (run.whole_at, run.gpu_seconds) == (at(90), 30)
    assert billed() == dict.fromkeys(("master-0-0", "worker-0-0", "worker-1-0"), (90, 100))
    assert dict(UsageSegment.objects.values_list("uid", "flags"))["master-0-0"] == ["end-estimated"]
    # Their next attempts find the places that they had.
    assert run.layout == {"master": {"n-1": 1}, "worker": {"n-1": 2}}


def test_a_run_that_gives_its_places_back_is_not_whole_by_what_gets_a_node_meanwhile(run):
    """Nor later by its earlier tasks: they had nodes of another placement."""
    Run.objects.update(given_back_at=at(100))
    old = [running(run, place, 10, 20) for place in PLACES]
    tell(run, *old)
    assert (run.whole_at, billed()) == (None, {})
    tell(run, *(failed(task, 110) for task in old))
    Run.objects.update(placed_at=now(), given_back_at=None)
    new = [running(run, place, 200, 210, attempt=1) for place in PLACES]
    tell(run, *new[:2])
    assert (run.whole_at, billed()) == (None, {})
    tell(run, new[2])
    assert run.whole_at == at(200)
    assert set(billed()) == {task.uid for task in new}


def test_copies_that_do_not_need_each_other_are_billed_one_by_one(db, catalogue, people, manifest):
    spec = {"framework": "parallel", "roles": {"worker": {"flavor": "one-gpu", "count": 2}}}
    run = _placed(actions.create_cluster(manifest(**spec), acting_user=people.bob))
    tell(run, running(run, FIRST, 10, 20, node="n-7"))
    assert run.whole_at == at(10)
    assert run.layout == {"master": {"n-1": 1}, "worker": {"n-1": 2}}
    tell(run, running(run, SECOND, 30, 40))
    assert billed() == {"worker-0-0": (20, None), "worker-1-0": (40, None)}


def test_no_query_more_for_runs_that_are_not_placed_or_are_whole(run):
    def queries(attempt):
        """Of the news that this attempt has failed, and that the next runs."""
        start = 100 * attempt
        with CaptureQueriesContext(connection) as found:
            tell(run, failed(running(run, SECOND, start + 10, start + 20, attempt=attempt), start + 90))
            tell(run, running(run, SECOND, start + 110, start + 120, attempt=attempt + 1))
        return len(found)

    Run.objects.update(placed_at=None)
    tell(run, *(running(run, place, 10, 20) for place in PLACES))
    queries(0)
    unplaced = queries(1)
    assert (run.whole_at, run.gpu_rate) == (None, 3)
    Run.objects.update(placed_at=at(-9), whole_at=at(10))
    queries(2)  # Its history gets a line.
    assert queries(3) == unplaced
    Run.objects.update(whole_at=None)
    assert queries(4) > unplaced


@pytest.mark.parametrize(
    ("spans", "whole"),
    [
        ([("w", 0, 1, None), ("w", 1, 5, None)], 5),
        ([("w", 0, 1, None), ("w", 0, 5, None)], None),
        # The first had its node until the moment at which the second got one.
        ([("w", 0, 1, 5), ("w", 1, 5, None)], None),
        ([("w", 0, 1, 6), ("w", 1, 5, None)], 5),
        # Two attempts of one task, the second known before the first has ended.
        ([("w", 0, 1, 6), ("w", 0, 4, None), ("w", 1, 8, None)], 8),
        ([("w", 0, 1, 3), ("w", 0, 7, None), ("w", 1, 2, 2), ("w", 1, 4, None)], 7),
    ],
)
def test_the_first_moment_at_which_all_tasks_had_nodes(spans, whole):
    told = [Span(role, index, at(since), None if until is None else at(until)) for role, index, since, until in spans]
    for order in (told, told[::-1]):
        assert whole_since({"w": 2, "ps": 0}, order, independent=False) == (None if whole is None else at(whole))
