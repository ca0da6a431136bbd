"""Statistics for lists and charts: the counters of routers, and this month's cost of replicas."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import groupby

from django.db.models import Q

from billing.periods import Period, month
from billing.sums.access import usage_in
from clusters.services.models import Replica, ServiceMinute
from clusters.services.summary import Counted, Minute, Stats
from portal.pages.charts import Chart, Line, Tick, draw
from portal.pages.charts import number as plain

# The period of "the last minutes" in lists and heads.
RECENT = dt.timedelta(minutes=5)
# Lines per chart: the theme has this many colours.
MOST_LINES = 6
# For these, a minute without a row counts as 0. For others it is unknown.
SUMS = ("requests", "rows", "errors")


@dataclass(frozen=True)
class Recent:
    """Averages of the last minutes: requests and rows per second. `p99` is in milliseconds."""

    rate: float
    rows: float
    p99: float | None
    requests: int
    errors: int

    @property
    def error_percent(self) -> float:
        return 100 * self.errors / self.requests if self.requests else 0.0


def minute_of(at: dt.datetime) -> dt.datetime:
    return at.replace(second=0, microsecond=0)


def recent(services: Iterable[int], now: dt.datetime) -> dict[int, Recent]:
    """By service, without mirrored requests. One query."""
    since = minute_of(now - RECENT)
    rows = ServiceMinute.objects.filter(service__in=list(services), minute__gte=since, mirrored=False)
    found = {}
    for service, group in groupby(rows.order_by("service"), key=lambda row: row.service_id):
        counted = Counted.of(group)
        seconds = (now - since).total_seconds()
        found[service] = Recent(
            counted.requests / seconds, counted.rows / seconds, counted.p99, counted.requests, counted.errors
        )
    return found


def this_month(services: Iterable[int], now: dt.datetime) -> dict[int, Decimal]:
    """The cost of each service's replicas since the start of this month. Four queries."""
    since = month(now).since
    living = Q(run__gone=False) | Q(gone_at=None) | Q(gone_at__gte=since)
    replicas = Replica.objects.filter(living, service__in=list(services), run__isnull=False)
    of_run = {f"run {run}": service for service, run in replicas.values_list("service", "run")}
    found: dict[int, Decimal] = {}
    for row in usage_in(list(of_run), Period(since, now), now):
        service = of_run[row.segment.consumer]
        found[service] = found.get(service, Decimal(0)) + row.cost
    return found


@dataclass(frozen=True)
class Drawn:
    """A chart with a time axis in minutes, and the unit for its description."""

    chart: Chart
    unit: str


def has_lines(stats: Stats) -> bool:
    """Whether two whole minutes are counted: one alone is a dot, and no line."""
    last = minute_of(stats.until)
    return len({each.at for each in stats.minutes if each.at < last and not each.mirrored}) > 1


def charts_of(stats: Stats) -> list[Drawn]:
    """Charts of requests per second, rows per second (if requests have several), errors per minute, p50 and p99, with a
    line per revision. Leaves out the current minute, which would always look like a drop."""
    last = minute_of(stats.until)
    minutes = [each for each in stats.minutes if each.at < last and not each.mirrored]
    newest = sorted({each.revision for each in minutes}, reverse=True)
    shown = sorted(newest[:MOST_LINES])
    by_revision = {number: {each.at: each.counted for each in minutes if each.revision == number} for number in shown}
    at = [minute_of(stats.since) + n * dt.timedelta(minutes=1) for n in range(61)]
    at = [each for each in at if each < last]

    def line(number: int, label: str, value: str, per: int = 1) -> Line:
        found = by_revision[number]
        first = min(found, default=last)
        points = []
        for minute in at:
            counted = found.get(minute)
            if counted is not None:
                came = getattr(counted, value)
                points.append((_x(minute, last), came / per if came is not None else float("nan")))
            elif value in SUMS and minute > first:
                points.append((_x(minute, last), 0.0))
        points = [point for point in points if point[1] == point[1]]
        return Line(label, points, times=[last.timestamp() + 60 * x for x, _ in points])

    def named(number: int) -> str:
        return f"revision {number}"

    many = any(each.counted.rows > each.counted.requests for each in minutes)
    kinds = (
        ("Requests a second", [line(each, named(each), "requests", 60) for each in shown], ""),
        *([("Rows a second", [line(each, named(each), "rows", 60) for each in shown], "")] if many else []),
        ("Errors a minute", [line(each, named(each), "errors") for each in shown], ""),
        ("Half of the answers within, ms", [line(each, named(each), "p50") for each in shown], "ms"),
        ("99 of 100 answers within, ms", [line(each, named(each), "p99") for each in shown], "ms"),
    )
    across = (_x(minute_of(stats.since), last), 0.0)
    return [
        Drawn(_timed(draw(title, lines, x_label="minutes ago", across=across, from_zero=True, axes=["time"])), unit)
        for title, lines, unit in kinds
    ]


def _x(minute: dt.datetime, last: dt.datetime) -> float:
    return (minute - last).total_seconds() / 60


def _timed(chart: Chart) -> Chart:
    """Turns "-20" into "20": the axis counts minutes ago."""
    ticks = tuple(Tick(each.text.lstrip("-−"), each.percent) for each in chart.x_ticks)
    return replace(chart, x_ticks=ticks)


MINUTES_HEAD = (
    "minute", "revision", "copies", "requests", "errors", "refused", "rows", "p50_ms", "p95_ms", "p99_ms", "bytes_in",
    "bytes_out",
)  # fmt: skip


def table_of(minutes: Sequence[Minute]) -> list[tuple[object, ...]]:
    """The same numbers as table rows, newest first."""
    return [
        (
            f"{each.at:%Y-%m-%dT%H:%MZ}",
            each.revision,
            "yes" if each.mirrored else "no",
            each.counted.requests,
            each.counted.errors,
            each.counted.refused,
            each.counted.rows,
            *(_ms(value) for value in (each.counted.p50, each.counted.p95, each.counted.p99)),
            each.counted.bytes_in,
            each.counted.bytes_out,
        )
        for each in reversed(minutes)
    ]


def _ms(value: float | None) -> str:
    return "" if value is None else plain(value).replace(",", "")
