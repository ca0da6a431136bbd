"""Pages of lists, `{"items": […], "next": URL or null}`, by keyset (`portal.db.keyset`), and query parameters.

The cursor is opaque to clients. It only moves a position and grants no access.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from portal.db import keyset
from portal.db.keyset import Row, Thing
from portal.errors import Invalid

DEFAULT_LIMIT = 50
MAX_LIMIT = 500
MAX_SEARCH = 200
MAX_CURSOR = 4000  # cursors of S3 servers can be long


def whole(low: int, high: int) -> dict[str, Any]:
    """The schema of a parameter that `number` parses."""
    return {"type": "integer", "minimum": low, "maximum": high}


PAGE_PARAMETERS = [
    OpenApiParameter("cursor", str, description="Where the page starts: take it from `next` of the page before."),
    OpenApiParameter(
        "limit",
        whole(1, MAX_LIMIT) | {"default": DEFAULT_LIMIT},
        description=f"Rows of a page: 1 to {MAX_LIMIT}, {DEFAULT_LIMIT} when absent.",
    ),
]
SEARCH_PARAMETER = OpenApiParameter("search", str, description="Only rows that contain all of these words.")
LIST_PARAMETERS = [*PAGE_PARAMETERS, SEARCH_PARAMETER]


def page(
    request: Request, rows: QuerySet[Row], *, order: str | Sequence[str], render: Callable[[Row], Any]
) -> Response:
    """One page of `rows`, ordered by a unique column (`code`, or `-id` for descending) or by several
    (`keyset.page_by`). One query. Raises Invalid at `cursor` or `limit`."""
    return page_together(request, rows, order=order, render=lambda found: [render(row) for row in found])


def page_together(
    request: Request, rows: QuerySet[Row], *, order: str | Sequence[str], render: Callable[[Sequence[Row]], list[Any]]
) -> Response:
    """The same, for documents of many rows that are made together, with few queries."""
    limit = number(request, "limit", default=DEFAULT_LIMIT, low=1, high=MAX_LIMIT)
    with _cursor(request) as cursor:
        by = (
            keyset.page(rows, order, cursor, limit)
            if isinstance(order, str)
            else keyset.page_by(rows, order, cursor, limit)
        )
        found, following = by
    return _answer(request, render(found), following)


def page_of_sums(
    request: Request,
    found: Callable[[int | None, int], Sequence[Thing]],
    *,
    number_of: Callable[[Thing], int],
    render: Callable[[Thing], Any],
) -> Response:
    """A page of computed sums: `found(before, most)` returns those with numbers below `before` (None: all), highest first."""
    limit = number(request, "limit", default=DEFAULT_LIMIT, low=1, high=MAX_LIMIT)
    with _cursor(request) as cursor:
        before = keyset.position(models.BigIntegerField(), cursor) if cursor else None
    things, following = keyset.cut(found(before, limit + 1), limit, number_of)
    return _answer(request, [render(thing) for thing in things], following)


def page_elsewhere(
    request: Request,
    found: Callable[[str, int], tuple[Sequence[Thing], str]],
    *,
    render: Callable[[Thing], Any],
) -> Response:
    """A page of another server's list: `found(cursor, limit)` returns its items and its cursor for the next page ("" at
    the end)."""
    limit = number(request, "limit", default=DEFAULT_LIMIT, low=1, high=MAX_LIMIT)
    with _cursor(request) as cursor:
        things, following = found(cursor, limit)
    return _answer(request, [render(thing) for thing in things], following)


@contextmanager
def _cursor(request: Request) -> Iterator[str]:
    """`?cursor=`, decoded. Raises Invalid at it, also if the block raises ValidationError for it."""
    cursor = text(request, "cursor", longest=MAX_CURSOR)
    try:
        position = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        if cursor and not position:
            raise ValueError("nothing of it is base64")
        yield position
    except (ValueError, ValidationError) as error:
        raise Invalid.at("cursor", message="This is not a cursor of ours; take it from “next” of a page.") from error


def _answer(request: Request, items: list[Any], cursor: str) -> Response:
    following = None
    if cursor:
        query = request.query_params.copy()
        query["cursor"] = base64.urlsafe_b64encode(cursor.encode()).decode().rstrip("=")
        following = request.build_absolute_uri(f"{request.path}?{query.urlencode()}")
    return Response({"items": items, "next": following})


def everything(items: list[Any]) -> Response:
    """A list that is always short, in the shape of a page."""
    return Response({"items": items, "next": None})


def search(request: Request, rows: QuerySet[Row], *columns: str) -> QuerySet[Row]:
    """The rows in which every word of `?search=` occurs in one of `columns`, ignoring case."""
    for word in text(request, "search", longest=MAX_SEARCH).split():
        wanted = Q()
        for column in columns:
            wanted |= Q(**{f"{column}__icontains": word})
        rows = rows.filter(wanted)
    return rows


def text(request: Request, name: str, *, longest: int, default: str = "") -> str:
    """A query parameter. Raises Invalid if it is longer than `longest` characters or contains NUL."""
    value: str = request.query_params.get(name, default)
    if len(value) > longest:
        raise Invalid.at(name, message=f"At most {longest} characters.")
    if "\0" in value:
        raise Invalid.at(name, message="NUL characters are not allowed.")
    return value


def number(request: Request, name: str, *, default: int, low: int, high: int) -> int:
    """An integer query parameter from `low` to `high`. Raises Invalid."""
    value = request.query_params.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) < 20 and low <= int(value) <= high):
        raise Invalid.at(name, message=f"Give a whole number from {low} to {high}.")
    return int(value)


def moment(request: Request, name: str) -> dt.datetime | None:
    """A time query parameter, in UTC unless it has a zone; None if absent. Raises Invalid."""
    # In a query string an unescaped plus means a space; restore it, since times contain no spaces.
    said = text(request, name, longest=40).replace(" ", "+")
    if not said:
        return None
    try:
        found = parse_datetime(said)
        if found is not None:
            # astimezone overflows at the ends of the calendar.
            found = timezone.make_aware(found, dt.UTC) if timezone.is_naive(found) else found.astimezone(dt.UTC)
    except (ValueError, OverflowError):
        found = None
    if found is None:
        raise Invalid.at(name, message="Give a moment like 2026-05-03T14:02Z.")
    return found


def flag(request: Request, name: str) -> bool:
    """A boolean query parameter: on is `?follow=true`, `?follow=1` or `?follow`. Raises Invalid for anything else."""
    value = request.query_params.get(name, "false").lower()
    if value in ("", "1", "true", "yes", "on"):
        return True
    if value in ("0", "false", "no", "off"):
        return False
    raise Invalid.at(name, message="Say true or false.")
