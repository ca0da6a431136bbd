"""Programs that run inside tasks, where images have none of our modules."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from clusters.frameworks import inside
from clusters.frameworks.programs import text

PROGRAMS = sorted(path.name for path in Path(*inside.__path__).glob("*.py"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_imports_none_of_our_modules(name: str) -> None:
    for node in ast.walk(ast.parse(text(name))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
        assert not any(each.partition(".")[0] in ("clusters", "portal", "datastores") for each in names), names
