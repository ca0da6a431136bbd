"""Logs of pods: places in a stream that the API can only begin at a second.

Every line comes with the time at which the node wrote it down. A `Place` is a line's time and the number of bytes before
it; it travels as the cursor of a `LogChunk`. So whoever goes on reads what is new and a second more, also when the node has
begun a new file meanwhile (kubelets keep 10 MiB for each, and the API only reads the newest) or the program was started
again in its pod. Of lines that two threads write in the same microsecond, one may be missed where a reader stops between them.
"""

from __future__ import annotations

import datetime as dt
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError, ReadTimeoutError

from clusters.clouds.drivers.base import CloudError, LogChunk, RunRef
from clusters.clouds.drivers.kubernetes.api.client import TIMEOUT, Client, Missing, Refused, Unavailable, path_of
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.watch import pod_status
from portal.breaker import Breaker, NotCalled

CONTAINER = "task"
# A follower is told after so many seconds that nothing has come.
SILENCE = urllib3.Timeout(connect=3.0, read=8.0)
SHORTEST_PAUSE, LONGEST_PAUSE = 0.2, 2.0
# 2026-01-02T03:04:05.123456789+02:00
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
STAMP = 40
# Pods of so many runs are remembered for so many seconds.
RUNS, FRESH, SOON = 64, 1.0, 0.1
# Seconds for which a server that did not answer is not asked again.
AWAY = 5.0
# Seconds for which somebody waits for what another has asked.
PATIENCE = 5.0

