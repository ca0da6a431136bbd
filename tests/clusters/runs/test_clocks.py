"""What is shown of a run if the clock of a task's node is ahead of the portal's, and no later news of the task arrives."""

import datetime as dt

import pytest
from django.utils import timezone

from billing.sums.totals import totals
from clusters.clouds.drivers.base import Batch, TaskSeen
from clusters.cluster import actions
from clusters.runs import resync
from clusters.runs.models import Run
from clusters.runs.status import observe as runs_observe
from clusters.runs.status import phase_update

AHEAD = dt.timedelta(seconds=90)


@pytest.fixture
def run(db, catalogue, people, manifest):
    """A run of 1 master and 1 worker with a GPU each, already applied to its cloud."""
    cluster = actions.create_cluster(manifest(flavor="one-gpu", workers=1, retries=9), acting_user=people.bob)
    Run.objects.update(admitted_at=timezone.now(), applied_at=timezone.now() - dt.timedelta(days=1))
    return Run.objects.get(current_of=cluster)


def told(run, began_at, role="worker", phase="Running", **more):
    times = {"scheduled_at": began_at, "began_at": began_at, "started_at": began_at}
    item = TaskSeen(run.pk, role, 0, 0, f"the-{role}", phase, node="machine-1", **times, **more)
    runs_observe.apply_batch("local", Batch("t.1", (item,)))
    run.refresh_from_db()
    return run.usage_as_of


@pytest.fixture
def swept(run, monkeypatch):
    """swept(at) → runs the sweep at that time; True if it computed the run's usage again."""

    def sweep(at):
        before = run.usage_as_of
        with monkeypatch.context() as patch:
            patch.setattr(timezone, "now", lambda: at)
            resync.sweep()
        run.refresh_from_db()
        assert run.usage_as_of in (before, at)
        return run.usage_as_of == at

    return sweep


def is_as_in_the_ledger(run):
    shown = (run.gpu_seconds, run.gpu_rate, run.cost, run.cost_rate)
    found = totals([phase_update.consumer(run)], run.usage_as_of)[phase_update.consumer(run)]
    return shown == (found.gpu_seconds, found.gpu_rate, found.cost, found.cost_rate)


def test_a_task_that_begins_ahead_is_used_from_that_time_on(run, swept):
    told(run, timezone.now() - dt.timedelta(minutes=5), role="master")
    began = timezone.now() + AHEAD
    told(run, began)
    assert run.gpu_rate == 1
    assert not swept(began - dt.timedelta(seconds=5))
    assert swept(began + dt.timedelta(seconds=2))
    assert (run.gpu_rate, is_as_in_the_ledger(run)) == (2, True)
    assert not swept(began + dt.timedelta(seconds=10))


def test_a_task_that_ends_ahead_was_used_until_then(run, swept):
    finished = timezone.now() + AHEAD
    lasted = dt.timedelta(minutes=5)
    told(run, finished - lasted, role="master")
    told(run, finished - lasted, phase="Failed", finished_at=finished, exit_code=1)
    assert run.gpu_rate == 1
    assert run.gpu_seconds_at(finished) < 2 * lasted.total_seconds() - 5
    assert not swept(finished - dt.timedelta(seconds=5))
    assert swept(finished + dt.timedelta(seconds=2))
    assert is_as_in_the_ledger(run)
    assert 2 * lasted.total_seconds() <= run.gpu_seconds <= 2 * lasted.total_seconds() + 3
    assert not swept(finished + dt.timedelta(seconds=10))


def test_runs_of_which_every_time_has_come_are_left_alone(run, swept):
    began_at = timezone.now() - dt.timedelta(minutes=5)
    told(run, began_at, role="master")
    at = told(run, began_at)
    assert not swept(at + dt.timedelta(seconds=5))
    assert not swept(at + 2 * resync.AHEAD)
