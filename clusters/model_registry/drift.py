"""How far what a model is asked and answers has gone from the sample that it was trained with. Pure.

A model server (frameworks/serve.py) counts the values of each column in bins of that sample, and its counts only grow. Here they
are read, whatever such a server says; what came between two readings is their difference, which is added up over servers; and of
the sum each column has its population stability index (PSI): Σ (seen - expected) · ln(seen / expected) over the shares of bins.
Below 0.1 people say that nothing has changed, from 0.25 on that the model is asked something else. Source: Siddiqi, Credit Risk
Scorecards, 2006. Of few rows the index is large by chance (about bins ÷ rows), so under 200 nothing is said.
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
# Of a share: an empty bin counts as if it had this.
LEAST = 1e-4
# 16 tensors of 64 columns, in and out.
MOST_COLUMNS, MOST_EDGES = 2048, 20
# What a reading may have, in bytes.
MOST_BYTES = 4 * 2**20

Count = Annotated[int, Field(ge=0, lt=2**53)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Column(_Frozen):
    """One more bin than edges: the last is beyond all of them."""

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
        """None of too few rows."""
        return psi(self.expected, self.seen) if self.rows >= MIN_ROWS else None

    def counted(self, seen: Iterable[int]) -> Column:
        return self.model_copy(update={"seen": tuple(seen)})

    def document(self) -> dict[str, Any]:
        """As a row keeps it: the counts, with `psi` and its `word`."""
        found = self.psi
        return self.model_dump(mode="json") | {"psi": None if found is None else round(found, 4), "word": word(found)}


class Reading(_Frozen):
    """What a server has counted since it began. `rows` are all that it answered, of which columns may have only a part."""

    since: AwareDatetime
    rows: Count
    columns: Annotated[tuple[Column, ...], Field(max_length=MOST_COLUMNS)]

    @property
    def bins(self) -> str:
        """The same where each column has the same bins."""
        return hashlib.sha256(repr([(each.key, each.expected) for each in self.columns]).encode()).hexdigest()


def read(document: Any) -> Reading:
    """What a server, which is a tenant's program, answered as JSON. Raises ValueError with a sentence."""
    try:
        found = Reading.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'drift'}: {first['msg']}") from None
    if len({each.key for each in found.columns}) != len(found.columns):
        raise ValueError("columns: one stands there twice.")
    return found


def psi(expected: Sequence[float], seen: Sequence[int]) -> float:
    """Of the shares that were expected and the counts that were seen, bin by bin. 0 where nothing was seen."""
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
    """What came between two readings of one server. One that has begun anew since, has counted all that it says since then."""
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
    """Of several servers of one version. None of none."""
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
    """Its columns as a row keeps them (`Column.document`), what drifted most first."""
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
    """Columns of what `documents` made, to add to them."""
    return [Column.model_validate(each) for each in rows]
