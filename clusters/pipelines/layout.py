"""Positions of a pipeline's stages in its graph. Pure: numbers in CSS pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusters.pipelines.graph import Node, layers

WIDTH, HEIGHT = 184, 76
ACROSS, DOWN = 48, 16


@dataclass(frozen=True)
class Box:
    """The upper left corner of a stage."""

    name: str
    x: int
    y: int


@dataclass(frozen=True)
class Drawing:
    """`lines` are SVG paths, from the right side of one stage to the left side of a stage that waits for it."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    lines: tuple[str, ...]


def draw(nodes: Sequence[Node]) -> Drawing:
    columns = layers(nodes)
    rows = max((len(names) for names in columns), default=0)
    height = rows * (HEIGHT + DOWN) - DOWN
    boxes = {}
    for across, names in enumerate(columns):
        top = (height - len(names) * (HEIGHT + DOWN) + DOWN) // 2
        for down, name in enumerate(names):
            boxes[name] = Box(name, across * (WIDTH + ACROSS), top + down * (HEIGHT + DOWN))
    lines = tuple(_line(boxes[name], boxes[node.name]) for node in nodes for name in node.waits_for)
    return Drawing(len(columns) * (WIDTH + ACROSS) - ACROSS, height, tuple(boxes[node.name] for node in nodes), lines)


def _line(start: Box, end: Box) -> str:
    """Straight into the gap before the box, and up or down only there, so that it passes behind boxes of the columns between."""
    x, y, to_x, to_y = start.x + WIDTH, start.y + HEIGHT // 2, end.x, end.y + HEIGHT // 2
    bend = to_x - ACROSS
    return f"M{x} {y}H{bend}C{bend + ACROSS // 2} {y} {bend + ACROSS // 2} {to_y} {to_x} {to_y}"
