"""The programs of ours that run inside tasks, as text: an image has none of our modules, so all that one needs is in it."""

from __future__ import annotations

import ast
from pathlib import Path

_HERE = Path(__file__).parent
_PACKAGE = "clusters.frameworks."


def text(name: str) -> str:
    """As it stands in this folder."""
    return (_HERE / name).read_text()


def whole(name: str) -> str:
    """With each module of this folder that it imports names from, once, before what needs it."""
    return _with_modules(name, set())


def _with_modules(name: str, known: set[str]) -> str:
    source = text(name)
    lines, before = source.splitlines(keepends=True), []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(_PACKAGE):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
            module = node.module.removeprefix(_PACKAGE)
            if module not in known:
                known.add(module)
                before.append(_with_modules(f"{module}.py", known))
    return "\n".join([*before, "".join(lines)])
