"""The programs of ours that run inside tasks, as text: an image has none of our modules, so all that one needs is in it."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent
_IMPORT = "from clusters.frameworks.layer import "


def text(name: str) -> str:
    """As it stands in this folder."""
    return (_HERE / name).read_text()


def with_layers(name: str) -> str:
    """With layer.py in the place of what it imports of it."""
    lines = [line for line in text(name).splitlines() if not line.startswith(_IMPORT)]
    return text("layer.py") + "\n" + "\n".join(lines) + "\n"
