"""Which rows one batch of news changes, and which it leaves alone."""

import datetime as dt
from dataclasses import replace

import pytest
from django.utils.timezone import now
from hypothesis import HealthCheck, given, settings

from billing.models import Observation, Price, UsageSegment
from clusters.clouds.drivers.base import Batch, EndpointSeen, RunFound, RunGone, TaskSeen
from clusters.clouds.registry import run_ref
from clusters.cluster import actions
from clusters.runs.models import Cluster, Run, Task
from clusters.runs.status import observe as runs_observe
from clusters.runs.status import phase_update
from tests.clusters.test_lifecycle import tasks_seen, told_apart


@pytest.fixture
def run(db, catalogue, people, manifest):
    """A run of 1 master and 2 workers with a GPU each, already applied to its cloud."""
    cluster = actions.create_cluster(manifest(flavor="one-gpu", workers=2, retries=9), acting_user=people.bob)
    Run.objects.update(admitted_at=now(), applied_at=now() - dt.timedelta(days=1))
    return Run.objects.get(current_of=cluster)


def running(run, role, index, **more):
    began = now() - dt.timedelta(minutes=5)
    times = {"scheduled_at": began, "began_at": began, "started_at": began}
    return TaskSeen(run.pk, role, index, 0, f"{role}-{index}", "Running", node="machine-1", **times, **more)


def tell(*items):
    runs_observe.apply_batch("local", Batch("t.1", items))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(tasks_seen)
def test_the_database_tells_tasks_apart_as_the_pure_function_does(run, tasks):
    Task.objects.all().delete()
    facts = [{name: getattr(task, name) for name in phase_update.FACTS} for task in tasks]
    Task.objects.bulk_create(Task(run=run, uid=f"p-{n}", observed_at=now(), **each) for n, each in enumerate(facts))
    counted, others = phase_update._tasks_of([run])
    steady, rest = told_apart(tasks)
    assert {role: count for role, count in counted[run.pk].items() if count} == steady
    assert others[run.pk] == sorted(rest, key=lambda task: (task.role, task.index, -task.attempt))


def test_other_words_about_a_task_are_written_and_change_nothing_else(run):
    tasks = [running(run, role, index) for role, index in (("master", 0), ("worker", 0), ("worker", 1))]
    tell(*tasks)
    run.refresh_from_db()
    assert (run.phase, run.gpu_rate) == ("Running", 3)
    told, version = Observation.objects.count(), _version(run)
    tell(replace(tasks[1], reason="Unready", message="Its probe fails."))
    assert run.tasks.get(role="worker", index=0).message == "Its probe fails."
    assert Observation.objects.count() == told
    assert _version(run) == version


def test_a_run_that_was_over_before_anybody_saw_it_running_has_begun_all_the_same(run):
    seen = [running(run, role, index) for role, index in (("master", 0), ("worker", 0), ("worker", 1))]
    tell(*(replace(task, phase="Succeeded", finished_at=now(), exit_code=0) for task in seen), RunGone(run.pk))
    run.refresh_from_db()
    assert (run.phase, run.started_at) == ("Succeeded", min(task.started_at for task in seen))


def test_usage_follows_what_is_told_of_it(run):
    """In the second batch, too, when the run is already known."""
    tasks = [running(run, role, index) for role, index in (("master", 0), ("worker", 0), ("worker", 1))]
    tell(*tasks)
    tell(replace(tasks[2], phase="Failed", finished_at=now(), exit_code=1))
    run.refresh_from_db()
    assert (run.phase, run.reason, run.gpu_rate) == ("Running", "Degraded", 2)
    tell(replace(tasks[1], reason="NodeLost", message="Its node is silent."))
    run.refresh_from_db()
    assert run.gpu_rate == 2
    assert "2 of 3 tasks are not running" in run.message


def test_usage_of_a_task_whose_clock_is_ahead_is_found_with_later_news(run, monkeypatch):
    """By its node's clock the task has started, but by the portal's clock not yet."""
    tasks = [running(run, role, index) for role, index in (("master", 0), ("worker", 0), ("worker", 1))]
    ahead = now() + dt.timedelta(seconds=30)
    tell(*tasks[:2], replace(tasks[2], scheduled_at=ahead, began_at=ahead, started_at=ahead))
    run.refresh_from_db()
    assert run.gpu_rate == 2
    monkeypatch.setattr(runs_observe.timezone, "now", lambda: ahead + phase_update.RECOUNT)
    tell(replace(tasks[0], reason="Unready"))
    run.refresh_from_db()
    assert run.gpu_rate == 3


def _version(run):
    """The version of the row; every write changes it."""
    return Run.objects.extra(select={"version": "xmin::text"}).get(pk=run.pk).version


def test_an_endpoint_that_no_listing_has_is_not_opened_any_more(run):
    """It vanished while the watch was down."""
    tell(EndpointSeen(run.pk, "board", True, "127.0.0.1:1"), EndpointSeen(run.pk, "web", True, "127.0.0.1:2"))
    run.refresh_from_db()
    since = run.endpoints["web"]["since"]
    found = RunFound(run.pk, run_ref(run))
    again = EndpointSeen(run.pk, "web", True, "127.0.0.1:2")
    runs_observe.apply_listing("local", Batch("t.2", (found, again)), now())
    run.refresh_from_db()
    assert run.endpoints == {"web": {"address": "127.0.0.1:2", "since": since, "routed": False}}


def test_the_class_of_a_run_is_on_its_bill_and_stays_when_the_cluster_gets_another(run):
    """Tasks hold spare GPUs from their first sighting to their end, whatever the next run of the cluster is to be."""
    Run.objects.update(priority_class="spare")
    for sku, per_hour in (("gpu", 2), ("spare-gpu", 1)):
        Price.objects.create(sku=sku, per_hour=per_hour, valid_from=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    tasks = [running(run, role, index) for role, index in (("master", 0), ("worker", 0), ("worker", 1))]
    tell(*tasks)
    Cluster.objects.update(spec={**run.cluster.spec, "priorityClass": "normal"})
    tell(*(replace(task, phase="Succeeded", finished_at=task.started_at + dt.timedelta(seconds=60)) for task in tasks))
    segments = [row.segment for row in UsageSegment.objects.all()]
    assert [(each.resources.gpu_class, each.labels["class"], each.flags) for each in segments] == [
        ("spare", "spare", ())
    ] * 3
    run.refresh_from_db()
    assert round(run.cost * 60) == 3
