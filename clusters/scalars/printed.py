"""Reads the scalars of a run without output from what its program prints. Pure.

The idea: a line with a step and named numbers is a point: `step 75: loss = 0.41, accuracy = 0.92`, `Epoch [3/5], loss: 0.2`,
`{'loss': '0.4', 'epoch': '1.0'}`. So every program that prints its progress has charts, even in an appcode without a datastore.

Keras and many tutorials print the epoch on its own line, `Epoch 3/5`. Lines below it count for it if they begin with a name
and a number, or with a progress bar. A second bar after a full one ends the epoch, since `evaluate` draws one, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from clusters.scalars.events import MAX_LINES_PER_FILE, MAX_TAG, Curve, Point, Scalars, Series

# Possessive quantifiers, because a long run of spaces or digits could otherwise be split in many ways.
STEP = re.compile(r"(?i)\b(?:global_?step|step|iteration|iter|epoch)\b['\"]?\s*+(?:[:=#]\s*+)?['\"\[]?\s*+(\d{1,15})\b")
NAME = rf"[A-Za-z][\w/.-]{{0,{MAX_TAG - 1}}}"
NUMBER = r"[-+]?(?:\d++(?:\.\d*+)?+(?:[eE][-+]?\d+)?|nan|inf)"
PAIR = re.compile(rf"(?<![\w/.-])['\"]?({NAME})['\"]?\s*[:=]\s*['\"]?({NUMBER})(?![\w.%:/-])")
HEADING = re.compile(r"(?i)\s*epoch\b\s*+[:#]?\s*+(\d{1,15})\s*+(?:/\s*+\d+\s*+)?:?\s*")
BAR = re.compile(r"\s*(\d+)/(\d+|Unknown)\b")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Characters of a line that are searched for numbers.
MAX_LINE = 2000


def scalars_of_log(data: bytes, notes: Iterable[str] = ()) -> Scalars:
    """A curve for each name. If a step was printed twice, as after a restart, the later line counts."""
    series: dict[str, Series] = {}
    for step, line in _steps(data.decode(errors="replace")):
        for name, text in PAIR.findall(line):
            if STEP.match(f"{name} 0") or (name not in series and len(series) >= MAX_LINES_PER_FILE):
                continue
            series.setdefault(name, Series()).add(Point(step, 0.0, float(text)))
    curves = []
    for name, each in series.items():
        by_step = {point.step: point for point in each.all}
        curves.append(Curve(name, "", tuple(by_step[step] for step in sorted(by_step))))
    return Scalars(tuple(curves), 0, tuple(notes))


def _steps(text: str) -> Iterator[tuple[int, str]]:
    """Each line that may have numbers, with the step that it names, or else the epoch of the heading above it."""
    epoch: int | None = None
    bar = ("", " ")
    for drawn in text.splitlines():
        # Keras redraws its bar with backspaces: only the last one counts.
        line = _COLOUR.sub("", drawn.rstrip("\b").rpartition("\b")[2])[:MAX_LINE]
        if found := HEADING.fullmatch(line):
            epoch, bar = int(found[1]), ("", " ")
        elif found := STEP.search(line):
            yield int(found[1]), line
        elif epoch is not None and (found := BAR.match(line)):
            if bar[0] == bar[1] and found.groups() != bar:
                epoch = None
            else:
                bar = (found[1], found[2])
                yield epoch, line
        elif epoch is not None and PAIR.match(line.lstrip()):
            yield epoch, line


def last_printed(data: bytes, name: str) -> float | None:
    """The last number printed under this name, in a line with or without a step; None if there is none."""
    for line in reversed(data.decode(errors="replace").splitlines()):
        if found := [text for each, text in PAIR.findall(line[:MAX_LINE]) if each == name]:
            return float(found[-1])
    return None
