"""What lives, in one order: clusters, applications, services, sweeps and pipelines, living ones first or as `?sort=` says.

The order comes from one UNION over the kinds (cluster/pages/living.py), to which each contributes at most a page. So a page costs
the same however many objects there are; the rows of each kind are read afterwards, by their primary keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import (
    BigIntegerField,
    BooleanField,
    Case,
    CharField,
    Count,
    DateTimeField,
    F,
    Field,
    IntegerField,
    Q,
    QuerySet,
    Value,
    When,
)
from django.db.models.functions import Cast, Coalesce

from clusters.cluster.pages.living import LiveKind, kinds
from clusters.cluster.search import Search
from clusters.runs.models import Run
from clusters.runs.status.phase import TERMINAL
from portal.db.keyset import cut, position

LIVING = tuple(phase for phase in Run.Phase.values if phase not in TERMINAL)
NO_PHASE = len(Run.Phase.values)


@dataclass(frozen=True)
class Column:
    """A column of the order: its value for a kind, as a field of this type."""

    of: Callable[[LiveKind], Any]
    field: Field[Any, Any]


def _first(columns: Sequence[str]) -> Any:
    return Coalesce(*columns) if len(columns) > 1 else F(columns[0])


def _living(kind: LiveKind) -> Case:
    living = When(**{f"{kind.phase}__in": kind.phases(LIVING)}, then=True)
    return Case(living, default=False, output_field=BooleanField())


def _state(kind: LiveKind) -> Case:
    """In the order of the filter; what never ran comes last."""
    states = [When(**{f"{kind.phase}__in": kind.phases([phase])}, then=n) for n, phase in enumerate(Run.Phase.values)]
    return Case(*states, default=NO_PHASE, output_field=IntegerField())


_STARTED = Column(lambda kind: _first(kind.started), DateTimeField())
# By the word of `?sort=`, with whether the first column descends. Those after it, the kind and the primary key break ties.
_ORDERS: Mapping[str, tuple[bool, tuple[Column, ...]]] = {
    "": (True, (Column(_living, BooleanField()), _STARTED)),
    "name": (False, (Column(lambda kind: Cast(F("name"), CharField()), CharField()),)),
    "state": (False, (Column(_state, IntegerField()), _STARTED)),
    "started": (False, (_STARTED,)),
}
SORTS = ("", *(f"{sign}{word}" for word in _ORDERS if word for sign in ("", "-")))


@dataclass(frozen=True)
class Order:
    """The columns of a sort, each with whether it descends."""

    columns: tuple[tuple[str, bool, Column], ...]

    @classmethod
    def of(cls, sort: str) -> Order:
        descends, columns = _ORDERS[sort.removeprefix("-")]
        first = descends or sort.startswith("-")
        return cls(tuple((f"found_{n}", n > 0 or first, column) for n, column in enumerate(columns)))

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.columns]

    @property
    def by(self) -> list[str]:
        return [f"-{name}" if descends else name for name, descends, _ in self.columns]

    def read(self, cursor: str) -> Key | None:
        """None for what is no cursor of this order: the first page."""
        said = cursor.split("~")
        if len(said) != len(self.columns) + 2:
            return None
        try:
            values = [position(column.field, text) for (_, _, column), text in zip(self.columns, said, strict=False)]
            return Key(tuple(values), said[-2], position(BigIntegerField(), said[-1]))
        except ValidationError:
            return None

    def follows(self, kind: str, after: Key) -> Q:
        """Whether a row of `kind` comes after this place."""
        later, equal = Q(), Q()
        for (name, descends, _), value in zip(self.columns, after.values, strict=True):
            later |= equal & Q(**{f"{name}__{'lt' if descends else 'gt'}": value})
            equal &= Q(**{name: value})
        if kind > after.kind:
            later |= equal
        elif kind == after.kind:
            later |= equal & Q(pk__lt=after.pk)
        return later


@dataclass(frozen=True)
class Key:
    """An object's place in an order."""

    values: tuple[Any, ...]
    kind: str
    pk: int

    def __str__(self) -> str:
        """The cursor of what follows it."""
        return "~".join(map(str, (*self.values, self.kind, self.pk)))


def keys(appcodes: Iterable[int] | None, search: Search, sort: str, size: int) -> tuple[Sequence[Key], str]:
    """At most `size` objects after the search's cursor, and the next cursor ("" at the end). One query."""
    order = Order.of(sort)
    after, wanted = order.read(search.cursor), search.phase.split(",") if search.phase else []
    members: list[QuerySet[Any, Any]] = []
    for kind in kinds:
        rows = kind.narrowed(appcodes, search)
        if wanted:
            rows = rows.filter(**{f"{kind.phase}__in": kind.phases(word.strip() for word in wanted)})
        rows = rows.order_by().annotate(
            **{name: column.of(kind) for name, _, column in order.columns},
            found_kind=Value(kind.name, output_field=CharField()),
        )
        if after:
            rows = rows.filter(order.follows(kind.name, after))
        rows = rows.order_by(*order.by, "-pk").values_list(*order.names, "found_kind", "pk")
        members.append(rows[: size + 1])
    union = members[0].union(*members[1:], all=True).order_by(*order.by, "found_kind", "-pk")
    return cut([Key(tuple(values), kind, pk) for *values, kind, pk in union[: size + 1]], size, str)


def counted(appcodes: Iterable[int] | None, search: Search) -> dict[tuple[str, str], int]:
    """The number of objects by (kind, phase as the filter calls it), "" for what never ran. One query."""
    members = [
        kind.narrowed(appcodes, search)
        .order_by()
        .values_list(
            Value(kind.name, output_field=CharField()),
            Coalesce(Cast(kind.phase, CharField()), Value("")),
        )
        .annotate(n=Count("pk"))
        for kind in kinds
    ]
    found: dict[tuple[str, str], int] = {}
    words = {kind.name: dict(kind.words) for kind in kinds}
    for name, phase, count in members[0].union(*members[1:], all=True):
        place = name, words[name].get(phase, phase)
        found[place] = found.get(place, 0) + count
    return found
