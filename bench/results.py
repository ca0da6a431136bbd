"""One measured number, and its output for people and programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Result:
    """A `target` of None means for comparison only. `floor` has the same unit, or is None if nothing is comparable.
    `times`: the target as a multiple of the floor."""

    name: str
    value: float
    unit: str
    target: float | None = None
    floor: float | None = None
    below: bool = False
    times: float | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.floor if self.floor else None

    @property
    def passed(self) -> bool | None:
        """Whether the value meets the target. With `below`, it must be less than the target."""
        if self.times is not None and self.ratio is not None:
            return self.ratio <= self.times
        if self.target is None:
            return None
        return self.value < self.target if self.below else self.value <= self.target

    @property
    def json(self) -> dict[str, Any]:
        told = {name: _short(value) for name, value in asdict(self).items() if name != "below"}
        return told | {"ratio": _short(self.ratio), "pass": self.passed}


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that at least `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def table(results: Sequence[Result]) -> str:
    head = ("", "value", "target", "floor", "ratio", "")
    rows = [head]
    for result in results:
        target = "" if result.target is None else f"{'<' if result.below else '≤'} {result.target:g}"
        target = target if result.times is None else f"≤ {result.times:g} × floor"
        mark = {True: "ok", False: "MISSED", None: ""}[result.passed]
        value = f"{_text(result.value)} {result.unit}"
        rows.append((result.name, value, target, _text(result.floor), _text(result.ratio), mark))
    widths = [max(len(row[n]) for row in rows) for n in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if n in (0, 5) else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def write(results: Sequence[Result], path: Path) -> None:
    path.write_text(json.dumps([result.json for result in results], indent=2, ensure_ascii=False) + "\n")


def _short(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _text(value: float | None) -> str:
    return "" if value is None else f"{float(f'{value:.3g}'):,g}"
