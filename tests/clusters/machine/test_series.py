"""Rates, blocks and thinning: nothing is invented, and nothing is lost but the order within a minute."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.clouds.drivers.base import GpuNow, Sample
from clusters.machine import series
from clusters.machine.rates import GAP, QUANTITIES, Step, idle_since, step

BEGIN = 1_800_000_000 // 864_000 * 864_000
VALUE = st.floats(0, 2.0**40, width=32) | st.just(math.nan)
STEPS = st.builds(Step, st.floats(1, 60, width=16), st.tuples(*[VALUE] * len(QUANTITIES)))


def rows(found: list[tuple[int, Step]]) -> series.Rows:
    blocks = [series.rows_of([(BEGIN, series.fine(at, each))], is_wide=False) for at, each in found]
    return series.joined(blocks)


def sums(some: series.Rows) -> np.ndarray:
    return (some["seconds"] * np.nan_to_num(some["mean"])).sum(axis=0)


@given(st.lists(st.tuples(st.integers(1, 863_000), STEPS), min_size=1, max_size=60))
def test_thinning_twice_keeps_sums_extremes_and_gaps(found: list[tuple[int, Step]]):
    all_rows = rows(found)
    minutes = series.rows_of([(BEGIN, series.packed(series.bucketed(all_rows, 60), BEGIN))], is_wide=True)
    tens = series.rows_of([(BEGIN, series.packed(series.bucketed(minutes, 600), BEGIN))], is_wide=True)
    for thinned, width in ((minutes, 60), (tens, 600)):
        assert np.allclose(thinned["seconds"].sum(axis=0), all_rows["seconds"].sum(axis=0), rtol=1e-5)
        assert np.allclose(sums(thinned), sums(all_rows), rtol=1e-5)
        for part, extreme in (("low", np.fmin), ("high", np.fmax)):
            assert np.array_equal(
                extreme.reduce(thinned[part], axis=0), extreme.reduce(all_rows[part], axis=0), equal_nan=True
            )
        # A point stands for at most `width` seconds before it, each of which has a sample.
        assert {math.ceil((BEGIN + at) / width) * width for at, _ in found} == set(thinned["at"].tolist())
        known = ~np.isnan(thinned["mean"])
        assert np.array_equal(known, thinned["seconds"] > 0)
        slack = 1 + 1e-5
        assert (thinned["mean"][known] * slack >= thinned["low"][known]).all()
        assert (thinned["mean"][known] <= thinned["high"][known] * slack).all()


@given(st.lists(st.lists(STEPS, min_size=1, max_size=5), min_size=1, max_size=6), st.booleans())
def test_blocks_read_together_are_the_same_as_one_by_one(several: list[list[Step]], is_wide: bool):
    def data(some: list[Step]) -> bytes:
        records = (series.whole(at, [each]) if is_wide else series.fine(at, each) for at, each in enumerate(some, 1))
        return b"".join(records)

    blocks = [(BEGIN + 600.0 * n, data(some)) for n, some in enumerate(several)]
    together = series.rows_of(blocks, is_wide=is_wide)
    apart = series.joined(series.rows_of([block], is_wide=is_wide) for block in blocks)
    assert together.tobytes() == apart.tobytes()


def test_a_run_is_the_mean_and_the_extremes_of_its_tasks():
    nothing = (math.nan,) * 5
    data = series.whole(10, [Step(10, (0.0, 1.0, 2.0, *nothing)), Step(20, (90.0, math.nan, 4.0, *nothing))])
    (row,) = series.rows_of([(BEGIN, data)], is_wide=True)
    assert (row["mean"][:3].tolist(), row["low"][:3].tolist(), row["high"][:3].tolist()) == (
        [45.0, 1.0, 3.0], [0.0, 1.0, 2.0], [90.0, 1.0, 4.0],
    )  # fmt: skip
    assert row["seconds"][:4].tolist() == [15.0, 10.0, 15.0, 0.0]


def done(before: Sample | None, now: Sample) -> dict[str, float]:
    found = step(before, now)
    return {"seconds": found.seconds} | {
        name: value for name, value in zip(QUANTITIES, found.values, strict=True) if not math.isnan(value)
    }


def test_counters_become_rates_and_neither_a_gap_nor_a_new_beginning_is_a_peak():
    first = Sample("a", 100.0, cpu_seconds=5.0, memory_bytes=7, received=0, sent=10, read=1, written=100)
    second = Sample("a", 110.0, cpu_seconds=25.0, memory_bytes=8, received=50, sent=10, read=0, written=None)
    assert done(None, first) == {"seconds": 0, "memory": 7}
    assert done(first, second) == {"seconds": 10, "cpu": 2.0, "memory": 8, "received": 5.0, "sent": 0.0}
    late = Sample("a", 110.0 + GAP + 1, cpu_seconds=400.0, memory_bytes=9)
    assert done(second, late) == {"seconds": 0, "memory": 9}
    assert done(second, Sample("a", 120.0, cores=0.25)) == {"seconds": 10, "cpu": 0.25}


def test_a_gpu_is_idle_since_its_first_idle_sample_until_it_works_or_says_nothing():
    def gpus(*percents: float | None) -> tuple[GpuNow, ...]:
        return tuple(GpuNow(str(n), percent, 1 << 30) for n, percent in enumerate(percents))

    known = idle_since({}, Sample("a", 100.0, gpus=gpus(0, 1, None)), 10)
    assert known == {"0": 90.0, "1": 90.0}
    known = idle_since(known, Sample("a", 110.0, gpus=gpus(2, 50, 0)), 10)
    assert known == {"0": 90.0, "2": 100.0}
    assert idle_since(known, Sample("a", 500.0, gpus=gpus(0)), 0) == {"0": 500.0}
    said = done(Sample("a", 90.0), Sample("a", 100.0, gpus=gpus(20, 40, None)))
    assert (said["gpu"], said["gpu_memory"]) == (30.0, 3 << 30)


@pytest.mark.parametrize(
    ("seconds", "width"), [(60, 10), (7200, 30), (86_400, 300), (90 * 86_400, 43_200), (365 * 86_400, 172_800)]
)
def test_points_are_as_far_apart_as_a_round_number_says(seconds: int, width: int):
    assert series.width_for(0, seconds, 300) == width


def test_a_line_breaks_where_nothing_was_measured():
    found = rows([(at, Step(10, (1.0,) * len(QUANTITIES))) for at in (10, 20, 120, 130, 500)])
    whole = series.broken(found, 10, GAP)
    assert (whole["at"] - BEGIN).tolist() == [10, 20, 120, 130, 140, 500]
    assert np.isnan(whole["mean"][:, 0]).tolist() == [False, False, False, False, True, False]
    assert series.broken(found[:0], 10, GAP).tolist() == []
