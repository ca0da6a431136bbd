"""Reading usage: sums by appcode, business line, cluster and run, and the segments behind them.

Callers pass appcodes that the user may see (`portal.access`). The number of queries never depends on the number of rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import islice
from typing import Literal

from django.db.models import Q, QuerySet
from django.db.models.fields.json import KT

from billing.efficiency import measured
from billing.efficiency.measured import Busy, Measured
from billing.metering.models import UsageSegment
from billing.metering.segments import AMOUNTS_CHANGED, END_CLAMPED, END_ESTIMATED, END_MISSING, START_CLAMPED, Segment
from billing.periods import Period
from billing.prices import split
from billing.prices.book import price_book
from billing.prices.rates import Prices, cost, hourly
from portal.models import Appcode, OrgNode

NOTES = {
    START_CLAMPED: "The cloud told an impossible beginning; the earliest possible one counts.",
    END_CLAMPED: "The cloud told an impossible end; the nearest possible one counts.",
    END_MISSING: "The cloud told no end; nothing after its last known time counts.",
    END_ESTIMATED: "Nobody saw the end; it is estimated.",
    AMOUNTS_CHANGED: "The amounts changed meanwhile; the last ones count.",
}
# The name for usage without a cluster; no cluster can be called so.
VOLUMES = "Volumes and buckets"
# Segments on one page; the sums of larger runs still cover all tasks.
MAX_SEGMENTS = 5000


@dataclass(frozen=True)
class Amount:
    """Usage and its current growth: GPU-seconds, money, and the pods, GPUs and hourly cost of this moment."""

    gpu_seconds: int = 0
    cost: Decimal = Decimal(0)
    pods: int = 0
    gpus: int = 0
    cost_per_hour: Decimal = Decimal(0)

    @classmethod
    def total(cls, amounts: Iterable[Amount | split.Sum]) -> Amount:
        every = list(amounts)
        return cls(
            sum(each.gpu_seconds for each in every),
            sum((each.cost for each in every), Decimal(0)),
            sum(each.pods for each in every),
            sum(each.gpus for each in every),
            sum((each.cost_per_hour for each in every), Decimal(0)),
        )


@dataclass(frozen=True)
class Usage:
    """The usage of one thing. `name` is its display name ("" if unnamed), `line` an appcode's business line."""

    name: str
    amount: Amount
    line: str = ""


@dataclass(frozen=True)
class SegmentRow:
    """One segment, or its part in a period, with its cost. `cost_per_hour` is the rate at its end, or now while it is
    `running`; `pk` is the row's id. `measured` is None if its GPUs were not measured."""

    segment: Segment
    seconds: int
    cost: Decimal
    cost_per_hour: Decimal
    running: bool
    pk: int | None = None
    measured: Measured | None = None

    @property
    def gpu_seconds(self) -> int:
        return self.seconds * self.segment.resources.gpus

    @property
    def task(self) -> str:
        """ "worker-3", as on the cluster's page."""
        labels = self.segment.labels
        return f"{labels.get('role', '')}-{labels.get('index', '')}".strip("-")

    @property
    def notes(self) -> list[str]:
        """A sentence for each mended or estimated value."""
        return [NOTES[flag] for flag in self.segment.flags]

    @property
    def marks(self) -> list[tuple[str, str]]:
        """The same for narrow places: ("end estimated", its sentence)."""
        return [(flag.replace("-", " "), NOTES[flag]) for flag in self.segment.flags]


def usage_of(consumers: Sequence[str], now: dt.datetime) -> list[SegmentRow]:
    """All segments of these consumers ("run 17") with their cost until `now`, ordered by start. 3 queries."""
    rows = UsageSegment.objects.filter(consumer__in=consumers).order_by("started", "uid")
    prices = price_book()
    priced = [_priced(row.segment, prices, now, row.pk) for row in rows]
    looked = measured.of_pods(row.segment.uid for row in priced)
    return [replace(row, measured=looked.get(row.segment.uid)) for row in priced]


def used_by_pods(uids: Iterable[str], now: dt.datetime) -> dict[str, tuple[int, Decimal]]:
    """GPU-seconds and cost of each pod until `now`; pods without usage are left out. 2 queries."""
    prices = price_book()
    rows = (_priced(row.segment, prices, now, row.pk) for row in UsageSegment.objects.filter(uid__in=list(uids)))
    return {row.segment.uid: (row.gpu_seconds, row.cost) for row in rows}


def usage_in(consumers: Sequence[str], period: Period, now: dt.datetime) -> list[SegmentRow]:
    """The parts in `period` of all their segments. 3 queries."""
    overlapping = Q(started__lt=period.until) & (Q(ended=None) | Q(ended__gt=period.since))
    return _parts(UsageSegment.objects.filter(overlapping, consumer__in=consumers), period, price_book(), now)


def segments(appcode: Appcode, cluster: str, run: str, period: Period, now: dt.datetime) -> list[SegmentRow]:
    """The parts in `period` of a run's segments, at most MAX_SEGMENTS, ordered by start. 3 queries."""
    found = _overlapping(appcode, cluster, run, period)[:MAX_SEGMENTS]
    return _parts(found, period, price_book(), now)


def every_segment(appcode: Appcode, cluster: str, run: str, period: Period, now: dt.datetime) -> Iterator[SegmentRow]:
    """The same for all segments, in portions."""
    prices, found = price_book(), _overlapping(appcode, cluster, run, period).iterator(MAX_SEGMENTS)
    while some := list(islice(found, MAX_SEGMENTS)):
        yield from _parts(some, period, prices, now)


