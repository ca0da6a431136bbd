"""REST: the log of a task, complete or followed, and the logs of all tasks of a run."""

from __future__ import annotations

import datetime as dt
from contextlib import ExitStack

from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from clusters.access import run_for
from clusters.clouds.drivers.base import CloudError, LogChunk
from clusters.frameworks import ROLES
from clusters.logs import together
from clusters.logs.lines import Shown, Style
from clusters.logs.read import CHUNK, FOLLOW_SECONDS, LogSource, LogStream, RunLogs
from clusters.runs.models import Run
from portal.api.operations import operation
from portal.api.pagination import MAX_SEARCH, flag, number, text, whole
from portal.api.problems import Unavailable
from portal.api.streams import AnyAccept
from portal.api.views import person
from portal.errors import Invalid
from portal.web.limits import STREAMS, TRANSFERS, Sending, is_gone

MAX_NUMBER, MAX_OFFSET = 1_000_000, 2**53


class PlainText(BaseRenderer):
    """Declares the media type in OpenAPI. Log bytes bypass the renderer."""

    media_type = "text/plain"
    format = "txt"

    def render(self, data: object, *args: object, **kwargs: object) -> bytes:
        return str(data).encode()


SINCE = OpenApiParameter("since", dt.datetime, description="Only lines that are not older, as 2026-11-23T15:42:49Z.")
SEARCH = OpenApiParameter(
    "search", str, description="Only lines with this in them; the case of Latin letters does not matter."
)
TIMESTAMPS = OpenApiParameter("timestamps", bool, description="Each line behind the time at which it was written.")
CLEAN = OpenApiParameter("clean", bool, description="Without the colours and cursor movements of terminals.")


class TaskLog(APIView):
    renderer_classes = (PlainText,)
    content_negotiation_class = AnyAccept

    @operation(
        "tasks_log",
        {(200, "text/plain"): OpenApiTypes.STR},
        description="Output and errors of one attempt, as the program wrote them. The header `Log-Offset` says at which byte the "
        "answer starts; it is absent where the cloud would have to read everything before to count. A stream ends with its task, "
        f"or after {FOLLOW_SECONDS // 60} minutes; go on with `offset`, or with `since` where lines were changed or left out. "
        "404 also when a log was lost with its pod; the sentence says why.",
        parameters=[
            OpenApiParameter("follow", bool, description="Go on sending what comes until the task has ended."),
            OpenApiParameter(
                "tail", whole(0, MAX_NUMBER), description="Only the last so many lines (within about the last MiB)."
            ),
            OpenApiParameter("offset", whole(0, MAX_OFFSET), description="Start at this byte."),
            SINCE,
            SEARCH,
            TIMESTAMPS,
            CLEAN,
            OpenApiParameter(
                "attempt", whole(0, MAX_NUMBER), description="Which attempt, from 0; the newest when absent."
            ),
        ],
    )
    def get(self, request: Request, code: str, name: str, run: int, role: str, index: int) -> HttpResponseBase:
        """The log of a task"""
        row = run_for(person(request), code, name, run)
        if role not in ROLES or index >= row.spec["roles"].get(role, {}).get("count", 0):
            raise Http404(f"Run {run} of {name} has no task {role}-{index}.")
        follow = flag(request, "follow")
        tail = number(request, "tail", default=-1, low=0, high=MAX_NUMBER)
        offset = number(request, "offset", default=0, low=0, high=MAX_OFFSET)
        since, style = _since(request), _style(request)
        if (tail >= 0) + bool(offset) + (since is not None) > 1:
            at = "tail" if tail >= 0 else "since"
            raise Invalid.at(at, message="Give one of “tail”, “offset” and “since”.")
        source = LogSource(RunLogs(row), role, index, _attempt(request, row, role, index))
        show = (lambda chunk: chunk.data if chunk else b"") if style.is_plain else Shown(style)
        try:
            first = source.last_lines(tail) if tail >= 0 else source.read(offset, since=since)
            if first.absent and first.complete and (why := source.note(first)):
                raise Http404(why)
            if not follow and (tail >= 0 or len(first.data) < CHUNK):
                return _text(HttpResponse(show(first) + show(None)), first)
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
            show=show,
        )
        return _text(StreamingHttpResponse(stream), first)


