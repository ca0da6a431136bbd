"""The loop under stress: concurrent workers, unreachable clouds, users who change their minds, moving queues."""

import datetime as dt
import threading
import uuid
from contextlib import suppress
from decimal import Decimal

import pytest
from django.core.cache import cache
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from billing.metering.segments import floor
from billing.models import Price
from billing.prices.actions import add_price
from clusters import wakeups
from clusters.catalog.models import Flavor
from clusters.clouds.bulkhead import BUSY, PutOff
from clusters.clouds.drivers.base import CloudError
from clusters.cluster import actions
from clusters.runs import ending, quota, reconcile, resync
from clusters.runs.models import Cluster, Run
from clusters.runs.placing import places
from clusters.runs.queries.preview import preview
from portal.actions import requests
from portal.actions.appcodes import disable_appcode, enable_appcode
from portal.db.advisory_lock import Lock, advisory_lock
from portal.errors import Conflict, Invalid
from portal.manifests.appcode import Granted, Wanted
from portal.models import Appcode

pytestmark = pytest.mark.django_db(transaction=True)


def at_once(*calls):
    """Runs `calls` at the same moment, each in a thread with its own connection; returns their results in order."""
    gate = threading.Barrier(len(calls))
    results = [None] * len(calls)

    def run(number, call):
        try:
            gate.wait()
            results[number] = call()
        except Exception as error:  # noqa: BLE001  the test looks at it
            results[number] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "they wait for each other"
    return results


def current(cluster):
    return Run.objects.get(current_of=cluster)


@pytest.fixture
def no_cloud(monkeypatch, settings):
    """While it lasts, no agent listens at the cloud's socket."""
    with monkeypatch.context() as patch:
        patch.setattr(settings, "LOCAL_CLOUD_SOCKET", settings.LOCAL_CLOUD_SOCKET + ".away")
        yield patch


def test_two_workers_never_admit_more_than_the_quota(catalogue, people, manifest):
    people.ops.gpu_quota = 3
    people.ops.save()
    runs = [
        current(actions.create_cluster(manifest(f"c{n}", flavor="one-gpu", workers=1), acting_user=people.bob))
        for n in range(6)
    ]
    results = at_once(*(lambda pk=run.pk: quota.admit(pk) for run in runs))
    assert sum(result is True for result in results) == 1, results
    assert at_once(*(lambda: quota.admit_waiting(people.ops.pk) for _ in range(4))) == [[], [], [], []]
    assert quota.held(people.ops.pk).gpus == 2


def test_a_run_that_was_admitted_meanwhile_does_not_wait_for_itself(catalogue, people, manifest):
    people.ops.gpu_quota = 1
    people.ops.save()
    run = current(actions.create_cluster(manifest(flavor="one-gpu"), acting_user=people.bob))
    assert quota.admit(run.pk)
    assert quota.admit(run.pk)
    run.refresh_from_db()
    assert (run.wait_reason, run.reason) == ("", "Submitted")


def test_what_starts_tomorrow_and_what_cannot_fit_stand_in_nobodys_way(catalogue, people, manifest):
    tomorrow = (now() + dt.timedelta(days=1)).isoformat()
    actions.create_cluster(manifest("tomorrow", flavor="one-gpu", scheduleAfter=tomorrow), acting_user=people.bob)
    large = current(actions.create_cluster(manifest("large", flavor="one-gpu", workers=3), acting_user=people.bob))
    people.ops.gpu_quota = 2
    people.ops.save()
    assert not quota.admit(large.pk)
    large.refresh_from_db()
    assert "request a larger quota" in large.message
    assert preview(manifest("next", flavor="one-gpu"), acting_user=people.bob).fits != "never"
    assert "queue" not in preview(manifest("next", flavor="one-gpu"), acting_user=people.bob).sentence
    small = current(actions.create_cluster(manifest("small", flavor="one-gpu"), acting_user=people.bob))
    assert quota.admit(small.pk)


