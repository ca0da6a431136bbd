"""The kinds of things that live, for the first page (clusters/home). Each room describes its own, `clusters/apps.py` registers
it: the columns by which the page orders, counts and finds them, and its rows as values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.urls import reverse
from django.utils.safestring import SafeString

from clusters.access import CLUSTERS
from clusters.cluster.pages import list as listing
from clusters.cluster.search import Search
from clusters.frameworks import APPLICATIONS
from clusters.runs.models import Run
from portal.extension_points import ExtensionPoint
from portal.models import User
from portal.pages.layout import matching

# The columns of clusters, and of what has runs as they do.
RUN_PHASE = "current_run__phase"
RUN_STARTED = ("current_run__started_at", "current_run__created_at", "created_at")
# A thing that rests goes on.
RESTS = (("Paused", "Running"),)


@dataclass(frozen=True)
class Thing:
    """A row of a service, sweep or pipeline as a value, like `listing.Row` of clusters and applications. `whose` says what its
    cost covers."""

    kind: str
    title: str
    name: str
    appcode: str
    owner: str
    phase: str
    work: str
    note: str
    started: str
    gpu_hours: str
    cost: str
    whose: str

    @property
    def url(self) -> str:
        return reverse(self.kind, args=[self.appcode, self.name])

    @property
    def html(self) -> SafeString:
        return listing.row_html(self, "clusters/home/_row.html")


Things = Callable[[Collection[int], User, Mapping[int, str] | None], Mapping[int, listing.Row | Thing]]


@dataclass(frozen=True)
class LiveKind:
    """`phase` is the column of its state. Of `started`, the columns of its begin, the first that has a value counts. `things`
    reads rows by primary key, for a user with roles by appcode id. `words` are its phases that the filter, which has those of
    runs, calls otherwise."""

    name: str
    title: str
    route: str
    rows: QuerySet[Any]
    phase: str
    started: tuple[str, ...]
    things: Things
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


kinds: ExtensionPoint[LiveKind] = ExtensionPoint()


def _of_clusters(kind: str, title: str, rows: QuerySet[Any]) -> LiveKind:
    return LiveKind(kind, title, f"{kind}s", rows, RUN_PHASE, RUN_STARTED, listing.rows_with)


_ALL = CLUSTERS.rows.filter(part_of="")
COMPUTING = _of_clusters("cluster", "Clusters", _ALL.exclude(framework__in=list(APPLICATIONS)))
APPLICATION = _of_clusters("application", "Applications", _ALL.filter(framework__in=list(APPLICATIONS)))


def owner(row: Any) -> str:
    return row.created_by.username if row.created_by else ""
