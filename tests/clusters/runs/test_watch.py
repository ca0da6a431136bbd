"""News as clouds really send them: repeated, late, broken, about unknown runs, and in bulk."""

import datetime as dt
import itertools
import json
import re
import time

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from billing.models import Observation, Quarantined, UsageSegment
from clusters.clouds.drivers.base import Batch, RunBlocked, RunGone, StorageSeen, TaskSeen, Unreadable
from clusters.clouds.models import CloudState
from clusters.cluster import actions
from clusters.runs import resync
from clusters.runs.models import Cluster, Run, Task
from clusters.runs.status import observe
from portal.models import Event

pytestmark = pytest.mark.django_db(transaction=True)

position = itertools.count(1)


def tell(*items):
    observe.apply_batch("local", Batch(f"test.{next(position)}", items))


def told(run, cluster_role="master", index=0, attempt=0, phase="Running", **more):
    start = now().replace(microsecond=0)
    times = {"scheduled_at": start, "started_at": start, "finished_at": start if phase in observe.ENDED else None}
    uid = more.pop("uid", f"{run.pk}/{cluster_role}/{index}/{attempt}")
    return TaskSeen(run.pk, cluster_role, index, attempt, uid, phase, **{**times, **more})


@pytest.fixture
def run(catalogue, people, manifest):
    """A run of 1 master and 2 workers with a GPU each, already applied to its cloud."""
    cluster = actions.create_cluster(manifest(flavor="one-gpu", workers=2, retries=0), acting_user=people.bob)
    Run.objects.update(admitted_at=now(), applied_at=now())
    return Run.objects.get(current_of=cluster)


def test_what_begins_in_this_second_costs_from_this_second(run):
    tell(told(run))
    run.refresh_from_db()
    assert run.gpu_rate == 1
    assert run.gpu_seconds_at(run.usage_as_of + dt.timedelta(seconds=10)) == 10


def test_texts_of_any_kind_and_length_are_written_down(run):
    odd = "a\0b \ud800 " + "ü" * 100_000
    tell(told(run, phase="Failed", reason=odd, message=odd, node=odd, gpus=(odd,), gpu_model=odd, log_tail=odd))
    task = Task.objects.get()
    assert task.log_tail == "ü" * 4096
    assert "\0" not in task.reason
    tell(StorageSeen(run.pk, "failed", odd))
    tell(RunGone(run.pk, False, odd))
    run.refresh_from_db()
    assert run.phase == "Failed"


def test_strangers_are_named_in_the_log_and_stop_nobody(run, caplog):
    tell(
        TaskSeen(2**40, "master", 0, 0, "x", "Running"),
        TaskSeen(run.pk, "dancer", 0, 0, "y", "Running"),
        RunGone(2**41),
        told(run),
    )
    assert Task.objects.count() == 1
    assert CloudState.objects.get().position
    assert "dancer" in caplog.text


def test_what_the_database_does_not_take_is_quarantined_and_the_rest_goes_on(run):
    """A pod that claims to be another task, and numbers too large for their columns, in one batch and in a listing."""
    first = told(run, "worker", uid="one")
    tell(first)
    bad = [
        told(run, "master", uid="one"),
        told(run, "worker", attempt=2**40, uid="two"),
        told(run, "worker", 0, 5, phase="Failed", exit_code=2**70, uid="three", log_tail="password"),
        told(run, "worker", 1, uid="four", began_at=dt.datetime(1, 1, 1, tzinfo=dt.UTC)),
    ]
    good = [told(run, uid="five"), StorageSeen(run.pk, "storing")]
    asked_at = now()
    for take in (
        lambda items: tell(*items),
        lambda items: observe.apply_listing("local", Batch("t.0", items), asked_at),
    ):
        take((*bad[:2], good[0], *bad[2:], good[1]))
        assert set(Task.objects.values_list("uid", flat=True)) == {"one", "four", "five"}
        assert Task.objects.get(uid="one").role == "worker"
        run.refresh_from_db()
        assert run.storage_state == "storing"
        kept = Quarantined.objects.order_by("pk")
        assert [json.loads(row.raw)["uid"] for row in kept] == ["one", "two", "three", "four"]
        assert all(row.cloud == "local" for row in kept)
        assert not kept.filter(raw__contains="password").exists()
    assert CloudState.objects.get().position == "t.0"
    assert set(UsageSegment.objects.values_list("uid", flat=True)) == {"one", "five"}


