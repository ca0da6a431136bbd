"""REST: a month in FOCUS 1.2. The file is complete before it is sent, so a slow reader holds no database resources."""

from __future__ import annotations

import datetime as dt
import logging
import os
import time
from collections.abc import Iterator
from typing import IO

from django.conf import settings
from django.http import Http404, StreamingHttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.views import APIView

from billing.exports import files
from billing.exports.files import CONTENT_TYPES, FORMATS, Format
from billing.periods import MONTH_PATTERN
from portal.access import appcodes_for
from portal.api.operations import operation
from portal.api.pagination import text
from portal.api.problems import Unavailable
from portal.api.streams import AnyAccept
from portal.api.views import person
from portal.errors import Invalid
from portal.web.limits import STREAMS, Place, is_gone

log = logging.getLogger(__name__)

CHUNK = 64 * 1024


class FocusExport(APIView):
    content_negotiation_class = AnyAccept

    @operation(
        "exports_focus",
        {
            (200, "text/csv"): OpenApiTypes.STR,
            (200, "application/vnd.apache.parquet"): OpenApiTypes.BINARY,
        },
        parameters=[
            OpenApiParameter(
                "month", {"type": "string", "pattern": MONTH_PATTERN}, required=True, description="Like 2026-10."
            ),
            OpenApiParameter("format", str, enum=FORMATS, description="Default: csv."),
            OpenApiParameter("appcode", str, description="Only of this appcode."),
        ],
    )
    def get(self, request: Request) -> StreamingHttpResponse:
        """What a month cost in FOCUS 1.2, entry by entry

        Of all appcodes that I may see. `BilledCost` adds up to what the month's invoices ask for. A month that is open
        has what was posted so far, on no invoice. Decimal numbers are exact."""
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
        place = STREAMS.enter(user.pk)
        try:
            stream = Stream(_made(request, month, appcodes, kind), place)
        except BaseException:
            place.release()
            raise
        response = StreamingHttpResponse(stream, content_type=CONTENT_TYPES[kind])
        response["Content-Disposition"] = f'attachment; filename="{name}"'
        response["Cache-Control"] = "no-store"
        response["Content-Length"] = str(stream.size)
        return response


class Stream:
    """An export being sent. It frees its place among the streams when it ends or is cut off."""

    def __init__(self, file: IO[bytes], place: Place) -> None:
        self.file, self.place = file, place
        self.size = os.fstat(file.fileno()).st_size

    def __iter__(self) -> Iterator[bytes]:
        until = time.monotonic() + files.MAX_SECONDS
        while chunk := self.file.read(CHUNK):
            yield chunk
            if time.monotonic() > until:
                raise TimeoutError(f"the export was not read within {files.MAX_SECONDS // 60} minutes")

    def close(self) -> None:
        self.file.close()
        self.place.release()


def _made(request: Request, month: dt.date, appcodes: list[int] | None, kind: Format) -> IO[bytes]:
    """Raises Invalid at month, Unavailable."""
    try:
        return files.whole(month, appcodes, kind, is_gone=lambda: is_gone(request))
    except files.TooLarge as error:
        most = settings.EXPORT_MAX_BYTES // 2**20
        message = (
            f"This file would have more than {most} MiB. Choose one appcode, or Parquet, which is smaller; "
            "an administrator can write all of it with manage.py export_focus."
        )
        raise Invalid.at("month", message=message) from error
    except OSError as error:
        # The disk is full, it took too long, or the client has disconnected.
        log.error("An export could not be made: %s", error)
        raise Unavailable("The file cannot be made at this moment; try again later, or choose one appcode.") from error


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
