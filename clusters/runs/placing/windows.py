"""Rows of windows → what decisions see of them (`clusters/admission/windows.py`), and which runs live on their nodes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from django.db.models import F, Q, QuerySet
from django.utils import timezone

from clusters.admission.windows import Asker, Windows, clock, named
from clusters.admission.windows import Window as Closed
from clusters.clouds import models
from clusters.runs.models import Run, Task
from clusters.runs.placing.tiles import Tile

NO_WINDOWS = Windows()


def open_at(at: dt.datetime) -> QuerySet[models.Window]:
    """Windows that have not ended."""
    return models.Window.objects.filter(cancelled_at=None, ends_at__gt=at)


def closed(row: models.Window) -> Closed:
    return Closed(row.pk, frozenset(row.nodes), row.starts_at, row.ends_at, row.appcode_id, row.reason)


def of_clouds(clouds: Collection[str]) -> dict[str, Windows]:
    """The windows by cloud; clouds without any are left out. One query."""
    at = timezone.now()
    rows = open_at(at).filter(cloud__name__in=list(clouds)).annotate(on=F("cloud__name")).order_by("starts_at", "pk")
    found: dict[str, list[Closed]] = {}
    for row in rows:
        found.setdefault(row.on, []).append(closed(row))
    return {cloud: Windows(at, tuple(windows)) for cloud, windows in found.items()}


def of(cloud: str) -> Windows:
    return of_clouds([cloud]).get(cloud, NO_WINDOWS)


def asker(appcode: int, seconds: int | None) -> Asker:
    return Asker(appcode, dt.timedelta(seconds=seconds) if seconds else None)


# Runs that are to run on. Those that have lost their places already are about to leave.
LIVING = Q(gone=False, desired=Run.Desired.RUNNING, verdict="", refusal="", given_back_at=None)


def on_nodes(cloud: str, nodes: Collection[str]) -> Mapping[int, frozenset[str]]:
    """The nodes, of these, on which runs have tasks, or places for tasks without a node, by run. Two queries."""
    wanted, found = frozenset(nodes), dict[int, set[str]]()
    tasks = Task.objects.filter(run__cloud=cloud, run__gone=False, phase__in=["Pending", "Running"], node__in=wanted)
    for run_id, node in tasks.values_list("run_id", "node").distinct():
        found.setdefault(run_id, set()).add(node)
    # Of a run that is whole, its tasks say where it is.
    lacks = Q(placed_at__isnull=False) & (Q(whole_at=None) | Q(lacks_since__isnull=False))
    placed = Run.objects.filter(LIVING, lacks, cloud=cloud).exclude(layout={})
    for run_id, layout in placed.values_list("pk", "layout"):
        if here := wanted & {node for places in layout.values() for node in places}:
            found.setdefault(run_id, set()).update(here)
    return {run: frozenset(on) for run, on in found.items()}


def others_on(window: Closed, cloud: str) -> QuerySet[Run]:
    """Living runs on its nodes that may not be there during the window."""
    runs = Run.objects.filter(LIVING, cloud=cloud, pk__in=on_nodes(cloud, window.nodes).keys()).order_by("pk")
    return runs.exclude(cluster__appcode=window.appcode) if window.appcode else runs


def will_be_taken(window: Closed, cloud: str) -> list[Run]:
    """Living runs that are there still when it begins, as far as their time limits tell. Three queries."""
    rows = others_on(window, cloud).select_related("cluster__appcode", "cluster__created_by", "created_by")
    return [run for run in rows if run.deadline is None or run.deadline > window.starts_at]


@dataclass(frozen=True)
class Shown:
    """A window as its reader sees it. `appcode`: for which it is reserved; "" where the reader may not see that one, or for
    maintenance. `is_open`: the reader's runs may start there during it."""

    id: int
    nodes: Sequence[str]
    starts_at: dt.datetime
    ends_at: dt.datetime
    reason: str
    begun: bool
    is_reservation: bool = False
    appcode: str = ""

    @property
    def kind(self) -> Literal["maintenance", "reservation"]:
        return "reservation" if self.is_reservation else "maintenance"

    @property
    def is_open(self) -> bool:
        return bool(self.appcode)

    @property
    def what(self) -> str:
        return f"Reserved for {self.appcode or 'another appcode'}" if self.is_reservation else "Maintenance"

    @property
    def heading(self) -> str:
        """ "Maintenance of n1 and n2"."""
        return (
            f"{named(self.nodes)} reserved for {self.appcode or 'another appcode'}"
            if self.is_reservation
            else f"Maintenance of {named(self.nodes)}"
        )

    @property
    def note(self) -> str:
        when = (
            f"until {clock(self.ends_at)}" if self.begun else f"from {clock(self.starts_at)} to {clock(self.ends_at)}"
        )
        return f"{self.what} {when}: {self.reason.rstrip('.')}."


def shown(appcodes: Collection[int] | None) -> dict[str, list[Shown]]:
    """Windows that have not ended, by cloud. `appcodes`: those that the reader may see, None for all. One query."""
    at, found = timezone.now(), dict[str, list[Shown]]()
    rows = open_at(at).select_related("appcode").annotate(on=F("cloud__name")).order_by("starts_at", "pk")
    for row in rows:
        code = row.appcode.code if row.appcode and (appcodes is None or row.appcode_id in appcodes) else ""
        found.setdefault(row.on, []).append(
            Shown(row.pk, row.nodes, row.starts_at, row.ends_at, row.reason, row.starts_at <= at, row.appcode is not None, code)
        )  # fmt: skip
    return found


def on_tiles(tiles: Iterable[Tile], windows: Iterable[Shown]) -> list[Tile]:
    """The tiles, where those of nodes that are closed, or will be, say why. During a window nothing is free there for others."""
    of: dict[str, list[Shown]] = {}
    for window in windows:
        for node in window.nodes:
            of.setdefault(node, []).append(window)
    return [_with(each, of[each.name]) if each.name in of else each for each in tiles]


def _with(tile: Tile, windows: Sequence[Shown]) -> Tile:
    note = " ".join(filter(None, [tile.note, *(each.note for each in windows)]))
    if any(each.begun and not each.is_open for each in windows):
        closed = tile.closed + tile.free + tile.kept
        return replace(tile, free=0, kept=0, closed=closed, keeper=0, takes_tasks=False, note=note)
    return replace(tile, note=note)
