"""A cloud that accepts connections and never answers delays only its own runs."""

import json
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest
from celery.contrib.testing.worker import start_worker
from celery.signals import task_postrun
from django.db import connections
from django.utils.timezone import now

import portal.wakeups
from clusters import wakeups
from clusters.clouds import bulkhead
from clusters.clouds.bulkhead import AWAY, BUSY, Lanes, PutOff
from clusters.clouds.drivers.base import CloudError, CloudRefused, Unanswered
from clusters.clouds.models import Cloud, CloudState, Placement
from clusters.cluster import actions
from clusters.runs import reconcile, resync
from clusters.runs.models import Run
from clusters.runs.placing import places
from portal.celery import app
from portal.network.breaker import Breaker
from tests.clusters.conftest import PATIENCE
from tests.silent import Silent, kubeconfig

MANY, FEW = 40, 6


@pytest.fixture
def silent():
    server = Silent()
    yield server
    server.close()


@pytest.fixture
def away(silent, catalogue, people, monkeypatch):
    """A Kubernetes cluster that never answers, assigned to the business line of flight-demo."""
    monkeypatch.setattr(bulkhead, "_of_this_process", Lanes())
    config = json.dumps(kubeconfig(silent.url))
    cluster = Cloud.objects.create(kind="kubernetes", name="away", title="Away", credentials=config, server=silent.url)
    Placement.objects.create(org_node=people.flight.org_node, cloud=cluster)
    return cluster


@pytest.fixture
def worker():
    """worker() → a context that runs a Celery worker with eight threads, as `manage.py up` does; yields the tasks done."""
    done = []

    def note(task, **_):
        done.append(task.name)
        connections.close_all()

    @contextmanager
    def working():
        with start_worker(app, pool="threads", concurrency=8, perform_ping_check=False, shutdown_timeout=PATIENCE):
            yield done

    with app.connection_for_write() as broker:
        broker.default_channel.queue_purge("celery")
        task_postrun.connect(note)
        yield working
        task_postrun.disconnect(note)
        broker.default_channel.queue_purge("celery")


def until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE} s"
        time.sleep(0.05)


def create_away(people, manifest, count):
    body = {"image": "container-only", "appcode": "flight-demo"}
    for number in range(count):
        actions.create_cluster(manifest(f"away-{number}", **body), acting_user=people.mallory)
    return Run.objects.filter(cloud="away")


@pytest.mark.django_db(transaction=True)
def test_launches_on_other_clouds_and_bills_go_on(away, silent, people, manifest, node_agent, worker):
    lost = create_away(people, manifest, MANY)
    assert lost.count() == MANY
    with worker() as done:
        for number in range(FEW):
            actions.create_cluster(manifest(f"here-{number}"), acting_user=people.bob)
        # The periodic tasks.
        for task in ("billing.tasks.post", "clusters.tasks.stop_over_budget", "clusters.tasks.sweep"):
            app.send_task(task, expires=PATIENCE)
        here = Run.objects.filter(cloud="local")
        until(lambda: here.filter(applied_at__isnull=False).count() == FEW)
        until(lambda: {"billing.tasks.post", "clusters.tasks.stop_over_budget"} <= set(done))
        # All waiting runs were handled, but only a few calls waited for the cloud.
        until(lambda: lost.filter(wait_reason=reconcile.TROUBLE).count() >= MANY - bulkhead.MOST)
        assert silent.asked < MANY / 2
        assert not lost.filter(applied_at__isnull=False).exists()
        # Cuts off calls that still wait.
        silent.close()


@pytest.mark.django_db(transaction=True)
def test_of_a_cloud_that_is_away_the_sweep_wakes_few_until_it_is_heard_again(
    away, silent, people, manifest, monkeypatch
):
    woken = []
    monkeypatch.setattr(wakeups, "wake", woken.append)
    lost = set(create_away(people, manifest, 7).values_list("pk", flat=True))
    actions.create_cluster(manifest("here"), acting_user=people.bob)
    here = Run.objects.get(cloud="local").pk
    Run.objects.update(created_at=now() - resync.WAKEUP_LOST)
    CloudState.objects.create(name="away", trouble="The API server does not answer.")
    # Two were tried just now; one that was tried long ago comes after those never tried.
    busy = sorted(lost)[:2]
    Run.objects.filter(pk__in=busy).update(claimed_until=now() + reconcile.CLAIM)
    Run.objects.filter(pk=min(lost - set(busy))).update(claimed_until=now() - reconcile.CLAIM)
    woken.clear()
    resync.sweep()
    assert here in woken
    assert set(woken) - {here} == set(sorted(lost)[-4:])
    woken.clear()
    CloudState.objects.update(trouble="")
    resync.sweep()
    assert set(woken) == {here, *sorted(lost)[2:]}


@pytest.mark.django_db(transaction=True)
def test_a_run_that_is_put_off_keeps_the_better_reason(away, silent, people, manifest, monkeypatch):
    [run] = create_away(people, manifest, 1)
    reconcile.reconcile(run.pk)
    places.place("away")
    monkeypatch.setattr(bulkhead, "SLOW", -1.0)
    fail(bulkhead._of_this_process, Unanswered("for a long time"), "away")
    with bulkhead._of_this_process.taken("away", trouble=True):
        reconcile.reconcile(run.pk)
        run.refresh_from_db()
        assert (run.wait_reason, run.wait_message, run.claim_token) == (reconcile.TROUBLE, AWAY, None)
        # The run is admitted by its quota all the same.
        assert run.admitted_at
        Run.objects.update(claimed_until=None, wait_message="The API server does not answer: it is on fire.")
        reconcile.reconcile(run.pk)
    run.refresh_from_db()
    assert "on fire" in run.wait_message
    assert silent.asked == 0


