"""Addresses of this room: pages, and REST below /api/v1/."""

from django.urls import URLPattern, URLResolver, path, re_path

from clusters.benchmarks import api as benchmarks_api
from clusters.benchmarks.pages import benchmarks
from clusters.benchmarks.pages import new as new_benchmark
from portal.api.verbs import verb_paths

BENCHMARK = "benchmarks/<slug:appcode>/<slug:name>"
BENCHMARK_VERBS = "|".join(benchmarks.ACTS)
REST_BENCHMARK = "appcodes/<slug:code>/benchmarks/<slug:name>"

PAGES: list[URLPattern | URLResolver] = [
    path("benchmarks", benchmarks.benchmarks, name="benchmarks"),
    path("benchmarks/rows", benchmarks.rows, name="benchmark_rows"),
    path("benchmarks/new", new_benchmark.new_benchmark, name="new_benchmark"),
    path(BENCHMARK, benchmarks.benchmark, name="benchmark"),
    path(f"{BENCHMARK}/live", benchmarks.live),
    re_path(rf"^benchmarks/(?P<appcode>[-\w]+)/(?P<name>[-\w]+)/(?P<verb>{BENCHMARK_VERBS})\Z", benchmarks.act),
]

REST: list[URLPattern | URLResolver] = [
    path("benchmarks", benchmarks_api.AllBenchmarks.as_view()),
    path("appcodes/<slug:code>/benchmarks", benchmarks_api.AppcodeBenchmarks.as_view()),
    path(REST_BENCHMARK, benchmarks_api.OneBenchmark.as_view()),
    *verb_paths(benchmarks_api.KIND, benchmarks_api.VERBS),
]
