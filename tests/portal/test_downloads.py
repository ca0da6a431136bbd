"""CSV files: names that users chose never become formulas, and numbers stay numbers."""

from __future__ import annotations

import csv
import io
from decimal import Decimal

import pytest

from portal.web import downloads
from portal.web.downloads import csv_file, csv_stream, inert


def read(response):
    assert response["Content-Disposition"] == 'attachment; filename="a.csv"'
    return list(csv.reader(io.StringIO(response.getvalue().decode(), newline="")))


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3+cmd", "@SUM(A1)", "\t=1", "\r=1", "＝1", "-", "+1e5x"]
)
def test_text_that_would_begin_a_formula_does_not(text):
    assert inert(text) == f"'{text}"
    for answer in (csv_file, csv_stream):
        assert read(answer("a", ["a"], [[text]])) == [["a"], [f"'{text}"]]


@pytest.mark.parametrize(
    "cell", ["-1.50", "+3", "-0", Decimal("-1.5"), -3, None, "", "'=1", "a=b", "–", "no business line"]
)
def test_everything_else_stays(cell):
    assert inert(cell) is cell


def test_a_file_has_all_rows_however_many(monkeypatch):
    """A file that exceeds the memory limit is spooled to disk and is complete too."""
    monkeypatch.setattr(downloads, "IN_MEMORY", 100)
    rows = [[number, "text"] for number in range(5000)]
    response = csv_stream("a", ["number", "words"], iter(rows))
    assert response.streaming
    found = read(response)
    assert found == [["number", "words"], *([str(number), words] for number, words in rows)]


def test_a_file_that_would_be_too_large_is_refused_and_not_cut(settings):
    settings.EXPORT_MAX_BYTES = 2**20
    response = csv_stream("a", ["words"], (["x" * 1000] for _ in range(2000)))
    assert response.status_code == 413
    assert "more than 1 MiB" in response.content.decode()
    assert "Content-Disposition" not in response
