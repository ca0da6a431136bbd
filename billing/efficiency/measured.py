"""GPU measurements, aggregated: how busy GPUs were while held, by pod and hour and by day, and the hours in which they
were idle.

A minute of a pod counts once, the first time it is reported, so measurements may be repeated, late and in any order.
Unmeasured time is not idle time: every share states how much of the held time it covers. A minute is cut to the time
for which the pod held its GPUs; measurements of pods unknown to billing are dropped.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Max, Sum
from django.utils import timezone
from psycopg2 import sql

from billing.efficiency.models import MeasuredDay, MeasuredHour, Measuring
from billing.ledger.models import COLUMNS, Group
from billing.metering.segments import Segment
from billing.money import Used
from billing.periods import Range, midnight
from billing.prices.book import price_book
from billing.prices.split import GPU_CLASS, TERMS, terms_of
from portal.db.advisory_lock import Lock, lock_until_commit

HOUR = dt.timedelta(hours=1)
# GPUs are idle in an hour if they are less than IDLE_PERCENT busy and at least IDLE_MINUTES of it were measured.
IDLE_PERCENT = 5
IDLE_MINUTES = 15
MOST_ROWS = 100
# Hours checked and deleted at a time.
PORTION = 5000


@dataclass(frozen=True)
class Use:
    """How busy one pod's GPUs were from `since` to `until`, within one hour (UTC): `busy` is the mean from 0 to 1 over
    `seconds` of that time. `memory_mb` is the peak of GPU memory in use."""

    uid: str
    since: dt.datetime
    until: dt.datetime
    seconds: float
    busy: float
    memory_mb: int | None = None

    @property
    def minutes(self) -> int:
        """A bit for each minute of the hour that it covers."""
        first, last = self.since.minute, (self.until - dt.timedelta(microseconds=1)).minute
        return ((1 << (last - first + 1)) - 1) << first

    @property
    def is_sound(self) -> bool:
        """False if the values are impossible. Measurements come from outside, so they may be anything."""
        end = self.since.replace(minute=0, second=0, microsecond=0) + HOUR
        return self.since < self.until <= end and 0 < self.seconds <= 3600 and 0 <= self.busy <= 1


@dataclass(frozen=True)
class Measured:
    """GPU-milliseconds measured, and how many of them were busy."""

    measured_ms: int = 0
    busy_ms: int = 0
    memory_mb: int | None = None

    def __add__(self, other: Measured) -> Measured:
        memory = [each for each in (self.memory_mb, other.memory_mb) if each is not None]
        return Measured(
            self.measured_ms + other.measured_ms, self.busy_ms + other.busy_ms, max(memory) if memory else None
        )

    @property
    def busy_percent(self) -> Decimal | None:
        return Decimal(self.busy_ms) * 100 / self.measured_ms if self.measured_ms else None

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_mb is None else self.memory_mb << 20

    @property
    def idle_percent(self) -> Decimal | None:
        busy = self.busy_percent
        return None if busy is None else 100 - busy

    def covered_percent(self, held_seconds: int) -> Decimal:
        """How much of the held time was measured."""
        return min(Decimal(100), Decimal(self.measured_ms) / 10 / held_seconds) if held_seconds else Decimal(0)


@dataclass(frozen=True)
class Busy:
    """How busy GPUs were, as far as measured, over `held` GPU-seconds."""

    measured: Measured
    held: int

    @property
    def idle(self) -> Decimal | None:
        return self.measured.idle_percent

    @property
    def covered(self) -> Decimal:
        return self.measured.covered_percent(self.held)


@dataclass(frozen=True)
class IdleTask:
    """One pod with hours in which its GPUs were idle."""

    appcode_id: int
    segment_id: int
    uid: str
    cluster: str
    run: str
    task: str
    gpu_model: str
    hours: int
    since: dt.datetime
    until: dt.datetime
    measured_ms: int
    busy_ms: int
    charge: Decimal

    @property
    def busy_percent(self) -> Decimal:
        return Decimal(self.busy_ms) * 100 / self.measured_ms

    @property
    def used(self) -> Used:
        return Used(self.measured_ms // 1000, self.charge)


@dataclass(frozen=True)
class Idle:
    """GPUs held idle: hours of pods and their cost, over the range and by column, and the most expensive tasks."""

    hours: int
    used: Used
    columns: dict[dt.date, tuple[int, Used]]
    tasks: list[IdleTask]


RECORD = """
WITH told AS (
    SELECT * FROM unnest(%(uid)s::text[], %(since)s::timestamptz[], %(until)s::timestamptz[], %(minutes)s::bigint[],
        %(seconds)s::float8[], %(busy)s::float8[], %(memory)s::bigint[]) t(uid, since, until, minutes, seconds, busy, memory_mb)
),
known AS MATERIALIZED (
    SELECT uid, date_trunc('hour', told.since, 'UTC') AS hour, s.appcode_id, s.gpu_model, told.minutes, measured_ms,
        least(round(measured_ms * told.busy), measured_ms)::bigint AS busy_ms, told.memory_mb,
        coalesce(line.name, '') AS business_line, coalesce(left(s.labels->>'user', 200), '') AS "user",
        coalesce(left(s.labels->>'framework', 200), '') AS framework
    FROM told JOIN billing_usagesegment s USING (uid)
    CROSS JOIN LATERAL (
        SELECT extract(epoch FROM least(s.ended, told.until) - greatest(s.started, told.since)) AS seconds
    ) held
    CROSS JOIN LATERAL (SELECT round(s.gpus * least(told.seconds, held.seconds) * 1000)::bigint AS measured_ms) length
    LEFT JOIN LATERAL (
        SELECT o.business_line AS name FROM billing_ownership o WHERE o.appcode_id = s.appcode_id
        ORDER BY CASE WHEN o.valid_from <= told.since THEN o.valid_from END DESC NULLS LAST, o.valid_from LIMIT 1
    ) line ON true
    WHERE measured_ms > 0
),
added AS (
    INSERT INTO billing_measuredhour AS held (uid, hour, appcode_id, gpu_model, minutes, measured_ms, busy_ms, memory_mb)
    SELECT uid, hour, appcode_id, gpu_model, minutes, measured_ms, busy_ms, memory_mb FROM known ORDER BY uid, hour
    ON CONFLICT (uid, hour) DO UPDATE SET minutes = held.minutes | excluded.minutes,
        measured_ms = held.measured_ms + excluded.measured_ms, busy_ms = held.busy_ms + excluded.busy_ms,
        memory_mb = greatest(held.memory_mb, excluded.memory_mb)
    WHERE held.minutes & excluded.minutes = 0
    RETURNING uid, hour
)
INSERT INTO billing_measuredday AS held
    (day, key, appcode_id, business_line, "user", framework, gpu_model, measured_ms, busy_ms)
