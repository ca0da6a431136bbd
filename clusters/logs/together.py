"""The logs of all tasks of a run: one after the other or merged by time, as text or as an archive. Read while it is sent,
holding one piece of each log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from zipfile import ZIP_DEFLATED

from django.http import StreamingHttpResponse
from django.utils.http import content_disposition_header
from zipstream import ZipStream

from clusters.clouds.drivers.base import CloudError, LogChunk
from clusters.frameworks import ROLES
from clusters.logs.lines import Line, Shown, Style, lines_of, merged
from clusters.logs.read import CHUNK, LogSource, RunLogs
from clusters.runs.models import Run
from portal.models import User
from portal.web.limits import TRANSFERS, Sending

# Bytes of each log that are held while merging, and bytes sent at once.
PIECE, PORTION = 64 * 1024, 64 * 1024


def attempts(run: Run) -> list[LogSource]:
    """The log of every attempt that was seen, ordered by role, index and attempt."""
    logs = RunLogs(run)
    logs.load()
    seen = run.tasks.order_by().values_list("role", "index", "attempt")
    order = {role: number for number, role in enumerate(ROLES)}
    return [LogSource(logs, *each) for each in sorted(seen, key=lambda each: (order[each[0]], *each[1:]))]


def newest(run: Run) -> list[LogSource]:
    """The log of each task's newest attempt."""
    return list({source.name: source for source in attempts(run)}.values())


def lines(logs: Iterable[LogSource], style: Style, *, since: int | None, merge: bool) -> Iterator[tuple[str, Line]]:
    """Every matching line, with the name of its task."""
    if merge:
        return merged(((source.name, chunks(source, since=since, limit=PIECE)) for source in logs), style.wanted)
    return ((source.name, line) for source in logs for line in lines_of(chunks(source, since=since), style.wanted))


def chunks(source: LogSource, *, since: int | None = None, limit: int = CHUNK) -> Iterator[LogChunk]:
    """A log from its beginning. If it cannot be read, a line says why."""
    try:
        first = source.read(0, limit=limit, since=since)
    except CloudError as error:
        why = str(error)
    else:
        why = source.note(first) if first.absent else ""
        yield from source.everything(first, limit)
    if why:
        text = f"[{why}]\n".encode()
        yield LogChunk(text, len(text), True, absent=True)


def in_portions(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Joins many small pieces into few large ones."""
    held, size = [], 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= PORTION:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def archive_response(run: Run, user: User, style: Style) -> StreamingHttpResponse:
    """A ZIP archive with a file for each attempt of each task. Raises Unavailable if this user has too many transfers."""
    with ExitStack() as held:
        held.enter_context(TRANSFERS.enter(user.pk))
        packed = ZipStream(compress_type=ZIP_DEFLATED, compress_level=1)
        name = f"{run.cluster.name}-{run.number}"
        for source in attempts(run):
            again = f"-attempt-{source.attempt + 1}" if source.attempt else ""
            packed.add(_bytes(source, style), f"{name}/{source.name}{again}.log")
        response = StreamingHttpResponse(content_type="application/zip")
        response["Content-Disposition"] = content_disposition_header(True, f"{name}-logs.zip")
        response["X-Content-Type-Options"] = "nosniff"
        response["Cache-Control"] = "private, no-store"
        response.streaming_content = Sending(iter(packed), held.pop_all().close)
    return response


def _bytes(source: LogSource, style: Style) -> Iterator[bytes]:
    """A generator, so that a log is opened only when its turn comes."""
    if style.is_plain:
        yield from (chunk.data for chunk in chunks(source))
        return
    show = Shown(style)
    yield from map(show, chunks(source))
    yield show(None)
