"""Reads our programs that run inside tasks (inside/), as text. Images have none of our modules, so the text is self-contained."""

from __future__ import annotations

import ast
import threading
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "inside"
_PACKAGE = "clusters.frameworks.inside."
# Threads of a worker launch many runs at once, and CPython 3.11 sometimes fails if two threads parse at once: “AST constructor
# recursion depth mismatch” (gh-106905).
ONE = threading.Lock()


@cache
def text(name: str) -> str:
    """Returns a file of inside/. The modules of inside/ that a Python program imports come before it, each once, in order of
    dependency."""
    with ONE:
        return _with_modules(name, set()) if name.endswith(".py") else (_FOLDER / name).read_text()


def _with_modules(name: str, known: set[str]) -> str:
    source = (_FOLDER / name).read_text()
    lines, before = source.splitlines(keepends=True), []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(_PACKAGE):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
            module = node.module.removeprefix(_PACKAGE)
            if module not in known:
                known.add(module)
                before.append(_with_modules(f"{module}.py", known))
    return "\n".join([*before, "".join(lines)])
