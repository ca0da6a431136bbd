"""A cluster whose runs have started and stored their output, and everything that creating an application needs."""

from __future__ import annotations

from typing import Any

import pytest

TRAIN = "/appcodes/ops-demo/clusters/train"
S3 = {"server": "http://127.0.0.1:9", "access_key": "A" * 20, "secret_key": "s" * 40, "bucket": "results"}


@pytest.fixture
def offers(db: None) -> None:
    from clusters.catalog.models import Flavor, Image

    Flavor.objects.create(name="tiny", title="Tiny", cpu_milli=100, memory_mb=1024)
    Flavor.objects.create(name="middle", title="Middle", cpu_milli=1000, memory_mb=2048)
    Flavor.objects.create(name="small", title="Small", cpu_milli=500, memory_mb=1024)
    Flavor.objects.create(name="middle-1-gpu", title="Middle + 1 GPU", cpu_milli=100, memory_mb=2048, gpus=1)
    Image.objects.create(name="tensorflow", title="TensorFlow", environment="/usr", container="example.com/tf:1")


@pytest.fixture
def as_bob(bob: Any, offers: None) -> Any:
    """bob's API client, and his cluster `train` in its second run; both runs store their output."""
    from django.utils import timezone

    from clusters.runs.models import Run
    from tests.api.client import api_of, manifest

    api = api_of(bob)
    store = {"metadata": {"name": "results", "appcode": "ops-demo"}, "spec": {"s3": S3}}
    assert api.post("/appcodes/ops-demo/datastores", store)[0] == 201
    assert api.post("/appcodes/ops-demo/clusters", manifest("train", output="results"))[0] == 201
    Run.objects.update(phase="Succeeded", started_at=timezone.now(), gone=True)
    assert api.post(f"{TRAIN}/deploy")[0] == 202
    Run.objects.update(started_at=timezone.now())
    return api
