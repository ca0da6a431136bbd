"""Objects of an appcode: found, locked and recorded in one way."""

from __future__ import annotations

import pytest
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404

from portal.errors import Invalid

pytestmark = pytest.mark.django_db


def test_an_action_gets_the_current_row_or_a_refusal(people):
    from clusters.schedules.actions import SCHEDULES
    from clusters.schedules.models import Schedule
    from portal.models import Event

    row = Schedule.objects.create(appcode=people.ops, name="night", spec={})
    Schedule.objects.update(last_result="Run 1 was started.")
    with transaction.atomic():
        assert SCHEDULES.locked(row, people.bob).last_result == "Run 1 was started."
        assert SCHEDULES.hold(pk=row.pk, last_result="") is None
        SCHEDULES.record(row, "paused", people.bob, "Paused.", by="hand")
        for refused in (people.victor, people.mallory):
            with pytest.raises(PermissionDenied):
                SCHEDULES.locked(row, refused)
        with pytest.raises(Invalid, match="ops-demo already has a schedule “night”; choose another name"):
            SCHEDULES.reserve(people.ops, "night", 2)
        with pytest.raises(Invalid, match="ops-demo has 1 schedules already; delete one"):
            SCHEDULES.reserve(people.ops, "noon", 1)
        SCHEDULES.reserve(people.ops, "noon", 2)
        event = Event.objects.get(verb="schedule.paused")
        assert (event.object, event.appcode, event.data) == ("schedule ops-demo/night", "ops-demo", {"by": "hand"})
        Schedule.objects.all().delete()
        with pytest.raises(Http404, match="There is no schedule “night” any more"):
            SCHEDULES.locked(row, None)
