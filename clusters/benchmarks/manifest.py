"""The manifest of a benchmark, as one typed and validated value, and the clusters that follow from it. Pure.

A measurement is a strategy, a kind of data and a number of computing tasks. They are made one after the other, undisturbed.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from clusters.manifest.cluster import MAX_NAME as MAX_CLUSTER_NAME
from clusters.manifest.cluster import ClusterManifest
from portal.manifests import AppcodeName, DnsLabel, Manifest, Strict, field_error, parse

MAX_MEASUREMENTS = 32
MAX_COUNT = 128
# With a measurement's number appended, it becomes a cluster's name.
MAX_NAME = MAX_CLUSTER_NAME - len("-99")
# Seconds after which a measurement counts as hanging.
TIME_LIMIT = 3600
FILE = "benchmark.py"
PROGRAM = (Path(__file__).parent / "program.py").read_text()

Strategy = Literal["parameter-server", "all-reduce"]
Data = Literal["synthetic", "digits"]
CatalogName = Annotated[str, StringConstraints(min_length=1, max_length=63)]


@dataclass(frozen=True)
class Point:
    """One measurement; `count` tasks compute."""

    strategy: Strategy
    data: Data
    count: int

    @property
    def words(self) -> str:
        return f"{self.strategy}, {self.data}, {self.count}"


class BenchmarkSpec(Strict):
    """What is measured, and on what."""

    image: CatalogName = Field(description="One that has TensorFlow; the program is sent with the measurement.")
    flavor: CatalogName = Field(description="Of the tasks that compute.")
    server_flavor: CatalogName | None = Field(
        default=None,
        description="Of parameter servers and the master that hands out steps; by default that of the others.",
    )
    strategies: Annotated[tuple[Strategy, ...], Field(min_length=1, max_length=2)] = ("all-reduce", "parameter-server")
    data: Annotated[tuple[Data, ...], Field(min_length=1, max_length=2)] = Field(
        default=("synthetic",),
        description="The same batch again and again, which costs nothing to read, or scikit-learn's digits through a pipeline.",
    )
    counts: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MAX_COUNT)], ...], Field(min_length=1, max_length=MAX_MEASUREMENTS)
    ] = Field(
        default=(1, 2, 4), description="How many tasks compute, rising; the first is what the others are compared with."
    )
    parameter_servers: int = Field(default=1, ge=1, le=16)
    steps: int = Field(
        default=200, ge=50, le=100_000, description="Measured steps of each task, after a tenth as many."
    )
    batch: int = Field(default=128, ge=1, le=65_536, description="Examples in one step of one replica.")
    width: int = Field(
        default=1024, ge=16, le=16_384, description="Units of both hidden layers: with 1024 it has 1.1 million weights."
    )

    @field_validator("strategies", "data")
    @classmethod
    def _once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("Name each once.")
        return value

    @field_validator("counts")
    @classmethod
    def _rising(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        for place, (one, next_) in enumerate(pairwise(value), 1):
            if next_ <= one:
                raise field_error(f"Counts rise, and {next_} comes after {one}.", str(place))
        return value

    @model_validator(mode="after")
    def _few(self) -> BenchmarkSpec:
        if len(self.points) > MAX_MEASUREMENTS:
            sentence = f"That makes {len(self.points)} measurements, and a benchmark has at most {MAX_MEASUREMENTS}."
            raise field_error(sentence, "counts")
        return self

    @property
    def points(self) -> list[Point]:
        """The measurements in order; their numbers count from 1."""
        return [Point(strategy, data, n) for strategy in self.strategies for data in self.data for n in self.counts]

    @property
    def same(self) -> dict[str, Any]:
        """Fields besides strategy, data, count and cloud that must match for rates to be comparable. The image may differ."""
        return self.model_dump(
            mode="json", by_alias=True, include={"flavor", "server_flavor", "parameter_servers", "batch", "width"}
        )


class BenchmarkMetadata(Strict):
    name: Annotated[DnsLabel, StringConstraints(max_length=MAX_NAME)]
    appcode: AppcodeName


class BenchmarkManifest(Manifest):
    """`{"kind":"benchmark","metadata":{"name","appcode"},"spec":{…}}`. The portal writes `status` and ignores it in requests."""

    kind: Literal["benchmark"] = "benchmark"
    metadata: BenchmarkMetadata
    spec: BenchmarkSpec


def cluster_name(benchmark: str, number: int) -> str:
    return f"{benchmark}-{number}"


def cluster_of(
    benchmark: str, appcode: str, spec: BenchmarkSpec, number: int, point: Point, cpu_milli: int
) -> ClusterManifest:
    """The cluster of a measurement. A task has `cpu_milli` thousandths of a core."""
    servers = spec.server_flavor or spec.flavor
    if point.strategy == "all-reduce":
        # The master computes, too.
        roles = {"master": {"flavor": spec.flavor}, "worker": {"flavor": spec.flavor, "count": point.count - 1}}
    else:
        roles = {
            "master": {"flavor": servers},
            "ps": {"flavor": servers, "count": spec.parameter_servers},
            "worker": {"flavor": spec.flavor, "count": point.count},
        }
    said = {
        "strategy": point.strategy, "data": point.data, "steps": spec.steps, "batch": spec.batch, "width": spec.width,
        "threads": max(cpu_milli // 1000, 1),
    }  # fmt: skip
    command = ["python", FILE, *(each for name, value in said.items() for each in (f"--{name}", str(value)))]
    body = {
        "kind": "cluster",
        "metadata": {"name": cluster_name(benchmark, number), "appcode": appcode},
        "spec": {
            "framework": "tensorflow", "image": spec.image, "command": shlex.join(command), "code": {"files": {FILE: PROGRAM}},
            "roles": roles, "retries": 0, "timeLimit": TIME_LIMIT,
        },
    }  # fmt: skip
    return parse(ClusterManifest, body)
