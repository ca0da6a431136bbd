"""What people ask for: the manifest of a pipeline, as one typed and validated value. Pure.

A stage says what a cluster says (`spec`), and which stages it waits for. Where its input is `{"from": "prepare"}` and there is a
stage of that name, it reads what that one has written in the same run of the pipeline; any other name is a cluster of the
appcode, as everywhere.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from clusters.manifest import MAX_NAME as MAX_CLUSTER_NAME
from clusters.manifest import ClusterSpec
from clusters.pipelines.graph import Node, When, cycle
from portal.manifests import AppcodeName, DnsLabel, Manifest, Strict, field_error

MAX_STAGES = 50
# With a stage behind it, it is the name of a cluster.
MAX_NAME = 30


class StageSpec(Strict):
    """A stage: what a cluster is, and when it starts."""

    name: Annotated[DnsLabel, StringConstraints(max_length=MAX_NAME)]
    after: Annotated[tuple[str, ...], Field(max_length=MAX_STAGES)] = Field(
        default=(), examples=[["prepare"]], description="Stages that have to end before."
    )
    when: When = Field(
        default="succeeded",
        description="It starts when all of these have succeeded, when something before it has failed, or always; else it is "
        "skipped.",
    )
    retries: int = Field(
        default=0, ge=0, le=10, description="How often a run of it may fail and be followed by another."
    )
    spec: ClusterSpec

    @field_validator("spec")
    @classmethod
    def _spec(cls, value: ClusterSpec) -> ClusterSpec:
        if value.mode == "service":
            raise field_error("A stage has to come to an end, and a service goes on until it is disabled.", "mode")
        if value.schedule_after is not None:
            raise field_error("A stage starts when those before it have ended; leave this out.", "scheduleAfter")
        return value


class PipelineSpec(Strict):
    stages: Annotated[tuple[StageSpec, ...], Field(max_length=MAX_STAGES)]

    @model_validator(mode="after")
    def _stages(self) -> Self:
        if not self.stages:  # as a bound of the field it would be said of a single stage that is wrong, too
            raise field_error("Give at least one stage.", "stages")
        by_name = {stage.name: stage for stage in self.stages}
        seen: set[str] = set()
        for place, stage in enumerate(self.stages):
            path = ("stages", str(place))
            if stage.name in seen:
                raise field_error(f"There are two stages “{stage.name}”.", *path, "name")
            seen.add(stage.name)
            for number, name in enumerate(stage.after):
                if name not in by_name:
                    there = ", ".join(by_name)
                    raise field_error(
                        f"There is no stage “{name[:60]}”; there are: {there}.", *path, "after", str(number)
                    )
                if name in stage.after[:number]:
                    raise field_error(f"{name} is named twice.", *path, "after", str(number))
        if circle := cycle(self.nodes):
            place = next(place for place, stage in enumerate(self.stages) if stage.name == circle[0])
            sentence = (
                f"These wait for each other, so none of them would ever start: {' → '.join(circle)}."
                if len(circle) > 2
                else f"{circle[0]} waits for itself."
            )
            raise field_error(sentence, "stages", str(place), "after")
        for place, (stage, node) in enumerate(zip(self.stages, self.nodes, strict=True)):
            where = ("stages", str(place))
            if node.source and not by_name[node.source].spec.output:
                sentence = f"{node.source} has no output datastore, so nothing that it writes is kept."
                raise field_error(sentence, *where, "spec", "input", "from")
            if stage.when == "failed" and not set(node.waits_for) - {node.source}:
                sentence = (
                    f"It reads what {node.source} has written, so it never starts when that has failed."
                    if node.source
                    else "It waits for no stage, so none could fail before it."
                )
                raise field_error(sentence, *where, "when")
        return self

    @property
    def nodes(self) -> list[Node]:
        names = {stage.name for stage in self.stages}

        def source(stage: StageSpec) -> str:
            said = (stage.spec.input.from_ if stage.spec.input else None) or ""
            return said if said in names else ""

        return [Node(stage.name, stage.after, stage.when, source(stage)) for stage in self.stages]


class PipelineMetadata(Strict):
    name: Annotated[DnsLabel, StringConstraints(max_length=MAX_NAME)]
    appcode: AppcodeName


class PipelineManifest(Manifest):
    """`{"kind":"pipeline","metadata":{"name","appcode"},"spec":{"stages":[…]}}`; `status` is ours and is ignored when it comes
    back."""

    kind: Literal["pipeline"] = "pipeline"
    metadata: PipelineMetadata
    spec: PipelineSpec

    @model_validator(mode="after")
    def _names(self) -> Self:
        for place, stage in enumerate(self.spec.stages):
            name = cluster_name(self.metadata.name, stage.name)
            if len(name) > MAX_CLUSTER_NAME:
                sentence = (
                    f"Its cluster would be called {name}, and such a name has at most {MAX_CLUSTER_NAME} characters."
                )
                raise field_error(sentence, "spec", "stages", str(place), "name")
        return self


def cluster_name(pipeline: str, stage: str) -> str:
    return f"{pipeline}-{stage}"


def part_of(pipeline: str) -> str:
    """What the clusters of its stages are a part of."""
    return f"pipelines/{pipeline}"


def cluster_spec(pipeline: str, stage: StageSpec, node: Node, run: int | None) -> ClusterSpec:
    """What the cluster of a stage is when it starts: `run` is that of the stage whose output it reads. None leaves such an input
    out, to judge the rest before there is a run."""
    if not node.source or stage.spec.input is None:
        return stage.spec
    if run is None:
        return stage.spec.model_copy(update={"input": None})
    said = f"{cluster_name(pipeline, node.source)}/{run}"
    return stage.spec.model_copy(update={"input": stage.spec.input.model_copy(update={"from_": said})})
