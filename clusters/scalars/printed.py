"""The scalars of a run that keeps no output, read from what its program prints. Pure.

One idea: a line that names a step and numbers is a point of each of them, in the words of the program:
`step 75: loss = 0.41, accuracy = 0.92`, `epoch=3 val_loss=0.2`, `{'loss': 0.4, 'step': 10}`. So every program that says how it
goes has charts, in an appcode without any datastore, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from clusters.scalars.events import MAX_LINES_PER_FILE, MAX_TAG, Curve, Point, Scalars, Series

# Possessive, where a long run of spaces or digits could otherwise be divided in many ways.
STEP = re.compile(r"(?i)\b(?:global_?step|step|iteration|iter|epoch)\b['\"]?\s*+(?:[:=#]\s*+)?(\d{1,15})\b")
NAME = rf"[A-Za-z][\w/.-]{{0,{MAX_TAG - 1}}}"
NUMBER = r"[-+]?(?:\d++(?:\.\d*+)?+(?:[eE][-+]?\d+)?|nan|inf)"
PAIR = re.compile(rf"(?<![\w/.-])['\"]?({NAME})['\"]?\s*[:=]\s*({NUMBER})(?![\w.%:/-])")
# Of a longer line nobody reads numbers.
MAX_LINE = 2000


def scalars_of_log(data: bytes, notes: Iterable[str] = ()) -> Scalars:
    """A curve for each name; of a step that was printed twice, as after a restart, the later line counts."""
    series: dict[str, Series] = {}
    for line in data.decode(errors="replace").splitlines():
        found = STEP.search(line[:MAX_LINE])
        if found is None:
            continue
        for name, text in PAIR.findall(line[:MAX_LINE]):
            if STEP.match(f"{name} 0") or (name not in series and len(series) >= MAX_LINES_PER_FILE):
                continue
            series.setdefault(name, Series()).add(Point(int(found[1]), 0.0, float(text)))
    curves = []
    for name, each in series.items():
        by_step = {point.step: point for point in each.all}
        curves.append(Curve(name, "", tuple(by_step[step] for step in sorted(by_step))))
    return Scalars(tuple(curves), 0, tuple(notes))


def last_printed(data: bytes, name: str) -> float | None:
    """The last number that a log names so, in a line with a step or without one; None where there is none."""
    for line in reversed(data.decode(errors="replace").splitlines()):
        if found := [text for each, text in PAIR.findall(line[:MAX_LINE]) if each == name]:
            return float(found[-1])
    return None
