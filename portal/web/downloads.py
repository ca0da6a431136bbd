"""Downloads of pages and the API: CSV (RFC 4180) and other files."""

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
# Files up to this many bytes stay in memory.
IN_MEMORY = 1 << 20
# Characters that start a formula in spreadsheets (OWASP, CSV injection); plain numbers are exempt.
FORMULA = re.compile(r"[=+\-@\t\r\n＝＋－＠]")
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
Cell = TypeVar("Cell")


def inert(cell: Cell) -> Cell | str:
    """Prefixes text that would start a formula with an apostrophe, so that no spreadsheet evaluates it. Numbers stay."""
    if isinstance(cell, str) and FORMULA.match(cell) and not NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def csv_file(name: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> HttpResponse:
    """For few rows. `name` must be our own and has no extension."""
    out = io.StringIO()
    write(out, head, rows)
    return download(out.getvalue().encode(), CSV, f"{name}.csv")


def csv_stream(name: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> HttpResponseBase:
    """For any number of rows in constant memory: large files go through an unnamed temporary file, so that a slow
    reader holds no database resources. A file above settings.EXPORT_MAX_BYTES is refused, never truncated."""
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
    """The file exceeds settings.EXPORT_MAX_BYTES."""


def _within(rows: Iterable[Sequence[object]], file: IO[bytes]) -> Iterator[Sequence[object]]:
    for row in rows:
        if file.tell() > settings.EXPORT_MAX_BYTES:
            raise TooLarge
        yield row


def download(content: bytes, content_type: str, name: str) -> HttpResponse:
    response = HttpResponse(content, content_type=content_type)
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
