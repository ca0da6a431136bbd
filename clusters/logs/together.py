"""The logs of all tasks of a run at once: one after the other or merged by time, as text or as an archive. Read while it is sent;
a piece of each log is held."""

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
from clusters.models import Run
from portal.limits import TRANSFERS, Sending
from portal.models import User

# What is held of each log while many are merged, and how much is sent at once.
PIECE, PORTION = 64 * 1024, 64 * 1024


def attempts(run: Run) -> list[LogSource]:
    """Of every attempt that was seen, in the order of roles, indexes and attempts."""
    logs = RunLogs(run)
    logs.load()
    seen = run.tasks.order_by().values_list("role", "index", "attempt")
    order = {role: number for number, role in enumerate(ROLES)}
    return [LogSource(logs, *each) for each in sorted(seen, key=lambda each: (order[each[0]], *each[1:]))]


def newest(run: Run) -> list[LogSource]:
    """That of the newest attempt of every task that was seen."""
    return list({source.name: source for source in attempts(run)}.values())


def lines(logs: Iterable[LogSource], style: Style, *, since: int | None, merge: bool) -> Iterator[tuple[str, Line]]:
    """Every line that is wanted, with the name of its task."""
    if merge:
        return merged(((source.name, chunks(source, since=since, limit=PIECE)) for source in logs), style.wanted)
    return ((source.name, line) for source in logs for line in lines_of(chunks(source, since=since), style.wanted))


def chunks(source: LogSource, *, since: int | None = None, limit: int = CHUNK) -> Iterator[LogChunk]:
    """A log from its beginning; in its place, why it cannot be read."""
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
    """Few large ones instead of many small ones."""
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
    """A ZIP archive with a file for each attempt of each task. Raises Unavailable when this person has too many transfers."""
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
    """Opened when it is its turn."""
    if style.is_plain:
        yield from (chunk.data for chunk in chunks(source))
        return
    show = Shown(style)
    yield from map(show, chunks(source))
    yield show(None)