SELECT day, billing_spending_key(appcode_id, business_line, "user", framework, gpu_model), appcode_id, business_line, "user",
    framework, gpu_model, sum(measured_ms)::bigint, sum(busy_ms)::bigint
FROM added JOIN known USING (uid, hour) CROSS JOIN LATERAL (SELECT (hour AT TIME ZONE 'UTC')::date AS day) d
GROUP BY day, appcode_id, business_line, "user", framework, gpu_model ORDER BY 1, 2
ON CONFLICT (day, key) DO UPDATE
    SET measured_ms = held.measured_ms + excluded.measured_ms, busy_ms = held.busy_ms + excluded.busy_ms
"""
# Each hour is charged at the price of its beginning.
IDLE = sql.SQL("""
WITH {terms},
idle AS MATERIALIZED (
    SELECT m.uid, m.hour, m.appcode_id, m.gpu_model, m.measured_ms, m.busy_ms, coalesce(p.payer, 0) AS payer,
        coalesce((SELECT {gpu_class} FROM billing_usagesegment s WHERE s.uid = m.uid), '') AS class
    FROM billing_measuredhour m LEFT JOIN payer p ON p.appcode_id = m.appcode_id
    WHERE m.hour >= %(first)s AND m.hour < %(last)s AND m.measured_ms > m.busy_ms * 20
        AND bit_count(m.minutes::bit(64)) >= %(least)s AND {condition}
),
priced AS (
    SELECT idle.*, measured_ms * t.rate / 1000 AS charge
    FROM idle JOIN terms t ON t.resource = 'gpu' AND t.payer = idle.payer AND t.since <= idle.hour AND t.until > idle.hour
        AND t.class = idle.class AND t.model = CASE WHEN idle.gpu_model = ANY(%(models)s) THEN idle.gpu_model ELSE '' END
)
{select}
""")
BY_DAY = sql.SQL(
    """SELECT (hour AT TIME ZONE 'UTC')::date, count(*), sum(measured_ms)::bigint, sum(charge) FROM priced GROUP BY 1"""
)
BY_TASK = sql.SQL("""
SELECT s.appcode_id, s.id, s.uid, coalesce(s.labels->>'cluster', ''), coalesce(s.labels->>'run', ''),
    concat_ws('-', s.labels->>'role', s.labels->>'index'), s.gpu_model, hours, since, until, measured_ms, busy_ms, charge
