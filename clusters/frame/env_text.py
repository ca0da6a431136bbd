"""Environment variables as one line of a form, and back. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson

from clusters.manifest.env import format_env, parse_env


def read_env(text: str) -> dict[str, Any]:
    """Parses `A=1 | B=2`, or a JSON object for other values (outer spaces, several lines). Raises ValueError."""
    if text.lstrip().startswith("{"):
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise ValueError(
                f"It begins with “{{” but is not a JSON object: {error.msg}, at character {error.pos}."
            ) from error
        assert isinstance(value, dict)
        return value
    return dict(parse_env(text))


def write_env(env: Mapping[str, str]) -> str:
    """The inverse of `read_env`, in its simpler form wherever that is exact."""
    text = format_env(dict(env))
    try:
        exact = parse_env(text) == env and not text.lstrip().startswith("{")
    except ValueError:
        exact = False
    return text if exact else json.dumps(env, ensure_ascii=True)
