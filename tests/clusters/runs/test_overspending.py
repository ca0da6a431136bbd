"""Budgets acting on real runs: processes are stopped, new ones refused, and output is stored."""

import datetime as dt
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest
from django.db import connections, transaction
from django.utils import timezone

from billing import periods
from billing.budgets import access
from billing.budgets import actions as budget_actions
from billing.budgets import loop as budgets_loop
from billing.budgets.actions import Asked
from billing.models import Budget, BudgetStep, Price
from clusters.cluster import actions
from clusters.runs import budgets
from clusters.runs.models import Run, Task
from clusters.runs.queries.preview import preview
from datastores.actions import create_datastore
from datastores.specs import DatastoreManifest
from portal.errors import Invalid
from portal.models import Event

# The timeout includes a wait for the end of a month, see below.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]
MINUTE = dt.timedelta(minutes=1)
# No test here takes longer.
LONGEST = 4 * MINUTE
SERVICE = """
trap 'echo stored > /elearn/output/last; exit' TERM
echo served > /elearn/output/served; echo up; while :; do sleep 0.1; done
"""


@pytest.fixture(autouse=True)
def within_one_month():
    """Real runs have real times, so the clock can't be fixed: waits for the next month if this one is about to end."""
    now = timezone.now()
    left = periods.month(now).until - now
    if left < LONGEST:
        time.sleep(left.total_seconds() + 1)


@pytest.fixture
def spent(people):
    """A price at which any run uses up a budget at once."""
    Price.objects.create(sku="cpu", per_hour=Decimal(1_000_000), valid_from=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))


def backdate(*kinds):
    """Makes announced steps due: what was due in a minute was due a minute ago."""
    past = timezone.now() - 2 * MINUTE
    assert BudgetStep.objects.filter(kind__in=kinds, done_at=None).update(announced_at=past, due_at=past + MINUTE)


def limit(appcode, policy, user, amount="0.01"):
    return budget_actions.add(appcode, Asked(Decimal(amount), policy, 1), acting_user=user)


def test_a_service_is_stopped_with_its_output_and_a_new_one_is_refused(loop, people, manifest, s3, bucket, spent):
    store = {"server": s3.url, "bucket": bucket, "access_key": s3.access_key, "secret_key": s3.secret_key}
    body = {"metadata": {"name": "results", "appcode": "ops-demo"}, "spec": {"s3": store}}
    create_datastore(DatastoreManifest.model_validate(body), acting_user=people.alice)
    service = actions.create_cluster(
        manifest("serving", SERVICE, mode="service", output="results"), acting_user=people.bob
    )
    batch = actions.create_cluster(manifest("training", "exec sleep 600"), acting_user=people.bob)
    loop.until_said(loop.until_phase(service, "Running"), "up")
    loop.until_phase(batch, "Running")
    budget = limit(people.ops, "stop_all", people.alice)
    loop.until(lambda: budgets_loop.turn() or Budget.objects.filter(steps__kind="block").exists())

    # Announced: everything goes on, and new runs may start.
    assert budgets.stop() == 0
    assert preview(manifest("another"), acting_user=people.bob).tasks == 1
    late = actions.create_cluster(manifest("late", "exec sleep 600"), acting_user=people.bob)

    # Blocked: running and waiting runs stay, waiting ones give the reason, and new ones are refused.
    backdate("block")
    budgets_loop.turn()
    assert budgets.stop() == 0
    loop.work()
    waits = Run.objects.get(current_of=late)
    assert (waits.phase, waits.reason) == ("Queued", "BudgetUsedUp")
    assert "the budget of ops-demo for " in waits.message
    for refused in (
        lambda: actions.create_cluster(manifest("another"), acting_user=people.bob),
        lambda: preview(manifest("another"), acting_user=people.bob),
    ):
        with pytest.raises(Invalid, match="New runs of ops-demo are blocked") as caught:
            refused()
        assert caught.value.errors[0].path == ("metadata", "appcode")
    assert {run.phase for run in Run.objects.filter(cluster__in=[service, batch])} == {"Running"}

    # Services are stopped, batch runs are not. A worker that dies before it reaches the cloud is replaced by another.
    backdate("stop_services")
    budgets_loop.turn()
    assert budgets.stop() == 1
    assert budgets.stop() == 0
    stopped = loop.until_phase(service, "Stopped")
    assert stopped.reason == "BudgetUsedUp"
    assert stopped.message.startswith("Stopped because the budget of ops-demo for ")
    assert stopped.stored
    stored = {item["Key"].rpartition("/")[2] for item in s3.client.list_objects_v2(Bucket=bucket)["Contents"]}
    assert {"served", "last"} <= stored
    assert Run.objects.get(current_of=batch).phase == "Running"
    with pytest.raises(Invalid, match="are blocked"):
        actions.deploy(service, acting_user=people.bob)

    # Everything is stopped; runs that have not started wait for the next month or a larger budget.
    backdate("stop_all")
    budgets_loop.turn()
    budgets.stop()
    assert loop.until_phase(batch, "Stopped").reason == "BudgetUsedUp"
    assert not Task.objects.filter(phase__in=["Pending", "Running"]).exists()
    assert Run.objects.get(current_of=late).phase == "Queued"
    events = Event.objects.filter(verb="run.ended", actor=None)
    assert events.count() == 2

    budget_actions.change(budget, Asked(Decimal(10**9), "stop_all", 1), acting_user=people.alice)
    loop.until_phase(late, "Running")
    assert budgets.stop() == 0
    actions.deploy(service, acting_user=people.bob)
    loop.until_phase(service, "Running")
    for cluster in (service, late):
        actions.disable(cluster, acting_user=people.bob)
        loop.until_phase(cluster, "Stopped")


