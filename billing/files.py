"""Files that pages and the API hand out: comma-separated values as RFC 4180 writes them, and everything else by its type."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from django.http import HttpResponse

# What spreadsheets read as the beginning of a formula (OWASP, CSV injection), unless it is nothing but a number.
FORMULA = re.compile(r"[=+\-@\t\r\n＝＋－＠]")
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
Cell = TypeVar("Cell")


def inert(cell: Cell) -> Cell | str:
    """A cell that no spreadsheet reckons with: text that would begin a formula gets an apostrophe. Numbers stay."""
    if isinstance(cell, str) and FORMULA.match(cell) and not NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def csv_text(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(head)
    writer.writerows(map(inert, row) for row in rows)
    return out.getvalue()


def csv_file(name: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> HttpResponse:
    """`name` is of our own making and has no ending."""
    return download(csv_text(head, rows).encode(), "text/csv; charset=utf-8", f"{name}.csv")


def download(content: bytes, content_type: str, name: str) -> HttpResponse:
    response = HttpResponse(content, content_type=content_type)
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
