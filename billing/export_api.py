"""REST: a month in FOCUS 1.2, as a file that comes while it is read from the database."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator

from django.http import Http404, StreamingHttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from billing import exports
from billing.exports import CONTENT_TYPES, FORMATS, Format
from portal.access import appcodes_for
from portal.api import person
from portal.errors import Invalid
from portal.limits import Slot, take_stream_slots
from portal.pagination import text


class AnyFormat(DefaultContentNegotiation):
    """`format` says what the file is, not how an answer of the API is written."""

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        renderer = next(iter(renderers))
        return renderer, renderer.media_type


class FocusExport(APIView):
    content_negotiation_class = AnyFormat

    @extend_schema(
        operation_id="exports_focus",
        summary="What a month cost in FOCUS 1.2, entry by entry",
        description="Of all appcodes that I may see. `BilledCost` adds up to what the month's invoices ask for. A month that is "
        "open has what was posted so far, on no invoice. Decimal numbers are exact.",
        parameters=[
            OpenApiParameter("month", str, required=True, description="Like 2026-10."),
            OpenApiParameter("format", str, enum=FORMATS, description="Default: csv."),
            OpenApiParameter("appcode", str, description="Only of this appcode."),
        ],
        responses={
            (200, "text/csv"): OpenApiTypes.STR,
            (200, "application/vnd.apache.parquet"): OpenApiTypes.BINARY,
        },
    )
    def get(self, request: Request) -> StreamingHttpResponse:
        user = person(request)
        month = month_of(text(request, "month", longest=10), timezone.now())
        kind = _format(text(request, "format", longest=10) or "csv")
        mine, name = appcodes_for(user), f"focus-{month:%Y-%m}.{kind}"
        appcodes: list[int] | None = None
        if code := text(request, "appcode", longest=63):
            appcodes = list(mine.filter(code=code).values_list("pk", flat=True))
            name = f"focus-{code}-{month:%Y-%m}.{kind}"
            if not appcodes:
                raise Http404(f"There is no appcode “{code}” that you can see.")
        elif not user.is_administrator:
            appcodes = list(mine.order_by().values_list("pk", flat=True))
        slots = take_stream_slots(user.pk, exports.MAX_SECONDS + 60)
        stream = Stream(exports.chunks(month, appcodes, kind), slots)
        response = StreamingHttpResponse(stream, content_type=CONTENT_TYPES[kind])
        response["Content-Disposition"] = f'attachment; filename="{name}"'
        response["Cache-Control"] = "no-store"
        # For proxies that would otherwise collect a stream before they pass it on.
        response["X-Accel-Buffering"] = "no"
        return response


class Stream:
    """An export on its way; its place among the streams is free again when it ends or is cut off."""

    def __init__(self, chunks: Iterator[bytes], slots: list[Slot]) -> None:
        self.chunks = chunks
        self.slots = slots

    def __iter__(self) -> Iterator[bytes]:
        return self.chunks

    def close(self) -> None:
        close = getattr(self.chunks, "close", None)
        if close:
            close()
        while self.slots:
            self.slots.pop().release()


def month_of(asked: str, now: dt.datetime) -> dt.date:
    """Raises Invalid at month."""
    try:
        month = dt.date.fromisoformat(f"{asked}-01")
    except ValueError as error:
        raise Invalid.at("month", message="Give a month like 2026-10.") from error
    if month > now.date():
        raise Invalid.at("month", message=f"{month:%B %Y} has not begun.")
    return month


def _format(asked: str) -> Format:
    for each in FORMATS:
        if asked == each:
            return each
    raise Invalid.at("format", message=f"Choose one of {', '.join(FORMATS)}.")
