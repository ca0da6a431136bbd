"""What something costs is said before it is sent: by the form, by REST, beside Re-Deploy, and where a quota is given."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from billing.models import Price
from billing.usage import floor
from clusters.models import Cluster, Run
from tests.api.client import api_of, manifest


@pytest.fixture
def prices(catalogue: Any) -> None:
    for sku, per_hour in (("gpu", "1.20"), ("gpu:A100", "3.50"), ("cpu", "0.03"), ("memory", "0.004")):
        Price.objects.create(sku=sku, per_hour=Decimal(per_hour), valid_from=floor(timezone.now()))


def test_rest_says_what_a_manifest_would_cost_and_writes_nothing(people: Any, prices: None) -> None:
    asked = manifest("show2")
    asked["spec"]["timeLimit"] = 7200
    status, answer = api_of(people.bob).post("/appcodes/ops-demo/preview", asked)
    assert status == 200
    assert (answer["fits"], answer["tasks"] > 1) == (answer["fits"], True)
    assert Decimal(answer["costPerHour"]["amount"]) > 0
    assert Decimal(answer["costLimit"]["amount"]) == 2 * Decimal(answer["costPerHour"]["amount"])
    assert not Cluster.objects.exists()
    asked["spec"]["image"] = "nothing"
    assert api_of(people.bob).post("/appcodes/ops-demo/preview", asked)[0] == 422
    assert api_of(people.victor).post("/appcodes/ops-demo/preview", manifest("show2"))[0] == 403


def test_a_cluster_says_what_its_next_run_costs(client: Client, people: Any, prices: None) -> None:
    api = api_of(people.bob)
    _, answer = api.post("/appcodes/ops-demo/preview", manifest("show2"))
    assert api.post("/appcodes/ops-demo/clusters", manifest("show2"))[0] == 201
    client.force_login(people.victor)
    said = client.get("/clusters/ops-demo/show2/cost")
    assert said.context["cost"].per_hour.quantize(Decimal("0.000001")) == Decimal(answer["costPerHour"]["amount"])
    assert "for every hour that it runs" in said.content.decode()
    assert "/clusters/ops-demo/show2/cost" in client.get("/clusters/ops-demo/show2").content.decode()
    Cluster.objects.update(spec={**Cluster.objects.get().spec, "image": "gone"})
    assert "not known" in client.get("/clusters/ops-demo/show2/cost").content.decode()
    client.force_login(people.mallory)
    assert client.get("/clusters/ops-demo/show2/cost").status_code == 404
    assert Run.objects.count() == 1


def test_a_quota_says_what_its_gpus_cost(client: Client, people: Any, prices: None) -> None:
    Price.objects.create(sku="gpu", per_hour=Decimal("1.10"), valid_from=floor(timezone.now()), appcode=people.ops)
    client.force_login(people.root)
    page = client.get("/appcodes/ops-demo")
    assert (page.context["prices"].low, page.context["prices"].high) == (Decimal("1.10"), Decimal("1.10"))
    assert "A GPU costs" in page.content.decode()
    form = client.get("/appcodes/new")
    assert (form.context["prices"].low, form.context["prices"].high) == (Decimal("1.20"), Decimal("3.50"))
    assert "A GPU costs" in form.content.decode()
    client.force_login(people.victor)
    assert client.get("/appcodes/ops-demo").context["prices"] is None
