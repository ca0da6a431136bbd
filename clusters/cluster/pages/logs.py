"""The Logs tab: one task's log, or all merged. The browser follows them by polling from its last positions.

No thread of the web server waits for a log: a request reads a bounded piece of each. The browser keeps the positions,
merges lines by time, and shows unread parts as gaps (static/clusters/logs.js). Searches read whole logs, on the server.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_POST, require_safe

from clusters.clouds.drivers import marks
from clusters.clouds.drivers.base import CloudError, LogChunk
from clusters.cluster.pages.cluster import Page, page_of
from clusters.cluster.pages.tasks import TaskRow, failed_first, options, task_rows
from clusters.logs import levels, together
from clusters.logs import search as searching
from clusters.logs.lines import Style
from clusters.logs.read import CHUNK, LogSource, RunLogs, without_start
from clusters.runs.models import Run, Task
from portal.api.problems import Unavailable
from portal.pages.appcodes import person
from portal.web.limits import TRANSFERS, Sending

# Bytes per answer, divided among the requested tasks; longer logs take several answers.
ANSWER_BYTES = 1024 * 1024
LEAST_BYTES = 8 * 1024
# Bytes of a log's end that are shown first.
TAIL_BYTES = 256 * 1024
MAX_TASKS = 200
# Logs that one request reads in parallel.
AT_ONCE = 8
# What lines are coloured by, as the browser reads it.
LEVELS = {"error": levels.ERROR, "forms": levels.ERROR_FORMS, "warning": levels.WARNING, "quiet": levels.QUIET}
# Maximum length of a search text, and maximum number of matching lines returned.
MAX_WORDS, MAX_HITS = 200, 2000


@dataclass(frozen=True)
class Position:
    """A byte offset in one attempt's log, with the cloud's cursor for it. `placed` as in LogChunk."""

    attempt: int
    offset: int
    cursor: str = ""
    placed: bool = True


@dataclass(frozen=True)
class Gap:
    """An unread range of lines, from `low` to `high` (0-based; None: to the end). Requests the piece around line `at`,
    or else the last one. Where lines are not counted yet, `first` is the start of what follows the gap."""

    attempt: int
    low: int
    high: int | None
    at: int | None = None
    first: str = ""


@require_safe
def logs(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """`?task=worker-0` shows one task, `?task=all` all. Default: the first failed task, else all."""
    shown = page_of(request, appcode, name)
    rows = task_rows(shown.run) if shown.run else []
    failed = failed_first(shown.run, rows) if shown.run else []
    wanted = request.GET.get("task") or (failed[0].name if failed else "all")
    chosen = [row for row in rows if wanted in ("all", row.name)]
    if shown.run and not chosen:
        raise Http404(f"Run {shown.run.number} of {name} has no task {wanted[:40]}.")
    attempts = _attempts(shown.run, chosen[0]) if shown.run and len(chosen) == 1 else []
    context = {
        "page": shown,
        "tasks": rows,
        "options": options(rows, wanted),
        "chosen": chosen[0] if len(chosen) == 1 else None,
        "wanted": wanted,
        "attempts": attempts,
        "attempt": _attempt(request, attempts),
        "names": [row.name for row in chosen[:MAX_TASKS]],
        "left_out": max(0, len(chosen) - MAX_TASKS),
        # A single task's log shows these lines anyway.
        "failed": failed if len(chosen) > 1 else [],
        "levels": LEVELS,
        "plain": _plain(shown, chosen) if "plain" in request.GET else None,
    }
    return render(request, "clusters/cluster/logs.html", context)


@require_POST
def read(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Returns the log after the positions in the body: {"worker-0": {"attempt": 0, "offset": 123}, "ps-0": null, …}.

    null starts at the last lines of the newest attempt; {"attempt": 0, "low": 0, "high": 123} requests lines in
    between. The answer has a piece for every task with new output or at its end, and the phases of all tasks. POST, as
    URLs are too short for all positions.
    """
    shown = page_of(request, appcode, name)
    wanted = _positions(request.body)
    if shown.run is None or not wanted:
        return JsonResponse({"pieces": [], "error": ""})
    rows = {row.name: row for row in task_rows(shown.run)}
    reader = _Reader(shown.run, limit=max(LEAST_BYTES, min(CHUNK, ANSWER_BYTES // len(wanted))))
    pieces, error = reader.pieces([(rows[task], position) for task, position in wanted.items() if task in rows])
    phases = {row.name: row.phase for row in list(rows.values())[:MAX_TASKS]}
    return JsonResponse({"pieces": pieces, "error": error, "phases": phases})


@require_safe
def search(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Searches whole logs: `?q=` for text, `?errors=1` for the first line that looks like an error; `?task=` and
    `?attempt=` as on the page. `hits` of a task are [line, time in µs, text], MAX_HITS in all; `total` counts all."""
    shown = page_of(request, appcode, name)
    words = request.GET.get("q", "")[:MAX_WORDS]
    errors = "errors" in request.GET
    rows = (
        [row for row in task_rows(shown.run) if request.GET.get("task", "all") in ("all", row.name)]
        if shown.run
        else []
    )
    if shown.run is None or not (words or errors) or not rows:
        return JsonResponse({"tasks": [], "error": ""})
    one = _attempt(request, _attempts(shown.run, rows[0])) if len(rows) == 1 else None
    logs_ = RunLogs(shown.run)
    most = max(1, MAX_HITS // len(rows))
    found, error = [], ""
    try:
        with TRANSFERS.enter(person(request).pk), ThreadPoolExecutor(min(AT_ONCE, len(rows))) as threads:
            logs_.load()
            # The time limit covers all tasks together.
            sought, until = [], time.monotonic() + searching.SECONDS
            for row in rows[:MAX_TASKS]:
                attempt = one if one is not None else row.task.attempt if row.task else 0
                source = LogSource(logs_, row.role, row.index, attempt)
                read_ = partial(source.read, limit=searching.PIECE)
                sought.append((row, attempt, threads.submit(_sought, read_, "" if errors else words, most, until)))
            for row, attempt, finding in sought:
                try:
                    found.append({"task": row.name, "attempt": attempt, **_as_json(finding.result())})
                except CloudError as trouble:
                    error = error or str(trouble)
    except (CloudError, Unavailable) as trouble:
        return JsonResponse({"tasks": [], "error": str(trouble)})
    return JsonResponse({"tasks": found, "error": error})


def _sought(read_: searching.Read, words: str, most: int, until: float) -> searching.Found:
    return searching.search(read_, words, most, until) if words else searching.first_error(read_, until)


def _as_json(found: searching.Found) -> dict[str, Any]:
    hits = [(hit.number, hit.time, hit.text.decode("utf-8", "replace")[: searching.SHOWN]) for hit in found.hits]
    return {"hits": hits, "total": found.total, "lines": found.lines, "complete": found.complete}


@require_safe
def archive(request: HttpRequest, appcode: str, name: str) -> HttpResponseBase:
    """The logs of all attempts of all tasks as one ZIP archive."""
    shown = page_of(request, appcode, name)
    if shown.run is None:
        raise Http404(f"{name} has no run.")
    try:
        return together.archive_response(shown.run, person(request), Style())
    except (CloudError, Unavailable) as error:
        return render(request, "clusters/cluster/unreachable.html", {"page": shown, "error": str(error)}, status=503)


@require_safe
def download(request: HttpRequest, appcode: str, name: str) -> HttpResponseBase:
    """The whole log of one attempt of a task, unchanged."""
    shown = page_of(request, appcode, name)
    rows = {row.name: row for row in task_rows(shown.run)} if shown.run else {}
    row = rows.get(request.GET.get("task", ""))
    if shown.run is None or row is None:
        raise Http404("There is no such task.")
    attempt = _attempt(request, _attempts(shown.run, row))
    source = LogSource(RunLogs(shown.run), row.role, row.index, attempt)
    with ExitStack() as held:
        try:
            held.enter_context(TRANSFERS.enter(person(request).pk))
            first = source.read(0)
        except (CloudError, Unavailable) as error:
            return render(
                request, "clusters/cluster/unreachable.html", {"page": shown, "error": str(error)}, status=503
            )
        if first.absent and first.complete and (why := source.note(first)):
            return render(request, "clusters/cluster/unreachable.html", {"page": shown, "error": why}, status=404)
        stream = Sending((chunk.data for chunk in source.everything(first)), held.pop_all().close)
    file = f"{name}-{shown.run.number}-{row.name}" + (f"-attempt-{attempt + 1}" if attempt else "") + ".log"
    headers = {"Content-Disposition": f'attachment; filename="{file}"', "X-Content-Type-Options": "nosniff"}
    return StreamingHttpResponse(stream, content_type="text/plain; charset=utf-8", headers=headers)


class _Reader:
    """Reads pieces of the logs of one run."""

    def __init__(self, run: Run, limit: int) -> None:
        self.run, self.limit = run, limit
        self.logs = RunLogs(run)

    def pieces(self, wanted: list[tuple[TaskRow, Position | Gap | None]]) -> tuple[list[dict[str, Any]], str]:
        """Reads the pieces in parallel. Returns those that could be read, and the first error."""
        found: list[dict[str, Any]] = []
        error = ""
        try:
            self.logs.load()
        except CloudError as trouble:
            return [], str(trouble)
        with ThreadPoolExecutor(min(AT_ONCE, len(wanted) or 1)) as threads:
            for reading in [threads.submit(self.piece, row, position) for row, position in wanted]:
                try:
                    if piece := reading.result():
                        found.append(piece)
                except CloudError as trouble:
                    error = error or str(trouble)
        return found, error

    def piece(self, row: TaskRow, position: Position | Gap | None) -> dict[str, Any] | None:
        """The next piece, None if there is nothing new. The end of an attempt's log is followed by the next attempt's start."""
        newest = row.task.attempt if row.task else 0
        if position is None:
            return self._end_of(row, newest)
        attempt = position.attempt
        counted = position.placed if isinstance(position, Position) else not position.first
        if not counted and self.logs.is_kept(row.role, row.index, attempt):
            # The log has moved to the archive, where an uncounted position is unknown: start again from the end.
            return {**self._end_of(row, attempt), "anew": True}
        if isinstance(position, Gap):
            return self._piece(row, attempt, self._between(row, position), at_end=False)
        chunk = whole_characters(self._read(row, attempt, offset=position.offset, cursor=position.cursor))
        if not chunk.data and chunk.complete and attempt < newest:
            return self._piece(row, attempt + 1, LogChunk(b"", 0, False), at_end=False)
        piece = self._piece(row, attempt, chunk, at_end=True)
        return piece if chunk.data or piece["ended"] or piece["note"] else None

    def _end_of(self, row: TaskRow, attempt: int) -> dict[str, Any]:
        chunk = from_line(self._read(row, attempt, tail=min(TAIL_BYTES, self.limit)))
        return self._piece(row, attempt, whole_characters(chunk), at_end=True)

    def _between(self, row: TaskRow, gap: Gap) -> LogChunk:
        """Whole lines of a gap."""
        if gap.first:
            return from_line(self._read(row, gap.attempt, before=gap.first))

        def offset_of(line: int) -> int:
            return self.logs.read(row.role, row.index, gap.attempt, line=line, limit=0).offset if line else 0

        low, high = offset_of(gap.low), None if gap.high is None else offset_of(gap.high)
        if gap.at is None:
            start = low if high is None else max(low, high - self.limit)
        else:
            start = max(low, offset_of(gap.at) - self.limit // 3)
        most = self.limit if high is None else min(self.limit, high - start)
        if most <= 0:
            return LogChunk(b"", low, False, line=gap.low)
        chunk = self._read(row, gap.attempt, offset=start, limit=most)
        chunk = chunk if start == low else from_line(chunk)
        cut = len(chunk.data) if chunk.offset == high else chunk.data.rfind(b"\n") + 1 or len(chunk.data)
        return replace(chunk, data=chunk.data[:cut], offset=chunk.start + cut)

    def _piece(self, row: TaskRow, attempt: int, chunk: LogChunk, *, at_end: bool) -> dict[str, Any]:
        ended = at_end and self._ended(row, attempt, chunk)
        return {
            "task": row.name,
            "attempt": attempt,
            "offset": chunk.offset,
            "cursor": chunk.cursor,
            "line": chunk.line,
            "placed": chunk.placed,
            "first": chunk.first,
            "times": times_of(chunk),
            "text": chunk.data.decode("utf-8", "replace"),
            "ended": ended,
            "note": self.logs.note(row.role, row.index, attempt, chunk),
        }

    def _ended(self, row: TaskRow, attempt: int, chunk: LogChunk) -> bool:
        """Whether nothing more can come: both the log and the task are at their end."""
        task_over = self.run.is_terminal or (
            row.phase == "Succeeded" and bool(row.task and row.task.attempt == attempt)
        )
        return chunk.complete and task_over

    def _read(
        self,
        row: TaskRow,
        attempt: int,
        *,
        offset: int = 0,
        limit: int = 0,
        tail: int | None = None,
        cursor: str = "",
        before: str = "",
    ) -> LogChunk:
        if row.phase == "Pending" and not self.logs.keeps and attempt == (row.task.attempt if row.task else 0):
            # The program has not started, so there is no log to request.
            return LogChunk(b"", offset, True, absent=True)
        limit = limit or self.limit
        return self.logs.read(
            row.role, row.index, attempt, offset=offset, limit=limit, tail=tail, cursor=cursor, before=before
        )


def times_of(chunk: LogChunk) -> list[tuple[int, int]]:
    """(n, µs) pairs: lines from the chunk's nth line on were written at this time."""
    found: dict[int, int] = {}
    for offset, line, at in marks.each(chunk.marks):
        inside = offset - chunk.start
        if inside < len(chunk.data):
            # A mark inside a line applies to the next line.
            begins = inside <= 0 or chunk.data[inside - 1 : inside] == b"\n"
            found[0 if inside <= 0 else line - chunk.line + (not begins)] = at
    return sorted(found.items())


def from_line(chunk: LogChunk) -> LogChunk:
    """The chunk without a partial first line; a chunk that is one long line is unchanged."""
    starts_inside = chunk.start > 0
    return without_start(chunk, chunk.data.find(b"\n", 0, -1) + 1 if starts_inside else 0)


def whole_characters(chunk: LogChunk) -> LogChunk:
    """The chunk without a partial UTF-8 character at its end, which the next chunk brings."""
    data = chunk.data
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        size = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
        # A partial character that is never completed must not block what follows.
        if size > back and not chunk.complete and len(data) > back:
            return replace(chunk, data=data[:-back], offset=chunk.offset - back)
        break
    return chunk


def _positions(body: bytes) -> dict[str, Position | Gap | None]:
    """The positions in the request; an invalid one starts at the end of the log."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(value, dict):
        return {}
    return {task: _position(item) for task, item in list(value.items())[:MAX_TASKS]}


def _position(item: Any) -> Position | Gap | None:
    if not isinstance(item, dict):
        return None
    attempt, offset, low, high, at = (_number(item.get(name)) for name in ("attempt", "offset", "low", "high", "at"))
    if attempt is None or attempt >= 2**31:
        return None
    if low is not None:
        return Gap(attempt, low, high, at, _word(item.get("first")))
    return (
        Position(attempt, offset, _word(item.get("cursor")), item.get("placed") is not False)
        if offset is not None
        else None
    )


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _word(value: Any) -> str:
    return value if isinstance(value, str) and len(value) <= 100 else ""


def _attempts(run: Run, row: TaskRow) -> list[int]:
    return list(
        Task.objects.filter(run=run, role=row.role, index=row.index)
        .order_by("attempt")
        .values_list("attempt", flat=True)
    )


def _attempt(request: HttpRequest, attempts: list[int]) -> int:
    """The attempt in `?attempt=`, else the newest."""
    wanted = request.GET.get("attempt", "")
    if wanted.isdecimal() and wanted.isascii() and len(wanted) < 10 and int(wanted) in attempts:
        return int(wanted)
    return attempts[-1] if attempts else 0


def _plain(shown: Page, rows: list[TaskRow]) -> list[tuple[str, str]]:
    """The ends of the logs, for a browser without JavaScript."""
    assert shown.run is not None
    reader = _Reader(shown.run, limit=max(LEAST_BYTES, TAIL_BYTES // max(1, len(rows))))
    pieces, error = reader.pieces([(row, None) for row in rows[:MAX_TASKS]])
    found = [(piece["task"], piece["text"] or piece["note"]) for piece in pieces]
    return [*found, ("", error)] if error else found
