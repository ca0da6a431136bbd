"""Which columns the table has. Pure.

Until somebody chose, it has those that tell its newest rows apart: facts, parameters and metrics with a value in some row, and
not the same one in all. Filters add none of these, and hide only metrics and parameters that no row shown has. What somebody
chose stays, whatever the rows are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusters.results.values import Summary, is_judged, is_less_better
from clusters.results.view import CONDITIONS, FIELDS, Column
from clusters.scalars.events import tag_order

# At first at most so many metrics and parameters; of the first metrics, the best value stands beside the last one.
FIRST_METRICS, FIRST_BEST, FIRST_PARAMETERS = 8, 2, 8
# Names that a filter offers of each kind.
MOST_OFFERED = 100
# So many metrics are shown even if none of them tells the rows apart.
LEAST_METRICS = 2
# What people wrote stands before the other facts. The state stands beside the name of each run.
FIRST_FACTS = ("tags", "note")
BESIDE_THE_NAME = "state"


@dataclass(frozen=True)
class Facts:
    """What columns are chosen by: the facts of a run as texts ("" without one), its parameters and its metrics."""

    fields: Mapping[str, str]
    parameters: Mapping[str, str]
    numbers: Mapping[str, Summary]


@dataclass(frozen=True)
class Columns:
    """The columns that are shown; how many more tell the rows apart; and all names of the rows and the choice, for the menu."""

    shown: list[Column]
    hidden: int
    metrics: list[str]
    parameters: list[str]

    @property
    def names(self) -> list[str]:
        """What conditions are about, each once: parameters, metrics and facts of a run."""
        return list(dict.fromkeys([*self.parameters[:MOST_OFFERED], *self.metrics[:MOST_OFFERED], *CONDITIONS]))


def columns(rows: Sequence[Facts], chosen: Sequence[Column] | None, newest: Sequence[Facts] | None = None) -> Columns:
    """The columns of a table that shows `rows`. `newest` are the rows that it has without filters; by default the same."""
    newest = rows if newest is None else newest
    known = [*rows, *newest]
    metrics = sorted({name for row in known for name in row.numbers}, key=tag_order)
    parameters = list(dict.fromkeys(name for row in known for name in sorted(row.parameters)))
    if chosen is not None:
        metrics += [each.name for each in chosen if each.is_metric and each.name not in metrics]
        parameters += [each.name for each in chosen if each.kind == "param" and each.name not in parameters]
        return Columns(list(chosen), 0, list(dict.fromkeys(metrics)), list(dict.fromkeys(parameters)))
    there = rows or newest
    telling = [name for name in _metrics(newest) if any(name in row.numbers for row in there)]
    first = telling[:FIRST_METRICS]
    # Runs of another kind.
    first += _metrics([row for row in rows if not any(name in row.numbers for name in first)])[:LEAST_METRICS]
    apart = [
        name
        for name in parameters
        if any(name in row.parameters for row in there)
        and _tells([row.parameters.get(name) for row in newest], flag="true")
    ]
    # A tag or a note that one row has tells it from the others.
    facts = [Column("field", name) for name in FIELDS if name != BESIDE_THE_NAME and _tells(_facts(newest, name))]
    shown = list[Column]()
    for n, name in enumerate(first):
        shown.append(Column("last", name))
        if n < FIRST_BEST and any(name in row.numbers and not _is_best(row.numbers[name], name) for row in newest):
            shown.append(Column("best", name))
    shown += [Column("param", name) for name in apart[:FIRST_PARAMETERS]]
    shown += sorted(facts, key=lambda each: each.name not in FIRST_FACTS)
    hidden = max(0, len(telling) - FIRST_METRICS) + max(0, len(apart) - FIRST_PARAMETERS)
    return Columns(shown, hidden, metrics, parameters)


def _metrics(rows: Sequence[Facts]) -> list[str]:
    """The metrics that tell the rows apart, or if these are fewer than LEAST_METRICS, as many of those that most rows have. Those
    that many rows have come first, and settings such as the learning rate last."""
    counts = Counter(name for row in rows for name in row.numbers)
    often = max(counts.values(), default=0) / 2

    def order(name: str) -> tuple[bool, bool, tuple[int, str, str]]:
        return not is_judged(name), counts[name] < often, tag_order(name)

    telling = sorted((name for name in counts if _tells([_key(row.numbers.get(name)) for row in rows])), key=order)
    others = sorted(counts.keys() - telling, key=lambda name: (not is_judged(name), -counts[name], *order(name)))
    return telling + others[: max(0, LEAST_METRICS - len(telling))]


def _facts(rows: Sequence[Facts], name: str) -> list[str]:
    """A fact of all rows; [] if none has it."""
    found = [row.fields.get(name, "") for row in rows]
    return found if any(found) else []


def _tells(values: Sequence[object | None], *, flag: str = "") -> bool:
    """Whether rows with these values can be told apart by them: two have different ones, or some have a `flag` and others do not.
    A single row can by any value."""
    several = {each for each in values if each is not None}
    return len(several) > 1 or (len(several) == 1 and (len(values) == 1 or (None in values and flag in values)))


def _key(summary: Summary | None) -> tuple[object, ...] | None:
    """What is compared of a metric; NaN equals NaN."""
    return summary and ("NaN" if summary.last != summary.last else summary.last, summary.low, summary.high)


def _is_best(summary: Summary, name: str) -> bool:
    best = summary.low if is_less_better(name) else summary.high
    return best is None or best.value == summary.last


def value_of(column: Column, summary: Summary) -> tuple[float | None, int | None]:
    """The value of a column of a metric, and its step."""
    if column.kind == "last":
        return summary.last, summary.step
    is_low = column.kind == "min" or (column.kind == "best" and is_less_better(column.name))
    extreme = summary.low if is_low else summary.high
    return (None, None) if extreme is None else (extreme.value, extreme.step)
