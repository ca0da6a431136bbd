"""The spec of a pipeline as text: reads what was typed, and writes stored specs in short form."""

from __future__ import annotations

from typing import Any

import yaml

from clusters.cluster.form.data import short_document
from clusters.frame.written import read_document
from clusters.manifest.cluster import ClusterManifest, ClusterSpec
from clusters.pipelines.manifest import PipelineSpec
from portal.errors import Invalid


def read_spec(text: str) -> Any:
    """Parses YAML or JSON. A whole manifest is accepted in place of its spec. Raises Invalid."""
    value = read_document(text, "spec")
    return value["spec"] if isinstance(value, dict) and "spec" in value and "stages" not in value else value


def read_mapping(text: str, *path: str) -> dict[str, Any]:
    """A part of a manifest that was typed by itself; {} for nothing. Raises Invalid at `path`."""
    if not text.strip():
        return {}
    try:
        value = read_spec(text)
    except Invalid as invalid:
        raise Invalid.at(*path, message=invalid.errors[0].message) from None
    if not isinstance(value, dict):
        raise Invalid.at(*path, message="Write it as in a manifest: one field a line, for example timeLimit: 3600.")
    return value


def write_spec(spec: PipelineSpec, appcode: str) -> str:
    """The spec as YAML, without default values."""
    return written(stages_in_short(spec, appcode))


def written(stages: list[dict[str, Any]]) -> str:
    text: str = yaml.safe_dump({"stages": stages}, sort_keys=False, allow_unicode=True, width=110)
    return text


def stages_in_short(spec: PipelineSpec, appcode: str) -> list[dict[str, Any]]:
    """Stages in short form, which `PipelineSpec` accepts."""
    stages = []
    for stage in spec.stages:
        said = stage.model_dump(mode="json", by_alias=True, exclude={"spec"}, exclude_defaults=True)
        if stage.spec:
            said["spec"] = in_short(stage.spec, appcode)
        if stage.sweep:
            said["sweep"]["template"] = in_short(stage.sweep.template, appcode)
        stages.append(said)
    return stages


def in_short(said: ClusterSpec, appcode: str) -> dict[str, Any]:
    """A cluster's spec in short form, with roles as usually written."""
    cluster = ClusterManifest.model_validate({"metadata": {"name": "x", "appcode": appcode}, "spec": said})
    spec = short_document(cluster)["spec"]
    roles = {
        role: {key: value for key, value in said.items() if (key, value) != ("count", 1)}
        for role, said in spec["roles"].items()
    }
    return {**spec, "roles": roles}
