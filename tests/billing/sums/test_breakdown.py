"""The parts of a cost, SKU × seconds × price, equal segments and ledger to the second and the last digit."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from fractions import Fraction

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from billing import periods
from billing.ledger import posting
from billing.models import Discount, LedgerEntry, Ownership, Price, UsageSegment
from billing.money import UNIT, unit_seconds
from billing.prices.rates import quantities
from billing.sums import access, breakdown, over_time
from billing.templatetags.billing import decimals
from portal.models import Appcode
from portal.templatetags.portal import gpu_hours
from tests.billing.dashboards.test_usage import HOUR, LAST, MONTH, of, use


@pytest.fixture
def used(people):
    """Usage across a price change, a discount and the end of a month, at two prices of one SKU, and a pod that still runs."""
    for sku, per_hour in (
        ("gpu", "1.23"),
        ("gpu:A100", "3.3333"),
        ("spare-gpu", "0.7"),
        ("cpu", "0.031"),
        ("memory", "0.0047"),
        ("storage", "0.0001"),
    ):
        Price.objects.create(sku=sku, per_hour=Decimal(per_hour), valid_from=LAST.since)
    Price.objects.create(sku="gpu", per_hour=Decimal("1.5"), valid_from=MONTH.since + dt.timedelta(seconds=777))
    Discount.objects.create(
        sku="*", percent=Decimal("7.5"), valid_from=MONTH.since + dt.timedelta(hours=2), appcode=people.ops
    )
    held = {"cpu_milli": 1500, "memory_mb": 2049, "storage_mb": 33}
    use(people.ops, MONTH.since - dt.timedelta(seconds=99), 3 * HOUR + 1, **held)
    use(people.ops, MONTH.since, 1234, cluster="edge", run=2, gpus=3, gpu_model="A100", **held)
    use(people.ops, MONTH.since, 55, cluster="edge", run=2, role="ps", gpus=2, gpu_model="A100", kind="spare", **held)
    use(people.flight, MONTH.since, HOUR, cluster="wing")
    use(
        people.ops,
        timezone.now().replace(microsecond=0) - dt.timedelta(seconds=50),
        None,
        cluster="now",
        run=3,
        index=1,
    )
    return people


def test_parts_are_what_the_segments_say(used):
    now = timezone.now().replace(microsecond=0) + dt.timedelta(seconds=5)
    windows = {"all": (breakdown.BEGINNING, breakdown.END), "month": MONTH.window}
    for window in windows.values():
        for filters in ({}, {"appcodes": [used.ops.pk]}, {"appcodes": [used.ops.pk], "cluster": "edge", "run": "2"}):
            expected: Counter[str] = Counter()
            rows = UsageSegment.objects.all()
            rows = rows.filter(appcode__in=filters["appcodes"]) if "appcodes" in filters else rows
            rows = rows.filter(labels__cluster="edge") if "cluster" in filters else rows
            for row in rows:
                part = row.segment.within(*window)
                if part:
                    for sku, amount in quantities(part.resources).items():
                        expected[sku] += amount * part.seconds(now)
            found = Counter()
            for part in breakdown.parts(now, window=window, **filters):
                found[part.sku] += part.quantity
            assert found == expected


def test_parts_add_up_to_every_page_and_to_the_ledger(used, client):
    now = timezone.now().replace(microsecond=0)
    parts = breakdown.parts(now, window=MONTH.window, appcodes=[used.ops.pk])
    assert {(part.sku, str(part.per_hour), str(part.discount)) for part in parts if "gpu" in part.sku} == {
        ("spare-gpu:A100", "0.700000", "0"),
        ("gpu", "1.230000", "0"), ("gpu", "1.500000", "0"), ("gpu", "1.500000", "7.50"), ("gpu:A100", "3.333300", "0"),
    }  # fmt: skip
    whole = sum((part.charge for part in parts), Decimal(0))
    for part in parts:
        units = {"cpu": 1000, "memory": 1024, "storage": 1024}.get(part.sku, 1)
        price = Fraction(part.per_hour) * (100 - Fraction(part.discount)) / 100
        assert Fraction(part.charge) / UNIT == Fraction(part.quantity, units * 3600) * price
    (shown,) = access.usage_by_appcode(Appcode.objects.filter(pk=used.ops.pk), MONTH, now)
    assert shown.amount.cost == breakdown.money(whole)
    posting.post(now)
    in_month = LedgerEntry.objects.filter(appcode=used.ops, since__gte=MONTH.since, since__lt=MONTH.until)
    assert sum(line.charge for line in in_month) == whole
    assert sum(line.quantity for line in in_month.filter(sku="gpu")) == sum(p.quantity for p in parts if p.sku == "gpu")
    client.force_login(used.alice)
    for path in ("/billing", "/billing/ops-demo", "/billing/ops-demo/edge", "/billing/ops-demo/edge/2"):
        answer = client.get(path, of(MONTH))
        assert b"Breakdown" in answer.content
        assert answer.context["makeup"]
        total = sum(part.cost for part in answer.context["makeup"])
        cost = answer.context["cost"] if "segments" in answer.context else answer.context["total"].cost
        assert abs(total - cost) < Decimal("1e-15")
    api = APIClient()
    api.force_authenticate(used.alice)
    document = api.get("/api/v1/appcodes/ops-demo/usage", of(MONTH)).json()
    assert [(row["sku"], row["unitSeconds"]) for row in document["parts"]] == [
        (part.sku, part.quantity) for part in parts
    ]


@pytest.mark.parametrize(
    ("sku", "quantity", "words"),
    [
        ("gpu:A100", 31_065_195, "31,065,195 GPU-seconds"), ("cpu", 1_500, "1.5 core-seconds"),
        ("memory", 10_240, "10 GiB-seconds"), ("storage", -1024, "-1 GiB-seconds"),
    ],
)  # fmt: skip
def test_a_quantity_names_its_good(sku, quantity, words):
    assert unit_seconds(sku, quantity) == words


def test_hours_that_round_to_nothing_are_said_alike_in_sums_and_parts():
    for seconds, shown in ((0, "0.00"), (9, "< 0.01"), (30, "0.01")):
        assert gpu_hours(seconds) == decimals(Decimal(seconds) / 3600, 2) == shown


def test_what_runs_grows_by_the_second(used):
    now = timezone.now().replace(microsecond=0)
    before, after = (breakdown.parts(now + dt.timedelta(seconds=s), cluster="now") for s in (0, 7))
    (one,), (other,) = before, after
    assert (other.quantity - one.quantity, one.held) == (7, 1)


def test_parts_of_a_business_line_are_of_the_time_in_which_an_appcode_was_its_own(used, client):
    """As in the dashboard and the ledger, usage before a move stays with the previous business line."""
    now = timezone.now().replace(microsecond=0)
    old = used.ops.org_node.path
    Ownership.objects.create(
        appcode=used.ops, business_line="elsewhere", valid_from=MONTH.since + dt.timedelta(seconds=400)
    )
    whole = breakdown.parts(now, window=MONTH.window)
    lines = {
        line: breakdown.parts(now, window=MONTH.window, line=line)
        for line in (old, "elsewhere", used.flight.org_node.path)
    }
    assert all(lines.values())
    assert sum(part.charge for part in whole) == sum(part.charge for parts in lines.values() for part in parts)
    posting.post(now)
    for line, parts in lines.items():
        used_there = over_time.read(
            periods.parse_days(f"{MONTH.since:%F}", f"{MONTH.until - dt.timedelta(days=1):%F}", "day", now.date()), "line", now,
            appcodes=None, where={"line": line},
        ).total  # fmt: skip
        assert used_there.charge == sum(part.charge for part in parts)
    client.force_login(used.root)
    days = {"from": f"{MONTH.since:%F}", "to": f"{MONTH.until - dt.timedelta(days=1):%F}"}
    answer = client.get("/dashboard", {**days, "line": "elsewhere"})
    assert b"Breakdown" in answer.content
    api = APIClient()
    api.force_authenticate(used.root)
    document = api.get("/api/v1/dashboard/spending", {**days, "line": "elsewhere"}).json()
    assert [(row["sku"], row["unitSeconds"]) for row in document["parts"]] == [
        (part.sku, part.quantity) for part in lines["elsewhere"]
    ]
    assert api.get("/api/v1/dashboard/spending", days).json()["parts"] is None