def test_what_the_cloud_could_not_read_is_kept_and_is_not_missing(run):
    tell(told(run, uid="one"), told(run, "worker", uid="two"))
    unread = Unreadable('{"kind": "Pod"}', "Pod ops/x is not understood.", "two", run.pk)
    observe.apply_batch("local", Batch("t.1", (), (unread,)))
    observe.apply_listing("local", Batch("t.2", (told(run, uid="one"),), (unread,)), now())
    assert set(Task.objects.values_list("uid", "phase")) == {("one", "Running"), ("two", "Running")}
    # The run does not count as missing even if the listing has nothing else of it.
    observe.apply_listing("local", Batch("t.3", (), (unread,)), now())
    run.refresh_from_db()
    assert run.applied_at
    kept = Quarantined.objects.get()
    assert (kept.cloud, kept.raw, kept.reason) == ("local", unread.raw, unread.reason)


def test_a_pod_whose_end_nobody_understands_is_billed_until_the_next_listing_at_most(run):
    begun = now().replace(microsecond=0) - dt.timedelta(seconds=60)
    tell(
        told(run, uid="one", scheduled_at=begun, started_at=begun),
        told(run, "worker", uid="two", scheduled_at=begun, started_at=begun),
    )
    unread = Unreadable('{"kind": "Pod"}', "Pod ops/x, which has ended, is not understood.", "two", run.pk, over=True)
    observe.apply_batch("local", Batch("t.1", (), (unread,)))
    assert UsageSegment.objects.get(uid="two").ended is None
    heard_at = CloudState.objects.get().heard_at
    # The listing cannot read it either: it counts as lost at the last contact.
    observe.apply_listing("local", Batch("t.2", (told(run, uid="one"),), (unread,)), now())
    task = Task.objects.get(uid="two")
    assert (task.phase, task.reason, task.finished_at) == ("Failed", "Lost", heard_at)
    segment = UsageSegment.objects.get(uid="two")
    assert segment.ended == heard_at.replace(microsecond=0)
    assert "end-estimated" in segment.flags
    assert UsageSegment.objects.get(uid="one").ended is None
    # A readable end that arrives later replaces the estimate.
    at = begun + dt.timedelta(seconds=5)
    tell(told(run, "worker", uid="two", phase="Failed", scheduled_at=begun, started_at=begun, finished_at=at))
    assert UsageSegment.objects.get(uid="two").ended == at


def test_nothing_of_a_run_that_is_gone_is_billed_any_more(run):
    """Whatever the last news of its pods was."""
    tell(told(run), told(run, "worker"))
    tell(told(run, phase="Succeeded", exit_code=0))
    tell(RunGone(run.pk))
    assert dict(Task.objects.values_list("role", "phase")) == {"master": "Succeeded", "worker": "Failed"}
    assert not UsageSegment.objects.filter(ended=None).exists()
    run.refresh_from_db()
    assert run.gone
    assert run.gpu_rate == 0


def test_a_failure_is_told_once_however_often_the_news_come(run):
    failed = told(run, "worker", phase="Failed", reason="Error", exit_code=3)
    stopped = told(run, "worker", 1, phase="Failed", reason="Stopped")
    tell(failed, stopped)
    tell(failed)
    observe.apply_listing("local", Batch("test.0", (told(run), failed, stopped)), now())
    assert Event.objects.filter(verb="task.failed").count() == 1


def test_late_news_take_nothing_back(run):
    done = told(run, phase="Succeeded", exit_code=0)
    tell(done, RunGone(run.pk))
    run.refresh_from_db()
    before = (run.phase, run.gpu_seconds, run.message)
    tell(told(run, phase="Pending", reason="Starting"), told(run), StorageSeen(run.pk, "fetching"))
    run.refresh_from_db()
    assert (run.phase, run.gpu_seconds, run.message) == before
    assert run.gpu_rate == 0
    assert Task.objects.get().phase == "Succeeded"


