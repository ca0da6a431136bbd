"""Logs are copied before they are lost. The real node agent plays a cloud that loses logs; the archive is a real S3 server."""

from __future__ import annotations

import datetime as dt
import threading
import time

import pytest
from django.db import connections
from django.utils.timezone import now

from clusters.clouds import registry
from clusters.clouds.drivers import marks
from clusters.clouds.drivers.base import CloudError, RunGone, StorageSeen, TaskSeen
from clusters.clouds.registry import cloud
from clusters.cluster import actions
from clusters.logs import collect, copy
from clusters.runs import reconcile
from clusters.runs.models import Run, Task
from datastores.storage.actions import bucket_of, logs_bucket
from datastores.storage.store import _client
from tests.api.client import api_of

pytestmark = pytest.mark.django_db(transaction=True)
SCRIPT = "trap 'echo asked to end; exit 3' TERM; echo up; while true; do sleep 0.05; done"


@pytest.fixture
def store(s3, bucket, settings, monkeypatch):
    """store() → the archived logs, key → contents. Checks the times beside each log."""
    monkeypatch.setattr(registry, "keeps_logs", lambda _: False)
    settings.LOGS_S3 = {
        **settings.LOGS_S3,
        "server": s3.url,
        "bucket": bucket,
        "access_key": s3.access_key,
        "secret": s3.secret_key,
    }

    def read():
        found = s3.client.list_objects_v2(Bucket=bucket).get("Contents", ())
        kept = {item["Key"]: s3.client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read() for item in found}
        logs = {key: data for key, data in kept.items() if key.endswith(".log")}
        for key, data in logs.items():
            # The line times are stored beside each log, from its first byte on.
            times = list(marks.each(kept.pop(key.removesuffix(".log") + ".times")))
            assert [mark[marks.OFFSET] for mark in times[:1]] == [0] * bool(data)
            assert all(mark[marks.OFFSET] < len(data) for mark in times)
            assert times == sorted(set(times))
        assert kept == logs
        return logs

    return read


@pytest.fixture
def copying():
    """copying() → a started thread that copies the due logs once."""
    threads = []

    def work():
        try:
            collect.copy_due()
        finally:
            connections.close_all()

    def start():
        threads.append(threading.Thread(target=work))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, list(Task.objects.values())
        time.sleep(0.02)


def listening(loop, run):
    """Waits until every program has set its trap; before that, a signal would end it without output."""
    for task in run.tasks.all():
        loop.until_said(run, "up", task.role, task.index)


def state(run):
    return Task.objects.get(run=run).log_state


def key(run, name="master-0-0"):
    return f"logs/local/{run.pk}/{name}.log"


def test_what_ends_by_itself_is_copied_once(loop, people, manifest, store):
    cluster = actions.create_cluster(manifest("demo", "echo ünï; echo twice >&2"), acting_user=people.bob)
    run = loop.until_phase(cluster, "Succeeded")
    assert state(run) == "due"
    collect.copy_due()
    task = Task.objects.get(run=run)
    assert (task.log_state, task.log_size, task.log_message) == ("kept", 12, "")
    assert store() == {key(run): "ünï\ntwice\n".encode()}
    # The same listing again, as after a restart of the controller, changes nothing.
    listing = cloud("local").list()
    from clusters.runs.status.observe import apply_listing

    apply_listing("local", listing, now())
    collect.copy_due()
    assert state(run) == "kept"
    path = "/appcodes/ops-demo/clusters/demo/runs/1/tasks/master/0/log"
    assert api_of(people.bob).get(path)[1].content == "ünï\ntwice\n".encode()


