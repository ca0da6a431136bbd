"""The manifest of a pipeline, as one typed and validated value. Pure.

A stage is a cluster (`spec`) or a sweep (`sweep`), or trains the best trial of an earlier sweep again (`best`), and names the
stages that it waits for. If its input is `{"from": "prepare"}` and a stage has that name, it reads what that stage wrote in the
same run of the pipeline. Any other name is a cluster of the appcode, as everywhere.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from clusters.manifest.cluster import MAX_NAME as MAX_CLUSTER_NAME
from clusters.manifest.cluster import ClusterSpec
from clusters.pipelines.graph import Node, When, cycle
from clusters.sweeps.manifest import MAX_NAME as MAX_SWEEP_NAME
from clusters.sweeps.manifest import SweepSpec
from portal.manifests import AppcodeName, DnsLabel, Manifest, Strict, field_error
from portal.manifests.kept import Kept

MAX_STAGES = 50
# With a stage's name appended, it becomes a cluster's name.
MAX_NAME = 30
# Maximum length of the suffix in a sweep's name: -1234r12.
MAX_NUMBER = 8


class StageSpec(Strict):
    """A stage, and when it starts: a cluster, a sweep, or the best trial of a sweep trained again."""

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
    spec: ClusterSpec | None = Field(default=None, description="The cluster that it is.")
    sweep: SweepSpec | None = Field(
        default=None, description="The sweep that it is; each run of the pipeline makes one."
    )
    best: str | None = Field(
        default=None,
        examples=["search"],
        description="A stage that is a sweep: its template is trained once more with the parameters of the best trial, where it "
        "had folds on the whole input.",
    )

    @field_validator("spec")
    @classmethod
    def _spec(cls, value: ClusterSpec | None) -> ClusterSpec | None:
        if value is None:
            return value
        if value.mode == "service":
            raise field_error("A stage has to come to an end, and a service goes on until it is stopped.", "mode")
        if value.schedule_after is not None:
            raise field_error("A stage starts when those before it have ended; leave this out.", "scheduleAfter")
        return value


class PipelineSpec(Strict):
    stages: Annotated[tuple[StageSpec, ...], Field(max_length=MAX_STAGES)]

    @model_validator(mode="after")
    def _stages(self) -> Self:
        if not self.stages:  # as a constraint of the field, it would also be reported for a single invalid stage
            raise field_error("Give at least one stage.", "stages")
        for place, stage in enumerate(self.stages):
            self._check_names(place, stage)
            self._check_kind(place, stage)
        nodes = self.nodes
        if circle := cycle(nodes):
            place = next(place for place, stage in enumerate(self.stages) if stage.name == circle[0])
            sentence = (
                f"These wait for each other, so none of them would ever start: {' → '.join(circle)}."
                if len(circle) > 2
                else f"{circle[0]} waits for itself."
            )
            raise field_error(sentence, "stages", str(place), "after")
        for place, (stage, node) in enumerate(zip(self.stages, nodes, strict=True)):
            self._check_source(place, stage, node)
        return self

    def _check_names(self, place: int, stage: StageSpec) -> None:
        names, path = [each.name for each in self.stages], ("stages", str(place))
        if stage.name in names[:place]:
            raise field_error(f"There are two stages “{stage.name}”.", *path, "name")
        for number, name in enumerate(stage.after):
            if name not in names:
                sentence = f"There is no stage “{name[:60]}”; there are: {', '.join(names)}."
                raise field_error(sentence, *path, "after", str(number))
            if name in stage.after[:number]:
                raise field_error(f"{name} is named twice.", *path, "after", str(number))

    def _check_kind(self, place: int, stage: StageSpec) -> None:
        path = ("stages", str(place))
        if sum(each is not None for each in (stage.spec, stage.sweep, stage.best)) != 1:
            raise field_error("Give one of spec, sweep and best.", *path, "spec")
        if stage.best is None:
            return
        found = next((each.sweep for each in self.stages if each.name == stage.best), None)
        if found is None or found.goal is None:
            raise field_error(f"“{stage.best[:60]}” is no stage that is a sweep with a goal.", *path, "best")
        if stage.when != "succeeded":
            sentence = f"It trains what {stage.best} has found, so it starts when that has succeeded."
            raise field_error(sentence, *path, "when")

    def _check_source(self, place: int, stage: StageSpec, node: Node) -> None:
        path = ("stages", str(place))
        field = (*path, *(("sweep", "template") if stage.sweep else ("spec",)), "input", "from")
        source = next((each for each in self.stages if each.name == node.source), None)
        if source and source.sweep:
            sentence = f"Each trial of {source.name} writes for itself; read a stage with “best: {source.name}”."
            raise field_error(sentence, *field)
        if source and not self.cluster_of(source).output:
            raise field_error(f"{source.name} has no output datastore, so nothing that it writes is kept.", *field)
        if node.reads_always and stage.when == "succeeded":
            sentence = f"It starts only when {node.source} has succeeded; let it start “always” or “failed”, too."
            raise field_error(sentence, *field[:-1], "when")
        if stage.when == "failed" and not set(node.waits_for) - ({node.source} if not node.reads_always else set()):
            sentence = (
                f"It reads what {node.source} has written, so it never starts when that has failed."
                if node.source
                else "It waits for no stage, so none could fail before it."
            )
            raise field_error(sentence, *path, "when")

    @property
    def nodes(self) -> list[Node]:
        names = {stage.name for stage in self.stages}

        def source(stage: StageSpec) -> str:
            read = self.cluster_of(stage).input
            said = (read.from_ if read else None) or ""
            return said if said in names else ""

        def after(stage: StageSpec) -> tuple[str, ...]:
            return stage.after if stage.best is None or stage.best in stage.after else (*stage.after, stage.best)

        def always(stage: StageSpec) -> bool:
            read = self.cluster_of(stage).input
            return read is not None and read.when == "always"

        return [
            Node(stage.name, after(stage), stage.when, found := source(stage), bool(found) and always(stage))
            for stage in self.stages
        ]

    def cluster_of(self, stage: StageSpec) -> ClusterSpec:
        """The spec of the stage's cluster, or of its trials without their parameters."""
        if stage.spec:
            return stage.spec
        sweep = stage.sweep or next(each.sweep for each in self.stages if each.name == stage.best)
        assert sweep is not None
        return sweep.template


