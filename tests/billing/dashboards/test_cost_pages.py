"""Cost pages in a browser: the layout fits, every control has a label, and live parts load."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from billing.invoices import closing
from billing.ledger import posting
from billing.models import Closing, Price
from clusters.catalog.models import Flavor, Image
from clusters.cluster.actions import create_cluster
from clusters.manifest.cluster import ClusterManifest
from datastores import extension_points
from portal.extension_points import ExtensionPoint
from tests.billing.dashboards.test_usage import HOUR, LAST, MONTH, of, use
from tests.browser import SOON, assert_fits, chromium, give_session


@pytest.fixture
def spent(transactional_db, people: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Creates a closed month and a cluster."""
    monkeypatch.setattr(extension_points, "judges", ExtensionPoint())
    for sku, per_hour in (
        ("gpu", "1.2"),
        ("gpu:A100", "3.5"),
        ("cpu", "0.03"),
        ("memory", "0.004"),
        ("storage", "0.0001"),
    ):
        Price.objects.create(sku=sku, per_hour=Decimal(per_hour), valid_from=LAST.since)
    use(people.ops, MONTH.since, 5 * HOUR, cluster="demo", run=1, gpu_model="A100", cpu_milli=4000, memory_mb=16384)
    use(people.ops, MONTH.since, 9 * HOUR, cluster="demo", run=1, role="ps", gpus=0, cpu_milli=1000, storage_mb=20480)
    posting.post()
    closing.plan(timezone.now())
    closing.close(Closing.objects.get(month=MONTH.since.date()), timezone.now())
    Flavor.objects.create(name="small", title="Small", cpu_milli=500, memory_mb=512, gpus=1)
    Image.objects.create(name="tensorflow", title="TensorFlow", environment="/usr")
    spec = {"image": "tensorflow", "command": "true", "roles": {"master": {"flavor": "small"}}, "timeLimit": 7200}
    body = {"metadata": {"name": "demo", "appcode": "ops-demo"}, "spec": spec}
    create_cluster(ClusterManifest.model_validate(body), acting_user=people.alice)
    return people


def test_pages_fit_and_their_live_parts_come(live_server: Any, spent: Any) -> None:
    days = "&".join(f"{name}={value}" for name, value in of(MONTH).items())
    pages = {
        "invoices": ("/invoices", "FOCUS"),
        "appcode": (f"/billing/ops-demo?{days}", "Breakdown"),
        "run": (f"/billing/ops-demo/demo/1?{days}", "Breakdown"),
        "cluster": ("/clusters/ops-demo/demo", "per hour, at most"),
        "deploy": ("/clusters/ops-demo/demo/deploy", "per hour, at most"),
        "volume": ("/datastores/new?kind=volume", "in a month of 730 hours"),
        "request": ("/appcodes/new", "A GPU costs"),
        "quota": ("/appcodes/ops-demo/request", "A GPU costs"),
    }
    complaints: list[str] = []
    with chromium() as browser:
        page = browser.new_page(base_url=live_server.url)
        page.set_default_timeout(SOON)
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        give_session(page.context, live_server.url, "root")
        for name, (address, sentence) in pages.items():
            page.goto(address)
            if name == "volume":
                page.select_option("[name=appcode]", "ops-demo")
                page.fill("[name=size]", "20Gi")
                page.locator("#volume-cost").get_by_text(sentence).wait_for()
            page.get_by_text(sentence).first.wait_for()
            assert_fits(page, name)
    # htmx reports a live request that navigation aborts.
    assert [said for said in complaints if not said.startswith(("htmx:afterRequest", "htmx:sendAbort"))] == []
