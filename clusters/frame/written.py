"""Manifests as people write them: YAML, limited to what JSON can say, or JSON. Pure."""

from __future__ import annotations

import re
from typing import Any

import orjson
import yaml
from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent

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


def read_document(text: str, *path: str) -> Any:
    """Parses JSON or YAML. Raises Invalid at `path`."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if text.lstrip().startswith("{"):
            sentence = f"This is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
            raise Invalid.at(*path, message=sentence) from error
        value = _yaml(text, path)
    refuse_nul(value)
    return value


def _yaml(text: str, path: tuple[str, ...]) -> Any:
    if len(text) > MAX_YAML:
        raise Invalid.at(*path, message=f"YAML is read up to {MAX_YAML // 1024} KiB; send a longer one as JSON.")
    try:
        _judge(text)
        # The way through JSON refuses keys that are numbers and the like, which REST bodies cannot have either.
        return orjson.loads(orjson.dumps(yaml.load(text, Loader=_Plain)))  # noqa: S506  a SafeLoader that reads even less
    except orjson.JSONEncodeError as error:
        raise Invalid.at(*path, message=f"This YAML says what JSON cannot: {error}.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise Invalid.at(
            *path, message=f"This is not YAML: {getattr(error, 'problem', '') or error}{where}."
        ) from error
    except (RecursionError, ValueError, ArithmeticError) as error:
        raise Invalid.at(*path, message="This is not YAML that can be read here.") from error


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
