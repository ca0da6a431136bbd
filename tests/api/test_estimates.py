"""Costs are shown before anything is submitted: in the form, over REST, beside Re-Deploy, and where a quota is given."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from billing.metering.segments import floor
from billing.models import Price
from clusters.catalog.models import Flavor
from clusters.clouds.models import CloudState
from clusters.runs.models import Cluster, Run
from datastores.models import Datastore
from tests.api.client import api_of, manifest

BUCKET = {
    "server": "https://s3.example.com",
    "bucket": "results",
    "prefix": "",
    "access_key": "k",
    "region": "us-east-1",
}


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
    assert "per hour" in said.content.decode()
    assert "/clusters/ops-demo/show2/cost" in client.get("/clusters/ops-demo/show2").content.decode()
    Cluster.objects.update(spec={**Cluster.objects.get().spec, "image": "gone"})
    assert "not known" in client.get("/clusters/ops-demo/show2/cost").content.decode()
    client.force_login(people.mallory)
    assert client.get("/clusters/ops-demo/show2/cost").status_code == 404
    assert Run.objects.count() == 1


@pytest.fixture
def two_models(prices: None) -> None:
    """The cloud has GPUs of two models, at 3.50 and 1.20, and a machine without GPUs."""
    have(("a", "A100", 4), ("b", "T4", 4), ("c", "", 0))


def have(*machines: tuple[str, str, int]) -> None:
    nodes = [
        {"name": name, "gpu_model": model, "gpus": gpus, "gpus_free": gpus, "cpu_milli": 64000, "memory_mb": 64000}
        for name, model, gpus in machines
    ]
    CloudState.objects.update_or_create(name="local", defaults={"capacity": {"nodes": nodes, "queue": []}})


def test_what_copies_data_beside_tasks_takes_room_and_costs_nothing(people: Any, prices: None) -> None:
    """On Kubernetes the copier is a container of the same pod: two tasks of one core do not fit a node with two cores.
    While the cloud is silent, the estimate cannot know what would start now."""
    from clusters.clouds.models import Cloud

    Cloud.objects.create(name="training", kind="kubernetes", title="Training", is_default=True)
    Flavor.objects.filter(name="middle").update(cpu_milli=1000, memory_mb=1024, gpus=0)
    Datastore.objects.create(appcode=people.ops, name="results", kind="s3", spec=BUCKET, secret="x")
    node = {"name": "a", "gpu_model": "", "gpus": 0, "gpus_free": 0, "cpu_milli": 2000, "memory_mb": 8000}
    state = CloudState.objects.create(name="training", capacity={"nodes": [node]}, heard_at=timezone.now())
    roles = {"master": {"flavor": "middle"}, "worker": {"flavor": "middle", "count": 1}}
    api = api_of(people.bob)

    def preview(**more: Any) -> Any:
        status, answer = api.post("/appcodes/ops-demo/preview", manifest("show2", roles=roles, **more))
        assert status == 200, answer
        return answer

    bare, stored = preview(), preview(output="results")
    assert [(each["fits"], each["code"]) for each in (bare, stored)] == [("now", "Fits"), ("never", "OverPool")]
    assert stored["message"] == (
        "It needs 2.2 CPUs at one time; all machines together have 2 CPUs for tasks. Choose fewer tasks or a smaller flavor. "
        "That counts what copies and stores data or lets people in beside each task."
    )
    assert stored["costPerHour"] == bare["costPerHour"]
    # If submitted anyway, the queue shows the same verdict.
    assert api.post("/appcodes/ops-demo/clusters", manifest("queued", roles=roles, output="results"))[0] == 201
    Run.objects.update(admitted_at=timezone.now())
    (waits,) = next(each for each in api.get("/queue")[1]["items"] if each["cloud"] == "training")["waiting"]
    assert waits["message"].startswith("It needs 2.2 CPUs at one time; all machines together have 2 CPUs")
    # It can never start, so no room is kept for it. If its cloud is placing its tasks already, the next run does not fit beside
    # them; once it ends, it does.
    assert preview()["fits"] == "now"
    Run.objects.update(applied_at=timezone.now())
    assert (preview()["fits"], preview()["code"]) == ("waits", "Resources")
    Run.objects.update(desired="ended")
    assert preview()["fits"] == "now"
    state.heard_at = timezone.now() - dt.timedelta(seconds=30)
    state.save()
    silent = preview()
    assert (silent["fits"], silent["code"]) == ("waits", "Unreachable")
    assert silent["message"].startswith("The controller has told nothing of Training for 30 s;")


def test_what_takes_any_gpu_costs_what_it_gets(client: Client, people: Any, two_models: None) -> None:
    """Three tasks with one GPU of any model each: the bill uses the model of the machine."""
    asked = manifest("show2")
    asked["spec"]["timeLimit"] = 7200
    _, answer = api_of(people.bob).post("/appcodes/ops-demo/preview", asked)
    low, high = (Decimal(answer[name]["amount"]) for name in ("costPerHourLow", "costPerHour"))
    assert high - low == 3 * (Decimal("3.50") - Decimal("1.20"))
    assert Decimal(answer["costLimit"]["amount"]) == 2 * high
    assert api_of(people.bob).post("/appcodes/ops-demo/clusters", asked)[0] == 201
    client.force_login(people.bob)
    said = client.get("/clusters/ops-demo/show2/cost").content.decode()
    assert f"{low:.2f}" in said
    assert f"{high:.2f}" in said


def test_only_models_that_a_task_can_get_count(people: Any, two_models: None) -> None:
    Flavor.objects.filter(name="middle-1-gpu").update(gpus=2)

    def spread() -> Decimal:
        _, answer = api_of(people.bob).post("/appcodes/ops-demo/preview", manifest("show2"))
        return Decimal(answer["costPerHour"]["amount"]) - Decimal(answer["costPerHourLow"]["amount"])

    each = 3 * 2 * (Decimal("3.50") - Decimal("1.20"))
    assert spread() == each
    have(("a", "A100", 1), ("b", "T4", 4))
    assert spread() == 0
    # With unknown capacity, either price may apply.
    have()
    assert spread() == each


def test_a_price_that_changes_before_the_time_limit_counts(people: Any, two_models: None) -> None:
    asked = manifest("show2")
    asked["spec"]["timeLimit"] = 7200
    api = api_of(people.bob)
    _, before = api.post("/appcodes/ops-demo/preview", asked)
    later = floor(timezone.now()) + dt.timedelta(hours=1)
    Price.objects.create(sku="gpu:T4", per_hour=Decimal(100), valid_from=later)
    _, after = api.post("/appcodes/ops-demo/preview", asked)
    assert after["costPerHour"] == before["costPerHour"]
    # Just under an hour at the current price and the rest at the later one, on the model that costs most in total.
    grown = Decimal(after["costLimit"]["amount"]) - Decimal(before["costLimit"]["amount"])
    whole = 3 * (Decimal("1.20") + 100 - 2 * Decimal("3.50"))
    assert whole <= grown < whole + 3 * 100 * Decimal(60) / 3600


def test_an_import_is_estimated_before_it_is_made(client: Client, people: Any, two_models: None) -> None:
    both = [manifest("show2"), manifest("show3")]
    _, one = api_of(people.bob).post("/appcodes/ops-demo/preview", both[0])
    client.force_login(people.bob)
    file = SimpleUploadedFile("both.json", json.dumps(both).encode())
    page = client.post("/clusters/import", {"file": file, "check": "1"})
    assert not Cluster.objects.exists()
    assert page.context["together"].per_hour.quantize(Decimal("0.000001")) == 2 * Decimal(one["costPerHour"]["amount"])
    said = page.content.decode()
    assert said.count('data-label="Per hour"') == 3
    # The imported file is in the form, ready to be submitted.
    assert json.loads(page.context["form"].initial["manifest"]) == both
    both[1]["spec"]["image"] = "nothing"
    wrong = client.post("/clusters/import", {"manifest": json.dumps(both), "check": "1"}).content.decode()
    assert "manifest 2.spec.image" in wrong
    client.force_login(people.victor)
    assert (
        "You need to be developer"
        in client.post("/clusters/import", {"manifest": json.dumps(both[0]), "check": "1"}).content.decode()
    )


def test_a_quota_says_what_its_gpus_cost(client: Client, people: Any, prices: None) -> None:
    Price.objects.create(sku="gpu", per_hour=Decimal("1.10"), valid_from=floor(timezone.now()), appcode=people.ops)
    client.force_login(people.root)
    page = client.get("/appcodes/ops-demo/request")
    assert (page.context["prices"].low, page.context["prices"].high) == (Decimal("1.10"), Decimal("1.10"))
    assert "A GPU costs" in page.content.decode()
    form = client.get("/appcodes/new")
    assert (form.context["prices"].low, form.context["prices"].high) == (Decimal("1.20"), Decimal("3.50"))
    assert "A GPU costs" in form.content.decode()
    client.force_login(people.victor)
    assert client.get("/appcodes/ops-demo/request").status_code == 403