def test_a_warning_about_data_stays_on_the_page_and_is_told_once(run, client, people):
    sentence = "The input is empty: there is nothing in bucket <data>."
    tell(StorageSeen(run.pk, "ready", warning=sentence), StorageSeen(run.pk, "storing"))
    tell(StorageSeen(run.pk, "ready", warning=sentence), told(run, phase="Failed", exit_code=1), RunGone(run.pk))
    assert Event.objects.filter(verb="run.data_warning").values_list("message", flat=True).get() == sentence
    client.force_login(people.bob)
    for tab in ("", "/logs"):
        page = client.get(f"/clusters/{run.cluster.appcode.code}/{run.cluster.name}{tab}").content.decode()
        assert "there is nothing in bucket &lt;data&gt;." in page
    path = f"/api/v1/appcodes/{run.cluster.appcode.code}/clusters/{run.cluster.name}"
    assert client.get(path).json()["status"]["warning"] == sentence


def test_a_time_limit_counts_while_input_is_fetched_and_not_while_the_run_waits(run):
    def deadline(*items):
        tell(*items)
        return Run.objects.get().deadline

    assert deadline(StorageSeen(run.pk, "fetching")) is None, "it has no limit"
    Run.objects.update(spec=run.spec | {"timeLimit": 60})
    first = deadline(StorageSeen(run.pk, "fetching"))
    assert 50 < (first - now()).total_seconds() <= 60
    assert deadline(StorageSeen(run.pk, "failed", "It is tried again.")) == first
    assert deadline(StorageSeen(run.pk, "ready")) is None
    deadline(StorageSeen(run.pk, "fetching"))
    Run.objects.update(deadline=now() - dt.timedelta(seconds=1))
    resync.sweep()
    ended = Run.objects.get()
    assert (ended.desired, ended.verdict_reason) == ("ended", "TimeLimit")
    assert "time limit of 1 minute" in ended.verdict_message


def test_the_time_limit_of_a_run_that_its_cloud_took_back_begins_anew_with_it(run):
    Run.objects.update(spec=run.spec | {"timeLimit": 60})
    tasks = [("master", 0), ("worker", 0), ("worker", 1)]
    tell(*(told(run, *task) for task in tasks))
    assert Run.objects.get().deadline
    back, over = RunBlocked(run.pk, "QueuedByKueue", "It waits."), {"phase": "Failed", "disrupted": True}
    tell(back, *(told(run, *task, **over) for task in tasks[1:]))
    assert Run.objects.get().deadline, "its master still runs"
    tell(told(run, **over))
    run.refresh_from_db()
    assert (run.phase, run.started_at, run.deadline) == ("Queued", None, None)
    tell(RunBlocked(run.pk, "", ""), *(told(run, *task, attempt=1) for task in tasks))
    first = run.tasks.get(role="master", attempt=1)
    run.refresh_from_db()
    assert run.deadline == run.started_at + dt.timedelta(seconds=60)
    assert run.started_at >= first.started_at
    # So it is while it fetches its input, before it has started.
    Run.objects.update(phase="Starting", started_at=None)
    tell(back, *(told(run, *task, attempt=1, **over) for task in tasks))
    assert Run.objects.get().deadline is None


def test_a_listing_that_was_asked_for_before_a_run_was_told_says_nothing_about_it(run):
    before = Run.objects.get().applied_at - dt.timedelta(milliseconds=1)
    Run.objects.update(desired="ended")
    observe.apply_listing("local", Batch("test.0", ()), before)
    assert not Run.objects.get().gone


def test_a_run_that_the_cloud_forgot_begins_anew_with_first_attempts(run):
    tell(
        told(run),
        told(run, "worker", 0, phase="Failed", disrupted=True),
        told(run, "worker", 0, 1),
        told(run, "worker", 1),
    )
    assert Run.objects.get().phase == "Running"
    observe.apply_listing("local", Batch("test.0", ()), now())
    run.refresh_from_db()
    assert (run.applied_at, run.gpu_rate) == (None, 0)
    assert not UsageSegment.objects.filter(ended=None).exists()
    assert Event.objects.filter(verb="run.vanished").count() == 1
    # The new cloud's pods have new uids, and their attempts start at 0.
    again = [told(run, role, n, uid=f"new/{role}/{n}") for role, n in (("master", 0), ("worker", 0), ("worker", 1))]
    tell(*again)
    assert Run.objects.get().phase == "Running"
    assert Task.objects.count() == 3
    tell(told(run, uid="newest/master/0"))
    assert Task.objects.count() == 3


