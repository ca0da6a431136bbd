"""Reads logs of pods: pieces of a log, its end, and a log as it grows. `log_lines.py` knows the positions in it."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError, ReadTimeoutError

from clusters.clouds.drivers.base import CloudError, LogChunk, RunRef
from clusters.clouds.drivers.kubernetes.api.client import TIMEOUT, Client, path_of
from clusters.clouds.drivers.kubernetes.api.errors import Missing, Refused, Unavailable
from clusters.clouds.drivers.kubernetes.log_lines import STAMP, NoLog, Place, Text
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.watch import pod_status
from clusters.clouds.drivers.marks import SIZE
from portal.network.breaker import Breaker, NotCalled

CONTAINER = "task"
# Estimated bytes per line, to read the end of a log.
USUAL_LINE = 100
# Seconds of silence after which a follower gets an empty chunk.
SILENCE = urllib3.Timeout(connect=3.0, read=8.0)
SHORTEST_PAUSE, LONGEST_PAUSE = 0.2, 2.0
# Number of runs whose pods are cached; seconds for which a list is fresh, or just read.
RUNS, FRESH, SOON = 64, 1.0, 0.1
# Seconds without requests after the server did not answer.
AWAY = 5.0
# Seconds to wait for another thread's request.
PATIENCE = 5.0

Pod = Mapping[str, Any]


class Pods:
    """The pods of runs that people look at. Lists each run at most once in FRESH seconds for all readers."""

    def __init__(self, client: Client, portal: str) -> None:
        self._client, self._portal = client, portal
        # Fails fast while the API server does not answer, because people wait for these pages.
        self._breaker = Breaker(_answered, rest=AWAY)
        self._known: OrderedDict[int, _Listing] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, run: RunRef, role: str, index: int, attempt: int | None, *, age: float = FRESH) -> Pod | None:
        """Returns the pod of one attempt, or the newest, at most `age` seconds old; None if there is none."""
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
            # It may have been created after the cached list.
            return self.find(run, role, index, attempt, age=SOON)
        if found is not None and found["spec"]["restartPolicy"] == "Always" and not is_over(found):
            # Its program may have just been restarted, and the last lines before that matter most.
            return self._now(found)
        return found

    def _now(self, pod: Pod) -> Pod | None:
        metadata = pod["metadata"]
        one = {"fieldSelector": f"metadata.name={metadata['name']}", "resourceVersion": "0"}
        items = self._client.get(path_of("Pod", metadata["namespace"]), **one)["items"]
        return next((item for item in items if item["metadata"]["uid"] == metadata["uid"]), None)


def _answered(error: BaseException, _: float) -> bool | None:
    """Returns whether the server answered, which a refusal is, too."""
    return not isinstance(error, Unavailable) if isinstance(error, CloudError) else None


class _Listing:
    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker
        self._lock = threading.Lock()
        self._at = float("-inf")
        self._pods: dict[tuple[str, int], list[Pod]] = {}

    def read(self, client: Client, run: RunRef, selector: str, age: float) -> dict[tuple[str, int], list[Pod]]:
        """Returns the pods by role and index, because each of a hundred threads needs its own."""
        if not self._lock.acquire(timeout=PATIENCE):
            raise Unavailable("The API server does not answer: somebody else waits for its answer already.")
        try:
            if time.monotonic() - self._at > age:
                # resourceVersion 0 reads the API server's cache: a pod matters only once it has a log.
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
    """Which piece of a log to read, as in `Cloud.log`."""

    offset: int
    limit: int
    tail: int | None
    cursor: str
    since: int | None
    line: int | None
    before: str


def read_log(client: Client, pod: Pod, wanted: Wanted) -> LogChunk:
    """Reads a piece of the current log. Reads everything before it to find an offset without a cursor, a line, or what precedes
    a chunk that is not placed. The API finds the end and a time directly."""
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
    """Joins consecutive chunks."""

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
        # Drop repeated marks: a chunk repeats the last mark of the one before.
        marks = b"".join(dict.fromkeys(bytes(self.marks[at : at + SIZE]) for at in range(0, len(self.marks), SIZE)))
        return replace(last, data=bytes(self.data), line=first.line, marks=marks, first=first.first)

    def cut(self, limit: int, cursor: str) -> LogChunk:
        first = self._begun
        assert first is not None
        end = LogChunk(b"", first.start + limit, False, cursor, placed=first.placed)
        del self.data[limit:]
        return self.whole(end)


def _before(client: Client, pod: Pod, wanted: Wanted) -> LogChunk:
    """Returns the last lines before the one where `wanted.before` begins, and their position."""
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
    """Returns about the last `tail` bytes: requests as many lines as that usually is, and fewer if they are longer."""
    lines = max(1, tail // USUAL_LINE)
    while True:
        most = 2 * tail + lines * STAMP
        try:
            with closing(_open(client, pod, Place(), TIMEOUT, tailLines=str(lines), limitBytes=str(most))) as answer:
                body = answer.read()
        except (Missing, Refused):  # not started yet, or the log is gone
            return LogChunk(b"", 0, is_over(pod), absent=True)
        except (HTTPError, OSError) as error:
            raise Unavailable(f"The API server was cut off: {error}") from error
        is_cut = len(body) >= most
        if not is_cut or lines == 1:
            break
        lines = max(1, lines // 16)
    # Counts an unfinished last line, too.
    came = body.count(b"\n") + (not body.endswith(b"\n"))
    whole = came < lines and not is_cut and not _was_restarted(pod)
    text = Text(Place(placed=whole))
    try:
        data = b"".join(text.feed(body))
    except NoLog:
        return LogChunk(b"", 0, is_over(pod), absent=True)
    first = str(Place(text.first, placed=False)) if not whole else ""
    # If one line exceeds the limit, returns its beginning; the next read gets the rest.
    return LogChunk(
        data, len(data), is_over(pod) and not is_cut, text.cursor or first, marks=text.marks, placed=whole, first=first
    )


def follow(client: Client, find: Callable[[float], Pod | None], *, offset: int, cursor: str) -> Iterator[LogChunk]:
    """Yields the log as it grows, over one connection while the program runs. `find` returns the current pod, as it was at most
    that many seconds ago."""
    chunk = LogChunk(b"", offset, False, cursor)
    # True if everything the program had written at its last end was read.
    at_end, pause = False, SHORTEST_PAUSE
    while not chunk.complete:
        before = chunk.offset
        # Known pods are older than what has ended meanwhile, and it would be read again as long as they are.
        pod = find(SHORTEST_PAUSE if at_end else FRESH)
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
        # A node tells the end of a program a moment after that of its log.
        if not chunk.complete and (at_end or chunk.offset == before):
            yield replace(chunk, data=b"")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


class _Reading:
    """Turns bodies into chunks, from a byte on."""

    def __init__(self, place: Place, offset: int, until: int | None = None) -> None:
        self.text = Text(place, until)
        self.position, self.done, self.until = place.offset, offset, until
        self._last = b""

    @classmethod
    def after(cls, chunk: LogChunk) -> _Reading:
        place = Place.read(chunk.cursor)
        return cls(place if place.offset <= chunk.offset else Place(), chunk.offset)

    def again(self) -> None:
        self.text = Text(self.text.place, self.until)

    def chunks(self, answer: urllib3.BaseHTTPResponse) -> Iterator[LogChunk]:
        """Raises NoLog, urllib3's errors and OSError. Closes the answer."""
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
    """Yields what the running program writes until it ends, is silent for a while, or the connection breaks."""

    def __init__(self, client: Client, pod: Pod, chunk: LogChunk) -> None:
        self._client, self._pod = client, pod
        self._reading = _Reading.after(chunk)
        self.has_begun = self.has_ended = False

    def __iter__(self) -> Iterator[LogChunk]:
        reading = self._reading
        try:
            answer = _open(self._client, self._pod, reading.text.place, SILENCE, follow="true")
            # From here on the node reads to the end, even if it removes the container.
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
    """Yields what the program has written so far, with one request for its last start and one for the start before. The last
    chunk is empty and tells whether that is all."""
    offset, found = reading.done, False
    for previous in [True, False] if _was_restarted(pod) else [False]:
        asked = {"previous": "true"} if previous else {}
        try:
            answer = _open(client, pod, reading.text.place, TIMEOUT, **asked)
            reading.again()
            yield from reading.chunks(answer)
            found = True
        except (Missing, Refused, NoLog):  # not started yet, or the log is gone
            found = found or reading.position > reading.text.begin.offset
        except (HTTPError, OSError) as error:
            raise Unavailable(f"The API server was cut off: {error}") from error
        if reading.text.over:
            break
        if previous:
            reading.text.end()
    # An offset beyond the end means the end.
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
    """False while it waits for a restart: then the API returns the log of the last start as the current one."""
    return runs(pod) and "terminated" in (_status(pod).get("lastState") or {})


def is_over(pod: Pod) -> bool:
    """True if the program writes no more. Its pod may live on to store output."""
    if pod["status"].get("phase") in ("Succeeded", "Failed"):
        return True
    for_good = pod["spec"]["restartPolicy"] == "Never" or "deletionTimestamp" in pod["metadata"]
    return for_good and "terminated" in (_status(pod).get("state") or {})
