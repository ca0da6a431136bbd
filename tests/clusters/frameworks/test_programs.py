"""Programs that run inside tasks, where images have none of our modules."""

from __future__ import annotations

import ast
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusters.frameworks import inside, programs
from clusters.frameworks.programs import text

PROGRAMS = sorted(path.name for path in Path(*inside.__path__).glob("*.py"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_imports_none_of_our_modules(name: str) -> None:
    for node in ast.walk(ast.parse(text(name))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
        assert not any(each.partition(".")[0] in ("clusters", "portal", "datastores") for each in names), names


def test_no_two_threads_parse_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.11 would sometimes fail then, and with it the launch of a run."""
    parse, held = ast.parse, list[bool]()

    def parsed(source: str) -> ast.Module:
        held.append(programs.ONE.locked())
        return parse(source)

    monkeypatch.setattr(programs.ast, "parse", parsed)
    text.cache_clear()
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(text, ["start.py"] * 8))
    assert len(found) == 1
    assert held
    assert all(held)
    assert not programs.ONE.locked()