FROM (
    SELECT uid, count(*) AS hours, min(hour) AS since, max(hour) + interval '1 hour' AS until,
        sum(measured_ms)::bigint AS measured_ms, sum(busy_ms)::bigint AS busy_ms, sum(charge) AS charge
    FROM priced GROUP BY uid ORDER BY {inner}
) summed JOIN billing_usagesegment s USING (uid) {outer}
""")
DEAREST = BY_TASK.format(
    inner=sql.SQL("charge DESC, uid LIMIT %(most)s"), outer=sql.SQL("ORDER BY charge DESC, measured_ms DESC, s.id")
)
# Ordered by stable ids, for keyset pages.
LATEST = BY_TASK.format(
    inner=sql.SQL("uid"),
    outer=sql.SQL("WHERE %(before)s::bigint IS NULL OR s.id < %(before)s ORDER BY s.id DESC LIMIT %(most)s"),
)


def record(uses: Iterable[Use]) -> None:
    """Adds measurements; skips minutes already recorded and impossible values."""
    pieces: dict[tuple[dt.datetime, dt.datetime], dict[str, Use]] = {}
    for use in uses:
        if use.is_sound:
            pieces.setdefault((use.since, use.until), {}).setdefault(use.uid, use)
    for each in sorted(pieces):
        add(list(pieces[each].values()))


def add(uses: Sequence[Use]) -> None:
    """One statement. No two items may be of the same pod and hour."""
    told: dict[str, Any] = {
        "uid": [use.uid for use in uses],
        "since": [use.since for use in uses],
        "until": [use.until for use in uses],
        "minutes": [use.minutes for use in uses],
        "seconds": [use.seconds for use in uses],
        "busy": [use.busy for use in uses],
        "memory": [use.memory_mb for use in uses],
    }
    with connection.cursor() as cursor:
        cursor.execute(RECORD, told)


def position(cloud: str) -> str:
    """The position from which to read the cloud's measurements; "" for the beginning."""
    return Measuring.objects.filter(cloud=cloud).values_list("position", flat=True).first() or ""


@transaction.atomic
def save(cloud: str, position: str, uses: Iterable[Use], note: str) -> None:
    """Records what a cloud measured since its last position, together with the new position."""
    lock_until_commit(Lock.GPU_USE)
    record(uses)
    told = {"position": position, "read_at": timezone.now(), "trouble": "", "note": note[:1000]}
    Measuring.objects.update_or_create(cloud=cloud, defaults=told)


def save_trouble(cloud: str, trouble: str) -> None:
    Measuring.objects.update_or_create(cloud=cloud, defaults={"trouble": trouble[:1000]})


def forget(cloud: str) -> None:
    """Deletes the read position; measurements stay."""
    Measuring.objects.filter(cloud=cloud).delete()


def lately(uids: Collection[str], since: dt.datetime) -> list[MeasuredHour]:
    """Measurements of these pods from the hour of `since` on. One query, none without pods."""
    first = since.replace(minute=0, second=0, microsecond=0)
    return list(MeasuredHour.objects.filter(uid__in=uids, hour__gte=first)) if uids else []


def known_since(now: dt.datetime) -> dt.date:
    """The first day whose hours are all kept; older days only have their sums."""
    return (now - settings.MEASURED_MEMORY).date() + dt.timedelta(days=1)


def forgotten_before(day: dt.date, now: dt.datetime) -> dt.date | None:
    """The first day with all hours, if that is later than `day`; None if nothing since `day` was deleted."""
    known = known_since(now)
    return known if known > day else None


def forgotten_of(segment: Segment, now: dt.datetime) -> dt.date | None:
    """The same for a segment; None without GPUs."""
    return forgotten_before(segment.started.date(), now) if segment.resources.gpus else None


def forget_hours(now: dt.datetime | None = None) -> int:
    """Deletes hours older than settings.MEASURED_MEMORY, in portions, each in its own transaction; returns how many. It
    walks in the order of insertion, which needs no extra index, and stops at the first portion without an old hour. So
    an hour that was reported late is deleted at the latest when its report is that old."""
    until, removed, last = (now or timezone.now()) - settings.MEASURED_MEMORY, 0, 0
    while True:
        some = list(MeasuredHour.objects.filter(pk__gt=last).order_by("pk").values_list("pk", "hour")[:PORTION])
        old = [pk for pk, hour in some if hour + HOUR <= until]
        if not old:
            return removed
        removed += MeasuredHour.objects.filter(pk__in=old).delete()[0]
        last = some[-1][0]


def why_not(cloud: str) -> str:
    """Why a cloud measures nothing; "" if it does or was not read yet."""
    found = Measuring.objects.filter(cloud=cloud).first()
    return (found.trouble or found.note) if found else ""


