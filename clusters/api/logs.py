"""REST: the log of a task, as it is or as it comes."""

from __future__ import annotations

from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from clusters.access import run_for
from clusters.clouds.drivers.base import CloudError
from clusters.frameworks import ROLES
from clusters.logs.read import CHUNK, FOLLOW_SECONDS, LogSource, LogStream, RunLogs
from clusters.models import Run
from portal.api.pagination import flag, number, whole
from portal.api.problems import Unavailable
from portal.api.streams import AnyAccept
from portal.api.views import person
from portal.errors import Invalid
from portal.limits import STREAMS, is_gone

MAX_NUMBER, MAX_OFFSET = 1_000_000, 2**53


class PlainText(BaseRenderer):
    """Only says in OpenAPI what comes; bytes of a log are passed on as they are."""

    media_type = "text/plain"
    format = "txt"

    def render(self, data: object, *args: object, **kwargs: object) -> bytes:
        return str(data).encode()


class TaskLog(APIView):
    renderer_classes = (PlainText,)
    content_negotiation_class = AnyAccept

    @extend_schema(
        operation_id="tasks_log",
        summary="The log of a task",
        description="Output and errors of one attempt, as the program wrote them. The header `Log-Offset` says at which byte the "
        f"answer starts. A stream ends with its task, or after {FOLLOW_SECONDS // 60} minutes; go on with `offset`. 404 "
        "also when a log was lost with its pod; the sentence says why.",
        parameters=[
            OpenApiParameter("follow", bool, description="Go on sending what comes until the task has ended."),
            OpenApiParameter(
                "tail", whole(0, MAX_NUMBER), description="Only the last so many lines (within the last MiB)."
            ),
            OpenApiParameter("offset", whole(0, MAX_OFFSET), description="Start at this byte."),
            OpenApiParameter(
                "attempt", whole(0, MAX_NUMBER), description="Which attempt, from 0; the newest when absent."
            ),
        ],
        responses={(200, "text/plain"): OpenApiTypes.STR},
    )
    def get(self, request: Request, code: str, name: str, run: int, role: str, index: int) -> HttpResponseBase:
        row = run_for(person(request), code, name, run)
        if role not in ROLES or index >= row.spec["roles"].get(role, {}).get("count", 0):
            raise Http404(f"Run {run} of {name} has no task {role}-{index}.")
        follow = flag(request, "follow")
        tail = number(request, "tail", default=-1, low=0, high=MAX_NUMBER)
        offset = number(request, "offset", default=0, low=0, high=MAX_OFFSET)
        if tail >= 0 and offset:
            raise Invalid.at("tail", message="Give either “tail” or “offset”.")
        source = LogSource(RunLogs(row), role, index, _attempt(request, row, role, index))
        try:
            first = source.last_lines(tail) if tail >= 0 else source.read(offset)
            if first.absent and first.complete and (why := source.note(first)):
                raise Http404(why)
            if not follow and (tail >= 0 or len(first.data) < CHUNK):
                return _text(HttpResponse(first.data), first.offset - len(first.data))
            place = STREAMS.enter(person(request).pk)
        except CloudError as error:
            raise Unavailable(str(error)) from error
        stream = LogStream(
            source,
            first,
            follow=follow,
            is_over=lambda: _is_over(row, role, index),
            is_gone=lambda: is_gone(request),
            place=place,
        )
        return _text(StreamingHttpResponse(stream), first.offset - len(first.data))


def _attempt(request: Request, run: Run, role: str, index: int) -> int:
    seen = run.tasks.filter(role=role, index=index).order_by("-attempt").values_list("attempt", flat=True).first() or 0
    attempt = number(request, "attempt", default=seen, low=0, high=MAX_NUMBER)
    if attempt > seen:
        raise Http404(f"{role}-{index} has had no attempt {attempt}; the newest is {seen}.")
    return attempt


def _is_over(run: Run, role: str, index: int) -> bool:
    """Whether an empty and complete log is the end, and not the log of a task that has not begun."""
    if run.tasks.filter(role=role, index=index, started_at__isnull=False).exists():
        return True
    run.refresh_from_db(fields=["phase"])
    return run.is_terminal


def _text(response: HttpResponseBase, offset: int) -> HttpResponseBase:
    response["Content-Type"] = "text/plain; charset=utf-8"
    response["Cache-Control"] = "no-store"
    # For proxies that would otherwise collect a stream before they pass it on.
    response["X-Accel-Buffering"] = "no"
    response["Log-Offset"] = str(offset)
    return response
