"""Logs of pods: places in a stream that the API can only begin at a second.

Every line comes with the time at which the node wrote it down. A `Place` is a line's time and the number of bytes before it; with
the lines before, it travels as the cursor of a `LogChunk`. So whoever goes on reads what is new and a second more, also when the
node has begun a new file meanwhile (kubelets keep 10 MiB for each, and the API only reads the newest) or the program was started
again in its pod. Of lines that two threads write in the same microsecond, one may be missed where a reader stops between them.
"""

from __future__ import annotations

import datetime as dt
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError, ReadTimeoutError

from clusters.clouds.drivers.base import CloudError, LogChunk, RunRef
from clusters.clouds.drivers.kubernetes.api.client import TIMEOUT, Client, Missing, Refused, Unavailable, path_of
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.watch import pod_status
from clusters.clouds.drivers.marks import SIZE, Marker
from portal.breaker import Breaker, NotCalled

CONTAINER = "task"
# Bytes of a line, as a guess, when the end of a log is asked for.
USUAL_LINE = 100
# What a place ends with whose log was not read from its beginning.
LATE = ".late"
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
    """Behind a line: `stamp` is its time in ns, of `same` lines so far; `offset` bytes and `line` lines of the log lie before.
    They are counted from its beginning, or, when it is not `placed`, from where somebody began to read near its end."""

    stamp: int = 0
    same: int = 0
    offset: int = 0
    line: int = 0
    placed: bool = True

    @classmethod
    def read(cls, cursor: str) -> Place:
        """The beginning for what is none of ours: cursors come back by people."""
        words = cursor.removesuffix(LATE).split(".")
        if len(words) != 4 or not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words):
            return cls()
        stamp, same, offset, line = map(int, words)
        return cls(stamp, same, offset, line, placed=not cursor.endswith(LATE))

    def __str__(self) -> str:
        return f"{self.stamp}.{self.same}.{self.offset}.{self.line}{'' if self.placed else LATE}"

    @property
    def since(self) -> str:
        return dt.datetime.fromtimestamp(self.stamp // 10**9, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Text:
    """Takes stamps off a body, makes marks of them, and leaves out what lies before a place.

    `feed` gives text piece by piece; with the last piece of a line `place` has moved behind it. With `until`, a time in ns, it is
    `over` with the first line that is not older.
    """

    def __init__(self, place: Place, until: int | None = None) -> None:
        self.begin = place
        # What `place` is made of: nothing of it is made for each line of millions.
        self._last, self._same, self._begins, self._line = place.stamp, place.same, place.offset, place.line
        self.until, self.over = until, False
        self.marker, self.marks = Marker(place.offset, place.line), b""
        # The time of the first line that came.
        self.first = 0
        self._passed = not place.stamp
        self._seen = 0
        self._rest = b""
        self._stamp: int | None = None
        self._length = 0

    @property
    def place(self) -> Place:
        """Behind the last whole line."""
        return Place(self._last, self._same, self._begins, self._line, self.begin.placed)

    @property
    def cursor(self) -> str:
        return str(self.place) if self._last else ""

    def feed(self, data: bytes) -> Iterator[bytes]:
        data, at = self._rest + data, 0
        while at < len(data) and not self.over:
            if self._stamp is None:
                space = data.find(b" ", at, at + STAMP)
                if space < 0 and len(data) - at < STAMP:
                    break
                stamp = nanoseconds(data[at : max(space, at)])
                if self.until is not None and stamp >= self.until:
                    self.over = True
                    break
                self._stamp = stamp
                self._passed = self._passed or self._is_new(stamp)
                at, self._length = space + 1, 0
            end = data.find(b"\n", at) + 1
            piece = data[at : end or None]
            at += len(piece)
            self._length += len(piece)
            if self._passed:
                self.first = self.first or self._stamp
                self.marks += self.marker.add(piece, self._stamp // 1000)
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
            # Two streams of one program may be stamped in another order than they were written down.
            if stamp <= self._last:
                self._same += stamp == self._last
            else:
                self._last, self._same = stamp, 1
            self._begins += self._length
            self._line = self.marker.line


class NoLog(CloudError):
    """The node answered with a sentence in place of the log, as it does when it has removed the container."""


def nanoseconds(stamp: bytes) -> int:
    """RFC 3339 with up to nine digits of a second. Raises NoLog for what is no time."""
    if len(stamp) == 30 and stamp[19:20] == b"." and stamp[29:] == b"Z" and stamp[20:29].isdigit():
        return _second(stamp[:19] + b"Z") + int(stamp[20:29])
    found = _STAMP.fullmatch(stamp.decode("ascii", "replace"))
    if not found:
        raise NoLog("The node does not give the log.")
    return _second((found[1] + found[3]).encode()) + int((found[2] or "").ljust(9, "0"))


@lru_cache(maxsize=64)
def _second(stamp: bytes) -> int:
    """In ns. Lines of a log have few different ones."""
    try:
        return int(dt.datetime.fromisoformat(stamp.decode()).timestamp()) * 10**9
    except ValueError as error:
        raise NoLog("The node does not give the log.") from error


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
        mine = pods.get((role, index), [])
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
        self._pods: dict[tuple[str, int], list[Pod]] = {}

    def read(self, client: Client, run: RunRef, selector: str, age: float) -> dict[tuple[str, int], list[Pod]]:
        """By role and index: each of a hundred threads looks for its own."""
        if not self._lock.acquire(timeout=PATIENCE):
            raise Unavailable("The API server does not answer: somebody else waits for its answer already.")
        try:
            if time.monotonic() - self._at > age:
                # From the API server's memory: nobody needs to know of a pod before its log is there.
                with self._breaker.call():
                    pages = client.pages(path_of("Pod", run.namespace), labelSelector=selector, resourceVersion="0")
                    found: dict[tuple[str, int], list[Pod]] = {}
                    for pod in (pod for page in pages for pod in page["items"]):
                        role = pod["metadata"]["labels"].get(names.ROLE, "")
                        found.setdefault((role, pod_status.index_of(pod)), []).append(pod)
                self._pods = found
                self._at = time.monotonic()
            return self._pods
        except NotCalled as refused:
            last = refused.__cause__
            raise Unavailable(str(last), last.after if isinstance(last, Unavailable) else None) from refused
        finally:
            self._lock.release()


@dataclass(frozen=True)
class Wanted:
    """Which piece of a log, as `Cloud.log` says it."""

    offset: int
    limit: int
    tail: int | None
    cursor: str
    since: int | None
    line: int | None
    before: str


def read_log(client: Client, pod: Pod, wanted: Wanted) -> LogChunk:
    """A piece of the log as it is now. To find an offset without a cursor, a line, or what lies before a chunk that is not
    placed, everything before is read; the end and a time the API finds by itself."""
    if wanted.tail is not None:
        return _tail(client, pod, wanted.tail)
    if wanted.before:
        return _before(client, pod, wanted)
    place = Place.read(wanted.cursor)
    if wanted.since is not None:
        place = Place(wanted.since * 1000 - 1, placed=False) if wanted.since > 0 else Place()
    elif place.offset > wanted.offset or wanted.line is not None:
        place = Place()
    reading = _Reading(place, 0 if wanted.since is not None else wanted.offset)
    found, last, lines = _Gathered(), "", wanted.line or 0
    pieces = _pieces(client, pod, reading)
    for chunk in pieces:
        if lines and not found.data and chunk.data:
            if chunk.line + chunk.data.count(b"\n") < lines:
                continue
            rest = chunk.data.split(b"\n", lines - chunk.line)[-1]
            chunk = replace(chunk, data=rest, line=lines)
            if not rest:
                continue
        found.add(chunk)
        if len(found.data) > wanted.limit:
            pieces.close()
            return found.cut(wanted.limit, last)
        last = chunk.cursor
    return found.whole(chunk)


class _Gathered:
    """Chunks that follow one another, as one."""

    def __init__(self) -> None:
        self.data, self.marks = bytearray(), bytearray()
        self._begun: LogChunk | None = None

    def add(self, chunk: LogChunk) -> None:
        if chunk.data and self._begun is None:
            self._begun = chunk
        self.data += chunk.data
        self.marks += chunk.marks

    def whole(self, last: LogChunk) -> LogChunk:
        first = self._begun or last
        # Of marks that came twice, the first time as those of what went before, one is enough.
        marks = b"".join(dict.fromkeys(bytes(self.marks[at : at + SIZE]) for at in range(0, len(self.marks), SIZE)))
        return replace(last, data=bytes(self.data), line=first.line, marks=marks, first=first.first)

    def cut(self, limit: int, cursor: str) -> LogChunk:
        first = self._begun
        assert first is not None
        end = LogChunk(b"", first.start + limit, False, cursor, placed=first.placed)
        del self.data[limit:]
        return self.whole(end)


def _before(client: Client, pod: Pod, wanted: Wanted) -> LogChunk:
    """The last lines before the one at which `wanted.before` was begun, and where that is."""
    reading = _Reading(Place(), 0, until=Place.read(wanted.before).stamp)
    kept, chunk = bytearray(), LogChunk(b"", 0, False)
    marks = bytearray()
    for chunk in _pieces(client, pod, reading):
        kept += chunk.data
        marks += chunk.marks
        del kept[: max(0, len(kept) - wanted.limit)]
    end = reading.text.place
    return LogChunk(
        bytes(kept), end.offset, False, str(end), absent=chunk.absent, line=end.line - kept.count(b"\n"), marks=bytes(marks)
    )  # fmt: skip


def _tail(client: Client, pod: Pod, tail: int) -> LogChunk:
    """About the last `tail` bytes: so many lines as they usually are, and fewer where they are longer."""
    lines = max(1, tail // USUAL_LINE)
    while True:
        most = 2 * tail + lines * STAMP
        try:
            with closing(_open(client, pod, Place(), TIMEOUT, tailLines=str(lines), limitBytes=str(most))) as answer:
                body = answer.read()
        except (Missing, Refused):  # it has not been started yet, or its log is gone
            return LogChunk(b"", 0, is_over(pod), absent=True)
        except (HTTPError, OSError) as error:
            raise Unavailable(f"The API server was cut off: {error}") from error
        is_cut = len(body) >= most
        if not is_cut or lines == 1:
            break
        lines = max(1, lines // 16)
    # The last line may be unfinished, and is one of them all the same.
    came = body.count(b"\n") + (not body.endswith(b"\n"))
    whole = came < lines and not is_cut and not _was_restarted(pod)
    text = Text(Place(placed=whole))
    try:
        data = b"".join(text.feed(body))
    except NoLog:
        return LogChunk(b"", 0, is_over(pod), absent=True)
    first = str(Place(text.first, placed=False)) if not whole else ""
    # Of a line that is longer than all that was asked for, its beginning; the rest comes with what is read next.
    return LogChunk(
        data, len(data), is_over(pod) and not is_cut, text.cursor or first, marks=text.marks, placed=whole, first=first
    )


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
            for news in _pieces(client, pod, _Reading.after(chunk)):
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
    """A log from a byte on: bytes of bodies become chunks."""

    def __init__(self, place: Place, offset: int, until: int | None = None) -> None:
        self.text = Text(place, until)
        self.position, self.done, self.until = place.offset, offset, until
        self._last = b""

    @classmethod
    def after(cls, chunk: LogChunk) -> _Reading:
        place = Place.read(chunk.cursor)
        return cls(place if place.offset <= chunk.offset else Place(), chunk.offset)

    def again(self) -> None:
        """Goes on with another body."""
        self.text = Text(self.text.place, self.until)

    def chunks(self, answer: urllib3.BaseHTTPResponse) -> Iterator[LogChunk]:
        """Raises NoLog, urllib3's errors and OSError. The answer is closed."""
        try:
            for data in answer.stream(65536):
                piece = b"".join(self.text.feed(data))
                marks, self.text.marks = self._last + self.text.marks, b""
                self._last = marks[-SIZE:]
                self.position += len(piece)
                if self.position > self.done:
                    piece = piece[-(self.position - self.done) :]
                    self.done = self.position
                    line = self.text.marker.line - piece.count(b"\n")
                    placed = self.text.place.placed
                    first = "" if placed else str(Place(self.text.first, placed=False))
                    yield LogChunk(
                        piece, self.done, False, self.text.cursor, line=line, marks=marks, placed=placed, first=first
                    )
                if self.text.over:
                    return
        finally:
            answer.close()


class _Stream:
    """What the running program writes, until it ends, is silent for a while, or the connection breaks."""

    def __init__(self, client: Client, pod: Pod, chunk: LogChunk) -> None:
        self._client, self._pod = client, pod
        self._reading = _Reading.after(chunk)
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


def _pieces(client: Client, pod: Pod, reading: _Reading) -> Generator[LogChunk]:
    """What the pod's program has written by now, by one connection for its last start and one for the start before; the last
    piece is empty and says whether that is all."""
    offset, found = reading.done, False
    for previous in [True, False] if _was_restarted(pod) else [False]:
        asked = {"previous": "true"} if previous else {}
        try:
            answer = _open(client, pod, reading.text.place, TIMEOUT, **asked)
            reading.again()
            yield from reading.chunks(answer)
            found = True
        except (Missing, Refused, NoLog):  # it has not been started yet, or its log is gone
            found = found or reading.position > reading.text.begin.offset
        except (HTTPError, OSError) as error:
            raise Unavailable(f"The API server was cut off: {error}") from error
        if reading.text.over:
            break
        if previous:
            reading.text.end()
    # An offset behind the end is the end.
    end = min(reading.done, reading.position) if found else offset
    text = reading.text
    yield LogChunk(
        b"", end, is_over(pod), text.cursor, absent=not found, line=text.marker.line, placed=text.place.placed
    )


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