def _overlapping(appcode: Appcode, cluster: str, run: str, period: Period) -> QuerySet[UsageSegment]:
    overlapping = Q(started__lt=period.until) & (Q(ended=None) | Q(ended__gt=period.since))
    named = UsageSegment.objects.alias(cluster=KT("labels__cluster"), run=KT("labels__run"))
    return named.filter(overlapping, appcode=appcode, cluster=cluster, run=run).order_by("started", "uid")


def _parts(rows: Iterable[UsageSegment], period: Period, prices: Prices, now: dt.datetime) -> list[SegmentRow]:
    parts = ((row.pk, row.segment.within(period.since, period.until)) for row in rows)
    priced = [_priced(part, prices, now, pk) for pk, part in parts if part]
    looked = measured.of_pods((row.segment.uid for row in priced), period.since, period.until)
    return [replace(row, measured=looked.get(row.segment.uid)) for row in priced]


def busy_of(rows: Iterable[SegmentRow]) -> Busy:
    """How busy the GPUs of these segments were."""
    every = list(rows)
    looked = (row.measured for row in every if row.measured is not None)
    return Busy(sum(looked, Measured()), sum(row.gpu_seconds for row in every))


def usage_by_appcode(appcodes: QuerySet[Appcode], period: Period, now: dt.datetime) -> list[Usage]:
    """Usage of each of `appcodes` in the period, most expensive first, without unused ones. 4 queries."""
    by_id = {str(appcode.pk): appcode for appcode in appcodes.select_related("org_node")}
    titles = dict(OrgNode.objects.exclude(namespace=None).values_list("path", "title"))
    rows = []
    for found in split.usage(
        price_book(), by=["appcode"], windows=[period.window], now=now, appcodes=list(map(int, by_id))
    ):
        appcode = by_id[found.key[0] or ""]
        line = business_line(appcode.org_node, titles)
        rows.append(Usage(appcode.code, Amount.total([found]), titles.get(line) or line))
    return sorted(rows, key=_dearest_first)


def usage_by_cluster(appcode: Appcode, period: Period, now: dt.datetime) -> list[Usage]:
    """Usage of each cluster of `appcode`, most expensive first. 2 queries. Clusters of the same name are added up, and
    so are volumes and buckets, which belong to none."""
    found = split.usage(price_book(), by=["cluster"], windows=[period.window], now=now, appcodes=[appcode.pk])
    return sorted((Usage(row.key[0] or VOLUMES, Amount.total([row])) for row in found), key=_dearest_first)


def usage_by_run(appcode: Appcode, cluster: str, period: Period, now: dt.datetime) -> list[Usage]:
    """Usage of each run of a cluster, latest first. 2 queries."""
    found = split.usage(
        price_book(), by=["run"], windows=[period.window], now=now, appcodes=[appcode.pk], cluster=cluster
    )
    rows = [Usage(row.key[0] or "", Amount.total([row])) for row in found]
    return sorted(rows, key=lambda row: (len(row.name), row.name), reverse=True)


def usage_by_role(appcode: Appcode, period: Period, now: dt.datetime) -> list[split.Sum]:
    """Usage of each role of each run, with keys (consumer, cluster, run, role). 2 queries."""
    by: list[split.Group] = ["consumer", "cluster", "run", "role"]
    return split.usage(price_book(), by=by, windows=[period.window], now=now, appcodes=[appcode.pk])


def usage_over_time(
    appcodes: QuerySet[Appcode], period: Period, now: dt.datetime, *, by: Literal["appcode", "cluster"] = "appcode"
) -> list[tuple[dt.datetime, list[Usage]]]:
    """Usage by appcode or cluster for each day (month, for a long period) that has begun. 3 queries."""
    names = dict(appcodes.order_by().values_list("pk", "code"))
    windows = [window for window in period.columns if window[0] <= now]
    columns: dict[dt.datetime, list[Usage]] = {since: [] for since, _ in windows}
    for row in split.usage(price_book(), by=[by], windows=windows, now=now, appcodes=list(names)):
        name = names[int(row.key[0] or 0)] if by == "appcode" else row.key[0] or VOLUMES
        columns[row.since].append(Usage(name, Amount.total([row])))
    return list(columns.items())


def by_business_line(rows: Iterable[Usage]) -> list[Usage]:
    """The same usage by business line, most expensive first."""
    lines: dict[str, list[Amount]] = {}
    for row in rows:
        lines.setdefault(row.line, []).append(row.amount)
    summed = [Usage(line, Amount.total(amounts)) for line, amounts in lines.items()]
    return sorted(summed, key=_dearest_first)


def business_line(node: OrgNode, lines: Container[str]) -> str:
    """The path of the nearest business line among `node` and its ancestors; "" if there is none."""
    return next((path for path in reversed(node.ancestors_and_self) if path in lines), "")


def _priced(segment: Segment, prices: Prices, now: dt.datetime, pk: int | None = None) -> SegmentRow:
    running = segment.ended is None or segment.ended > now
    at = now if running or segment.ended is None else segment.ended - dt.timedelta(seconds=1)
    per_hour = hourly(prices, at, [segment.resources], segment.appcode_id)
    return SegmentRow(segment, segment.seconds(now), cost(segment, prices, now), per_hour, running, pk)


def _dearest_first(row: Usage) -> tuple[Decimal, int, str]:
    return -row.amount.cost, -row.amount.gpu_seconds, row.name