def test_a_run_is_ended_when_its_logs_are_open_and_not_before(loop, people, manifest, store, copying):
    cluster = actions.create_cluster(manifest("demo", SCRIPT, workers=2), acting_user=people.bob)
    run = loop.until_phase(cluster, "Running")
    loop.until(lambda: run.tasks.filter(phase="Running").count() == 3)
    listening(loop, run)
    actions.disable(cluster, acting_user=people.bob)
    before = now()
    reconcile.reconcile(run.pk)
    run.refresh_from_db()
    assert run.release_asked_at is None
    assert run.claimed_until >= before + collect.PREPARE
    assert set(run.tasks.values_list("log_state", flat=True)) == {"due"}
    worker = copying()
    until(lambda: set(run.tasks.values_list("log_state", flat=True)) == {"open"})
    until(lambda: Run.objects.get(pk=run.pk).claimed_until is None)
    loop.until_phase(cluster, "Stopped")
    worker.join(60)
    assert set(run.tasks.values_list("log_state", flat=True)) == {"kept"}
    found = store()
    assert sorted(found) == [key(run, name) for name in ("master-0-0", "worker-0-0", "worker-1-0")]
    for text in found.values():
        assert text.startswith(b"up\n")
        assert text.endswith(b"asked to end\n")


def test_logs_that_are_open_before_the_worker_has_let_go_of_the_run_are_not_missed(
    loop, people, manifest, store, copying, monkeypatch
):
    cluster = actions.create_cluster(manifest("demo", SCRIPT), acting_user=people.bob)
    run = loop.until_phase(cluster, "Running")
    listening(loop, run)
    # With 5 minutes, only the wake-up can end the wait for open logs.
    monkeypatch.setattr(collect, "PREPARE", dt.timedelta(minutes=5))
    noted, woken, real = threading.Event(), [], collect.Copying._note_opened

    def note(self):
        real(self)
        if state(run) == "open":
            noted.set()

    def wake_logs():
        copying()
        assert noted.wait(60)

    monkeypatch.setattr(collect.Copying, "_note_opened", note)
    monkeypatch.setattr(collect.wakeups, "wake_logs", wake_logs)
    monkeypatch.setattr(collect.wakeups, "wake", woken.append)
    actions.disable(cluster, acting_user=people.bob)
    woken.clear()
    reconcile.reconcile(run.pk)
    assert woken == [run.pk]
    assert Run.objects.get(pk=run.pk).claimed_until is None
    monkeypatch.undo()
    loop.until_phase(cluster, "Stopped")


def test_of_more_tasks_than_can_be_followed_the_others_are_copied_as_they_are(
    loop, people, manifest, store, copying, monkeypatch
):
    monkeypatch.setattr(collect, "FOLLOWED", 1)
    monkeypatch.setattr(collect, "AT_ONCE", 2)
    monkeypatch.setattr(collect, "LOOPS", 1)
    cluster = actions.create_cluster(manifest("demo", SCRIPT, workers=4), acting_user=people.bob)
    run = loop.until_phase(cluster, "Running")
    loop.until(lambda: run.tasks.filter(phase="Running").count() == 5)
    listening(loop, run)
    actions.disable(cluster, acting_user=people.bob)
    reconcile.reconcile(run.pk)
    # While a worker copies, the run waits for logs that are not open yet.
    Task.objects.filter(run=run, role="master").update(log_state="open", log_claimed_until=now() + collect.CLAIM)
    Run.objects.filter(pk=run.pk).update(claimed_until=now() - dt.timedelta(seconds=1))
    reconcile.reconcile(run.pk)
    assert Run.objects.get(pk=run.pk).release_asked_at is None
    Task.objects.filter(run=run, role="master").update(log_state="due", log_claimed_until=None)
    worker = copying()
    until(lambda: Run.objects.get(pk=run.pk).claimed_until is None)
    assert not run.tasks.filter(log_state="due").exists()
    loop.until_phase(cluster, "Stopped")
    worker.join(60)
    assert set(run.tasks.values_list("log_state", flat=True)) == {"kept"}
    texts, early = list(store().values()), collect.EARLY.format(1)
    assert sorted(text.endswith(b"asked to end\n") for text in texts) == [False] * 4 + [True]
    assert all(text.startswith(b"up\n") for text in texts)
    assert sum(text.endswith(f"[{early}]\n".encode()) for text in texts) == 4
    assert run.tasks.filter(log_message=early).count() == 4


