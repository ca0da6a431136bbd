"""Files of comma-separated values: what people called something is never a formula, and numbers stay numbers."""

from __future__ import annotations

import csv
import io
from decimal import Decimal

import pytest

from billing.files import csv_file, inert


def read(response):
    assert response["Content-Disposition"] == 'attachment; filename="a.csv"'
    return list(csv.reader(io.StringIO(response.getvalue().decode(), newline="")))


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3+cmd", "@SUM(A1)", "\t=1", "\r=1", "＝1", "-", "+1e5x"]
)
def test_text_that_would_begin_a_formula_does_not(text):
    assert inert(text) == f"'{text}"
    assert read(csv_file("a", ["a"], [[text]])) == [["a"], [f"'{text}"]]


@pytest.mark.parametrize(
    "cell", ["-1.50", "+3", "-0", Decimal("-1.5"), -3, None, "", "'=1", "a=b", "–", "no business line"]
)
def test_everything_else_stays(cell):
    assert inert(cell) is cell
