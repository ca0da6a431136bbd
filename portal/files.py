"""Files that pages and the API hand out: comma-separated values as RFC 4180 writes them, and everything else by its type."""

from __future__ import annotations

import csv
import io
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TextIO, TypeVar

from django.conf import settings
from django.http import FileResponse, HttpResponse, HttpResponseBase

CSV = "text/csv; charset=utf-8"
# Files up to this many bytes need no disk.
IN_MEMORY = 1 << 20
# What spreadsheets read as the beginning of a formula (OWASP, CSV injection), unless it is nothing but a number.
FORMULA = re.compile(r"[=+\-@\t\r\n＝＋－＠]")
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
Cell = TypeVar("Cell")


def inert(cell: Cell) -> Cell | str:
    """A cell that no spreadsheet reckons with: text that would begin a formula gets an apostrophe. Numbers stay."""
    if isinstance(cell, str) and FORMULA.match(cell) and not NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def csv_file(name: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> HttpResponse:
    """For few rows. `name` is of our own making and has no ending."""
    out = io.StringIO()
    write(out, head, rows)
    return download(out.getvalue().encode(), CSV, f"{name}.csv")


def csv_stream(name: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> HttpResponseBase:
    """For however many rows, in the memory of a few: what is large goes by way of a file without a name, so that whoever reads
    slowly holds nothing of the database. What would be larger than settings.EXPORT_MAX_BYTES is refused, never cut."""
    file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115  the response closes it
    try:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        write(text, head, _within(rows, file))
        text.detach()
        size = file.tell()
        file.seek(0)
        if size <= IN_MEMORY:
            with file:
                return download(file.read(), CSV, f"{name}.csv")
    except TooLarge:
        file.close()
        said = f"This file would have more than {settings.EXPORT_MAX_BYTES // 2**20} MiB. Choose fewer days, or one appcode.\n"
        return HttpResponse(said, content_type="text/plain; charset=utf-8", status=413)
    except BaseException:
        file.close()
        raise
    return FileResponse(file, as_attachment=True, filename=f"{name}.csv", content_type=CSV)


def write(out: TextIO, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    writer = csv.writer(out)
    writer.writerow(head)
    writer.writerows(map(inert, row) for row in rows)


class TooLarge(Exception):
    """There is no room for so large a file."""


def _within(rows: Iterable[Sequence[object]], file: IO[bytes]) -> Iterator[Sequence[object]]:
    for row in rows:
        if file.tell() > settings.EXPORT_MAX_BYTES:
            raise TooLarge
        yield row


def download(content: bytes, content_type: str, name: str) -> HttpResponse:
    response = HttpResponse(content, content_type=content_type)
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
