"""Limits for one person: size of a body, number of requests, number of concurrent streams (logs, commands, terminals).

Requests are counted in the cache; without it they are not limited, since that limit only protects the other users' speed.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
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

from portal.api.problems import TooLarge, Unavailable, problem
from portal.errors import FieldError, Invalid
from portal.pages.error_pages import too_many

if TYPE_CHECKING:
    from rest_framework.views import APIView  # imports this module itself, through the settings

log = logging.getLogger(__name__)

WINDOW = 60
REQUESTS_PER_WINDOW = 3000
# A connection without a byte in either direction for this long is closed; gunicorn would wait for ever.
STALLED_SECONDS = 60


class JsonBody(BaseParser):
    """A JSON body of at most settings.DATA_UPLOAD_MAX_MEMORY_SIZE bytes, in UTF-8 and without NUL characters. orjson
    refuses what Python's parser accepts but PostgreSQL cannot store (half surrogate pairs, NaN), and reports endless
    nesting as an error instead of a RecursionError."""

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
        if b"\\u0000" in body:
            refuse_nul(value)
        return value


def refuse_nul(body: Any) -> None:
    """Raises Invalid with the paths of all texts and keys in `body` that contain NUL, which no column and no program
    accepts. A loop, because a body may be nested deeper than Python's stack."""
    found: list[tuple[str, ...]] = []
    left: list[tuple[tuple[str, ...], Any]] = [((), body)] if isinstance(body, str | list | dict) else []
    while left:
        path, value = left.pop()
        if isinstance(value, dict):
            found += [(*path, key.replace("\0", "�")) for key in value if "\0" in key]
            left += [((*path, key), item) for key, item in value.items() if isinstance(item, str | list | dict)]
        elif isinstance(value, list):
            left += [((*path, str(n)), item) for n, item in enumerate(value) if isinstance(item, str | list | dict)]
        elif "\0" in value:
            found.append(path)
    if found:
        raise Invalid([FieldError(path, "NUL characters are not allowed.") for path in found])


class PerPerson(BaseThrottle):
    """At most REQUESTS_PER_WINDOW requests a minute (50 a second) per person, against runaway loops."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        return not request.user.is_authenticated or counted(str(request.user.pk))

    def wait(self) -> float:
        return _until_next_window()


class RequestLimits:
    """Middleware: times out stalled connections, requires Content-Length, and counts submitted forms like API requests."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if connection := request.META.get("gunicorn.socket"):
            # gunicorn resets the timeout for each request.
            connection.settimeout(STALLED_SECONDS)
        return self.get_response(request)

    def process_view(self, request: HttpRequest, *_: Any) -> HttpResponse | None:
        if "Transfer-Encoding" in request.headers:
            # WSGI does not mark the end of a chunked body, so Django would read an empty one.
            sentence = "Say how long the body is: send Content-Length, and not Transfer-Encoding."
            return problem(request.path, HTTPStatus.LENGTH_REQUIRED, "length-required", sentence)
        is_form = request.method == "POST" and not request.path.startswith("/api/")
        if is_form and request.user.is_authenticated and not counted(str(request.user.pk)):
            wait = _until_next_window()
            response = too_many(request, f"Wait {wait:.0f} seconds, then send it again.")
            response["Retry-After"] = str(int(wait))
            return response
        return None


def counted(sender: str) -> bool:
    """Counts a request of a person (by id) or of a program; True if it is within the sender's limit for this minute."""
    key = f"requests:{sender}:{int(time.time()) // WINDOW}"
    try:
        cache.add(key, 0, timeout=2 * WINDOW)
        return cache.incr(key) <= REQUESTS_PER_WINDOW
    except (RedisError, ValueError) as error:
        log.warning("Requests are not counted: %s", error)
        return True


def _until_next_window() -> float:
    return WINDOW - time.time() % WINDOW + 1


def is_gone(request: HttpRequest) -> bool:
    """True if the client has hung up; for responses that send nothing for a while and would not notice. The gateway
    passes it on."""
    connection = request.META.get("gunicorn.socket")
    if connection is None:
        return False
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


class Place:
    """A taken place in a room, until `release` (which may be repeated) or the end of a `with`."""

    def __init__(self, room: Room, person: int) -> None:
        self._leave: Callable[[], None] | None = partial(room.leave, person)

    def release(self) -> None:
        leave, self._leave = self._leave, None
        if leave:
            leave()

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Room:
    """Places for requests that may hold a thread for long: `size` in all, `each` for one person. They are counted in
    the process, where the threads are: that needs no other server, and nothing is left over when a process dies. All
    rooms together have fewer places than the process has threads (gunicorn.conf.py), so that pages are always served."""

    def __init__(self, size: Callable[[], int], each: int, *, yours: str, full: str) -> None:
        self.size, self.each = size, each
        self._yours, self._full = yours, full
        self._lock = threading.Lock()
        self._taken: Counter[int] = Counter()

    def enter(self, person: int) -> Place:
        """Raises Unavailable if no place is free."""
        with self._lock:
            if self._taken[person] >= self.each:
                raise Unavailable(self._yours)
            if self._taken.total() >= self.size():
                raise Unavailable(self._full)
            self._taken[person] += 1
        return Place(self, person)

    def leave(self, person: int) -> None:
        with self._lock:
            self._taken[person] -= 1
            if not self._taken[person]:
                del self._taken[person]


STREAMS_PER_PERSON = 4
STREAMS = Room(
    lambda: settings.MAX_LOG_STREAMS,
    STREAMS_PER_PERSON,
    yours=f"You have {STREAMS_PER_PERSON} logs, commands, terminals or exports open already; end one of them.",
    full="Too many logs, commands, terminals and exports are open at this moment; try again in a few seconds.",
)
TRANSFERS = Room(
    lambda: 4,
    2,
    yours="Two files of yours are on their way already; try again when one of them has come.",
    full="Too many files are on their way at this moment; try again in a minute.",
)
# Pages that wait for another, possibly slow server: a datastore for its files, a model for an answer.
LOOKS = Room(
    lambda: 3,
    2,
    yours="Two pages of yours wait for a slow server already; try again in a few seconds.",
    full="Too many pages wait for slow servers at this moment; try again in a few seconds.",
)


class Sending:
    """A streamed body that calls `release` when the response is closed, however it ends."""

    def __init__(self, chunks: Iterator[bytes], release: Callable[[], None]) -> None:
        self._chunks, self._release = chunks, release

    def __iter__(self) -> Iterator[bytes]:
        return self._chunks

    def close(self) -> None:
        if isinstance(self._chunks, Generator):
            self._chunks.close()
        self._release()