def test_the_queue_moves_in_order_and_tells_everybody_their_place(catalogue, people, manifest):
    people.ops.gpu_quota = 1
    people.ops.save()
    runs = [
        current(actions.create_cluster(manifest(f"c{n}", flavor="one-gpu"), acting_user=people.bob)) for n in range(4)
    ]
    assert [quota.admit(run.pk) for run in runs] == [True, False, False, False]
    assert "number 3 in the queue" in Run.objects.get(pk=runs[3].pk).message
    Run.objects.filter(pk=runs[0].pk).update(gone=True)
    assert quota.admit_waiting(people.ops.pk) == [runs[1].pk]
    assert "number 2 in the queue" in Run.objects.get(pk=runs[3].pk).message


def test_the_worker_that_is_first_to_judge_a_later_run_admits_it_if_older_ones_fit_beside_it(
    catalogue, people, manifest
):
    people.ops.gpu_quota = 2
    people.ops.save()
    runs = [
        current(actions.create_cluster(manifest(f"c{n}", flavor="one-gpu"), acting_user=people.bob)) for n in range(3)
    ]
    assert [quota.admit(run.pk) for run in reversed(runs)] == [False, True, True]


def test_a_run_that_is_to_start_later_says_when_and_starts_then(loop, people, manifest):
    later = now() + dt.timedelta(hours=1)
    cluster = actions.create_cluster(manifest("demo", scheduleAfter=later.isoformat()), acting_user=people.bob)
    loop.work()
    run = current(cluster)
    assert (run.phase, run.reason) == ("Queued", "Scheduled")
    assert f"{later:%Y-%m-%d %H:%M} UTC" in run.message
    assert not Run.objects.filter(reconcile.unsettled(now())).exists()
    assert Run.objects.filter(reconcile.unsettled(later + dt.timedelta(seconds=1))).exists()
    Run.objects.filter(pk=run.pk).update(not_before=now())
    assert loop.until_phase(cluster, "Succeeded", "Failed").message == "The master has finished."


def test_what_no_cloud_has_heard_of_ends_at_once(catalogue, people, manifest, no_cloud):
    later = now() + dt.timedelta(hours=1)
    cluster = actions.create_cluster(manifest("demo", scheduleAfter=later.isoformat()), acting_user=people.bob)
    run = actions.cancel(cluster, acting_user=people.bob)
    assert current(cluster).phase == "Stopped"
    assert current(cluster).message == "Stopped by bob."
    assert not quota.admit(run.pk), "a worker that had begun to look at it leaves it alone"
    assert actions.deploy(cluster, acting_user=people.bob).number == 2
    actions.delete_cluster(cluster, acting_user=people.bob)
    assert not Run.objects.filter(gone=False).exists()


def test_a_cloud_that_is_away_is_told_honestly_and_forgotten_when_it_is_back(loop, people, manifest, no_cloud):
    cluster = actions.create_cluster(manifest("demo", "exec sleep 600"), acting_user=people.bob)
    before = now()
    loop.work()
    run = current(cluster)
    assert (run.phase, run.reason) == ("Queued", "CloudUnreachable")
    assert "does not answer" in run.message
    assert run.claimed_until >= before + reconcile.CLOUD_PAUSE
    actions.disable(cluster, acting_user=people.bob)
    before = now()
    loop.work()
    run = current(cluster)
    assert run.reason == "Ending"
    assert run.message.startswith("Stopped by bob. The cloud cannot do it now")
    assert run.claimed_until >= before + reconcile.CLOUD_PAUSE, (
        "somebody who disables does not wait for the pause before, but for the next one"
    )
    no_cloud.undo()
    Run.objects.update(claimed_until=None)
    loop.until_phase(cluster, "Stopped")
    assert current(cluster).message == "Stopped by bob."
    assert actions.deploy(cluster, acting_user=people.bob).number == 2
    again = loop.until_phase(cluster, "Running")
    assert "cloud" not in again.message
    actions.disable(cluster, acting_user=people.bob)
    loop.until_phase(cluster, "Stopped")


