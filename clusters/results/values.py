"""What is kept of a run's numbers and definition: the summary of each metric, and its parameters as names and texts. Pure.

A summary has the last, the smallest and the largest value, each with its step, so that a table can say when a run was best
without reading its files again. Series are thinned as they are read, but keep their extremes (`scalars/events.py`).
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from clusters.scalars.events import Curve, Scalars, rank, tag_order
from portal.pages.charts import COLOURS, number, series

# Metrics of a run that are kept, losses and accuracies first; characters of a name.
MAX_METRICS, MAX_NAME = 200, 200
# Parameters of a run that are kept, and characters of a value.
MAX_PARAMETERS, MAX_VALUE = 100, 200
# Largest absolute step that the column holds.
MAX_STEP = 2**63 - 1
# Words in the names of metrics of which less is better. Of all others more is.
LESS = re.compile(
    r"(?i)loss|err|mse|mae|mape|rmse|logloss|perplexity|ppl|nll|cross_?entropy|divergence|\bwer\b|\bcer\b|\bfid\b|latency"
    r"|seconds|time|duration|_ms\b|memory|distance|regret"
)
# What programs set themselves: no value of it is better than another.
SETTINGS = re.compile(
    r"(?i)(?:^|[/_.-])(?:lr|learning_?rate|epoch|step|global_step|momentum|weight_decay)(?:$|[/_.-]|\d)"
)
# --lr 0.1, --lr=0.1, and Hydra's lr=0.1, as words of a command.
_OPTION = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_PAIR = re.compile(r"([A-Za-z_+][\w./@-]*)=(?!=)([\w.,:/@%+\[\]-]*);?")
# The text of a here-document, which is no part of the command line.
_HERE = re.compile(r"<<-?\s*(['\"]?)(\w+)\1.*?\n\s*\2\s*(?:\n|$)", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


class Extreme(NamedTuple):
    """A value and the step at which it was first reached."""

    value: float
    step: int


class Summary(NamedTuple):
    """One metric of one run. NaN and infinity count for `last` only. A tuple, because a page has thousands."""

    last: float
    step: int
    low: Extreme | None
    high: Extreme | None


def is_less_better(name: str) -> bool:
    """Whether the best value of this metric is its smallest one, as far as its name tells."""
    return bool(LESS.search(name))


def is_judged(name: str) -> bool:
    """Whether one value of this metric is better than another."""
    return not SETTINGS.search(name)


def by_name(scalars: Scalars) -> dict[str, Curve]:
    """The curve of each metric; FOLDER/TAG is its name where a tag stands in several folders. At most MAX_METRICS."""
    several: dict[str, int] = {}
    for curve in scalars.curves:
        if curve.points:
            several[curve.tag] = several.get(curve.tag, 0) + 1
    found: dict[str, Curve] = {}
    for curve in sorted(scalars.curves, key=lambda each: (tag_order(each.tag), each.folder)):
        if not curve.points:
            continue
        name = f"{curve.folder}/{curve.tag}" if several[curve.tag] > 1 and curve.folder else curve.tag
        # PostgreSQL refuses NUL, which a protocol buffer may contain.
        name = name.replace("\0", "\N{REPLACEMENT CHARACTER}").strip()
        if name and len(name) <= MAX_NAME and name not in found and len(found) < MAX_METRICS:
            found[name] = curve
    return found


def summaries(scalars: Scalars) -> dict[str, Summary]:
    """The summary of each metric by its name."""
    return {name: _summary(curve) for name, curve in by_name(scalars).items()}


def styles(colours: Mapping[int, int]) -> dict[int, int]:
    """The series (portal/pages/charts.py) of each run, from its colour, both by primary key: of several that share a colour, the
    oldest is solid and the others are dashed, so a run keeps its colour whatever is drawn beside it."""
    taken = list[int]()
    found = {}
    for run, colour in sorted(colours.items()):
        found[run] = series(colour, taken.count(colour % COLOURS))
        taken.append(colour % COLOURS)
    return found


def headline(found: Mapping[str, Summary]) -> list[tuple[str, float | str]]:
    """The last values of the two metrics that stand for a run in a list: the first loss and the first accuracy; where one is
    missing, whatever comes next. JSON has no NaN and infinity, so these are texts."""
    names = [name for name in found if is_judged(name)]
    names.sort(key=tag_order)
    of_each_kind = {rank(name): name for name in reversed(names)}
    chosen = list(dict.fromkeys([*(of_each_kind[kind] for kind in sorted(of_each_kind)), *names]))[:2]
    return [(name, last if math.isfinite(last := found[name].last) else number(last)) for name in chosen]


def _summary(curve: Curve) -> Summary:
    finite = [point for point in curve.points if math.isfinite(point.value)]
    last = curve.points[-1]
    low = min(finite, key=lambda point: point.value, default=None)
    high = max(finite, key=lambda point: point.value, default=None)
    return Summary(
        last.value, _step(last.step),
        None if low is None else Extreme(low.value, _step(low.step)),
        None if high is None else Extreme(high.value, _step(high.step)),
    )  # fmt: skip


def _step(step: int) -> int:
    return max(-MAX_STEP, min(MAX_STEP, step))


def parameters(spec: Mapping[str, Any], recorded: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The parameters of a run: its variables, the parameters of its notebook, the options of its command, and what it recorded
    itself, by MLflow or W&B. An option that says something else than the variable of its name is kept as `--name`."""
    found = {name: _text(text) for name, text in (spec.get("env") or {}).items()}
    found |= {name: _text(value) for name, value in ((spec.get("notebook") or {}).get("parameters") or {}).items()}
    for name, text in options(spec.get("command") or ""):
        key = name if found.get(name, text) == text else f"--{name}"
        found.setdefault(key, text)
    for name, text in recorded.items():
        found.setdefault(name, text[:MAX_VALUE])
    return {name: text for name, text in list(found.items())[:MAX_PARAMETERS] if len(name) <= MAX_NAME}


def _text(value: object) -> str:
    """A value of ENV as the program sees it: `$$` is a dollar sign there."""
    return str(value).replace("$$", "$").replace("\0", "")[:MAX_VALUE]


def options(command: str) -> Iterator[tuple[str, str]]:
    """The options of a command line: names without dashes, and values; "true" for one without a value. Values with references are
    left out: ENV says what these are."""
    try:
        words = shlex.split(_HERE.sub("", command), comments=True)
    except ValueError:  # Quotes that do not end.
        return
    for word, following in pairwise([*words, ""]):
        if option := _OPTION.fullmatch(word):
            name, value = option[1], option[2]
            if value is None:
                is_value = following and (not following.startswith("-") or _NUMBER.fullmatch(following))
                value = following if is_value and not _ENDS.search(following) else "true"
            if "$" not in value:
                yield name, _text(value)
        elif (pair := _PAIR.fullmatch(word)) and "$" not in word:
            yield pair[1].lstrip("+"), _text(pair[2])


# A word of the shell, and no value.
_ENDS = re.compile(r"^(?:[|&;<>]|\d?>|&&|\|\|)")