def test_logs_on_their_way_take_no_more_than_their_room(loop, people, manifest, store, settings, monkeypatch):
    monkeypatch.setattr(copy, "ROOM_SECONDS", 0.1)
    settings.LOGS_SPOOL_BYTES = 2**20
    many = "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end"
    cluster = actions.create_cluster(manifest("demo", many), acting_user=people.bob)
    run = loop.until_phase(cluster, "Succeeded")
    collect.copy_due()
    task = Task.objects.get(run=run)
    assert (task.log_state, task.log_message) == ("kept", copy.NO_ROOM)
    [text] = store().values()
    assert len(text) == task.log_size < 2**20 + copy.IN_MEMORY + 1000
    assert text.startswith(b"xxx")
    assert text.endswith(f"[{copy.NO_ROOM}]\n".encode())
    assert copy._room._used == 0
    # The page shows the same note beside the log.
    from clusters.clouds.drivers.base import LogChunk
    from clusters.logs.read import RunLogs

    assert RunLogs(run).note("master", 0, 0, LogChunk(text, len(text), True)) == copy.NO_ROOM


def test_a_run_is_ended_when_nobody_opens_its_logs(loop, people, manifest, store, monkeypatch):
    # The test itself ends the wait for open logs.
    monkeypatch.setattr(collect, "PREPARE", dt.timedelta(minutes=5))
    cluster = actions.create_cluster(manifest("demo", SCRIPT), acting_user=people.bob)
    run = loop.until_phase(cluster, "Running")
    actions.disable(cluster, acting_user=people.bob)
    reconcile.reconcile(run.pk)
    reconcile.reconcile(run.pk)
    run.refresh_from_db()
    assert run.release_asked_at is None
    Run.objects.filter(pk=run.pk).update(claimed_until=now() - dt.timedelta(seconds=1))
    reconcile.reconcile(run.pk)
    run.refresh_from_db()
    assert run.release_asked_at is not None
    loop.until_phase(cluster, "Stopped")


def test_logs_that_nobody_can_open_do_not_hold_their_run_up(loop, people, manifest, store, monkeypatch):
    # E.g. a firewall between API server and nodes; each Disable used to cost a minute of GPU time.
    from clusters.clouds.drivers.local.client import LocalCloud

    def away(*_args, **_more):
        raise CloudError("The node does not answer.")

    monkeypatch.setattr(LocalCloud, "follow", away)
    monkeypatch.setattr(collect, "SHORTEST", dt.timedelta(minutes=5))
    monkeypatch.setattr(collect, "LONGEST", dt.timedelta(minutes=5))
    cluster = actions.create_cluster(manifest("demo", SCRIPT, workers=1), acting_user=people.bob)
    run = loop.until_phase(cluster, "Running")
    loop.until(lambda: run.tasks.filter(phase="Running").count() == 2)
    actions.disable(cluster, acting_user=people.bob)
    reconcile.reconcile(run.pk)
    collect.copy_due()
    assert set(run.tasks.values_list("log_state", "log_message")) == {("due", "The node does not answer.")}
    Run.objects.filter(pk=run.pk).update(claimed_until=now() - dt.timedelta(seconds=1))
    reconcile.reconcile(run.pk)
    run.refresh_from_db()
    assert run.release_asked_at is not None
    loop.until_phase(cluster, "Stopped")


def test_what_a_dead_worker_had_open_is_taken_by_the_next(loop, people, manifest, store):
    cluster = actions.create_cluster(manifest("demo", "echo here"), acting_user=people.bob)
    run = loop.until_phase(cluster, "Succeeded")
    Task.objects.update(log_state="open", log_claimed_until=now() + dt.timedelta(seconds=30))
    collect.copy_due()
    assert (state(run), store()) == ("open", {})
    Task.objects.update(log_claimed_until=now() - dt.timedelta(seconds=1))
    collect.copy_due()
    assert (state(run), store()) == ("kept", {key(run): b"here\n"})