class PipelineMetadata(Strict):
    name: Annotated[
        DnsLabel, StringConstraints(max_length=MAX_NAME), Kept("A pipeline keeps its name; create another one.")
    ]
    appcode: AppcodeName


class PipelineManifest(Manifest):
    """`{"kind":"pipeline","metadata":{"name","appcode"},"spec":{"stages":[…]}}`. The portal writes `status` and ignores it in
    requests."""

    kind: Literal["pipeline"] = "pipeline"
    metadata: PipelineMetadata
    spec: PipelineSpec

    @model_validator(mode="after")
    def _names(self) -> Self:
        for place, stage in enumerate(self.spec.stages):
            name = cluster_name(self.metadata.name, stage.name)
            if stage.sweep and len(name) > MAX_SWEEP_NAME - MAX_NUMBER:
                sentence = f"Its sweep would be called {name}-1, and that may have {MAX_SWEEP_NAME - MAX_NUMBER + 2} characters."
                raise field_error(sentence, "spec", "stages", str(place), "name")
            if len(name) > MAX_CLUSTER_NAME:
                sentence = (
                    f"Its cluster would be called {name}, and such a name has at most {MAX_CLUSTER_NAME} characters."
                )
                raise field_error(sentence, "spec", "stages", str(place), "name")
        return self


def cluster_name(pipeline: str, stage: str) -> str:
    return f"{pipeline}-{stage}"


def part_of(pipeline: str) -> str:
    """`Cluster.part_of` of its stages' clusters."""
    return f"pipelines/{pipeline}"


def reading(spec: ClusterSpec, pipeline: str, node: Node, run: int | None) -> ClusterSpec:
    """The spec of a stage at its start. `run` is the number of the run whose output it reads; None leaves such an input out, to
    judge the rest before there is a run."""
    if not node.source or spec.input is None:
        return spec
    if run is None:
        return spec.model_copy(update={"input": None})
    said = f"{cluster_name(pipeline, node.source)}/{run}"
    return spec.model_copy(update={"input": spec.input.model_copy(update={"from_": said})})


def sweep_name(pipeline: str, stage: str, run: int, attempt: int) -> str:
    return f"{cluster_name(pipeline, stage)}-{run}" + (f"r{attempt}" if attempt > 1 else "")
