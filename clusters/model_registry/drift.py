"""Drift: how far a model's inputs and outputs are from its training sample. Pure.

A model server (frameworks/inside/serve.py) counts each column's values in bins of that sample; its counters only grow. This
module validates its readings, takes the difference of two readings, and adds differences over servers. Each column of the sum
has its population stability index (PSI): Σ (seen - expected) · ln(seen / expected) over the shares of bins. By convention, below
0.1 nothing has changed, and from 0.25 on the population is different. Source: Siddiqi, Credit Risk Scorecards, 2006. With few
rows the index is large by chance (about bins ÷ rows), so it is not computed for fewer than 200.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

Word = Literal["stable", "moderate", "large", "too few"]
MODERATE, LARGE = 0.1, 0.25
MIN_ROWS = 200
# Minimum share of a bin, used for empty ones.
LEAST = 1e-4
# Limit of columns: 16 tensors of 64 columns, in and out.
MOST_COLUMNS, MOST_EDGES = 2048, 20
# Maximum bytes of a reading.
MOST_BYTES = 4 * 2**20

Count = Annotated[int, Field(ge=0, lt=2**53)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Column(_Frozen):
    """There is one more bin than edges; the last bin is above all edges."""

    tensor: Annotated[str, StringConstraints(max_length=200)]
    column: Annotated[int, Field(ge=0, lt=2**31)]
    kind: Literal["input", "output"]
    edges: Annotated[
        tuple[Annotated[float, Field(allow_inf_nan=False)], ...], Field(min_length=1, max_length=MOST_EDGES)
    ]
    expected: tuple[Share, ...]
    seen: tuple[Count, ...]

    @model_validator(mode="after")
    def _bins(self) -> Self:
        if not len(self.expected) == len(self.seen) == len(self.edges) + 1:
            raise ValueError("It has one more bin than edges.")
        return self

    @property
    def key(self) -> tuple[str, str, int, tuple[float, ...]]:
        return self.kind, self.tensor, self.column, self.edges

    @property
    def words(self) -> str:
        return f"{self.tensor}[{self.column}]"

    @property
    def rows(self) -> int:
        return sum(self.seen)

    @property
    def psi(self) -> float | None:
        """None for too few rows."""
        return psi(self.expected, self.seen) if self.rows >= MIN_ROWS else None

    def counted(self, seen: Iterable[int]) -> Column:
        return self.model_copy(update={"seen": tuple(seen)})

    def document(self) -> dict[str, Any]:
        """As stored in a row: the counts, with `psi` and its `word`."""
        found = self.psi
        return self.model_dump(mode="json") | {"psi": None if found is None else round(found, 4), "word": word(found)}


class Reading(_Frozen):
    """A server's counters since its start. `rows` counts all rows that it answered; columns may have counted only some."""

    since: AwareDatetime
    rows: Count
    columns: Annotated[tuple[Column, ...], Field(max_length=MOST_COLUMNS)]

    @property
    def bins(self) -> str:
        """A digest of the bins of all columns."""
        return hashlib.sha256(repr([(each.key, each.expected) for each in self.columns]).encode()).hexdigest()


def read(document: Any) -> Reading:
    """Validates the JSON of a server, which is a tenant's program. Raises ValueError with a sentence."""
    try:
        found = Reading.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'drift'}: {first['msg']}") from None
    if len({each.key for each in found.columns}) != len(found.columns):
        raise ValueError("columns: one stands there twice.")
    return found


def psi(expected: Sequence[float], seen: Sequence[int]) -> float:
    """PSI of the expected shares and the counts seen, bin by bin. 0 if nothing was seen."""
    if len(expected) != len(seen):
        raise ValueError("There are as many counts as shares.")
    total = sum(seen)
    if not total:
        return 0.0
    pairs = [(max(share, LEAST), max(count / total, LEAST)) for share, count in zip(expected, seen, strict=True)]
    return math.fsum((now - then) * math.log(now / then) for then, now in pairs)


def word(value: float | None) -> Word:
    if value is None:
        return "too few"
    return "stable" if value < MODERATE else "moderate" if value < LARGE else "large"


def between(later: Reading, earlier: Reading | None) -> Reading:
    """The increase between two readings of one server. After a restart of the server it is the whole later reading."""
    if earlier is None or later.since != earlier.since or later.rows < earlier.rows:
        return later
    before = {each.key: each.seen for each in earlier.columns}
    columns = []
    for each in later.columns:
        seen = tuple(
            now - then for now, then in zip(each.seen, before.get(each.key, (0,) * len(each.seen)), strict=True)
        )
        if min(seen) < 0:
            return later
        columns.append(each.counted(seen))
    return later.model_copy(update={"rows": later.rows - earlier.rows, "columns": tuple(columns)})


def together(readings: Iterable[Reading]) -> Reading | None:
    """The sum over servers of one version; None without readings."""
    since: dt.datetime | None = None
    rows, columns = 0, dict[Any, Column]()
    for reading in readings:
        since = min(since or reading.since, reading.since)
        rows += reading.rows
        for each in reading.columns:
            had = columns.get(each.key)
            columns[each.key] = had.counted(a + b for a, b in zip(had.seen, each.seen, strict=True)) if had else each
    if since is None:
        return None
    return Reading.model_construct(since=since, rows=rows, columns=tuple(columns.values()))


def documents(reading: Reading) -> list[dict[str, Any]]:
    """The columns as stored in a row (`Column.document`), largest drift first."""
    found = [each.document() for each in reading.columns]
    return sorted(
        found,
        key=lambda each: (
            -(each["psi"] if each["psi"] is not None else -1),
            each["kind"],
            each["tensor"],
            each["column"],
        ),
    )


def again(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """The columns from `documents`, to add to them."""
    return [Column.model_validate(each) for each in rows]
