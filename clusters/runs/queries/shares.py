"""Who has which part of a cloud, against what each deserves: business line → appcode, for the page Shares and REST. Reads only.

The idea: shares as runs are ordered by (`placing/rights.py`) and their formula (`clusters/admission/shares.py`), so that the page
explains the order and has none of its own. Appcodes are named within the reader's business lines; all others are one sum, which
tells neither names nor how many there are. The number of queries depends on nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from django.db.models import Q, Sum
from django.utils import timezone

from clusters.admission.order import Share
from clusters.admission.shares import Want, deserved
from clusters.clouds.models import CloudState
from clusters.clouds.placement import PLACES, choose, rows_by_kind, titles
from clusters.clouds.registry import all_placing, own_kinds
from clusters.runs.models import Run
from clusters.runs.placing.known import Terms, capacity_from
from clusters.runs.placing.places import every_wait
from clusters.runs.placing.rights import HOLDS, SPARE, rights
from clusters.runs.quota import waits
from portal.errors import Invalid
from portal.models import Appcode, OrgNode

DAY, HOUR = 86400, 3600


@dataclass(frozen=True)
class Part:
    """GPUs of an appcode, or the sum of several. `held`: inside the quota. `lent`: of the quota, to others at this moment. `due`:
    what it deserves now, its fair share. `used`: GPU-seconds lately."""

    quota: int = 0
    borrow: int = 0
    weight: int = 0
    held: int = 0
    borrowed: int = 0
    spare: int = 0
    lent: int = 0
    waiting: int = 0
    due: int = 0
    used: int = 0

    def __add__(self, other: Part) -> Part:
        return Part(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Part)))

    @property
    def now(self) -> int:
        """GPUs that count against the fair share. Spare ones do not."""
        return self.held + self.borrowed

    @property
    def left(self) -> int:
        """GPUs that may still be started without borrowing."""
        return max(0, self.quota - self.held)

    @property
    def words(self) -> str:
        """How it stands to its fair share, "" if it has all it wants."""
        if not self.waiting:
            return ""
        if self.now < self.due:
            return f"{self.due - self.now:,} below"
        return f"{self.now - self.due:,} above" if self.now > self.due else "just that"

    @property
    def lately(self) -> str:
        """ "31 GPU-days", "5 GPU-hours", "nothing" """
        if self.used < HOUR // 2:
            return "nothing" if self.used < 60 else "under an hour"
        if self.used < DAY:
            hours = round(self.used / HOUR)
            return f"{hours} GPU-hour{'s'[: hours != 1]}"
        days = self.used / DAY
        return f"{days:.1f} GPU-days" if days < 10 else f"{days:,.0f} GPU-days"


@dataclass(frozen=True)
class Line:
    """A business line, with its appcodes by code. `title` "": those that belong to none."""

    name: str
    title: str
    total: Part
    appcodes: Mapping[str, Part]


@dataclass(frozen=True)
class Tree:
    """One cloud on whose nodes the portal places runs. `others`: the sum over lines that the reader does not see; None if there
    are none. `quotas`: of all appcodes together."""

    cloud: str
    title: str
    gpus: int
    lines: Sequence[Line]
    others: Part | None
    quotas: int

    @property
    def most(self) -> int:
        """The largest number of a share, for bars."""
        parts = [part for line in self.lines for part in line.appcodes.values()]
        return max((max(each.now, each.due) for each in [*parts, *(line.total for line in self.lines)]), default=0) or 1


@dataclass(frozen=True)
class _Place:
    cloud: str
    namespace: str


def trees(mine: Collection[int] | None) -> list[Tree]:
    """The shares of every cloud on which the portal places runs. `mine`: appcodes of the reader, None for all. Twelve queries
    at most."""
    clouds = all_placing()
    capacities = {
        state.name: sum(node.gpus for node in capacity_from(state.capacity).nodes)
        for state in CloudState.objects.filter(name__in=clouds).order_by("name")
    }
    if not capacities:
        return []
    appcodes = {row.pk: row for row in Appcode.objects.select_related("org_node").order_by("code")}
    nodes = {node.namespace: node for node in OrgNode.objects.exclude(namespace=None)}
    placed = _placed(appcodes.values())
    waiting = _waiting(capacities)
    present = set(
        Run.objects.filter(HOLDS, cloud__in=capacities).values_list("cloud", "cluster__appcode").distinct().order_by()
    )
    living = {pk: place for pk, place in placed.items() if appcodes[pk].state == Appcode.State.ACTIVE}
    terms = {
        str(pk): Terms(place.namespace, row.gpu_quota, row.gpu_borrow, row.weight)
        for pk, place in living.items()
        for row in [appcodes[pk]]
    }
    shares = rights((), timezone.now(), terms).shares
    seen = None if mine is None else {placed[pk].namespace for pk in mine if pk in placed}
    names = titles()
    found = []
    for cloud, gpus in capacities.items():
        here = {pk for pk, place in living.items() if place.cloud == cloud}
        here |= {pk for of, pk in {*present, *waiting} if of == cloud}
        own = {appcodes[pk].code: shares[str(pk)] for pk in sorted(here) if str(pk) in shares}
        asks = {appcodes[pk].code: asked for (of, pk), asked in waiting.items() if of == cloud}
        if not own:
            continue
        parts = _parts(own, asks, gpus)
        total = sum(each.quota for each in parts.values())
        lines, others = _lines(own, parts, nodes, seen)
        found.append(Tree(cloud, names.get(cloud, cloud), gpus, lines, others, total))
    return found


def _placed(appcodes: Iterable[Appcode]) -> dict[int, _Place]:
    """Where runs of each appcode would be made now, by id. One query."""
    listed = list(appcodes)
    paths = {path for each in listed for path in each.org_node.ancestors_and_self}
    rows = rows_by_kind(PLACES, {"nodes": sorted(paths), "own": own_kinds()})
    found, kept = {}, dict[str, _Place | None]()
    for each in listed:
        path = each.org_node.path
        if path not in kept:
            above = set(each.org_node.ancestors_and_self)
            lines = [row for row in rows.get("line", []) if row["path"] in above]
            try:
                place = choose(each, {"line": lines, "default": rows.get("default", [])})
                kept[path] = _Place(place.cloud, place.namespace)
            except Invalid:  # There is no cloud for it.
                kept[path] = None
        if (at := kept[path]) is not None:
            found[each.pk] = at
    return found


def _waiting(clouds: Collection[str]) -> dict[tuple[str, int], tuple[int, int]]:
    """GPUs for which runs wait that only the portal holds back, by cloud and appcode: of all runs, and of those that are not
    spare. One query."""
    runs = Run.objects.filter(Q(pk__in=every_wait().values("pk")) | waits(timezone.now()), cloud__in=clouds, gpus__gt=0)
    sums = runs.values("cloud", "cluster__appcode").order_by().annotate(
        every=Sum("gpus"), normal=Sum("gpus", filter=~SPARE, default=0)
    )  # fmt: skip
    rows: Any = sums.values_list("cloud", "cluster__appcode", "every", "normal")
    return {(cloud, appcode): (every, normal) for cloud, appcode, every, normal in rows}


def _parts(shares: Mapping[str, Share], asks: Mapping[str, tuple[int, int]], gpus: int) -> dict[str, Part]:
    """Pure. `asks`: GPUs for which each waits, as of `_waiting`."""
    wants = {
        code: Want(
            each.line, each.quota, each.limit, each.weight, each.used, each.held + each.borrowed + asks.get(code, (0, 0))[1]
        )
        for code, each in shares.items()
        # Only those take part in the order, too.
        if each.held or each.borrowed or each.spare or code in asks
    }  # fmt: skip
    due, lent = deserved(wants, gpus), _lent(shares, gpus)
    return {
        code: Part(
            each.quota, each.limit - each.quota, each.weight, each.held, each.borrowed, each.spare,
            lent[code], asks.get(code, (0, 0))[0], due.get(code, 0), each.used,
        )
        for code, each in shares.items()
    }  # fmt: skip


def _lent(shares: Mapping[str, Share], gpus: int) -> dict[str, int]:
    """Pure. What is held beyond quotas comes from the GPUs that belong to no quota first, then from all quotas alike, as far as
    their own runs do not use them. GPUs have no names, so nobody can tell more."""
    idle = {code: max(0, each.quota - each.held - each.spare) for code, each in shares.items()}
    beyond = sum(each.borrowed + max(0, each.spare - max(0, each.quota - each.held)) for each in shares.values())
    total = sum(idle.values())
    left = lent = min(total, max(0, beyond - max(0, gpus - sum(each.quota for each in shares.values()))))
    found = {}
    for code, most in idle.items():
        # Of what is left its part, rounded; the last gets the rest.
        found[code] = (2 * left * most + total) // (2 * total) if total else 0
        left, total = left - found[code], total - most
    assert sum(found.values()) == lent
    return found


def _lines(
    shares: Mapping[str, Share],
    parts: Mapping[str, Part],
    nodes: Mapping[str | None, OrgNode],
    seen: Collection[str] | None,
) -> tuple[list[Line], Part | None]:
    """Pure. `seen`: the lines that the reader sees, None for all."""
    of: dict[str, dict[str, Part]] = {}
    for code, part in parts.items():
        of.setdefault(shares[code].line, {})[code] = part
    lines, others = [], list[Part]()
    for name, several in of.items():
        total = sum(several.values(), Part())
        if seen is None or name in seen:
            node = nodes.get(name)
            lines.append(Line(name, (node.title or node.path) if node else "", total, dict(sorted(several.items()))))
        else:
            others.append(total)
    lines.sort(key=lambda line: (not line.title, line.title, line.name))
    return lines, sum(others, Part()) if others else None