Pod = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """Behind a line: `stamp` is its time in ns, of `same` lines so far; `offset` bytes of the log lie before."""

    stamp: int = 0
    same: int = 0
    offset: int = 0

    @classmethod
    def read(cls, cursor: str) -> Place:
        """The beginning for what is none of ours: cursors come back by people."""
        words = cursor.split(".")
        if len(words) != 3 or not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words):
            return cls()
        return cls(*map(int, words))

    def __str__(self) -> str:
        return f"{self.stamp}.{self.same}.{self.offset}"

    @property
    def since(self) -> str:
        return dt.datetime.fromtimestamp(self.stamp // 10**9, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Text:
    """Takes stamps off a body and leaves out what lies before a place.

    `feed` gives text piece by piece; with the last piece of a line `place` has moved behind it.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.begin = place
        self._passed = not place.stamp
        self._seen = 0
        self._rest = b""
        self._stamp: int | None = None
        self._length = 0

    @property
    def cursor(self) -> str:
        return str(self.place) if self.place.stamp else ""

    def feed(self, data: bytes) -> Iterator[bytes]:
        data, at = self._rest + data, 0
        while at < len(data):
            if self._stamp is None:
                space = data.find(b" ", at, at + STAMP)
                if space < 0 and len(data) - at < STAMP:
                    break
                self._stamp = nanoseconds(data[at : max(space, at)])
                self._passed = self._passed or self._is_new(self._stamp)
                at, self._length = space + 1, 0
            end = data.find(b"\n", at) + 1
            piece = data[at : end or None]
            at += len(piece)
            self._length += len(piece)
            if end:
                self._end_line()
            if self._passed:
                yield piece
        self._rest = data[at:]

    def end(self) -> None:
        """What was begun of a line is all of it."""
        if self._stamp is not None:
            self._end_line()

    def _is_new(self, stamp: int) -> bool:
        if stamp == self.begin.stamp:
            self._seen += 1
        return stamp > self.begin.stamp or self._seen > self.begin.same

    def _end_line(self) -> None:
        stamp, self._stamp = self._stamp or 0, None
        if self._passed:
            before = self.place
            # Two streams of one program may be stamped in another order than they were written down.
            last = max(stamp, before.stamp)
            same = before.same + (stamp == last) if last == before.stamp else 1
            self.place = Place(last, same, before.offset + self._length)


class NoLog(CloudError):
    """The node answered with a sentence in place of the log, as it does when it has removed the container."""


def nanoseconds(stamp: bytes) -> int:
    """RFC 3339 with up to nine digits of a second. Raises NoLog for what is no time."""
    found = _STAMP.fullmatch(stamp.decode("ascii", "replace"))
    if not found:
        raise NoLog("The node does not give the log.")
    seconds = dt.datetime.fromisoformat(found[1] + found[3]).timestamp()
    return int(seconds) * 10**9 + int((found[2] or "").ljust(9, "0"))


class Pods:
    """The pods of runs that people look into, listed at most once in FRESH seconds, whoever asks for how many of them."""

    def __init__(self, client: Client, portal: str) -> None:
        self._client, self._portal = client, portal
        # Whether the API server answers people who wait for a page.
        self._breaker = Breaker(_answered, rest=AWAY)
        self._known: OrderedDict[int, _Listing] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, run: RunRef, role: str, index: int, attempt: int | None, *, age: float = FRESH) -> Pod | None:
        """The pod of one attempt, or the newest one, as it was at most `age` seconds ago; None when there is none any more."""
        with self._lock:
            listing = self._known.setdefault(run.id, _Listing(self._breaker))
            self._known.move_to_end(run.id)
            while len(self._known) > RUNS:
                self._known.popitem(last=False)
        pods = listing.read(self._client, run, names.selector(portal=self._portal, run_id=run.id), age)
        mine = [
            pod
            for pod in pods
            if pod["metadata"]["labels"].get(names.ROLE) == role and pod_status.index_of(pod) == index
        ]
        if attempt is not None:
            mine = [pod for pod in mine if pod_status.attempt_of(pod) == attempt]
        found = max(
            mine, key=lambda pod: (pod_status.attempt_of(pod), pod["metadata"]["creationTimestamp"]), default=None
        )
        if found is None and age > SOON:
            # It may have been made since.
            return self.find(run, role, index, attempt, age=SOON)
        if found is not None and found["spec"]["restartPolicy"] == "Always" and not is_over(found):
            # Its program may have been started again this very moment, and its last lines are those that matter.
            return self._now(found)
        return found

    def _now(self, pod: Pod) -> Pod | None:
        metadata = pod["metadata"]
        one = {"fieldSelector": f"metadata.name={metadata['name']}", "resourceVersion": "0"}
        items = self._client.get(path_of("Pod", metadata["namespace"]), **one)["items"]
        return next((item for item in items if item["metadata"]["uid"] == metadata["uid"]), None)


def _answered(error: BaseException, _: float) -> bool | None:
    """Also when it refused."""
    return not isinstance(error, Unavailable) if isinstance(error, CloudError) else None


class _Listing:
    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker
        self._lock = threading.Lock()
        self._at = float("-inf")
        self._pods: list[Pod] = []

    def read(self, client: Client, run: RunRef, selector: str, age: float) -> list[Pod]:
        if not self._lock.acquire(timeout=PATIENCE):
            raise Unavailable("The API server does not answer: somebody else waits for its answer already.")
        try:
            if time.monotonic() - self._at > age:
                # From the API server's memory: nobody needs to know of a pod before its log is there.
                with self._breaker.call():
                    pages = client.pages(path_of("Pod", run.namespace), labelSelector=selector, resourceVersion="0")
                    self._pods = [pod for page in pages for pod in page["items"]]
                self._at = time.monotonic()
            return self._pods
        except NotCalled as refused:
            last = refused.__cause__
            raise Unavailable(str(last), last.after if isinstance(last, Unavailable) else None) from refused
        finally:
            self._lock.release()


def read_log(client: Client, pod: Pod, *, offset: int, limit: int, tail: int | None, cursor: str = "") -> LogChunk:
    """A piece of the log as it is now. Without a cursor, and for `tail`, everything before it is read too."""
    if tail is not None:
        return _tail(client, pod, limit, tail)
    kept = bytearray()
    # The last cursor that lies in what is answered.
    chunk, known = LogChunk(b"", offset, False), ""
    pieces = _pieces(client, pod, offset, cursor)
    for chunk in pieces:
        kept += chunk.data
        if len(kept) > limit:
            pieces.close()
            return LogChunk(bytes(kept[:limit]), chunk.offset - len(kept) + limit, False, known)
        known = chunk.cursor
    return replace(chunk, data=bytes(kept))


def _tail(client: Client, pod: Pod, limit: int, tail: int) -> LogChunk:
    kept = bytearray()
    chunk = LogChunk(b"", 0, False)
    for chunk in _pieces(client, pod, 0, ""):
        kept += chunk.data
        del kept[: max(0, len(kept) - tail)]
    if len(kept) <= limit:
        return replace(chunk, data=bytes(kept))
    return LogChunk(bytes(kept[:limit]), chunk.offset - len(kept) + limit, False)


def follow(client: Client, find: Callable[[], Pod | None], *, offset: int, cursor: str) -> Iterator[LogChunk]:
    """The log as it comes, by one connection for as long as the program runs. `find` gives the pod as it is now."""
    chunk = LogChunk(b"", offset, False, cursor)
    # Whether all was read that the program has written by its last end.
    at_end, pause = False, SHORTEST_PAUSE
    while not chunk.complete:
        before = chunk.offset
        pod = find()
        if pod is None or (at_end and is_over(pod)):
            yield replace(chunk, data=b"", complete=True, absent=not at_end)
            return
        if not at_end and (not runs(pod) or _was_restarted(pod)):
            for news in _pieces(client, pod, chunk.offset, chunk.cursor):
                chunk = news
                yield chunk
        if runs(pod):
            stream = _Stream(client, pod, chunk)
            for news in stream:
                chunk = news
                yield chunk
            at_end = stream.has_ended if stream.has_begun else at_end
        if chunk.offset > before:
            pause = SHORTEST_PAUSE
        elif not chunk.complete:
            yield replace(chunk, data=b"")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


class _Reading:
    """A log from a chunk on: bytes of bodies become chunks."""

    def __init__(self, offset: int, cursor: str) -> None:
        place = Place.read(cursor)
        self.text = Text(place if place.offset <= offset else Place())
        self.position, self.done = self.text.place.offset, offset

    def chunks(self, answer: urllib3.BaseHTTPResponse) -> Iterator[LogChunk]:
        """Raises NoLog, urllib3's errors and OSError. The answer is closed."""
        try:
            for data in answer.stream(65536):
                piece = b"".join(self.text.feed(data))
                self.position += len(piece)
                if self.position > self.done:
                    piece = piece[-(self.position - self.done) :]
                    self.done = self.position
                    yield LogChunk(piece, self.done, False, self.text.cursor)
        finally:
            answer.close()


class _Stream:
    """What the running program writes, until it ends, is silent for a while, or the connection breaks."""

    def __init__(self, client: Client, pod: Pod, chunk: LogChunk) -> None:
        self._client, self._pod = client, pod
        self._reading = _Reading(chunk.offset, chunk.cursor)
        self.has_begun = self.has_ended = False

    def __iter__(self) -> Iterator[LogChunk]:
        reading = self._reading
        try:
            answer = _open(self._client, self._pod, reading.text.place, SILENCE, follow="true")
            # From here on the node reads to the end, also when it removes the container meanwhile.
            self.has_begun = True
            yield LogChunk(b"", reading.done, False, reading.text.cursor)
            yield from reading.chunks(answer)
            self.has_ended = True
        except (Missing, Refused, NoLog):
            self.has_begun = False
        except ReadTimeoutError:
            yield LogChunk(b"", reading.done, False, reading.text.cursor)
        except (HTTPError, OSError) as error:
            raise Unavailable(f"The API server was cut off: {error}") from error


def _pieces(client: Client, pod: Pod, offset: int, cursor: str) -> Generator[LogChunk]:
    """What the pod's program has written by now, from `offset` on, by one connection for its last start and one for the start
    before; the last piece is empty and says whether that is all."""
    reading, found = _Reading(offset, cursor), False
    for previous in [True, False] if _was_restarted(pod) else [False]:
        asked = {"previous": "true"} if previous else {}
        try:
            answer = _open(client, pod, reading.text.place, TIMEOUT, **asked)
            reading.text = Text(reading.text.place)
            yield from reading.chunks(answer)
            found = True
        except (Missing, Refused, NoLog):  # it has not been started yet, or its log is gone
            found = found or reading.position > reading.text.begin.offset
        except (HTTPError, OSError) as error:
            raise Unavailable(f"The API server was cut off: {error}") from error
        if previous:
            reading.text.end()
    # An offset behind the end is the end.
    end = min(reading.done, reading.position) if found else offset
    yield LogChunk(b"", end, is_over(pod), reading.text.cursor, absent=not found)


def _open(client: Client, pod: Pod, place: Place, timeout: urllib3.Timeout, **query: str) -> urllib3.BaseHTTPResponse:
    metadata = pod["metadata"]
    path = f"{path_of('Pod', metadata['namespace'], metadata['name'])}/log"
    if place.stamp:
        query["sinceTime"] = place.since
    return client.open(path, timeout, container=CONTAINER, timestamps="true", **query)


def _status(pod: Pod) -> Mapping[str, Any]:
    found = (each for each in pod["status"].get("containerStatuses") or [] if each["name"] == CONTAINER)
    return next(found, {})


def runs(pod: Pod) -> bool:
    return "running" in (_status(pod).get("state") or {})


def _was_restarted(pod: Pod) -> bool:
    """While it waits to be started again, the API reads the log of its last start as its present one."""
    return runs(pod) and "terminated" in (_status(pod).get("lastState") or {})


def is_over(pod: Pod) -> bool:
    """Whether the program writes nothing any more. Its pod may go on for long, to store what it left."""
    if pod["status"].get("phase") in ("Succeeded", "Failed"):
        return True
    for_good = pod["spec"]["restartPolicy"] == "Never" or "deletionTimestamp" in pod["metadata"]
    return for_good and "terminated" in (_status(pod).get("state") or {})