def test_an_object_store_that_is_away_is_waited_for(loop, people, manifest, store, copying, s3, settings, bucket):
    settings.LOGS_S3 = {**settings.LOGS_S3, "bucket": f"{bucket}-later"}
    cluster = actions.create_cluster(manifest("demo", "echo here"), acting_user=people.bob)
    run = loop.until_phase(cluster, "Succeeded")
    worker = copying()
    until(lambda: "There is no such bucket" in Task.objects.get(run=run).log_message)
    assert state(run) == "open"
    s3.client.create_bucket(Bucket=f"{bucket}-later")
    worker.join(90)
    task = Task.objects.get(run=run)
    assert (task.log_state, task.log_message) == ("kept", "")


def test_the_portal_s_own_object_storage_is_the_archive_where_no_other_is_named(
    loop, people, manifest, store, s3, settings, bucket
):
    """Its bucket is created on first use, and no appcode can get a bucket of that name."""
    keys = {"access_key": s3.access_key, "secret": s3.secret_key, "bucket_prefix": f"{bucket}-"}
    settings.LOGS_S3 = {**settings.LOGS_S3, "server": ""}
    settings.STORAGE = {**settings.STORAGE, "url": s3.url, "inner_url": s3.url, **keys}
    _client.cache_clear()
    cluster = actions.create_cluster(manifest("demo", "echo here"), acting_user=people.bob)
    run = loop.until_phase(cluster, "Succeeded")
    collect.copy_due()
    assert state(run) == "kept"
    objects = s3.client.list_objects_v2(Bucket=logs_bucket())["Contents"]
    assert key(run) in {each["Key"] for each in objects}
    assert bucket_of("gpu-cloud-logs") != logs_bucket()
    collect.forget([run])
    assert "Contents" not in s3.client.list_objects_v2(Bucket=logs_bucket())
    _client.cache_clear()


def test_a_log_that_is_too_long_is_cut_and_says_so(loop, people, manifest, store, settings):
    settings.LOGS_MAX_BYTES = 2**20
    command = "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end"
    cluster = actions.create_cluster(manifest("demo", command), acting_user=people.bob)
    run = loop.until_phase(cluster, "Succeeded")
    collect.copy_due()
    text = store()[key(run)]
    assert text == b"x" * 2**20 + b"\n[The log is longer than 1 MiB; only its beginning was kept.]\n"
    assert Task.objects.get(run=run).log_size == len(text)


def test_a_log_that_is_gone_is_lost(loop, people, manifest, store):
    cluster = actions.create_cluster(manifest("demo", "echo here"), acting_user=people.bob)
    run = loop.until_phase(cluster, "Succeeded")
    loop.until(lambda: Run.objects.get(pk=run.pk).gone)
    cloud("local").purge(reconcile.run_ref(run))
    Task.objects.update(log_message="The archive of logs does not work.")
    collect.copy_due()
    task = Task.objects.get(run=run)
    assert (task.log_state, task.log_message) == (
        "lost",
        "Its pod was gone before the log could be copied. The archive of logs does not work.",
    )
    assert store() == {}


def test_of_a_deleted_cluster_nothing_is_kept(loop, people, manifest, store, copying):
    cluster = actions.create_cluster(manifest("demo", "echo here"), acting_user=people.bob)
    run = loop.until_phase(cluster, "Succeeded")
    collect.copy_due()
    assert store()
    actions.deploy(cluster, acting_user=people.bob)
    again = loop.until_phase(cluster, "Succeeded")
    actions.delete_cluster(cluster, acting_user=people.bob)
    loop.until(lambda: not Run.objects.filter(gone=False).exists())
    # The purge waits for a log that is being copied.
    Task.objects.filter(run=again).update(log_claimed_until=now() + dt.timedelta(seconds=30))
    reconcile.purge(cluster.pk)
    cluster.refresh_from_db()
    assert not cluster.purged
    Task.objects.filter(run=again).update(log_claimed_until=None)
    collect.copy_due()
    assert list(store()) == [key(run)]
    reconcile.purge(cluster.pk)
    cluster.refresh_from_db()
    assert cluster.purged
    assert store() == {}


