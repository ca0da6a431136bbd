"""The axes of parallel coordinates: which are logarithmic, and what their labels are."""

from __future__ import annotations

import pytest

from clusters.results.coordinates import Point, drawn
from clusters.results.view import Column


@pytest.mark.parametrize(
    ("texts", "labels"),
    [
        # A few settings are their own labels, evenly apart if each is a multiple of the one before.
        ("0.3 0.001 0.1 0.01 0.03 0.003", {"0.001": 100, "0.003": 81, "0.01": 60, "0.03": 40, "0.1": 19, "0.3": 0}),
        ("16 256 64 32 128", {"16": 100, "32": 75, "64": 50, "128": 25, "256": 0}),
        ("10 20 30 40 50 60 70 80", {str(10 * n): round(100 * (8 - n) / 7) for n in range(1, 9)}),
        ("0 0.1 0.5", {"0": 100, "0.1": 80, "0.5": 0}),
        # Labels do not touch; the ends stay.
        ("0 1 2 3 100", {"0": 100, "100": 0}),
        # Many settings have round labels, of a short logarithmic axis as well.
        (" ".join(f"{16 * 1.3**n:.4f}" for n in range(12)), {"20": 92, "50": 61, "100": 37, "200": 12}),
    ],
)
def test_an_axis_of_settings(texts: str, labels: dict[str, int]) -> None:
    runs = [Point(f"r/{n}", "/", {"x": text}, n) for n, text in enumerate(texts.split())]
    made = drawn(runs, ["x"], Column("last", "loss"))
    assert made
    assert {tick.text: round(tick.percent) for tick in made.strands.axes[0].ticks} == labels
