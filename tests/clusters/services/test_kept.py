"""What a service keeps from being deleted, and what is deleted in time."""

import datetime as dt

import pytest
from django.utils import timezone

from clusters import tasks
from clusters.model_registry import actions as registry
from clusters.model_registry.models import ModelVersion
from clusters.services import minutes
from clusters.services.models import Router, ServiceMinute
from clusters.services.summary import revisions_of
from portal.errors import Conflict

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_version_that_a_service_answers_with_cannot_be_deleted(people, model, service):
    registry.move_alias(model, "champion", 2, acting_user=people.bob)
    one, three = (ModelVersion.objects.get(number=number) for number in (1, 3))
    with pytest.raises(Conflict, match="The service digits answers with version 1; deploy another one there"):
        registry.delete_version(one, acting_user=people.bob)
    registry.delete_version(three, acting_user=people.bob)
    service.revisions.update(weight=0, wanted=0)
    # The version answers no request yet, but its rollout is under way.
    with pytest.raises(Conflict, match="answers with version 1"):
        registry.delete_version(one, acting_user=people.bob)
    service.rollouts.update(phase="Cancelled")
    registry.delete_version(one, acting_user=people.bob)


def test_minutes_are_kept_for_a_month_and_dead_routers_for_a_day(service):
    now = timezone.now()
    for days in (30, 32):
        facts = {"service": service, "revision": service.revisions.get(), "router": "one"}
        ServiceMinute.objects.create(**facts, minute=now - dt.timedelta(days=days))
    for name, hours in (("alive", 23), ("dead", 25)):
        Router.objects.create(name=name, seen_at=now - dt.timedelta(hours=hours))
    tasks.forget_visits()
    assert ServiceMinute.objects.count() == 1
    assert Router.objects.get().name == "alive"


def test_what_a_revision_answered_is_counted_once_however_long_ago_that_was(service):
    now = timezone.now().replace(second=0, microsecond=0)
    revision = service.revisions.get()
    for n, ago in enumerate((1, 19, 60, 40 * 24 * 60)):
        facts = {"service": service, "revision": revision, "minute": now - dt.timedelta(minutes=ago)}
        ServiceMinute.objects.create(**facts, router="one", requests=10**n)
        ServiceMinute.objects.create(**facts, router="one", requests=7, mirrored=True)
    for _ in range(2):
        tasks.forget_visits()
        service.refresh_from_db()
        [found] = revisions_of(service, now)
        assert found.requests == 1111
        assert found.row.counted == 1100
    assert ServiceMinute.objects.filter(mirrored=False).count() == 3
    minutes.forget_old(now + dt.timedelta(hours=1))
    service.refresh_from_db()
    [found] = revisions_of(service, now)
    assert (found.requests, found.row.counted) == (1111, 1111)