def test_a_task_that_never_began_has_no_log(loop, people, manifest, store):
    cluster = actions.create_cluster(manifest("demo", "echo here", flavor="one-gpu", workers=7), acting_user=people.bob)
    first = loop.until_phase(cluster, "Succeeded", "Running")
    collect.copy_due()
    other = actions.create_cluster(manifest("other", "sleep 60", flavor="one-gpu"), acting_user=people.bob)
    loop.work()
    actions.disable(other, acting_user=people.bob)
    loop.until(lambda: Run.objects.get(current_of=other).gone)
    waiting = Task.objects.filter(run__cluster=other, started_at=None)
    assert set(waiting.values_list("log_state", flat=True)) <= {""}
    loop.until(lambda: Run.objects.get(pk=first.pk).gone)


class TestHolding:
    @pytest.fixture
    def task(self, loop, people, manifest, store):
        cluster = actions.create_cluster(manifest("demo", "echo here"), acting_user=people.bob)
        run = loop.until_phase(cluster, "Succeeded")
        return Task.objects.get(run=run)

    @staticmethod
    def seen(task, phase="Succeeded", uid=""):
        return TaskSeen(task.run_id, "master", 0, 0, uid or task.uid, phase, started_at=task.started_at)

    def test_only_the_end_of_a_task_whose_log_nobody_has_opened(self, task):
        holding = collect.Holding(cloud("local"))
        others = [StorageSeen(task.run_id, "ready"), self.seen(task, "Running", "other"), RunGone(task.run_id)]
        never = self.seen(task, "Failed", "never-began")
        assert holding.settle([*others, self.seen(task), never]) == [*others, never]
        assert holding.settle([]) == []
        Task.objects.update(log_state="open")
        assert holding.settle([]) == [self.seen(task)]
        assert holding.settle([]) == []

    def test_not_for_ever(self, task, monkeypatch):
        holding = collect.Holding(cloud("local"))
        assert holding.settle([self.seen(task)]) == []
        monkeypatch.setattr(collect, "HOLD_SECONDS", 0.0)
        assert holding.settle([]) == [self.seen(task)]

    def test_not_where_logs_are_kept(self, task, monkeypatch):
        monkeypatch.setattr(registry, "keeps_logs", lambda _: True)
        assert collect.Holding(cloud("local")).settle([self.seen(task)]) == [self.seen(task)]


def test_a_pod_that_takes_the_place_of_another_has_a_log_of_its_own(loop, people, manifest, store):
    cluster = actions.create_cluster(manifest("demo", "echo here"), acting_user=people.bob)
    run = loop.until_phase(cluster, "Succeeded")
    collect.copy_due()
    from clusters.clouds.drivers.base import Batch
    from clusters.runs.status.observe import apply_batch

    began = TaskSeen(run.pk, "master", 0, 0, "another", "Running", started_at=now())
    apply_batch("local", Batch("", (began,)))
    task = Task.objects.get(run=run)
    assert (task.uid, task.log_state, task.log_size) == ("another", "", None)


def test_more_loops_than_allowed_go_away(loop, people, manifest, store, monkeypatch):
    cluster = actions.create_cluster(manifest("demo", "echo here"), acting_user=people.bob)
    run = loop.until_phase(cluster, "Succeeded")
    monkeypatch.setattr(collect, "LOOPS", 0)
    collect.copy_due()
    assert state(run) == "due"


def test_a_cloud_that_cannot_say_is_asked_again(loop, people, manifest, store, monkeypatch):
    from clusters.clouds.drivers.local.client import LocalCloud

    cluster = actions.create_cluster(manifest("demo", "echo here"), acting_user=people.bob)
    run = loop.until_phase(cluster, "Succeeded")

    def away(*_args, **_more):
        raise CloudError("It does not answer.")

    before = now()
    with monkeypatch.context() as patch:
        patch.setattr(LocalCloud, "follow", away)
        collect.copy_due()
    task = Task.objects.get(run=run)
    assert (task.log_state, task.log_message) == ("due", "It does not answer.")
    assert task.log_claimed_until >= before + collect.SHORTEST
    Task.objects.update(log_claimed_until=None)
    collect.copy_due()
    task.refresh_from_db()
    assert (task.log_state, task.log_message) == ("kept", "")