def test_a_cloud_that_is_away_is_tried_by_one_and_all_such_clouds_by_two():
    mine = Lanes()
    with mine.taken("a", trouble=True), mine.taken("b", trouble=True):
        for name in ("a", "b", "c"):
            with pytest.raises(PutOff, match="does not answer"), mine.taken(name, trouble=True):
                """Nobody comes here."""
        with mine.taken("well", trouble=False), mine.taken("well", trouble=False):
            """Not held up by the others."""
    # Both calls succeeded, so more are allowed, whatever the watches report.
    with mine.taken("a", trouble=True), mine.taken("a", trouble=True):
        """Side by side."""


def fail(mine, error, cloud="a"):
    with pytest.raises(type(error)), mine.taken(cloud, trouble=False):
        raise error


def test_calls_that_nobody_answers_for_a_long_time_say_that_a_cloud_is_away(monkeypatch):
    mine = Lanes()
    fail(mine, Unanswered("quickly"))
    with mine.taken("a", trouble=False), mine.taken("a", trouble=False):
        """It may have been about one run."""
    monkeypatch.setattr(bulkhead, "SLOW", -1.0)
    fail(mine, CloudRefused("it answers"))
    with mine.taken("a", trouble=False), mine.taken("a", trouble=False):
        """That is no trouble."""
    fail(mine, CloudError("it answers that it cannot do this now"))
    with mine.taken("a", trouble=False), mine.taken("a", trouble=False):
        """Nor is that."""
    fail(mine, Unanswered("after a long time"))
    with mine.taken("a", trouble=False), pytest.raises(PutOff, match=AWAY), mine.taken("a", trouble=False):
        """One at a time."""
    # Errors that say nothing about the cloud changed nothing; the success of the call did.
    with mine.taken("a", trouble=False), mine.taken("a", trouble=False):
        """It is back."""


def test_one_cloud_has_half_of_the_threads_and_who_finds_them_taken_waits_while_they_are_young(monkeypatch):
    mine, go_on, inside = Lanes(), threading.Event(), threading.Semaphore(0)
    # Longer than this test takes on any machine.
    monkeypatch.setattr(bulkhead, "SLOW", 600.0)
    order = []

    def hold():
        with mine.taken("a", trouble=False):
            inside.release()
            go_on.wait(PATIENCE)
            order.append("held")

    def wait():
        with mine.taken("a", trouble=False):
            order.append("waited")

    holders = [threading.Thread(target=hold) for _ in range(bulkhead.MOST)]
    for each in holders:
        each.start()
    for _ in holders:
        assert inside.acquire(timeout=PATIENCE)
    waiter = threading.Thread(target=wait)
    waiter.start()
    mine["a"].slow = 0.0
    with pytest.raises(PutOff, match=BUSY), mine.taken("a", trouble=False):
        """They have taken too long by now."""
    go_on.set()
    for each in (*holders, waiter):
        each.join(PATIENCE)
        assert not each.is_alive()
    assert order.count("held") == bulkhead.MOST


def test_a_slow_call_among_young_ones_puts_nobody_off(monkeypatch):
    mine, waits = Lanes(), threading.Event()
    monkeypatch.setattr(bulkhead, "SLOW", 600.0)
    changed = mine["a"]._changed
    wait = changed.wait
    monkeypatch.setattr(changed, "wait", lambda left: waits.set() or wait(left))
    came = []

    def come():
        with mine.taken("a", trouble=False):
            came.append("in")

    waiter = threading.Thread(target=come, daemon=True)
    with ExitStack() as held, ExitStack() as young:
        for _ in range(bulkhead.MOST - 1):
            held.enter_context(mine.taken("a", trouble=False))
        for call in mine["a"]._calls:
            call.began -= 3600
        young.enter_context(mine.taken("a", trouble=False))
        waiter.start()
        until(lambda: waits.is_set() or not waiter.is_alive())
        assert waiter.is_alive(), "it was put off"
        young.close()
        waiter.join(PATIENCE)
        assert came == ["in"]
        # If the last call takes long, too, no other waits.
        young.enter_context(mine.taken("a", trouble=False))
        for call in mine["a"]._calls:
            call.began -= 3600
        with pytest.raises(PutOff, match=BUSY), mine.taken("a", trouble=False):
            """They all have taken too long by now."""


@pytest.mark.django_db(transaction=True)
def test_what_is_not_asked_of_the_cloud_takes_none_of_its_threads(away, silent, people, manifest, monkeypatch):
    [run] = create_away(people, manifest, 1)
    taken = []

    def look(run):
        taken.extend(bulkhead._of_this_process._of.keys() & {run.cloud})
        raise CloudError("The database takes long.")

    monkeypatch.setattr(reconcile, "plan_of", look)
    reconcile.reconcile(run.pk)
    run.refresh_from_db()
    assert "takes long" in run.wait_message
    assert taken == []


@pytest.mark.django_db(transaction=True)
def test_what_the_clock_asks_for_comes_before_rows_that_wait(worker, monkeypatch):
    monkeypatch.setattr(portal.wakeups, "_broker", Breaker(portal.wakeups._broker._answered))
    for run_id in range(3):
        wakeups.wake(run_id)
    app.send_task("billing.tasks.post", expires=60)
    with app.connection_for_read() as broker:
        queue = broker.SimpleQueue("celery")
        messages = [queue.get(timeout=PATIENCE) for _ in range(4)]
        for message in messages:
            message.ack()
    assert [message.headers["task"] for message in messages] == [
        "billing.tasks.post",
        *["clusters.tasks.reconcile_run"] * 3,
    ]
