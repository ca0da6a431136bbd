"""The Logs tab: one task or all of them merged, followed by asking again for what came after a position.

No thread of the web server waits for a log: a request reads what is there now, a bounded piece of each task's log, and goes.
The browser keeps the positions. Search, wrapping and following happen in the browser (static/clusters/logs.js); the download is
the whole log of a task as it is.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import orjson
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_POST, require_safe

from clusters.clouds.drivers.base import CloudError, LogChunk
from clusters.logs.read import CHUNK, LogSource, RunLogs
from clusters.models import Run, Task
from clusters.pages.cluster import Page, TaskRow, failed_first, page_of, task_rows
from portal.api.problems import Unavailable
from portal.limits import TRANSFERS, Sending
from portal.pages.appcodes import person

# For one answer, divided among the tasks that are asked for; a longer log comes in several answers.
ANSWER_BYTES = 1024 * 1024
LEAST_BYTES = 8 * 1024
# What is shown first of each log: its end.
TAIL_BYTES = 256 * 1024
MAX_TASKS = 200
# Logs that one answer reads at the same time.
AT_ONCE = 8


@dataclass(frozen=True)
class Position:
    """A byte of the log of one attempt (and the cloud's own word for it), and whether what lies before it is wanted rather
    than what follows."""

    attempt: int
    offset: int
    before: bool
    cursor: str = ""


@require_safe
def logs(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """`?task=worker-0` shows one task, `?task=all` all; without it the first failed one, else all."""
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
        "chosen": chosen[0] if len(chosen) == 1 else None,
        "wanted": wanted,
        "attempts": attempts,
        "attempt": _attempt(request, attempts),
        "names": [row.name for row in chosen[:MAX_TASKS]],
        "left_out": max(0, len(chosen) - MAX_TASKS),
        # The log of one task ends with these lines anyway.
        "failed": failed if len(chosen) > 1 else [],
        "plain": _plain(shown, chosen) if "plain" in request.GET else None,
    }
    return render(request, "clusters/logs.html", context)


@require_POST
def read(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """What comes after the positions in the body, a JSON object: {"worker-0": {"attempt": 0, "offset": 123}, "ps-0": null, …}.

    null starts with the last lines of the newest attempt, {"attempt": 0, "before": 123} asks for lines further up. The answer
    has a piece for every task that has news or is at its end. It is a POST only because an address has no room for hundreds
    of positions.
    """
    shown = page_of(request, appcode, name)
    wanted = _positions(request.body)
    if shown.run is None or not wanted:
        return JsonResponse({"pieces": [], "error": ""})
    rows = {row.name: row for row in task_rows(shown.run)}
    reader = _Reader(shown.run, limit=max(LEAST_BYTES, min(CHUNK, ANSWER_BYTES // len(wanted))))
    pieces, error = reader.pieces([(rows[task], position) for task, position in wanted.items() if task in rows])
    return JsonResponse({"pieces": pieces, "error": error})


@require_safe
def download(request: HttpRequest, appcode: str, name: str) -> HttpResponseBase:
    """The whole log of one attempt of a task, as the program wrote it."""
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
            return render(request, "clusters/unreachable.html", {"page": shown, "error": str(error)}, status=503)
        if first.absent and first.complete and (why := source.note(first)):
            return render(request, "clusters/unreachable.html", {"page": shown, "error": why}, status=404)
        stream = Sending(source.everything(first), held.pop_all().close)
    file = f"{name}-{shown.run.number}-{row.name}" + (f"-attempt-{attempt + 1}" if attempt else "") + ".log"
    headers = {"Content-Disposition": f'attachment; filename="{file}"', "X-Content-Type-Options": "nosniff"}
    return StreamingHttpResponse(stream, content_type="text/plain; charset=utf-8", headers=headers)


class _Reader:
    """Reads pieces of the logs of one run."""

    def __init__(self, run: Run, limit: int) -> None:
        self.run, self.limit = run, limit
        self.logs = RunLogs(run)

    def pieces(self, wanted: list[tuple[TaskRow, Position | None]]) -> tuple[list[dict[str, Any]], str]:
        """Side by side, and the first trouble in words; what can be read comes all the same."""
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

    def piece(self, row: TaskRow, position: Position | None) -> dict[str, Any] | None:
        """None when there is no news. Behind the end of an attempt's log comes the start of the next attempt's."""
        newest = row.task.attempt if row.task else 0
        if position is None:
            chunk = from_line(self._read(row, newest, tail=min(TAIL_BYTES, self.limit)))
            return self._piece(row, newest, whole_characters(chunk), at_end=True)
        attempt, offset = position.attempt, position.offset
        if position.before:
            start = max(0, offset - self.limit)
            chunk = from_line(self._read(row, attempt, offset=start, limit=offset - start))
            return self._piece(row, attempt, chunk, at_end=False)
        chunk = whole_characters(self._read(row, attempt, offset=offset, cursor=position.cursor))
        if not chunk.data and chunk.complete and attempt < newest:
            return self._piece(row, attempt + 1, LogChunk(b"", 0, False), at_end=False)
        piece = self._piece(row, attempt, chunk, at_end=True)
        return piece if chunk.data or piece["ended"] or piece["note"] else None

    def _piece(self, row: TaskRow, attempt: int, chunk: LogChunk, *, at_end: bool) -> dict[str, Any]:
        ended = at_end and self._ended(row, attempt, chunk)
        return {
            "task": row.name,
            "attempt": attempt,
            "start": chunk.offset - len(chunk.data),
            "offset": chunk.offset,
            "cursor": chunk.cursor,
            "text": chunk.data.decode("utf-8", "replace"),
            "ended": ended,
            "note": self.logs.note(row.role, row.index, attempt, chunk),
        }

    def _ended(self, row: TaskRow, attempt: int, chunk: LogChunk) -> bool:
        """Whether nothing more can come: the log is at its end, and so is the task."""
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
    ) -> LogChunk:
        if row.phase == "Pending" and not self.logs.keeps and attempt == (row.task.attempt if row.task else 0):
            # Its program has not been started, so nobody has to be asked.
            return LogChunk(b"", offset, True, absent=True)
        limit = limit or self.limit
        return self.logs.read(row.role, row.index, attempt, offset=offset, limit=limit, tail=tail, cursor=cursor)


def from_line(chunk: LogChunk) -> LogChunk:
    """The chunk without the line that is cut off at its start; a chunk that is one long line stays as it is."""
    starts_inside = chunk.offset > len(chunk.data)
    cut = chunk.data.find(b"\n", 0, -1) + 1 if starts_inside else 0
    return replace(chunk, data=chunk.data[cut:])


def whole_characters(chunk: LogChunk) -> LogChunk:
    """The chunk without a character of UTF-8 that is cut off at its end; that comes with the next one."""
    data = chunk.data
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        size = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
        # A lone half that will never be finished must not stop everything behind it.
        if size > back and not chunk.complete and len(data) > back:
            return replace(chunk, data=data[:-back], offset=chunk.offset - back)
        break
    return chunk


def _positions(body: bytes) -> dict[str, Position | None]:
    """What the browser sent; anything that is not a position starts at the end of the log."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(value, dict):
        return {}
    return {task: _position(item) for task, item in list(value.items())[:MAX_TASKS]}


def _position(item: Any) -> Position | None:
    if not isinstance(item, dict):
        return None
    attempt, before = item.get("attempt"), "before" in item
    offset = item.get("before" if before else "offset")
    if (
        not isinstance(attempt, int)
        or not isinstance(offset, int)
        or not (0 <= attempt < 2**31 and 0 <= offset < 2**53)
    ):
        return None
    cursor = item.get("cursor")
    return Position(attempt, offset, before, cursor if isinstance(cursor, str) and len(cursor) <= 100 else "")


def _attempts(run: Run, row: TaskRow) -> list[int]:
    return list(
        Task.objects.filter(run=run, role=row.role, index=row.index)
        .order_by("attempt")
        .values_list("attempt", flat=True)
    )


def _attempt(request: HttpRequest, attempts: list[int]) -> int:
    """The one that `?attempt=` names, else the newest."""
    wanted = request.GET.get("attempt", "")
    if wanted.isdecimal() and wanted.isascii() and len(wanted) < 10 and int(wanted) in attempts:
        return int(wanted)
    return attempts[-1] if attempts else 0


def _plain(shown: Page, rows: list[TaskRow]) -> list[tuple[str, str]]:
    """The ends of the logs for a browser without JavaScript."""
    assert shown.run is not None
    reader = _Reader(shown.run, limit=max(LEAST_BYTES, TAIL_BYTES // max(1, len(rows))))
    pieces, error = reader.pieces([(row, None) for row in rows[:MAX_TASKS]])
    found = [(piece["task"], piece["text"] or piece["note"]) for piece in pieces]
    return [*found, ("", error)] if error else found
