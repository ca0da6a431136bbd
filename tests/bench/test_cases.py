"""The decision on small cases against trying every combination (`bench/admission/cases.py`), fewer of them than there."""

from __future__ import annotations

from dataclasses import replace

from bench.admission.cases import Compared, compared


def test_nothing_is_never_that_fits_and_the_first_run_never_waits_where_it_fits() -> None:
    seen = compared(300, seed=1)
    assert seen.runs > 600
    assert replace(seen, runs=0) == Compared()