class RunLog(APIView):
    renderer_classes = (PlainText,)
    content_negotiation_class = AnyAccept

    @operation(
        "runs_log",
        {(200, "text/plain"): OpenApiTypes.STR},
        parameters=[
            OpenApiParameter(
                "merged",
                bool,
                description="true: all lines by their times; else one task after the other.",
                default=False,
            ),
            SINCE,
            SEARCH,
            TIMESTAMPS,
            CLEAN,
        ],
    )
    def get(self, request: Request, code: str, name: str, run: int) -> HttpResponseBase:
        """The logs of all tasks of a run

        What the newest attempts have written by now, each line behind the name of its task. A log that cannot be read
        says so in a line of its own."""
        row = run_for(person(request), code, name, run)
        since, style = _since(request), _style(request)
        is_merged = flag(request, "merged")
        with ExitStack() as held:
            held.enter_context(TRANSFERS.enter(person(request).pk))
            logs = together.newest(row)
            lines = together.lines(logs, style, since=since, merge=is_merged)
            width = max((len(source.name) for source in logs), default=0)
            shown = (style.show(line, task.ljust(width)) for task, line in lines)
            response = StreamingHttpResponse(Sending(together.in_portions(shown), held.pop_all().close))
        return _text(response, None)


class RunLogArchive(APIView):
    content_negotiation_class = AnyAccept

    @operation("runs_log_archive", {(200, "application/zip"): OpenApiTypes.BINARY}, parameters=[TIMESTAMPS, CLEAN])
    def get(self, request: Request, code: str, name: str, run: int) -> HttpResponseBase:
        """The logs of all tasks of a run, as one ZIP archive

        A file for each attempt of each task, with what it has written by now."""
        row = run_for(person(request), code, name, run)
        style = _style(request, searches=False)
        return together.archive_response(row, person(request), style)


def _since(request: Request) -> int | None:
    """`?since=` in µs since 1970. Raises Invalid."""
    if (text := request.query_params.get("since")) is None:
        return None
    try:
        at = dt.datetime.fromisoformat(text)
        return int((at if at.tzinfo else at.replace(tzinfo=dt.UTC)).timestamp() * 1_000_000)
    except (ValueError, OverflowError) as error:
        raise Invalid.at("since", message="This is no time; write it as 2026-11-23T15:42:49Z.") from error


def _style(request: Request, *, searches: bool = True) -> Style:
    words = text(request, "search", longest=MAX_SEARCH) if searches else ""
    return Style(flag(request, "timestamps"), words, flag(request, "clean"))


def _attempt(request: Request, run: Run, role: str, index: int) -> int:
    seen = run.tasks.filter(role=role, index=index).order_by("-attempt").values_list("attempt", flat=True).first() or 0
    attempt = number(request, "attempt", default=seen, low=0, high=MAX_NUMBER)
    if attempt > seen:
        raise Http404(f"{role}-{index} has had no attempt {attempt}; the newest is {seen}.")
    return attempt


def _is_over(run: Run, role: str, index: int) -> bool:
    """Whether an empty, complete log is final. False for a task that has not started yet."""
    if run.tasks.filter(role=role, index=index, started_at__isnull=False).exists():
        return True
    run.refresh_from_db(fields=["phase"])
    return run.is_terminal


def _text(response: HttpResponseBase, first: LogChunk | None) -> HttpResponseBase:
    response["Content-Type"] = "text/plain; charset=utf-8"
    response["Cache-Control"] = "no-store"
    # Keeps proxies from buffering the stream.
    response["X-Accel-Buffering"] = "no"
    if first is not None and first.placed:
        response["Log-Offset"] = str(first.start)
    return response
