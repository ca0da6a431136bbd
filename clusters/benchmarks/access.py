"""Access of users to benchmarks (`portal/objects.py`)."""

from __future__ import annotations

from clusters.benchmarks.models import Benchmark
from portal.objects import Objects

BENCHMARKS = Objects("benchmark", Benchmark.objects.select_related("appcode", "created_by"))
benchmarks_for, benchmark_for = BENCHMARKS.visible, BENCHMARKS.find
