"""REST: schedules of clusters and pipelines."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample
from pydantic import Field
from rest_framework.request import Request
from rest_framework.response import Response

from clusters.schedules import actions
from clusters.schedules.actions import SCHEDULES, schedule_for
from clusters.schedules.manifest import ScheduleManifest, ScheduleSpec
from clusters.schedules.models import Schedule
from portal.api.documents import Answer, Who, page_of
from portal.api.objects import object_views
from portal.api.pagination import page, search
from portal.api.verbs import Kind, Verb

EXAMPLE = OpenApiExample(
    "Every night",
    request_only=True,
    value={
        "kind": "schedule",
        "metadata": {"name": "every-night", "appcode": "ops-demo"},
        "spec": {"cron": "30 2 * * *", "timeZone": "Europe/Berlin", "pipeline": "nightly", "overlapping": "skip"},
    },
)


class ScheduleStatus(Answer):
    next: dt.datetime | None = Field(description="When it comes next; null while it is paused.")
    last: dt.datetime | None = Field(description="The last time that came.")
    result: str = Field(description="What became of it, in a sentence.")
    changed_by: Who = Field(description="In whose name it starts things.")


class ScheduleDocument(ScheduleManifest):
    """A schedule: its manifest, the next start, and the result of the last one."""

    status: ScheduleStatus


SchedulePage = page_of("SchedulePage", ScheduleDocument)


VERBS = (
    Verb("pause", partial(actions.pause_schedule, paused=True), "Start nothing until it is resumed"),
    Verb(
        "resume",
        partial(actions.pause_schedule, paused=False),
        "Go on with a paused schedule",
        "Times that came meanwhile count as not asked for.",
    ),
)


def schedule_document(row: Schedule) -> dict[str, Any]:
    said = ScheduleStatus.of(row, next=row.next_at, last=row.last_at, result=row.last_result)
    return {
        "kind": "schedule",
        "metadata": {"name": row.name, "appcode": row.appcode.code},
        "spec": ScheduleSpec.known(row.spec),
        "status": said.json_value(),
    }


def _page(request: Request, rows: QuerySet[Schedule]) -> Response:
    return page(request, search(request, rows, "name"), order="-id", render=schedule_document)


AppcodeSchedules, OneSchedule = object_views(
    SCHEDULES, ScheduleManifest, ScheduleDocument, SchedulePage,
    render=schedule_document, listing=_page, example=EXAMPLE,
    create=actions.create_schedule, change=actions.change_schedule, delete=actions.delete_schedule,
    texts={
        "create": "Start a cluster or a pipeline at times\n\nIt is started in your name, as long as you may start it.",
        "read": "A schedule",
        "change": "Replace a schedule\n\nIt starts things in the name of whoever has changed it last.",
        "delete": "Delete a schedule\n\nWhat it has started goes on.",
    },
)  # fmt: skip
KIND = Kind("schedules", schedule_for, ScheduleDocument, schedule_document)
