"""Somebody else who wants a run otherwise than the portal does: an autoscaler, a policy controller, a person with kubectl."""

import datetime as dt
import uuid

import pytest
from django.utils.timezone import now

from clusters import actions
from clusters.clouds.drivers.base import Batch, RunChanged
from clusters.models import Run
from clusters.runs import observe, reconcile
from portal.models import Event

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run(catalogue, people, manifest):
    """The cloud has been told of it."""
    cluster = actions.create_cluster(manifest(), acting_user=people.bob)
    Run.objects.update(admitted_at=now(), applied_at=now())
    return Run.objects.get(current_of=cluster)


def tell(*items):
    observe.apply_batch("local", Batch("test", items))


def test_who_changes_a_run_each_time_it_was_put_right_is_not_fought_for_ever(run):
    change = RunChanged(run.pk, "Deployment demo-ps was changed by hand.")
    pauses = []
    for _ in range(observe.FIGHTS + 8):
        Run.objects.filter(pk=run.pk).update(applied_at=now(), claimed_until=None, wait_reason="", wait_message="")
        before = now()
        tell(change)
        run.refresh_from_db()
        assert run.applied_at is None
        # It began to count at some moment in between.
        pauses.append(run.claimed_until and (run.claimed_until - now(), run.claimed_until - before))
    assert pauses[: observe.FIGHTS - 1] == [None] * (observe.FIGHTS - 1)
    truces = [4, 8, 16, 32, 64, 128, 256, 300, 300]
    for (shortest, longest), seconds in zip(pauses[observe.FIGHTS - 1 :], truces, strict=True):
        assert shortest <= dt.timedelta(seconds=seconds) <= longest
    assert (run.reason, run.wait_reason) == ("ChangedAgainAndAgain", "ChangedAgainAndAgain")
    assert run.message.startswith(f"Something changes it each time it has been put right, {observe.FIGHTS + 8} times")
    assert "Deployment demo-ps was changed by hand." in run.message
    # Each once, and the truce once: not an event for every change.
    assert Event.objects.filter(verb="run.changed_by_hand").count() == observe.FIGHTS - 1
    assert Event.objects.filter(verb="run.fought_over").count() == 1
    # What else is changed meanwhile waits for the same moment, and nobody applies it before.
    tell(change)
    assert not reconcile._claim(run.pk, uuid.uuid4())
    Run.objects.filter(pk=run.pk).update(claimed_until=now() - dt.timedelta(seconds=1))
    token = uuid.uuid4()
    assert reconcile._claim(run.pk, token)
    reconcile._told(run.pk, token, "applied_at")
    run.refresh_from_db()
    assert run.wait_reason == ""
    # After a while in peace it is put right at once again.
    Run.objects.filter(pk=run.pk).update(applied_at=now() - observe.FIGHT_SOON, claimed_until=None)
    tell(change)
    run.refresh_from_db()
    assert (run.fights, run.claimed_until) == (1, None)
