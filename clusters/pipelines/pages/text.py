"""The spec of a pipeline as text: parses YAML or JSON as typed, and writes stored specs in short form."""

from __future__ import annotations

import re
from typing import Any

import orjson
import yaml
from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent

from clusters.cluster.pages.form_data import short_document
from clusters.manifest.cluster import ClusterManifest, ClusterSpec
from clusters.pipelines.manifest import PipelineSpec
from portal.errors import Invalid
from portal.web.limits import refuse_nul

# Larger texts must be JSON: YAML of this size takes up to half a second to parse.
MAX_YAML = 128 * 1024
# Maximum depth, because libyaml recurses without a limit.
MAX_DEPTH = 100

_TRUTH = "tag:yaml.org,2002:bool"


class _Plain(yaml.CSafeLoader):
    """YAML limited to what JSON can express. As in YAML 1.2, `on` (a key of hooks) is a word."""


_Plain.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != _TRUTH]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Plain.add_implicit_resolver(_TRUTH, re.compile("true|True|TRUE|false|False|FALSE"), list("tTfF"))


def read_spec(text: str) -> Any:
    """Parses YAML or JSON. A whole manifest is accepted in place of its spec. Raises Invalid."""
    try:
        value = orjson.loads(text) if text.lstrip().startswith("{") else _yaml(text)
    except orjson.JSONDecodeError as error:
        sentence = f"This is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        raise Invalid.at("spec", message=sentence) from error
    refuse_nul(value)
    return value["spec"] if isinstance(value, dict) and "spec" in value and "stages" not in value else value


def _yaml(text: str) -> Any:
    if len(text) > MAX_YAML:
        raise Invalid.at("spec", message=f"YAML is read up to {MAX_YAML // 1024} KiB; send a longer one as JSON.")
    try:
        _judge(text)
        # The way through JSON refuses keys that are numbers and the like, which REST bodies cannot have either.
        return orjson.loads(orjson.dumps(yaml.load(text, Loader=_Plain)))  # noqa: S506  a SafeLoader that reads even less
    except orjson.JSONEncodeError as error:
        raise Invalid.at("spec", message=f"This YAML says what JSON cannot: {error}.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise Invalid.at(
            "spec", message=f"This is not YAML: {getattr(error, 'problem', '') or error}{where}."
        ) from error
    except (RecursionError, ValueError, ArithmeticError) as error:
        raise Invalid.at("spec", message="This is not YAML that can be read here.") from error


def _judge(text: str) -> None:
    """Refuses what JSON cannot express: tags, which force types such as numbers or dates, and aliases, with which a
    short text can expand without limit. Raises YAMLError and RecursionError."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, AliasEvent):
            raise yaml.composer.ComposerError(problem="aliases are not read")
        if getattr(event, "tag", None):
            raise yaml.composer.ComposerError(problem="tags are not read")
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise RecursionError


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