def test_an_attempt_of_a_running_run_goes_on_while_new_ones_are_blocked(loop, people, manifest, spent):
    # The output folder is kept between attempts.
    command = "until [ -e /elearn/output/go ]; do sleep 0.1; done; exit 3"
    cluster = actions.create_cluster(manifest("demo", command, retries=1), acting_user=people.bob)
    run = loop.until_phase(cluster, "Running")
    limit(people.ops, "block", people.alice)
    loop.until(lambda: budgets_loop.turn() or Budget.objects.filter(steps__kind="block").exists())
    backdate("block")
    budgets_loop.turn()
    loop.touch(run, "/elearn/output/go")
    run = loop.until_phase(cluster, "Failed", "Succeeded")
    assert list(run.tasks.order_by("attempt").values_list("attempt", "exit_code")) == [(0, 3), (1, 3)]


def test_killed_between_the_order_and_the_stop_the_next_one_stops_and_a_lift_in_between_saves_it(
    loop, people, manifest, spent, monkeypatch
):
    cluster = actions.create_cluster(manifest("demo", "exec sleep 600", mode="service"), acting_user=people.bob)
    loop.until_phase(cluster, "Running")
    budget = limit(people.ops, "stop_services", people.alice)
    loop.until(lambda: budgets_loop.turn() or Budget.objects.filter(steps__kind="block").exists())
    for kind in ("block", "stop_services"):
        backdate(kind)
        budgets_loop.turn()

    # A worker has read the order; an administrator lifts it before the worker acts.
    [order] = access.orders()
    budget_actions.lift(budget, "The paper is due.", acting_user=people.root)
    assert budgets._stop_some(order) == 0
    assert budgets.stop() == 0
    loop.work()
    assert Run.objects.get(current_of=cluster).phase == "Running"

    # It is enforced and announced again, and the worker that takes the order dies before its write.
    budget_actions.enforce(budget, acting_user=people.root)
    for kind in ("block", "stop_services"):
        backdate(kind)
        budgets_loop.turn()

    def dies(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(budgets, "end_by_portal", dies)
        with pytest.raises(KeyboardInterrupt):
            budgets.stop()
    assert Run.objects.get(current_of=cluster).desired == "running"
    assert budgets.stop() == 1
    assert loop.until_phase(cluster, "Stopped").reason == "BudgetUsedUp"


def test_a_run_that_somebody_else_holds_is_left_for_the_next_look(loop, people, manifest, spent):
    """The watch may hold its lock and wait for one of ours: waiting for it could deadlock."""
    clusters = [
        actions.create_cluster(manifest(name, "exec sleep 600", mode="service"), acting_user=people.bob)
        for name in ("first", "second")
    ]
    for cluster in clusters:
        loop.until_phase(cluster, "Running")
    limit(people.ops, "stop_services", people.alice)
    loop.until(lambda: budgets_loop.turn() or Budget.objects.filter(steps__kind="block").exists())
    for kind in ("block", "stop_services"):
        backdate(kind)
        budgets_loop.turn()

    def stop():
        try:
            return budgets.stop()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as threads, transaction.atomic():
        held = Run.objects.select_for_update().get(current_of=clusters[0])
        assert threads.submit(stop).result(timeout=60) == 1
    assert list(Run.objects.filter(desired="running")) == [held]
    assert budgets.stop() == 1


def test_the_clock_knows_every_task_by_its_name(settings):
    """Celery silently drops scheduled tasks whose name no worker knows."""
    from portal.celery import app

    app.loader.import_default_modules()
    assert {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()} <= set(app.tasks)
