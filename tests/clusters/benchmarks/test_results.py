"""Results computed from any rates, and parsed from any log."""

from __future__ import annotations

import json
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.benchmarks.manifest import BenchmarkManifest, BenchmarkSpec, cluster_of
from clusters.benchmarks.results import LEAST_WORKERS, Worker, efficiencies, outliers, result_of
from portal.errors import Invalid
from portal.manifests import parse

RATES = st.floats(1e-3, 1e9)
TOLD = {
    "global_step_per_second": 50.0, "examples_per_second": 6400.0, "spread": 0.1, "replicas": 1, "tensorflow": "2.21.0",
    "device": "CPU", "workers": [{"input": 0.001, "compute": 0.01, "communication": 0.002}],
}  # fmt: skip


@given(st.dictionaries(st.integers(1, 128), RATES, min_size=1))
def test_efficiency_is_one_where_rates_are_linear_and_scales_with_them(rates):
    found, least = efficiencies(rates), min(rates)
    assert found[least] == pytest.approx(1)
    linear = {n: n * rates[least] for n in rates}
    assert efficiencies(linear) == pytest.approx(dict.fromkeys(rates, 1.0))
    assert all(found[n] * n * rates[least] / least == pytest.approx(rates[n]) for n in rates)


@given(st.lists(st.floats(1e-5, 10), max_size=20), st.floats(0, 5))
def test_outliers_are_those_whose_own_rate_is_far_from_the_median_however_long_they_wait(seconds, waited):
    workers = [Worker(input=0, compute=each, communication=waited, index=n) for n, each in enumerate(seconds)]
    found = outliers(workers)
    if len(seconds) < LEAST_WORKERS:
        assert not found
        return
    median = statistics.median(1 / each for each in seconds)
    far = {n for n, each in enumerate(seconds) if abs(1 / each / median - 1) > 0.1 + 1e-9}
    near = {n for n, each in enumerate(seconds) if abs(1 / each / median - 1) < 0.1 - 1e-9}
    assert far <= {each.worker.index for each in found}
    assert not near & {each.worker.index for each in found}
    assert [each.percent for each in found] == sorted(each.percent for each in found)


def test_the_last_line_of_a_log_counts_and_one_that_is_none_of_ours_is_no_result():
    line = f"benchmark {json.dumps(TOLD)}\n".encode()
    found = result_of(b"step 10: global_step/sec = 3\n" + line.replace(b"50.0", b"40.0") + line)
    assert found is not None
    assert found.global_step_per_second == 50
    for changed in (
        {"examples_per_second": float("nan")},
        {"global_step_per_second": -1},
        {"examples_per_second": 5e-324},
        {"device": "a\0b"},
        {"workers": []},
        {"more": 1},
    ):
        assert result_of(f"benchmark {json.dumps({**TOLD, **changed})}".encode()) is None
    assert result_of(b"benchmark {") is None
    assert result_of(b"") is None


@pytest.mark.parametrize(
    ("said", "path", "words"),
    [
        ({"counts": [1, 4, 2]}, "spec.counts.2", "2 comes after 4"),
        ({"counts": []}, "spec.counts", "Fill this in"),
        ({"counts": list(range(1, 18))}, "spec.counts", "34 measurements"),
        ({"strategies": ["all-reduce", "all-reduce"]}, "spec.strategies", "once"),
        ({"steps": 10}, "spec.steps", "At least 50"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_its_field(said, path, words):
    body = {"metadata": {"name": "b", "appcode": "a"}, "spec": {"image": "tf", "flavor": "f", **said}}
    with pytest.raises(Invalid) as refused:
        parse(BenchmarkManifest, body)
    [error] = refused.value.errors
    assert (".".join(error.path), words in error.message) == (path, True)


@given(st.sets(st.integers(1, 128), min_size=1, max_size=4), st.integers(1, 4))
def test_every_measurement_is_a_cluster_with_as_many_tasks_that_compute(counts, servers):
    spec = BenchmarkSpec(
        image="tf", flavor="f", server_flavor="s", counts=tuple(sorted(counts)), parameter_servers=servers
    )
    for number, point in enumerate(spec.points, 1):
        made = cluster_of("b", "a", spec, number, point, 2500).spec
        computing = sum(each.count for each in made.active_roles.values() if each.flavor == "f")
        assert computing == point.count
        assert made.count("ps") == (servers if point.strategy == "parameter-server" else 0)
        assert "--threads 2" in made.command
