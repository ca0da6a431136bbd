"""REST: schedules of clusters and pipelines."""

from __future__ import annotations

import datetime as dt
from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema
from pydantic import Field
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.models import Schedule
from clusters.schedules import actions
from clusters.schedules.actions import schedule_for, schedules_for
from clusters.schedules.manifest import ScheduleManifest, ScheduleSpec
from portal.access import OPERATE, VIEW, Capability, appcode_for
from portal.api.documents import Answer
from portal.api.pagination import PAGE_PARAMETERS, SEARCH_PARAMETER, page, search
from portal.api.views import person
from portal.manifests import parse

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
    changed_by: str | None = Field(description="In whose name it starts things.")


class ScheduleDocument(ScheduleManifest):
    """A schedule as it is answered: the manifest, and what has come of it."""

    status: ScheduleStatus


class SchedulePage(Answer):
    items: list[ScheduleDocument]
    next: str | None


class AppcodeSchedules(APIView):
    @extend_schema(
        operation_id="schedules_list",
        summary="The schedules of an appcode, newest first",
        parameters=[*PAGE_PARAMETERS, SEARCH_PARAMETER],
        responses=SchedulePage,
    )
    def get(self, request: Request, code: str) -> Response:
        rows = schedules_for(person(request)).filter(appcode=appcode_for(person(request), code))
        return page(request, search(request, rows, "name"), order="-id", render=schedule_document)

    @extend_schema(
        operation_id="schedules_create",
        summary="Start a cluster or a pipeline at times",
        description="It is started in your name, as long as you may start it.",
        request=ScheduleManifest,
        responses={201: ScheduleDocument},
        examples=[EXAMPLE],
    )
    def post(self, request: Request, code: str) -> Response:
        appcode = appcode_for(person(request), code, OPERATE)
        manifest = parse(ScheduleManifest, request.data, appcode=code)
        made = actions.create_schedule(manifest, appcode, acting_user=person(request))
        address = request.build_absolute_uri(f"{request.path}/{made.name}")
        return Response(schedule_document(made), status=status.HTTP_201_CREATED, headers={"Location": address})


class OneSchedule(APIView):
    @extend_schema(operation_id="schedules_read", summary="A schedule", responses=ScheduleDocument)
    def get(self, request: Request, code: str, name: str) -> Response:
        return Response(schedule_document(_find(request, code, name)))

    @extend_schema(
        operation_id="schedules_change",
        summary="Replace a schedule",
        description="It starts things in the name of whoever has changed it last.",
        request=ScheduleManifest,
        responses=ScheduleDocument,
        examples=[EXAMPLE],
    )
    def put(self, request: Request, code: str, name: str) -> Response:
        found = _find(request, code, name, OPERATE)
        manifest = parse(ScheduleManifest, request.data, appcode=code, name=name)
        return Response(schedule_document(actions.change_schedule(found, manifest, acting_user=person(request))))

    @extend_schema(
        operation_id="schedules_delete",
        summary="Delete a schedule",
        description="What it has started goes on.",
        request=None,
        responses={204: None},
    )
    def delete(self, request: Request, code: str, name: str) -> Response:
        actions.delete_schedule(_find(request, code, name, OPERATE), acting_user=person(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class PauseSchedule(APIView):
    @extend_schema(
        operation_id="schedules_pause",
        summary="Start nothing until it is resumed",
        request=None,
        responses={202: ScheduleDocument},
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        return _paused(request, code, name, paused=True)


class ResumeSchedule(APIView):
    @extend_schema(
        operation_id="schedules_resume",
        summary="Go on with a paused schedule",
        description="Times that came meanwhile count as not asked for.",
        request=None,
        responses={202: ScheduleDocument},
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        return _paused(request, code, name, paused=False)


def schedule_document(row: Schedule) -> dict[str, Any]:
    said = ScheduleStatus(
        next=row.next_at, last=row.last_at, result=row.last_result,
        changed_by=row.changed_by.username if row.changed_by else None,
    )  # fmt: skip
    return {
        "kind": "schedule",
        "metadata": {"name": row.name, "appcode": row.appcode.code},
        "spec": ScheduleSpec.model_validate(row.spec).model_dump(mode="json", by_alias=True),
        "status": said.json_value(),
    }


def _find(request: Request, code: str, name: str, capability: Capability = VIEW) -> Schedule:
    return schedule_for(person(request), code, name, capability)


def _paused(request: Request, code: str, name: str, *, paused: bool) -> Response:
    found = _find(request, code, name, OPERATE)
    changed = actions.pause_schedule(found, acting_user=person(request), paused=paused)
    return Response(schedule_document(changed), status=status.HTTP_202_ACCEPTED)