def test_our_own_failure_is_told_and_tried_again(loop, people, manifest, monkeypatch):
    cluster = actions.create_cluster(manifest(), acting_user=people.bob)
    with monkeypatch.context() as patch:
        patch.setattr(reconcile, "plan_of", lambda run: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loop.work()
    assert "ZeroDivisionError" in current(cluster).message
    Run.objects.update(claimed_until=None)
    assert loop.until_phase(cluster, "Succeeded").message == "The master has finished."


def test_disable_while_a_worker_tells_the_cloud_to_start_is_seen_by_that_worker(loop, people, manifest, monkeypatch):
    cluster = actions.create_cluster(manifest("demo", "exec sleep 600"), acting_user=people.bob)
    run, real = current(cluster), reconcile.plan_of
    reconcile.reconcile(run.pk)
    places.place("local")

    def slow(run):
        plan = real(run)
        actions.disable(cluster, acting_user=people.bob)
        reconcile.reconcile(run.pk)  # the worker woken by the click; the run is claimed
        return plan

    monkeypatch.setattr(reconcile, "plan_of", slow)
    reconcile.reconcile(run.pk)
    run.refresh_from_db()
    assert run.applied_at
    assert run.release_asked_at
    loop.until_phase(cluster, "Stopped")


@pytest.mark.parametrize("trouble", [CloudError("It is on fire."), PutOff(BUSY), ZeroDivisionError("ours")])
def test_disable_while_a_start_fails_does_not_wait_for_the_pause_after_that(
    loop, people, manifest, monkeypatch, trouble
):
    cluster = actions.create_cluster(manifest("demo", "exec sleep 600"), acting_user=people.bob)
    run, woken = current(cluster), []

    def fail(run):
        actions.disable(cluster, acting_user=people.bob)
        reconcile.reconcile(run.pk)  # the worker woken by the click; the run is claimed
        monkeypatch.setattr(reconcile, "wake", woken.append)
        raise trouble

    with monkeypatch.context() as patch, suppress(ZeroDivisionError):
        patch.setattr(reconcile, "plan_of", fail)
        reconcile.reconcile(run.pk)
    assert (woken, current(cluster).claimed_until) == ([run.pk], None)
    loop.until_phase(cluster, "Stopped")


def test_what_ends_by_itself_does_not_wait_for_a_pause_of_putting_it_right(loop, people, manifest):
    command = 'if [ "$PORTAL_ROLE" = master ]; then until [ -e /tmp/go ]; do sleep 0.1; done; else exec sleep 600; fi'
    cluster = actions.create_cluster(manifest("demo", command, workers=1), acting_user=people.bob)
    run = loop.until_phase(cluster, "Running")
    Run.objects.filter(pk=run.pk).update(claimed_until=now() + dt.timedelta(hours=1))
    loop.touch(run, "/tmp/go")
    loop.until_phase(cluster, "Succeeded")


def test_starting_and_ending_a_run_take_few_statements(loop, people, manifest):
    cluster = actions.create_cluster(manifest("demo", "exec sleep 600", flavor="one-gpu"), acting_user=people.bob)

    def said(call):
        with CaptureQueriesContext(connection) as queries:
            call()
        return [query["sql"] for query in queries if query["sql"] not in ("BEGIN", "COMMIT")]

    admitted = said(lambda: reconcile.reconcile(current(cluster).pk))
    assert len(admitted) <= 18, admitted
    places.place("local")
    started = said(lambda: reconcile.reconcile(current(cluster).pk))
    assert current(cluster).applied_at
    assert len(started) <= 10, started
    loop.until_phase(cluster, "Running")
    disabled = said(lambda: actions.disable(cluster, acting_user=people.bob))
    assert len(disabled) <= 10, disabled
    ended = said(lambda: reconcile.reconcile(current(cluster).pk))
    assert current(cluster).release_asked_at
    assert len(ended) <= 6, ended
    loop.until_phase(cluster, "Stopped")


def test_a_worker_whose_claim_ran_out_writes_nothing_and_starts_nothing_twice(loop, people, manifest, monkeypatch):
    cluster = actions.create_cluster(manifest("demo", "exec sleep 600"), acting_user=people.bob)
    run, real = current(cluster), reconcile.plan_of

    def slow(run):
        plan = real(run)
        monkeypatch.setattr(reconcile, "plan_of", real)
        Run.objects.filter(pk=run.pk).update(claimed_until=now() - dt.timedelta(seconds=1))
        reconcile.reconcile(run.pk)
        Run.objects.filter(pk=run.pk).update(applied_at=None)
        return plan

    monkeypatch.setattr(reconcile, "plan_of", slow)
    reconcile.reconcile(run.pk)
    assert current(cluster).applied_at is None
    run = loop.until_phase(cluster, "Running")
    assert run.tasks.count() == 1
    actions.disable(cluster, acting_user=people.bob)
    loop.until_phase(cluster, "Stopped")


def test_clicks_workers_and_sweeps_at_once_end_in_order(loop, people, manifest):
    cluster = actions.create_cluster(manifest("demo", "exec sleep 600", flavor="one-gpu"), acting_user=people.bob)
    pk = current(cluster).pk
    results = at_once(
        lambda: reconcile.reconcile(pk),
        lambda: reconcile.reconcile(pk),
        lambda: actions.disable(cluster, acting_user=people.bob),
        lambda: actions.delete_cluster(cluster, acting_user=people.alice),
        lambda: quota.admit_waiting(people.ops.pk),
        resync.sweep,
        lambda: loop.listen(),
    )
    assert not [result for result in results if isinstance(result, Exception)], results
    loop.until(lambda: Run.objects.get(pk=pk).gone)
    assert Run.objects.get(pk=pk).phase == "Stopped"
    reconcile.purge(cluster.pk)
    assert Cluster.objects.get(pk=cluster.pk).purged


def test_of_two_deployments_at_once_one_wins(catalogue, people, manifest):
    cluster = actions.create_cluster(
        manifest("demo", scheduleAfter=(now() + dt.timedelta(hours=1)).isoformat()), acting_user=people.bob
    )
    actions.cancel(cluster, acting_user=people.bob)
    results = at_once(*[lambda: actions.deploy(cluster, acting_user=people.bob)] * 4)
    assert sum(isinstance(result, Run) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 3


def test_a_deleted_cluster_is_not_deployed_or_changed_any_more(catalogue, people, manifest):
    tomorrow = (now() + dt.timedelta(days=1)).isoformat()
    cluster = actions.create_cluster(manifest(scheduleAfter=tomorrow), acting_user=people.bob)
    actions.delete_cluster(cluster, acting_user=people.alice)
    with pytest.raises(Conflict):
        actions.deploy(cluster, acting_user=people.bob)
    with pytest.raises(Conflict):
        actions.change_cluster(cluster, manifest(), acting_user=people.bob)
    assert not Run.objects.filter(gone=False).exists()


def test_the_next_cluster_of_a_name_goes_on_counting(catalogue, people, manifest):
    first = actions.create_cluster(manifest(), acting_user=people.bob)
    actions.delete_cluster(first, acting_user=people.bob)
    second = actions.create_cluster(manifest(), acting_user=people.bob)
    assert current(second).number == 2, "output/demo/1 and the objects demo-1-… belong to the first"


def test_a_flavor_and_a_quota_that_go_do_not_fail_a_run_that_was_accepted(loop, people, manifest):
    cluster = actions.create_cluster(manifest(flavor="one-gpu", workers=1), acting_user=people.bob)
    assert quota.admit(current(cluster).pk)
    Flavor.objects.all().delete()
    Appcode.objects.update(gpu_quota=0)
    assert loop.until_phase(cluster, "Succeeded", "Failed").message == "The master has finished."


def test_an_image_whose_folder_went_is_refused_in_a_sentence(loop, people, manifest, tmp_path):
    from clusters.catalog.models import Image

    cluster = actions.create_cluster(manifest(), acting_user=people.bob)
    Image.objects.filter(name="python").update(environment=str(tmp_path / "gone"))
    run = loop.until_phase(cluster, "Failed")
    assert run.reason == "Refused"
    assert run.message.startswith("The environment of image python does not exist on this machine")
    again = actions.deploy(cluster, acting_user=people.bob)
    Image.objects.all().delete()
    loop.until_phase(cluster, "Failed")
    assert Run.objects.get(pk=again.pk).message == "The catalogue has no image “python”."


def test_in_an_appcode_that_is_disabled_nothing_starts_and_what_runs_goes_on(loop, people, manifest):
    live = actions.create_cluster(manifest("live", "exec sleep 600"), acting_user=people.bob)
    loop.until_phase(live, "Running")
    waits = actions.create_cluster(manifest("waits", "true"), acting_user=people.bob)
    disable_appcode(people.ops, "no money", acting_user=people.root)
    loop.work()
    assert (current(waits).phase, current(waits).reason) == ("Queued", "AppcodeDisabled")
    assert current(live).phase == "Running"
    for refused in (
        lambda: actions.deploy(live, acting_user=people.bob),
        lambda: actions.create_cluster(manifest("new"), acting_user=people.bob),
        lambda: preview(manifest("new"), acting_user=people.bob),
    ):
        with pytest.raises((Invalid, Conflict)):
            refused()
    actions.disable(live, acting_user=people.bob)
    loop.until_phase(live, "Stopped")
    enable_appcode(people.ops, acting_user=people.root)
    loop.until_phase(waits, "Succeeded")


def test_in_an_appcode_that_has_expired_nothing_starts_and_a_renewal_brings_everything_back(loop, people, manifest):
    live = actions.create_cluster(manifest("live", "exec sleep 600"), acting_user=people.bob)
    loop.until_phase(live, "Running")
    waits = actions.create_cluster(manifest("waits", "true"), acting_user=people.bob)
    Appcode.objects.filter(pk=people.ops.pk).update(expires_on="2026-01-31")
    loop.work()
    assert (current(waits).phase, current(waits).reason) == ("Queued", "AppcodeExpired")
    assert current(live).phase == "Running"
    with pytest.raises(Invalid, match="ops-demo has expired; its last day was 2026-01-31") as caught:
        actions.create_cluster(manifest("new"), acting_user=people.bob)
    assert caught.value.errors[0].path == ("metadata", "appcode")
    requests.ask(people.ops, Wanted(expires=now().date() + dt.timedelta(days=30)), acting_user=people.alice)
    requests.approve(people.ops, Granted(revision=1), acting_user=people.root)
    loop.until_phase(waits, "Succeeded")
    actions.disable(live, acting_user=people.bob)
    loop.until_phase(live, "Stopped")


@pytest.mark.parametrize("changes", [{"state": "requested"}, {"state": "disabled"}, {"expires_on": "2026-01-31"}])
def test_only_an_active_appcode_takes_clusters(catalogue, people, manifest, changes):
    Appcode.objects.filter(pk=people.ops.pk).update(**changes)
    with pytest.raises(Invalid) as caught:
        actions.create_cluster(manifest(), acting_user=people.bob)
    assert caught.value.errors[0].path == ("metadata", "appcode")


def test_a_new_price_is_charged_from_its_second_on(loop, people, manifest):
    Price.objects.create(sku="gpu", per_hour=Decimal(36), valid_from=floor(now() - dt.timedelta(days=1)))
    cluster = actions.create_cluster(manifest("demo", "exec sleep 600", flavor="one-gpu"), acting_user=people.bob)
    run = loop.until_phase(cluster, "Running")
    assert run.cost_rate == Decimal("0.01")
    add_price("gpu", Decimal(360), None, acting_user=people.root)
    resync.sweep()
    assert current(cluster).cost_rate == Decimal("0.1")
    actions.disable(cluster, acting_user=people.bob)
    loop.until_phase(cluster, "Stopped")
    assert current(cluster).cost_rate == 0


def test_the_sweep_comes_to_everybody_and_leaves_alone_what_has_to_wait(catalogue, people, manifest, monkeypatch):
    monkeypatch.setattr(resync, "SWEEP_LIMIT", 2)
    woken = []
    monkeypatch.setattr(resync.wakeups, "wake", woken.append)
    runs = [current(actions.create_cluster(manifest(f"c{n}"), acting_user=people.bob)).pk for n in range(4)]
    del woken[:]
    resync.sweep()
    assert woken == [], "their own wake-ups are still on their way"
    Run.objects.update(created_at=now() - resync.WAKEUP_LOST)
    for _ in range(2):
        resync.sweep()
        Run.objects.filter(pk__in=woken).update(claimed_until=now() - dt.timedelta(seconds=1))
    assert sorted(woken) == runs
    del woken[:]
    Run.objects.update(claimed_until=None)
    for n in range(resync.BUSY + 1):
        wakeups.wake_purge(10**9 + n)
    resync.sweep()
    assert woken == [], "others wait before them"
    cache.clear()
    resync.sweep()
    assert sorted(woken) == runs[:2]
    del woken[:]
    Run.objects.update(wait_reason="QuotaExceeded")
    queues = []
    monkeypatch.setattr(resync.wakeups, "wake_waiting", queues.append)
    resync.sweep()
    assert (woken, queues) == ([], [people.ops.pk])


def test_logs_of_a_deleted_cluster_wait_for_the_cloud_without_noise(catalogue, people, manifest, no_cloud, monkeypatch):
    cluster = actions.create_cluster(manifest(), acting_user=people.bob)
    actions.delete_cluster(cluster, acting_user=people.bob)
    reconcile.purge(cluster.pk)
    assert not Cluster.objects.get(pk=cluster.pk).purged
    monkeypatch.undo()


def test_logs_are_removed_one_cluster_at_a_time(catalogue, people, manifest, node_agent):
    cluster = actions.create_cluster(manifest(), acting_user=people.bob)
    actions.delete_cluster(cluster, acting_user=people.bob)
    Run.objects.update(gone=True)
    with advisory_lock(Lock.PURGE):
        at_once(lambda: reconcile.purge(cluster.pk))
        assert not Cluster.objects.get(pk=cluster.pk).purged
    at_once(lambda: reconcile.purge(cluster.pk))
    assert Cluster.objects.get(pk=cluster.pk).purged


def test_a_length_of_time_is_said_exactly():
    spans = [ending.span(seconds) for seconds in (60, 90, 3600, 5400, 86400, 172800)]
    assert spans == ["1 minute", "90 seconds", "1 hour", "90 minutes", "1 day", "2 days"]


def test_a_claim_can_be_taken_once_by_many(catalogue, people, manifest):
    run = current(actions.create_cluster(manifest(), acting_user=people.bob))
    assert sum(at_once(*(lambda: reconcile._claim(run.pk, uuid.uuid4()) for _ in range(8)))) == 1


def test_cloud_errors_carry_texts_that_a_column_takes(catalogue, people, manifest, monkeypatch):
    class Odd:
        asks_for_addresses = False

        def reserve(self, run, counts):
            raise CloudError("what\0 is \ud800 this")

        apply = None

    cluster = actions.create_cluster(manifest(), acting_user=people.bob)
    monkeypatch.setattr(reconcile, "cloud_of", lambda run: Odd())
    reconcile.reconcile(current(cluster).pk)
    assert "this" in current(cluster).message
    with transaction.atomic():
        assert current(cluster).reason == "CloudUnreachable"


def test_who_was_deactivated_may_do_nothing_whatever_they_still_hold(catalogue, people, manifest):
    from django.core.exceptions import PermissionDenied

    cluster = actions.create_cluster(manifest(), acting_user=people.bob)
    for person in (people.alice, people.bob, people.root):
        type(person).objects.filter(pk=person.pk).update(is_active=False)
        person.refresh_from_db()
        for act in (actions.deploy, actions.disable, actions.cancel, actions.delete_cluster):
            with pytest.raises(PermissionDenied):
                act(cluster, acting_user=person)
        with pytest.raises(Invalid):
            actions.create_cluster(manifest("other"), acting_user=person)
        with pytest.raises(Invalid):
            preview(manifest("other"), acting_user=person)
    assert Run.objects.get().desired == "running"


def test_an_agent_that_is_down_for_a_while_during_every_step(
    catalogue, people, manifest, tmp_path, monkeypatch, settings
):
    """Create, disable and delete while the agent is down, and kill -9 while it runs: everything ends as intended."""
    import os

    from portal.up import servers, services
    from tests.clusters.conftest import Loop

    folder, address = tmp_path / "cloud", tmp_path / "agent.sock"
    monkeypatch.setattr(settings, "LOCAL_CLOUD_SOCKET", str(address))
    agent = servers.node_agent(folder, address, {})
    loop = Loop()

    def work():
        Run.objects.update(claimed_until=None)
        loop.work()

    cluster = actions.create_cluster(manifest("demo", "exec sleep 600"), acting_user=people.bob)
    work()
    assert current(cluster).reason == "CloudUnreachable"
    with services.running([agent], tmp_path, os.environ):
        work()
        assert loop.until_phase(cluster, "Running").message == "1 task running."
    actions.disable(cluster, acting_user=people.bob)
    work()
    assert "Stopped by bob. The cloud cannot do it now" in current(cluster).message
    with services.running([agent], tmp_path, os.environ):
        work()
        assert loop.until_phase(cluster, "Stopped").message == "Stopped by bob."
        actions.deploy(cluster, acting_user=people.bob)
        run = loop.until_phase(cluster, "Running")
    actions.delete_cluster(cluster, acting_user=people.bob)
    work()
    with services.running([agent], tmp_path, os.environ):
        work()
        loop.until(lambda: Run.objects.get(pk=run.pk).gone)
        reconcile.purge(cluster.pk)
    assert Cluster.objects.get(pk=cluster.pk).purged


def test_what_this_machine_can_never_hold_is_refused_and_does_not_wait_for_ever(loop, people, manifest):
    """Other clouds may get larger nodes."""
    Flavor.objects.create(name="huge", title="Huge", cpu_milli=10_000_000, memory_mb=128)
    cluster = actions.create_cluster(manifest("demo", flavor="huge"), acting_user=people.bob)
    run = loop.until_phase(cluster, "Failed")
    assert (run.reason, run.placed_at) == ("Refused", None)
    assert "needs 10000 CPUs on one node" in run.message


def test_a_run_that_loses_its_places_on_this_machine_starts_anew_there(loop, people, manifest):
    cluster = actions.create_cluster(manifest("demo", "exec sleep 600", flavor="one-gpu"), acting_user=people.bob)
    run = loop.until_phase(cluster, "Running")
    first = run.tasks.get().uid
    with transaction.atomic():
        places._lose(run, now())
        run.save()
    loop.work()
    while current(cluster).given_back_at:
        loop.listen()
    # What the machine still lists of its earlier life is not what it does now.
    loop.position = ""
    loop.listen()
    assert not run.tasks.exists()
    run = loop.until_phase(cluster, "Running")
    assert (run.life, run.tasks.get().uid != first) == (1, True)
    actions.disable(cluster, acting_user=people.bob)
    loop.until_phase(cluster, "Stopped")
