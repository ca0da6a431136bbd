"""Someone else changes a run's objects: an autoscaler, a policy controller, a person with kubectl."""

import datetime as dt
import uuid

import pytest
from django.utils.timezone import now

from clusters.clouds.drivers.base import Batch, RunChanged, RunDecided
from clusters.cluster import actions
from clusters.runs import reconcile
from clusters.runs.models import Run
from clusters.runs.status import observe
from portal.models import Event

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run(catalogue, people, manifest):
    """Already applied to its cloud."""
    cluster = actions.create_cluster(manifest(), acting_user=people.bob)
    Run.objects.update(admitted_at=now(), applied_at=now())
    return Run.objects.get(current_of=cluster)


def tell(run):
    observe.apply_batch("local", Batch("test", (RunChanged(run.pk, "Deployment demo-ps was changed by hand."),)))
    run.refresh_from_db()


def is_due(run, at):
    return Run.objects.filter(reconcile.unsettled(at), pk=run.pk).exists()


def put_right(run):
    token = uuid.uuid4()
    assert reconcile._claim(run.pk, token)
    reconcile._told(run.pk, token, "applied_at")


def test_a_run_is_put_right_at_once_and_then_every_30_s_at_most(run, people):
    tell(run)
    put_right(run)
    first = run.not_before
    for number in (1, 2):
        tell(run)
        due = first + number * dt.timedelta(seconds=30)
        # A further change before that time causes no second repair.
        tell(run)
        assert run.not_before == due
        assert not is_due(run, due - dt.timedelta(seconds=1))
        assert is_due(run, due)
        Run.objects.update(applied_at=due)
    told = Event.objects.filter(verb="run.changed_by_hand").values_list("message", flat=True)
    assert set(told) == {"Deployment demo-ps was changed by hand. The run is applied again."}
    # After 30 s without a change, the next repair is immediate. Ending the run never waits.
    Run.objects.update(not_before=now() - dt.timedelta(seconds=31))
    tell(run)
    put_right(run)
    tell(run)
    assert not is_due(run, now())
    actions.disable(run.cluster, acting_user=people.bob)
    assert is_due(run, now())


def test_what_orders_runs_is_obeyed_at_once_however_often_and_nobody_has_changed_anything(run):
    tell(run)
    for _ in range(2):
        put_right(run)
        observe.apply_batch("local", Batch("test", (RunDecided(run.pk),)))
        run.refresh_from_db()
        assert is_due(run, now())
    assert Event.objects.filter(verb="run.changed_by_hand").count() == 1


def test_who_changes_it_while_it_is_being_put_right_has_to_wait(run):
    tell(run)
    token = uuid.uuid4()
    assert reconcile._claim(run.pk, token)
    tell(run)
    assert run.not_before > now() + dt.timedelta(seconds=20)
    # The claim may have been taken before the change, so it does not record the run as applied.
    assert not reconcile._told(run.pk, token, "applied_at")
    run.refresh_from_db()
    assert run.applied_at is None
