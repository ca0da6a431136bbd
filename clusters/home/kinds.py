"""What lives, in one order: clusters, applications, services, sweeps and pipelines of a user, living ones first.

The order comes from one UNION over the kinds, to which each contributes at most a page. So a page costs the same however many
objects there are; the rows of each kind are read afterwards, by their primary keys.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
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
    Q,
    QuerySet,
    Value,
    When,
)
from django.db.models.functions import Cast, Coalesce

from clusters.access import CLUSTERS
from clusters.cluster.search import Search
from clusters.frameworks import APPLICATIONS
from clusters.pipelines.access import PIPELINES
from clusters.runs.models import Run
from clusters.runs.status.phase import TERMINAL
from clusters.services.access import SERVICES
from clusters.sweeps.access import SWEEPS
from portal.db.keyset import cut, position
from portal.pages.layout import matching

LIVING = tuple(phase for phase in Run.Phase.values if phase not in TERMINAL)


@dataclass(frozen=True)
class LiveKind:
    """`phase` is the column of its state. Of `active`, the columns of its last activity, the first that has a value counts.
    `words` are its phases that the filter, which has those of runs, calls otherwise."""

    name: str
    title: str
    route: str
    rows: QuerySet[Any]
    phase: str
    active: tuple[str, ...]
    words: tuple[tuple[str, str], ...] = ()

    def narrowed(self, appcodes: Iterable[int] | None, search: Search) -> QuerySet[Any]:
        """The rows of these appcodes (None: all) that match the search; its phase is not looked at."""
        rows = self.rows if appcodes is None else self.rows.filter(appcode__in=list(appcodes))
        rows = matching(rows, search.text, "name", "appcode__code", "created_by__username")
        if search.appcode:
            rows = rows.filter(appcode__code=search.appcode)
        return rows.filter(created_by__username=search.owner) if search.owner else rows

    def phases(self, wanted: Iterable[str]) -> list[str]:
        """Its phases that the filter calls one of these."""
        asked, own = {phase.lower() for phase in wanted}, dict(self.words)
        return [phase for phase in (*Run.Phase.values, *own) if own.get(phase, phase).lower() in asked]


_RUN = "current_run__phase"
_ACTIVE = ("current_run__finished_at", "current_run__created_at", "created_at")
_ALL = CLUSTERS.rows.filter(part_of="")
_RESTS = (("Paused", "Running"),)
KINDS = (
    LiveKind("cluster", "Clusters", "clusters", _ALL.exclude(framework__in=list(APPLICATIONS)), _RUN, _ACTIVE),
    LiveKind("application", "Applications", "applications", _ALL.filter(framework__in=list(APPLICATIONS)), _RUN, _ACTIVE),
    LiveKind(
        "service", "Services", "services", SERVICES.rows, "phase", ("phase_since",),
        (("Degraded", "Running"), ("Sleeping", "Running")),
    ),
    LiveKind("sweep", "Sweeps", "sweeps", SWEEPS.rows, "phase", ("finished_at", "created_at"), _RESTS),
    LiveKind("pipeline", "Pipelines", "pipelines", PIPELINES.rows, _RUN, _ACTIVE, _RESTS),
)  # fmt: skip


@dataclass(frozen=True)
class Key:
    """An object's place in the order."""

    living: bool
    active: dt.datetime
    kind: str
    pk: int

    def __str__(self) -> str:
        """The cursor of what follows it."""
        return f"{self.living}~{self.active.isoformat()}~{self.kind}~{self.pk}"

    @classmethod
    def read(cls, cursor: str) -> Key | None:
        """None for what is no cursor: the first page."""
        said = cursor.split("~")
        if len(said) != 4:
            return None
        try:
            active, pk = position(DateTimeField(), said[1]), position(BigIntegerField(), said[3])
        except ValidationError:
            return None
        return cls(said[0] == "True", active, said[2], pk)


def keys(appcodes: Iterable[int] | None, search: Search, size: int) -> tuple[Sequence[Key], str]:
    """At most `size` objects after the search's cursor, and the next cursor ("" at the end). One query."""
    after, wanted = Key.read(search.cursor), search.phase.split(",") if search.phase else []
    members: list[QuerySet[Any, Any]] = []
    for kind in KINDS:
        rows = kind.narrowed(appcodes, search)
        if wanted:
            rows = rows.filter(**{f"{kind.phase}__in": kind.phases(word.strip() for word in wanted)})
        rows = rows.order_by().annotate(
            found_living=Case(
                When(**{f"{kind.phase}__in": kind.phases(LIVING)}, then=True),
                default=False,
                output_field=BooleanField(),
            ),
            found_active=Coalesce(*kind.active) if len(kind.active) > 1 else F(kind.active[0]),
            found_kind=Value(kind.name, output_field=CharField()),
        )
        if after:
            rows = rows.filter(_follows(kind.name, after))
        members.append(
            rows.order_by("-found_living", "-found_active", "-pk").values_list(
                "found_living", "found_active", "found_kind", "pk"
            )[: size + 1]
        )
    union = members[0].union(*members[1:], all=True).order_by("-found_living", "-found_active", "found_kind", "-pk")
    return cut([Key(*found) for found in union[: size + 1]], size, str)


def _follows(kind: str, after: Key) -> Q:
    """Whether a row of `kind` comes after this place."""
    living, active = Q(found_living=after.living), Q(found_active=after.active)
    later = living & Q(found_active__lt=after.active)
    if after.living:
        later |= Q(found_living=False)
    if kind > after.kind:
        later |= living & active
    elif kind == after.kind:
        later |= living & active & Q(pk__lt=after.pk)
    return later


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
        for kind in KINDS
    ]
    found: dict[tuple[str, str], int] = {}
    words = {kind.name: dict(kind.words) for kind in KINDS}
    for name, phase, count in members[0].union(*members[1:], all=True):
        place = name, words[name].get(phase, phase)
        found[place] = found.get(place, 0) + count
    return found
