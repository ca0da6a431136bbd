"""Charts: round ticks that enclose the data, gaps in lines where values are missing, and text alternatives."""

from __future__ import annotations

import json
import math
import re

from hypothesis import given
from hypothesis import strategies as st

from portal.pages.charts import Line, draw, number, ticks

VALUES = st.floats(allow_nan=True, allow_infinity=True)
POINTS = st.lists(st.tuples(st.integers(0, 10**12).map(float), VALUES), max_size=30)


@given(low=st.floats(-1e200, 1e200), span=st.floats(1e-3, 1e200), about=st.integers(2, 8))
def test_ticks_are_round_and_enclose_what_they_mark(low, span, about):
    high = low + span
    if high - low < 1e-9 * max(abs(low), abs(high)):
        return
    found = ticks(low, high, about)
    step = (found[-1] - found[0]) / (len(found) - 1)
    assert found[0] <= low + step * 1e-6
    assert found[-1] >= high - step * 1e-6
    assert 2 <= len(found) <= 2 * about + 3
    mantissa = float(f"{step:.12e}".split("e")[0])
    assert min(abs(mantissa - each) for each in (1, 2, 5, 10)) < 0.01


@given(lines=st.lists(POINTS, max_size=4))
def test_whatever_the_numbers_the_drawing_stays_in_its_square(lines):
    chart = draw(
        "loss", [Line(str(n), sorted(points, key=lambda p: p[0])) for n, points in enumerate(lines)], x_label="step"
    )
    for line in chart.lines:
        assert "nan" not in line.path
        assert "inf" not in line.path
        for coordinate in re.findall(r"-?[0-9.]+", line.path):
            assert -0.1 <= float(coordinate) <= 1000.1
    for tick in (*chart.x_ticks, *chart.y_ticks):
        assert -0.01 <= tick.percent <= 100.01
    assert chart.summary.startswith("loss")


def test_a_number_that_is_none_leaves_a_gap():
    (line,) = draw("loss", [Line("", [(0, 1), (1, 2), (2, math.nan), (3, 2), (4, 1)])], x_label="step").lines
    assert line.path.count("M") == 2
    assert line.missing == 1
    assert line.latest == "1"


def test_a_line_that_ends_without_a_number_says_so_and_a_time_without_numbers_does_not():
    lines = [Line("", [(0, 1), (1, math.nan)]), Line("", [(0, 1), (1, math.nan)], has_gaps=True), Line("", [(0, 1)])]
    said = json.loads(draw("loss", lines, x_label="step").data)["lines"]
    assert [line.get("end") for line in said] == ["NaN", None, None]


def test_axes_of_counts_have_whole_numbers():
    def labels(points):
        chart = draw("tasks", [Line("", points)], x_label="tasks")
        return [tick.text for tick in chart.x_ticks], [tick.text for tick in chart.y_ticks]

    assert labels([(1, 3.5), (2, 5.25)])[0] == ["1", "2"]
    assert labels([(0.5, 1), (0.75, 1)])[1] == ["0", "1", "2"]
    assert labels([(0, 0), (4000, 90)]) == (["0", "1,000", "2,000", "3,000", "4,000"], ["0", "50", "100"])


def test_a_lone_point_is_a_dot():
    (line,) = draw("loss", [Line("", [(7, 0.5)])], x_label="step").lines
    assert line.path == ""
    assert len(line.dots) == 1


def test_the_numbers_for_the_script_are_those_of_the_line_and_bounded():
    values = [0.1 * n for n in range(5000)]
    values[7] = math.nan
    chart = draw("loss", [Line("", list(enumerate(values)), times=range(5000), began=0.0)], x_label="step")
    (line,) = json.loads(chart.data)["lines"]
    assert 1000 <= len(line["x"]) == len(line["y"]) == len(line["times"]) <= 1002
    assert (line["x"][-1], line["times"][-1], line["y"][line["x"].index(7)]) == (4999, 4999, None)
    assert all(y is None or math.isclose(y, values[x], rel_tol=1e-8) for x, y in zip(line["x"], line["y"], strict=True))


def test_a_higher_value_is_drawn_higher():
    (line,) = draw("loss", [Line("", [(0, 0.0), (10, 1.0)])], x_label="step").lines
    assert line.path == "M0.0 1000.0L1000.0 0.0"


def test_numbers_are_written_for_reading():
    shown = [number(value) for value in (0, 0.03124, 1.5, 12345.6, 4.2e-7, 3e12, math.nan, -math.inf)]
    assert shown == ["0", "0.03124", "1.5", "12,346", "4.2e-07", "3e+12", "NaN", "−∞"]


def test_an_empty_chart_says_so():
    chart = draw("loss", [], x_label="step")
    assert chart.summary == "loss: no numbers yet."
