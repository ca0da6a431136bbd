"""What one person may ask: how large a body, how many requests, how many streams (logs, commands) at one time.

The counters live in the cache. Without the cache requests are let through, because a limit is a courtesy to the others,
but streams are not, because each of them holds a thread of the web server for minutes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import IO, TYPE_CHECKING, Any

import orjson
from django.conf import settings
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from redis.exceptions import RedisError
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from portal.errors import FieldError, Invalid
from portal.oops import too_many
from portal.problems import TooLarge, Unavailable, problem

if TYPE_CHECKING:
    from rest_framework.views import APIView  # which itself imports this module, by the settings

log = logging.getLogger(__name__)

WINDOW = 60
REQUESTS_PER_WINDOW = 3000
STREAMS_PER_PERSON = 4


class JsonBody(BaseParser):
    """A JSON body of at most settings.DATA_UPLOAD_MAX_MEMORY_SIZE bytes, in UTF-8 and without NUL characters.

    orjson refuses what Python's own parser lets through and PostgreSQL cannot store (half surrogate pairs, NaN), and answers
    endless nesting with an error instead of a RecursionError.
    """

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        try:
            body: bytes = stream.read(limit + 1)
        except UnreadablePostError as error:
            raise ParseError("The body was cut off.") from error
        if len(body) > limit:
            raise TooLarge(f"A body has at most {limit // 1024} KiB; data goes into datastores.")
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise ParseError(
                f"The body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
            ) from error
        if b"\\u0000" in body and (paths := _with_nul(value)):
            raise Invalid([FieldError(path, "NUL characters are not allowed.") for path in paths])
        return value


def _with_nul(body: Any) -> list[tuple[str, ...]]:
    """The paths of all texts and keys in `body` that contain a NUL character, which no column and no program can take.

    A loop, because a body may be nested deeper than Python's stack.
    """
    found: list[tuple[str, ...]] = []
    left: list[tuple[tuple[str, ...], Any]] = [((), body)]
    while left:
        path, value = left.pop()
        if isinstance(value, dict):
            found += [(*path, key.replace("\0", "�")) for key in value if "\0" in key]
            left += [((*path, key), item) for key, item in value.items() if isinstance(item, str | list | dict)]
        elif isinstance(value, list):
            left += [((*path, str(n)), item) for n, item in enumerate(value) if isinstance(item, str | list | dict)]
        elif "\0" in value:
            found.append(path)
    return found


class PerPerson(BaseThrottle):
    """At most REQUESTS_PER_WINDOW requests a minute (50 a second) for each person: against loops that ran away."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        return not request.user.is_authenticated or _counted(request.user.pk)

    def wait(self) -> float:
        return _until_next_window()


class RequestLimits:
    """The middleware: a body says how long it is, and whoever sends forms is counted as whoever uses the API is."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if "Transfer-Encoding" in request.headers:
            # WSGI does not say where such a body ends, so Django would take it for an empty one.
            sentence = "Say how long the body is: send Content-Length, and not Transfer-Encoding."
            return problem(request.path, HTTPStatus.LENGTH_REQUIRED, "length-required", sentence)
        is_form = request.method == "POST" and not request.path.startswith("/api/")
        if is_form and request.user.is_authenticated and not _counted(request.user.pk):
            wait = _until_next_window()
            response = too_many(request, f"Wait {wait:.0f} seconds, then send it again.")
            response["Retry-After"] = str(int(wait))
            return response
        return self.get_response(request)


def _counted(person: int) -> bool:
    """Counts a request. Whether it is one of those that the person may make in this minute."""
    key = f"requests:{person}:{int(time.time()) // WINDOW}"
    try:
        cache.add(key, 0, timeout=2 * WINDOW)
        return cache.incr(key) <= REQUESTS_PER_WINDOW
    except (RedisError, ValueError) as error:
        log.warning("Requests are not counted: %s", error)
        return True


def _until_next_window() -> float:
    return WINDOW - time.time() % WINDOW + 1


class Slot:
    """One of a few places, taken until `release` or, should its holder die, until its time is over."""

    def __init__(self, key: str) -> None:
        self.key = key

    def release(self) -> None:
        cache.delete(self.key)


def take_stream_slots(person: int, seconds: int) -> list[Slot]:
    """A place among the person's own streams and one among everybody's. Raises Unavailable when none is free.

    All streams together hold fewer threads than one process of the web server has, so that pages are always served.
    """
    taken: list[Slot] = []
    try:
        for name, size, sentence in (
            (
                f"streams:{person}",
                STREAMS_PER_PERSON,
                f"You follow {STREAMS_PER_PERSON} logs, commands or exports already; end one of them.",
            ),
            (
                "streams",
                settings.MAX_LOG_STREAMS,
                "Too many logs, commands and exports are being followed at this moment; try again in a few seconds.",
            ),
        ):
            slot = next(
                (Slot(f"{name}:{n}") for n in range(size) if cache.add(f"{name}:{n}", 1, timeout=seconds)), None
            )
            if slot is None:
                raise Unavailable(sentence)
            taken.append(slot)
    except RedisError as error:
        raise Unavailable("Nothing can be followed at this moment; try again in a few seconds.") from error
    except Unavailable:
        for slot in taken:
            slot.release()
        raise
    return taken
