"""The billing box on appcode and cluster pages: a few figures of this month that add up."""

import datetime as dt
from decimal import Decimal

import pytest
from django.db import transaction

from billing.metering import record
from billing.metering.segments import PodState
from billing.models import Price
from tests.billing.dashboards.test_usage import use
from tests.clock import stop_the_clock

HOUR = dt.timedelta(hours=1)


@pytest.fixture
def used(monkeypatch, people):
    """OPS used two GPU-hours this month on two clusters, half a GPU-hour last month, and 10 GiB of a volume for two hours."""
    now = stop_the_clock(monkeypatch)
    for sku, per_hour in (("gpu", "1.5"), ("cpu", "0.25"), ("memory", "0.125"), ("storage", "0.01")):
        Price.objects.create(sku=sku, per_hour=Decimal(per_hour), valid_from=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    use(people.ops, now - 2 * HOUR, 3600, cpu_milli=2000, memory_mb=4096)
    use(people.ops, now - 2 * HOUR, 3600, cluster="show2")
    use(people.ops, now.replace(day=1, hour=0) - HOUR, 1800)
    volume = PodState(
        "volume-1", "local", people.ops.pk, "volume 1", {"volume": "data"}, "Running", storage_mb=10240,
        started_at=now - 2 * HOUR,
    )  # fmt: skip
    with transaction.atomic():
        record.record([volume])
    return now


def test_an_appcode_shows_its_month(client, people, used):
    client.force_login(people.victor)
    box = client.get("/billing/ops-demo?part=box")
    assert box.context["sums"] == {
        "gpu": Decimal(3), "cpu": Decimal("0.5"), "memory": Decimal("0.5"), "storage": Decimal("0.2"),
    }  # fmt: skip
    assert box.context["subtotal"] == Decimal("4.2")
    said = box.content.decode()
    assert all(word in said for word in ("3.00", "0.50", "0.20", "4.20", 'href="/billing/ops-demo"'))
    assert 'hx-get="/billing/ops-demo?part=box"' in client.get("/appcodes/ops-demo").content.decode()
    client.force_login(people.mallory)
    assert client.get("/billing/ops-demo?part=box").status_code == 404


def test_a_cluster_shows_its_own(client, people, used):
    client.force_login(people.bob)
    box = client.get("/billing/ops-demo/show2?part=box")
    assert (box.context["sums"]["gpu"], box.context["subtotal"]) == (Decimal("1.5"), Decimal("1.5"))
    assert 'href="/billing/ops-demo/show2"' in box.content.decode()
    client.force_login(people.mallory)
    assert client.get("/billing/ops-demo/show2?part=box").status_code == 404