def test_a_run_that_the_cloud_forgot_while_it_ended_does_not_claim_that_its_output_is_safe(run):
    Run.objects.update(spec={**run.spec, "output": "somewhere"})
    tell(told(run, phase="Succeeded", exit_code=0))
    observe.apply_listing("local", Batch("test.0", ()), now())
    run.refresh_from_db()
    assert (run.phase, run.reason) == ("Failed", "OutputNotStored")


def test_when_the_master_leaves_and_workers_fail_of_it_the_run_has_succeeded(run):
    end = now()
    tell(
        told(run, "worker", 0, phase="Failed", exit_code=1, finished_at=end + dt.timedelta(seconds=1)),
        told(run, phase="Succeeded", exit_code=0, finished_at=end),
    )
    assert Run.objects.get().verdict == "Succeeded"


def test_a_worker_that_failed_before_the_master_was_done_fails_the_run(run):
    end = now()
    tell(
        told(run, "worker", 0, phase="Failed", exit_code=1, finished_at=end),
        told(run, phase="Succeeded", exit_code=0, finished_at=end + dt.timedelta(seconds=1)),
    )
    assert Run.objects.get().verdict == "Failed"


def test_a_thousand_tasks_take_as_many_queries_as_one(catalogue, people, manifest):
    def counted(name, workers, **more):
        cluster = actions.create_cluster(manifest(name, workers=workers), acting_user=people.bob)
        run = Run.objects.get(current_of=cluster)
        items = [told(run), *(told(run, "worker", n, **more) for n in range(workers))]
        with CaptureQueriesContext(connection) as queries:
            began = time.perf_counter()
            tell(*items)
            seconds = time.perf_counter() - began
            return len(queries), seconds

    few, _ = counted("few", 1, phase="Failed", log_tail="x" * 4000)
    many, seconds = counted("many", 999, phase="Failed", log_tail="x" * 4000)
    assert many <= few + 3
    assert seconds < 60  # one second on an idle machine


def test_a_rolled_back_batch_leaves_nothing_and_comes_again(run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(observe, "_save_position", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tell(told(run))
    assert not Task.objects.exists()
    assert not Observation.objects.exists()
    assert not UsageSegment.objects.exists()
    tell(told(run))
    assert UsageSegment.objects.count() == 1


def test_a_service_that_crashes_again_and_again_says_so(loop, people, manifest):
    cluster = actions.create_cluster(
        manifest("demo", "echo no such model; sleep 0.3; exit 9", mode="service"), acting_user=people.bob
    )
    # The message gives the number of failures so far, which is not predictable.
    loop.until(
        lambda: re.search(r"failed (twice|\d+ times) \(exit code 9\)", Run.objects.get(current_of=cluster).message)
    )
    run = Run.objects.get(current_of=cluster)
    assert run.reason in ("Degraded", "Restarting")
    assert "no such model" in run.message
    loop.until(lambda: re.search(r"started again \d+ times", Run.objects.get(current_of=cluster).message))
    actions.disable(cluster, acting_user=people.bob)
    loop.until_phase(cluster, "Stopped")
    resync.sweep()


def test_a_listing_of_everything_that_ever_ran_is_taken_quickly(run):
    """After a restart of the machine the watch starts with a listing, while users wait for current runs."""
    old = 300
    clusters = Cluster.objects.bulk_create(
        Cluster(appcode=run.cluster.appcode, name=f"old-{n}", spec=run.spec) for n in range(old)
    )
    facts = {"spec": run.spec, "resources": run.resources, "roles": run.roles, "gpus": 0, "number": 1}
    runs = Run.objects.bulk_create(Run(cluster=cluster, applied_at=now(), **facts) for cluster in clusters)
    items = [
        item
        for each in runs
        for item in (told(each, phase="Succeeded"), StorageSeen(each.pk, "stored"), RunGone(each.pk))
    ]
    for n in range(0, len(items), 150):
        tell(*items[n : n + 150])
    assert Run.objects.filter(phase="Succeeded").count() == old
    began = time.monotonic()
    with CaptureQueriesContext(connection) as queries:
        observe.apply_listing("local", Batch("test.0", (*items, told(run))), now())
    assert len(queries) < 50, "two dozen, and none for each of them"
    assert time.monotonic() - began < 30  # less than half a second on an idle machine
    assert Task.objects.filter(run=run, phase="Running").exists()
