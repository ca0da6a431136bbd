"""The GPU-second counter always equals the ledger, and reading it costs the same after years."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone
from psycopg2 import sql

from billing import periods
from billing.ledger import posting
from billing.metering import record
from billing.metering.segments import PodState, floor
from billing.models import GpuCounter, GpuTotal, LedgerEntry, MonthlySpending, MonthlyUsage, Ownership
from billing.sums import metrics
from portal.models import Appcode

pytestmark = pytest.mark.django_db

NOW = floor(timezone.now())
HOUR = dt.timedelta(hours=1)


def tell(appcode: Appcode, uid: str, begin: dt.datetime, end: dt.datetime | None, **facts: object) -> None:
    labels = {"cluster": "show1", "run": "1", "role": "worker", "index": "0", "user": "bob", "framework": "tensorflow"}
    labels |= {"class": str(facts.pop("kind"))} if "kind" in facts else {}
    held = {"gpus": 2, "gpu_model": "A100", "phase": "Running" if end is None else "Succeeded"} | facts
    with transaction.atomic():
        record.record([PodState(uid, "local", appcode.pk, "run 1", labels, started_at=begin, finished_at=end, **held)])


def months_back(count: int) -> list[dt.datetime]:
    found = [periods.month(NOW)]
    for _ in range(count):
        found.append(periods.month_before(found[-1]))
    return [each.since for each in found[:0:-1]]


def told(now: dt.datetime = NOW) -> dict[tuple[str, ...], float]:
    return {tuple(each.labels.values()): each.value for each in metrics.gpu_seconds(now).samples}


def of_ledger() -> dict[tuple[str, ...], int]:
    """Returns GPU-seconds per series from the ledger entries alone."""
    codes = dict(Appcode.objects.values_list("pk", "code"))
    found: Counter[tuple[str, ...]] = Counter()
    for line in LedgerEntry.objects.filter(sku__contains="gpu"):
        found[codes[line.appcode_id], line.business_line, line.sku.partition(":")[2]] += line.quantity
    return dict(+found)


def of_totals() -> dict[tuple[str, ...], int]:
    rows = GpuTotal.objects.exclude(gpu_seconds=0).values_list(
        "appcode__code", "business_line", "gpu_model", "gpu_seconds"
    )
    return {tuple(names): seconds for *names, seconds in rows}


def test_totals_are_the_ledgers_whatever_happens_to_it(people):
    first, *_, last = months_back(4)
    for n, since in enumerate(months_back(4)):
        tell(people.ops, f"a-{n}", since + HOUR, since + 5 * HOUR, **({"kind": "spare"} if n % 2 else {}))
        tell(people.ops, f"b-{n}", since, since + 2 * HOUR, gpu_model=f"M{n % 2}", gpus=1, cpu_milli=500)
        tell(people.flight, f"c-{n}", since, since + HOUR, gpus=0, cpu_milli=500)
    posting.post(NOW)
    assert told() == of_ledger() == of_totals() != {}
    # Late usage of an old month, which adds some and removes some.
    tell(people.flight, "late", first, first + HOUR, gpu_model="")
    posting.post(NOW)
    assert told() == of_ledger() == of_totals()
    tell(people.ops, "a-3", last + HOUR, last + 9 * HOUR)
    posting.post(NOW)
    assert told() == of_ledger() == of_totals()
    before = told()
    MonthlyUsage.objects.filter(appcode=people.ops).update(gpu_seconds=7)
    assert of_totals() != of_ledger()
    posting.rebuild_sums()
    assert told() == of_ledger() == of_totals() == before
    GpuCounter.objects.all().delete()
    assert told() == before, "it follows from the totals alone"
    # A late ownership change: another business line owned it from the second month on.
    Ownership.objects.create(appcode=people.ops, business_line="qunarcorp.else", valid_from=months_back(3)[0])
    posting.post(NOW)
    assert of_ledger() == of_totals()
    assert {line for _, line, _ in of_totals()} == {"qunarcorp.ops", "qunarcorp.else", "qunarcorp.flight"}
    assert told() == {series: max(seconds, before.get(series, 0)) for series, seconds in of_ledger().items()}
    MonthlyUsage.objects.all().delete()
    assert of_totals() == {}


def test_what_was_told_stands_until_a_correction_is_caught_up_with(people):
    (since,) = months_back(1)
    series = ("ops-demo", "qunarcorp.ops", "A100")
    tell(people.ops, "p-1", since, since + 5 * HOUR, estimated=True)
    posting.post(NOW)
    assert told() == of_ledger() == {series: 2 * 5 * 3600}
    # The true end replaces the estimate, so some usage is reversed.
    tell(people.ops, "p-1", since, since + 3 * HOUR)
    posting.post(NOW)
    assert of_ledger() == of_totals() == {series: 2 * 3 * 3600}
    assert told() == {series: 2 * 5 * 3600}
    tell(people.ops, "p-2", since, since + 3 * HOUR)
    posting.post(NOW)
    assert told() == of_ledger() == of_totals() == {series: 2 * 6 * 3600}


def test_what_runs_over_the_end_of_a_month_counts_once(people):
    since = months_back(2)[0]
    tell(people.ops, "p-1", since, None)
    for now in (since + HOUR, periods.month(since).until, periods.month(since).until + HOUR, NOW):
        before = told(now)
        posting.post(now)
        assert told(now) == before
        assert list(before.values()) == [2 * (now - since).total_seconds()]
    assert of_ledger() == of_totals() != {}


def rows_read() -> int:
    """Returns the number of rows that all steps of the query plan read."""

    def of(plan: dict[str, Any]) -> float:
        return plan["Actual Rows"] * plan["Actual Loops"] + sum(map(of, plan.get("Plans", [])))

    with connection.cursor() as cursor:
        statement = sql.SQL("EXPLAIN (ANALYZE, FORMAT JSON) {}").format(metrics.COUNTED)
        cursor.execute(statement, {"now": NOW, "most": metrics.MAX_APPCODES, "others": metrics.OTHERS})
        ((found,),) = cursor.fetchall()
    return round(of(found[0]["Plan"]))


def test_it_costs_the_same_after_years(people):
    def live_for(months: int) -> int:
        for n, since in enumerate(months_back(months)):
            tell(people.ops, f"p-{months}-{n}", since, since + HOUR)
        posting.post(NOW)
        told()
        return rows_read()

    few = live_for(2)
    assert live_for(36) == few > 0
    assert MonthlySpending.objects.count() == 36
