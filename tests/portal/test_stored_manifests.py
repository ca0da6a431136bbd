"""Stored manifests of the next release, which has fields that this one does not know. Pages and REST meet such rows in
tests/access; loops are covered here, by how they read. These tests need no server."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from portal.manifests import Strict

ROOT = Path(__file__).parent.parent.parent


class Part(Strict):
    size: int = 0


class Whole(Strict):
    one: Part
    many: list[Part]
    named: dict[str, Part]


def test_unknown_keys_are_ignored_at_every_depth_of_what_is_stored_and_refused_in_what_is_sent() -> None:
    part = {"size": 1, "later": 2}
    value = {"one": part, "many": [part], "named": {"a": part}, "later": 3}
    known = {"one": {"size": 1}, "many": [{"size": 1}], "named": {"a": {"size": 1}}}
    assert Whole.known(value) == known
    with pytest.raises(ValidationError) as refused:
        Whole.model_validate(value)
    assert refused.value.error_count() == 4


def _strict_reads(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls of `model_validate` whose argument contains an attribute `spec`, as rows have."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "model_validate":
            inner = (each for argument in node.args for each in ast.walk(argument) if isinstance(each, ast.Attribute))
            if any(each.attr == "spec" for each in inner):
                yield node


def test_what_rows_keep_is_read_by_stored() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for app in ("portal", "billing", "datastores", "clusters")
        for path in sorted((ROOT / app).rglob("*.py"))
        for call in _strict_reads(ast.parse(path.read_text()))
    ]
    assert found == []