def notes(*, troubles: bool) -> list[str]:
    """Why clouds measure nothing, each sentence once. `troubles` are for administrators and name the cloud."""
    told = list(Measuring.objects.order_by("cloud"))
    if troubles:
        return [f"{each.cloud}: {each.trouble or each.note}" for each in told if each.trouble or each.note]
    return sorted({each.note for each in told if each.note and not each.trouble})


def by_model(
    range_: Range, *, appcodes: Sequence[int] | None = None, where: Mapping[Group, str] | None = None
) -> dict[dt.date, dict[str, Measured]]:
    """What was measured, by column and GPU model. One query."""
    rows = MeasuredDay.objects.filter(day__gte=range_.since, day__lt=range_.until)
    if appcodes is not None:
        rows = rows.filter(appcode__in=list(appcodes))
    for group, value in (where or {}).items():
        rows = rows.filter(**{COLUMNS[group]: value})
    columns: dict[dt.date, dict[str, Measured]] = {since: {} for since, _ in range_.columns}
    found = rows.order_by().values_list("day", "gpu_model").annotate(Sum("measured_ms"), Sum("busy_ms"))
    for day, model, measured, busy in found:
        column = columns[range_.place(day)]
        column[model] = column.get(model, Measured()) + Measured(int(measured), int(busy))
    return columns


def busy(
    used: Mapping[dt.date, Mapping[str, Used]],
    looked: Mapping[dt.date, Mapping[str, Measured]],
    columns: Iterable[dt.date],
    model: str | None,
) -> Busy:
    """How busy GPUs were over these columns, for one model or all."""
    total, held = Measured(), 0
    for since in columns:
        total = sum((each for name, each in looked[since].items() if model in (None, name)), total)
        held += sum(each.gpu_seconds for name, each in used[since].items() if model in (None, name))
    return Busy(total, held)


def of_pods(
    uids: Iterable[str], since: dt.datetime | None = None, until: dt.datetime | None = None
) -> dict[str, Measured]:
    """What was measured of each pod in the hours from `since` to `until`, or ever. One query."""
    rows = MeasuredHour.objects.filter(uid__in=set(uids)).order_by().values_list("uid")
    if since is not None and until is not None:
        rows = rows.filter(hour__gte=since, hour__lt=until)
    found = rows.annotate(Sum("measured_ms"), Sum("busy_ms"), Max("memory_mb"))
    return {uid: Measured(int(measured), int(busy), memory) for uid, measured, busy, memory in found}


def idle(range_: Range, *, appcodes: Sequence[int] | None = None) -> Idle:
    """GPUs held idle in the range. Two queries and those of the price book."""
    columns = {since: (0, Used()) for since, _ in range_.columns}
    parameters = _wanted(range_, appcodes)
    with connection.cursor() as cursor:
        cursor.execute(_idle(BY_DAY, appcodes), parameters)
        for day, hours, measured_ms, charge in cursor.fetchall():
            place = range_.place(day)
            columns[place] = columns[place][0] + hours, columns[place][1] + Used(measured_ms // 1000, charge)
        cursor.execute(_idle(DEAREST, appcodes), {**parameters, "most": MOST_ROWS})
        tasks = [IdleTask(*row) for row in cursor.fetchall()]
    hours = sum(count for count, _ in columns.values())
    return Idle(hours, sum((used for _, used in columns.values()), Used()), columns, tasks)


def idle_tasks(range_: Range, *, appcodes: Sequence[int] | None = None) -> Iterator[IdleTask]:
    """All tasks whose GPUs were idle in the range, most expensive first, in constant memory."""
    with connection.chunked_cursor() as cursor:
        cursor.execute(_idle(DEAREST, appcodes), {**_wanted(range_, appcodes), "most": None})
        while rows := cursor.fetchmany(PORTION):
            yield from (IdleTask(*row) for row in rows)


def idle_tasks_before(
    range_: Range, before: int | None, most: int, *, appcodes: Sequence[int] | None = None
) -> list[IdleTask]:
    """Idle tasks of segments with ids below `before`, latest first."""
    with connection.cursor() as cursor:
        cursor.execute(_idle(LATEST, appcodes), {**_wanted(range_, appcodes), "before": before, "most": most})
        return [IdleTask(*row) for row in cursor.fetchall()]


def _idle(select: sql.Composable, appcodes: Sequence[int] | None) -> Any:
    condition = sql.SQL("true" if appcodes is None else "m.appcode_id = ANY(%(appcodes)s)")
    return IDLE.format(terms=TERMS, gpu_class=GPU_CLASS, condition=condition, select=select)


def _wanted(range_: Range, appcodes: Sequence[int] | None) -> dict[str, Any]:
    return {
        "first": midnight(range_.since), "last": midnight(range_.until), "least": IDLE_MINUTES,
        "appcodes": None if appcodes is None else list(appcodes), **terms_of(price_book()),
    }  # fmt: skip
